"""Episodes that are recorded and committed."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import SEED_CONDITION
from isaaclab_arena.interfaces.observer import Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyTraits
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.recording.recorder import HELD_STEPS, EpisodeRecorder, RecordedObservations
from isaaclab_arena.results.stopping import alike_starts
from isaaclab_arena.storage.commits import CommitLine, read_commits
from isaaclab_arena.storage.episode_file import Compression
from isaaclab_arena.storage.episodes import list_episodes, read_attributes, read_episode, verify_episodes
from isaaclab_arena.testing.environment_conformance import DrawnOnDemand
from tests.environments.building import build, episode
from tests.fakes_environment import (
    ActionLog,
    OwnTensorsEnvironment,
    PartsEnvironment,
    PushPolicy,
    ScriptedEnvironment,
    SolvedEnvironment,
    episodes,
    files_below,
)
from tests.pretend_backend import simulate_with_warp
from tests.pretend_gpu import GPU, PretendGpu

JOB: dict[str, Any] = {
    "job": "push",
    "rank": 0,
    "world_size": 1,
    "attempt": 1,
    "env_args": {"env_name": "push"},
    "provenance": {"torch": "2.13"},
}


class AnotherPushPolicy(PushPolicy):
    def get_action(self, env, observation):
        return super().get_action(env, observation) / 2


def record(
    directory,
    *,
    num_envs=4,
    first=0,
    number=12,
    policy=None,
    made: Callable[..., Any] = ScriptedEnvironment,
    consolidate=True,
    watches=None,
    environment: Mapping[str, Any] = MappingProxyType({}),
    **job,
):
    """Record some episodes and return the log of their actions."""
    recorder, log = EpisodeRecorder(directory, **JOB | job), ActionLog()
    observers = [recorder, *([log] if watches is None else watches)]
    rollout(made(num_envs, **environment), policy or PushPolicy(), episodes(number)[first:], observers)
    if consolidate:
        recorder.consolidate()
    recorder.close()
    return log


CAMERAS = {"cameras": True}


def committed(directory) -> list[CommitLine]:
    return list(read_commits(directory, "push").lines)


def test_every_episode_is_recorded_with_the_actions_that_were_played_which_recording_does_not_change(tmp_path):
    plain, recorded, dataset = ActionLog(), record(tmp_path), tmp_path / "dataset_push.hdf5"
    rollout(ScriptedEnvironment(4), PushPolicy(), episodes(12), [plain])
    assert list_episodes(dataset) == list(range(12))
    verify_episodes(dataset, range(12))
    for index in range(12):
        assert torch.equal(plain.actions[index], recorded.actions[index])
        np.testing.assert_array_equal(read_episode(dataset, index).arrays["actions"], plain.actions[index].numpy())


@pytest.mark.parametrize("made", [ScriptedEnvironment, PartsEnvironment])
def test_observations_are_those_before_the_action_and_states_those_after(tmp_path, made):
    record(tmp_path, number=1, made=made, environment={"endings": ("success",)})
    arrays = read_episode(tmp_path / "dataset_push.hdf5", 0).arrays
    length = len(arrays["actions"])
    start = arrays["initial_state/articulation/robot/joint_position"]
    state, seen = arrays["states/articulation/robot/joint_position"], arrays["obs/position"]
    assert start.shape == (1, 3)
    assert arrays["obs/clock"][:, 0].tolist() == list(range(length))
    assert arrays["dones"].tolist() == [0] * (length - 1) + [1]
    np.testing.assert_array_equal(seen[0], start[0])
    np.testing.assert_array_equal(seen[1:], state[:-1])
    np.testing.assert_allclose(arrays["rewards"], state.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(arrays["initial_state/simulator/integration_state"], start[0])
    assert arrays["states/rigid_object/point/root_pose"].shape == (length, 7)


class NeverLooks(PushPolicy):
    traits = PolicyTraits(sees_pictures=False)


def drawn_on_demand(num_envs: int, **environment) -> DrawnOnDemand:
    return DrawnOnDemand(ScriptedEnvironment(num_envs, **environment))


@pytest.mark.parametrize("observations", RecordedObservations)
def test_the_same_bits_are_recorded_where_only_announced_pictures_are_drawn(tmp_path, observations):
    checksums = []
    for watches in ([Observer()], []):
        directory, how = tmp_path / str(len(watches)), {"observations": observations, "environment": CAMERAS}
        record(directory, made=drawn_on_demand, policy=NeverLooks(), watches=watches, **how)
        checksums.append([line.checksum for line in committed(directory)])
        seen = read_episode(directory / "dataset_push.hdf5", 0).arrays
        assert ("camera_obs/front" in seen) == (observations is RecordedObservations.ALL)
    assert (len(checksums[0]), checksums[0]) == (12, checksums[1])


@pytest.mark.parametrize(
    ("made", "num_envs"),
    [(OwnTensorsEnvironment, 1), (OwnTensorsEnvironment, 4), (PartsEnvironment, 4), (ScriptedEnvironment, 16)],
)
def test_the_same_bits_are_recorded_for_any_env_slots_and_of_tensors_that_are_copied_later(tmp_path, made, num_envs):
    lines = []
    for name, slots, kind in (("first", 1, ScriptedEnvironment), ("other", num_envs, made)):
        record(tmp_path / name, num_envs=slots, made=kind, environment=CAMERAS)
        lines.append([(line.episode_index, line.checksum, line.outcome) for line in committed(tmp_path / name)])
    assert (len(lines[0]), lines[0]) == (12, lines[1])
    assert [line.episode_in_env for line in committed(tmp_path / "first")] == list(range(12))


def test_attributes_say_which_episode_it_was_and_how_it_ended(tmp_path):
    record(tmp_path)
    lines = committed(tmp_path)
    assert {line.outcome for line in lines} == {"success", "failure", "timeout", "error"}
    for line in lines:
        episode = read_episode(tmp_path / "dataset_push.hdf5", line.episode_index)
        told = episode.attributes
        assert (told["outcome"], told.get("success"), told["checksum"]) == (line.outcome, line.success, line.checksum)
        assert told["num_samples"] == line.length == len(episode.arrays["actions"])
        assert told["episode_seed"] == line.episode_seed
        assert json.loads(str(told["conditions"]))["script.length"] == line.length
        assert json.loads(str(told["provenance"])) == {"model_hash": "abc", "torch": "2.13"}
        assert episode.env_args == {"type": 2, "env_name": "push"}
        # An episode whose physics diverged is an error and nothing else.
        if line.outcome == "error":
            assert (line.success, line.episode_return) == (None, None)
            assert np.isnan(episode.arrays["rewards"][-1])


@pytest.mark.parametrize(
    ("observations", "expected"),
    [
        (RecordedObservations.NONE, set()),
        (RecordedObservations.STATE, {"obs/position", "obs/clock"}),
        (RecordedObservations.ALL, {"obs/position", "obs/clock", "camera_obs/front"}),
    ],
)
def test_only_the_chosen_observations_are_recorded(tmp_path, observations, expected):
    record(tmp_path, observations=observations, environment=CAMERAS, number=2)
    arrays = read_episode(tmp_path / "dataset_push.hdf5", 1).arrays
    assert {name for name in arrays if name.startswith(("obs", "camera_obs"))} == expected
    if "camera_obs/front" in arrays:
        assert arrays["camera_obs/front"].dtype == np.uint8
        assert arrays["camera_obs/front"][:, 0, 0, 0].tolist() == list(range(len(arrays["actions"])))


def test_without_a_dataset_there_are_only_commit_lines(tmp_path):
    record(tmp_path, write_dataset=False)
    assert files_below(tmp_path) == {"episode_results_rank0.jsonl"}
    lines = committed(tmp_path)
    assert len(lines) == 12
    assert lines[0].dataset_file is None


def test_an_episode_that_was_solved_at_its_start_has_a_line_and_no_recording(tmp_path):
    log, dataset = record(tmp_path, made=SolvedEnvironment), tmp_path / "dataset_push.hdf5"
    lines = {line.episode_index: line for line in committed(tmp_path)}
    solved = [index for index, line in lines.items() if line.termination == "solved_at_start"]
    assert (len(lines), bool(solved)) == (12, True)
    assert all((lines[index].episode_file, lines[index].length) == (None, 0) for index in solved)
    assert list_episodes(dataset) == sorted(lines.keys() - {*solved})
    for index in list_episodes(dataset):
        np.testing.assert_array_equal(read_episode(dataset, index).arrays["actions"], log.actions[index].numpy())


def test_an_episode_file_holds_the_line_that_commits_it(tmp_path):
    record(tmp_path, number=3, consolidate=False)
    parts = {f"episodes/e{index:06d}.h5" for index in range(3)}
    assert files_below(tmp_path) == {"episode_results_rank0.jsonl", *parts}
    assert {line.episode_file for line in committed(tmp_path)} == parts
    for line in (tmp_path / "episode_results_rank0.jsonl").read_text(encoding="utf-8").splitlines():
        index = json.loads(line)["episode_index"]
        assert read_attributes(tmp_path / f"episodes/e{index:06d}.h5", index)["commit"] == line


def left_by_a_dead_process(directory, number=2, **options):
    """Record episodes and lose the lines that commit them; return the files and the lines."""
    record(directory, number=number, consolidate=False, rank=1, **options)
    commits = directory / "episode_results_rank1.jsonl"
    lines = sorted(commits.read_text(encoding="utf-8").splitlines())
    commits.unlink()
    return [directory / f"episodes/e{index:06d}.h5" for index in range(number)], lines


def test_the_same_episode_that_a_dead_process_left_is_committed_and_not_written_again(tmp_path, caplog):
    caplog.set_level("INFO")
    files, lines = left_by_a_dead_process(tmp_path)
    times = [path.stat().st_mtime_ns for path in files]
    record(tmp_path, number=2, consolidate=False)
    assert [path.stat().st_mtime_ns for path in files] == times
    assert sorted((tmp_path / "episode_results_rank0.jsonl").read_text(encoding="utf-8").splitlines()) == lines
    assert [line.rank for line in committed(tmp_path)] == [1, 1]
    assert len([message for message in caplog.messages if "was there already" in message]) == 2


def test_a_damaged_episode_that_a_dead_process_left_is_replaced(tmp_path, caplog):
    files, _ = left_by_a_dead_process(tmp_path, number=3)
    files[0].write_bytes(files[1].read_bytes())
    files[1].write_bytes(files[1].read_bytes()[:-100])
    files[2].write_bytes(b"")
    record(tmp_path, number=3)
    assert [line.rank for line in committed(tmp_path)] == [0, 0, 0]
    assert list_episodes(tmp_path / "dataset_push.hdf5") == [0, 1, 2]
    replaced = [message for message in caplog.messages if "is replaced" in message]
    assert len(replaced) == 3
    assert any("holds no demo_0" in message for message in replaced)


def test_an_episode_that_came_out_differently_is_kept_and_both_results_are_seen(tmp_path, caplog):
    files, _ = left_by_a_dead_process(tmp_path, policy=AnotherPushPolicy())
    before = [path.read_bytes() for path in files]
    record(tmp_path, number=2, consolidate=False)
    assert [path.read_bytes() for path in files] == before
    log = read_commits(tmp_path, "push")
    assert log.unequal_episodes == (0, 1)
    assert [line.rank for line in log.lines] == [1, 1]
    assert len((tmp_path / "episode_results_rank0.jsonl").read_text(encoding="utf-8").splitlines()) == 4
    assert len([message for message in caplog.messages if "both results are" in message]) == 2


@pytest.mark.parametrize("write_dataset", [True, False])
def test_an_episode_that_became_another_ranks_is_dropped(tmp_path, write_dataset):
    recorder = EpisodeRecorder(tmp_path, **JOB, write_dataset=write_dataset, may_commit=lambda index: index != 2)
    rollout(ScriptedEnvironment(2), PushPolicy(), episodes(5), [recorder])
    recorder.consolidate()
    recorder.close()
    assert [line.episode_index for line in committed(tmp_path)] == [0, 1, 3, 4]
    if write_dataset:
        assert list_episodes(tmp_path / "dataset_push.hdf5") == [0, 1, 3, 4]


def test_a_later_attempt_adds_its_episodes_to_the_dataset_also_compressed_ones(tmp_path):
    record(tmp_path, number=3)
    record(tmp_path, first=3, number=5, attempt=2, compression=Compression.GZIP)
    assert list_episodes(tmp_path / "dataset_push.hdf5") == list(range(5))
    verify_episodes(tmp_path / "dataset_push.hdf5", range(5))
    assert [line.attempt for line in committed(tmp_path)] == [1, 1, 1, 2, 2]
    names = {"dataset_push.hdf5", "episode_results_rank0.jsonl", "episode_results_rank0_life1.jsonl"}
    assert files_below(tmp_path) == names


class SeededEnvironment(ScriptedEnvironment):
    """The same, whose conditions are a seed that changes nothing below ten."""

    def draw_conditions(self, generator):
        return {SEED_CONDITION: int(generator.integers(20))}

    def reset(self, env_ids, conditions):
        starts = [max(0, int(str(each[SEED_CONDITION])) - 9) for each in conditions]
        rest = {"script.length": 5, "script.ending": "failure"}
        return super().reset(env_ids, [{**rest, "point.start": (float(start), 0.0, 0.0)} for start in starts])


def test_where_conditions_are_a_seed_the_first_observation_tells_which_episodes_began_alike(tmp_path):
    record(tmp_path, made=SeededEnvironment, number=20, num_envs=3)
    lines = committed(tmp_path)
    starts: dict[int, set[int | None]] = {}
    for line in lines:
        starts.setdefault(max(0, line.conditions[SEED_CONDITION] - 9), set()).add(line.start)
    assert all(len(each) == 1 and None not in each for each in starts.values())
    assert len(set.union(*starts.values())) == len(starts)
    alike = zip(lines, alike_starts(lines), strict=True)
    shared = [start for line, start in alike if line.conditions[SEED_CONDITION] < 10]
    assert len(shared) > 1
    assert len({*shared}) == 1
    assert None not in shared


@pytest.mark.parametrize(("made", "cameras"), [(ScriptedEnvironment, False), (SeededEnvironment, True)])
def test_nothing_is_said_of_starts_that_are_told_or_that_only_pictures_may_show(tmp_path, made, cameras):
    record(tmp_path, made=made, environment={"cameras": cameras})
    assert {line.start for line in committed(tmp_path)} == {None}


def test_env_slots_are_numbered_through_the_environments_of_a_job(tmp_path):
    recorder = EpisodeRecorder(tmp_path, **JOB)
    first, second = ScriptedEnvironment(3), ScriptedEnvironment(2)
    # One without a time limit costs no memory in advance.
    first.max_episode_length = 10**12
    recorder.begin_rebuild([first, second])
    rollout(first, PushPolicy(), episodes(3), [recorder])
    rollout(second, PushPolicy(), episodes(5)[3:], [recorder])
    recorder.close()
    assert sorted(line.env_id for line in committed(tmp_path)) == [0, 1, 2, 3, 4]


class WaitsOfRecording(Observer):
    """Counts the waits of each control step but the first, from one to the next."""

    def __init__(self, gpu: PretendGpu) -> None:
        self._gpu = gpu
        self.numbers: list[int] = []

    def on_step(self, environment: Environment, transition: Transition) -> None:
        self.numbers.append(len(self._gpu.waits))
        self._gpu.waits.clear()


@pytest.mark.parametrize(
    ("kept", "waits"),
    [
        # Many control steps on Warp's CPU: what is held of them is copied after so many.
        (RecordedObservations.STATE, [1] * (HELD_STEPS - 2) + [2] + [1] * 2),
        pytest.param(RecordedObservations.ALL, [2] * 4, marks=pytest.mark.slow),
    ],
)
def test_a_recorded_control_step_waits_once_more_for_pictures_or_when_many_are_copied(
    gpu, monkeypatch, tmp_path, kept, waits
):
    simulate_with_warp(monkeypatch)
    cameras = {"enable_cameras": True, "camera_size": 16} if kept is RecordedObservations.ALL else {}
    env = build("reach", num_envs=2, device=GPU, backend="warp", **cameras)
    watch = WaitsOfRecording(gpu)
    recorder = EpisodeRecorder(tmp_path, job="job", rank=0, world_size=1, attempt=1, observations=kept)
    limits = RolloutLimits(max_steps=len(waits) + 1)
    rollout(env, RandomActionPolicy(), map(episode, range(2)), [recorder, watch], limits=limits)
    recorder.close()
    assert watch.numbers[1:] == waits
