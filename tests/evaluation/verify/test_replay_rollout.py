import json

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.rerun import ReplayedEpisode, ReplayJudge, recorded_observations, replay_in
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.recording.recorder import EpisodeRecorder, RecordedJob, RecordedObservations, RecordingOptions
from isaaclab_arena.storage.contents import Provenance
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import read_episode
from tests.environments.building import ALL_ENVIRONMENTS, build
from tests.fakes_environment import PushPolicy, ScriptedEnvironment, episodes

NUM_STEPS = 6


class ShortPolicy(PushPolicy):
    """Moves at random for a few steps, each episode in its own way."""

    def start_episodes(self, env, starts):
        self.streams = {start.env_id: start.episode.policy_generator() for start in starts}
        self.steps = 0

    def get_action(self, env, observation):
        self.steps += 1
        low, high = (np.asarray(bound) for bound in (env.action_spec.low, env.action_spec.high))
        drawn = [self.streams[env_id].uniform(low, high) for env_id in range(env.num_envs)]
        return torch.tensor(np.array(drawn), dtype=torch.float32)

    def finished(self):
        return torch.full((len(self.streams),), self.steps >= NUM_STEPS)


def record(directory, environment, policy, number, observations=RecordedObservations.ALL) -> list[RecordedEpisode]:
    job = RecordedJob(name="push", rank=0, world_size=1, attempt=1)
    recorder = EpisodeRecorder(directory, job, RecordingOptions(observations=observations))
    rollout(environment, policy, episodes(number), [recorder])
    recorder.consolidate()
    recorder.close()
    return [read_episode(directory / "dataset_push.hdf5", index) for index in range(number)]


def replays(environment, recorded) -> list[ReplayedEpisode]:
    found: list[ReplayedEpisode] = []
    observations = recorded_observations(recorded[0])
    replay_in(
        environment, recorded, [ReplayJudge(environment, observations, found.append, Provenance(facts={}), contents={})]
    )
    return found


def differences(environment, recorded) -> dict[int, str | None]:
    found = {each.episode_index: each.difference for each in replays(environment, recorded)}
    assert sorted(found) == sorted(episode.episode_index for episode in recorded)
    return {index: None if difference is None else str(difference) for index, difference in found.items()}


@pytest.mark.parametrize("name", ALL_ENVIRONMENTS)
def test_a_recording_of_every_task_comes_out_again_to_the_last_bit(tmp_path, name):
    recorded = record(tmp_path, build(name, num_envs=2), ShortPolicy(), 2)
    assert {len(episode.arrays["actions"]) for episode in recorded} == {NUM_STEPS}
    again = replays(build(name), recorded)
    assert all(each.from_exact_state for each in again)
    assert all(each.is_bitwise for each in again)


@pytest.mark.parametrize("num_envs", [1, 3, 16])
def test_env_slots_take_the_next_recording_as_they_become_free(tmp_path, num_envs):
    recorded = record(tmp_path, ScriptedEnvironment(4, cameras=True), PushPolicy(), 12)
    assert {episode.attributes["outcome"] for episode in recorded} == {"success", "failure", "timeout", "error"}
    found = differences(ScriptedEnvironment(num_envs, cameras=True), recorded)
    assert set(found.values()) == {None}


def test_it_starts_from_the_recorded_state_and_not_from_the_conditions(tmp_path):
    (recorded,) = record(tmp_path, build("lift_object"), ShortPolicy(), 1)
    conditions = json.loads(str(recorded.attributes["conditions"]))
    elsewhere = {**conditions, "cube.position": [0.45, 0.1, conditions["cube.position"][2]]}
    moved = RecordedEpisode(
        episode_index=0,
        arrays=recorded.arrays,
        attributes={**recorded.attributes, "conditions": json.dumps(elsewhere)},
        env_args={},
    )
    assert elsewhere != conditions
    assert differences(build("lift_object"), [moved]) == {0: None}


