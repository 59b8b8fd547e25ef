from collections.abc import Iterable

import h5py
import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import episode_file_name
from tests.fakes_environment import ScriptedEnvironment, episodes
from tests.policy.playing import play


def recording(directory, name="dataset_push.hdf5", indices: Iterable[int] = range(6), length=3, seed=7, **attributes):
    directory.mkdir(exist_ok=True)
    parts = []
    for index in indices:
        actions = np.full((length, 3), index, np.float32) + np.arange(length, dtype=np.float32)[:, None] / 10
        episode = RecordedEpisode(
            episode_index=index, arrays={"actions": actions}, attributes={"seed": seed, **attributes}, env_args={}
        )
        parts.append(directory / episode_file_name(index))
        write_episode(parts[-1], episode)
    consolidate(parts, directory / name)
    return directory / name


def replay(path, **options):
    return resolve_policy_class("replay").from_dict({"replay_file_path": str(path), **options})


def test_each_episode_plays_the_recorded_one_of_its_index(tmp_path):
    policy = replay(recording(tmp_path))
    assert policy.num_episodes() == 6
    actions, _ = play(policy, 6)
    expected = {index: torch.tensor([[index + step / 10] * 3 for step in range(3)]) for index in range(6)}
    assert all(torch.allclose(actions[index], expected[index]) for index in range(6))


@pytest.mark.parametrize(("length", "ends"), [(2, {"policy_finished"}), (50, {"time_limit"})])
def test_an_episode_ends_with_the_recording_or_before_it_as_the_environment_says(tmp_path, length, ends):
    _, records = play(replay(recording(tmp_path, length=length)), 6)
    assert {record.termination for record in records} == ends
    assert length == 50 or {record.length for record in records} == {2}


@pytest.mark.parametrize(
    ("attributes", "control_hz"), [({"control_dt": 0.05}, 20.0), ({}, None), ({"control_dt": 0.0}, None)]
)
def test_the_rate_of_the_recorded_actions_is_told_where_the_recording_has_one(tmp_path, attributes, control_hz):
    told = replay(recording(tmp_path, **attributes)).connections(ScriptedEnvironment(num_envs=1))
    assert told is not None
    assert told.control_hz == control_hz


def test_one_named_episode_is_played_in_every_episode(tmp_path):
    policy = replay(recording(tmp_path), episode_name="demo_3")
    assert policy.num_episodes() == 1
    actions, _ = play(policy, 5)
    assert [float(action[0, 0]) for action in actions.values()] == [3] * 5


@pytest.mark.parametrize("pattern", ["", "*.hdf5", "dataset_push_rank?.hdf5"])
def test_recordings_of_several_ranks_are_one(tmp_path, pattern):
    recording(tmp_path / "out", "dataset_push_rank0.hdf5", [0, 2])
    recording(tmp_path / "out", "dataset_push_rank1.hdf5", [1, 3])
    actions, _ = play(replay(tmp_path / "out" / pattern), 4)
    assert {index: int(action[0, 0]) for index, action in actions.items()} == {0: 0, 1: 1, 2: 2, 3: 3}


def test_episodes_that_are_not_consolidated_yet_are_found(tmp_path):
    (tmp_path / "episodes").mkdir()
    episode = RecordedEpisode(
        episode_index=0, arrays={"actions": np.ones((2, 3), np.float32)}, attributes={}, env_args={}
    )
    write_episode(tmp_path / "episodes" / "e000000.h5", episode)
    assert replay(tmp_path).num_episodes() == 1


def test_a_missing_episode_is_told_with_those_that_exist(tmp_path):
    policy = replay(recording(tmp_path, indices=[0, 1, 2, 5]))
    with pytest.raises(PolicyError, match=r"no episode 3;.*0 to 2, 5"):
        play(policy, 6)


@pytest.mark.parametrize(("length", "action_dim", "told"), [(3, 8, r"\(3, 3\); .* 8\)"), (0, 3, r"shape \(0, 3\)")])
def test_actions_of_another_size_or_none_are_refused(tmp_path, length, action_dim, told):
    policy = replay(recording(tmp_path, length=length))
    with pytest.raises(PolicyError, match=told):
        rollout(ScriptedEnvironment(1, action_dim=action_dim), policy, episodes(1), [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replay_file_path": "nowhere.hdf5"}, "replay_file_path: .*'nowhere.hdf5'"),
        ({"episode_name": "demo_9"}, "'demo_9'; .*episodes 0 to 5"),
        ({"episode_name": "first"}, "holds no 'first'"),
        ({"episodes": [0, 9]}, "episodes: .*demo_9; "),
        ({"episodes": [2, 2]}, r"episodes: .*\[2, 2\]"),
        ({"episodes": "all"}, 'episodes.*"all" is none of .present.'),
        ({"episodes": "present", "episode_name": "demo_1"}, "episode_name: is given too"),
        ({"replay_path": "x"}, "did you mean 'replay_file_path'"),
    ],
)
def test_wrong_options_are_named(tmp_path, options, message):
    options = {"replay_file_path": str(recording(tmp_path)), **options}
    with pytest.raises(ConfigError, match=message):
        resolve_policy_class("replay").from_dict(options)


def test_the_same_episode_in_two_files_is_refused(tmp_path):
    recording(tmp_path, "a.hdf5", [0, 1])
    recording(tmp_path, "b.hdf5", [1, 2])
    with pytest.raises(ConfigError, match="both hold demo_1"):
        replay(tmp_path)


@pytest.mark.parametrize(
    ("chosen", "played"),
    [("present", [0, 2, 5]), ([5, 0], [5, 0]), ((2,), [2])],
    ids=["all", "in another order", "one"],
)
def test_recorded_episodes_with_gaps_are_played_one_after_the_other(tmp_path, chosen, played):
    policy = replay(recording(tmp_path, indices=[0, 2, 5]), episodes=chosen)
    assert policy.num_episodes() == len(played)
    assert not policy.can_play(len(played))
    actions, _ = play(policy, len(played))
    assert [int(actions[index][0, 0]) for index in range(len(played))] == played
    with pytest.raises(PolicyError, match=f"episode {len(played)};.*0, 2, 5"):
        play(policy, len(played) + 1)


def test_the_number_that_other_programs_fill_up_with_zeros_names_an_episode(tmp_path):
    path = recording(tmp_path, indices=[0, 1, 10])
    with h5py.File(path, "r+") as file:
        for index in (0, 1, 10):
            file.move(f"data/demo_{index}", f"data/demo_{index:05d}")
    actions, _ = play(replay(path, episodes="present"), 3)
    assert [int(actions[index][0, 0]) for index in range(3)] == [0, 1, 10]
    actions, _ = play(replay(path, episode_name="demo_00010"), 1)
    assert int(actions[0][0, 0]) == 10