def test_without_a_state_it_starts_from_the_conditions_and_says_so(tmp_path):
    (recorded,) = record(tmp_path, build("reach"), ShortPolicy(), 1)
    arrays = {name: array for name, array in recorded.arrays.items() if "simulator" not in name}
    stateless = RecordedEpisode(episode_index=0, arrays=arrays, attributes=recorded.attributes, env_args={})
    (again,) = replays(build("reach"), [stateless])
    assert not again.from_exact_state
    assert again.is_bitwise


def test_the_state_of_another_model_is_a_difference_at_the_start(tmp_path):
    (recorded,) = record(tmp_path, build("reach"), ShortPolicy(), 1)
    name = "initial_state/simulator/integration_state"
    arrays = {**recorded.arrays, name: recorded.arrays[name][:-1]}
    other = RecordedEpisode(episode_index=0, arrays=arrays, attributes=recorded.attributes, env_args={})
    found = differences(build("reach"), [other])
    assert str(found[0]).startswith(f"at the start: {name} was of shape ")


def test_the_conditions_of_another_object_are_refused(tmp_path):
    recorded = record(tmp_path, build("lift_object"), ShortPolicy(), 1)
    with pytest.raises(ArenaError, match=r"recorded conditions lack 'mug\.position'"):
        replays(build("lift_object", object="mug"), recorded)


def test_a_changed_action_shows_in_the_step_it_leads_to(tmp_path):
    (recorded,) = record(tmp_path, build("reach"), ShortPolicy(), 1)
    arrays = {**recorded.arrays, "actions": recorded.arrays["actions"].copy()}
    arrays["actions"][3] *= -1
    changed = RecordedEpisode(episode_index=0, arrays=arrays, attributes=recorded.attributes, env_args={})
    found = differences(build("reach"), [changed])
    assert str(found[0]).startswith("at control step 3: states/articulation/")


def test_actions_beyond_the_end_of_the_episode_are_a_difference(tmp_path):
    (recorded,) = record(tmp_path, ScriptedEnvironment(1, endings=("success",)), PushPolicy(), 1)
    length = len(recorded.arrays["actions"])
    arrays = {
        name: array if name.startswith("initial") else np.concatenate([array, array])
        for name, array in recorded.arrays.items()
    }
    longer = RecordedEpisode(episode_index=0, arrays=arrays, attributes=recorded.attributes, env_args={})
    found = differences(ScriptedEnvironment(1, endings=("success",)), [longer])
    assert found[0] == f"at the end: num_samples was {2 * length}, is now {length}"


def test_actions_that_do_not_fit_are_refused(tmp_path):
    recorded = record(tmp_path, ScriptedEnvironment(1), PushPolicy(), 1)
    with pytest.raises(ArenaError, match=r"actions of demo_0 have shape \(\d, 3\); .* = \(1 or more, 8\)"):
        replays(ScriptedEnvironment(1, action_dim=8), recorded)


def test_conditions_that_do_not_fit_are_refused(tmp_path):
    (recorded,) = record(tmp_path, ScriptedEnvironment(1), PushPolicy(), 1)
    stranger = RecordedEpisode(
        episode_index=0, arrays=recorded.arrays, attributes={"conditions": '{"coin.heads": 1}'}, env_args={}
    )
    with pytest.raises(ArenaError, match=r"recorded conditions lack 'point\.start'"):
        replays(ScriptedEnvironment(1), [stranger])


@pytest.mark.parametrize(
    ("termination", "error"),
    [
        ("episode_timeout", "the episode took longer than 1 s"),
        ("policy_lost", "the policy was lost: no server answers"),
    ],
)
def test_an_episode_that_was_broken_off_need_not_be_again(tmp_path, termination, error):
    (recorded,) = record(tmp_path, build("reach"), ShortPolicy(), 1)
    broken_off = {"outcome": "error", "termination": termination, "error": error}
    attributes = {name: value for name, value in recorded.attributes.items() if name != "success"} | broken_off
    episode = RecordedEpisode(episode_index=0, arrays=recorded.arrays, attributes=attributes, env_args={})
    assert differences(build("reach"), [episode]) == {0: None}
