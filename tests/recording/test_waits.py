"""How often the CPU waits for a GPU while a job is recorded, counted with a pretended one."""

from collections.abc import Sequence
from pathlib import Path

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.observer import Observer, Transition
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.recording.recorder import (
    HELD_STEPS,
    EpisodeRecorder,
    RecordedJob,
    RecordedObservations,
    RecordingOptions,
)
from tests.environments.building import build, episode
from tests.pretend_backend import simulate_with_warp
from tests.pretend_gpu import GPU, PretendGpu

NUM_ENVS = 2


class WaitsOfRecording(Observer):
    """Counts the waits of each control step, from one to the next.

    Attributes:
        numbers: For each control step but the first.
    """

    def __init__(self, gpu: PretendGpu) -> None:
        self._gpu = gpu
        self.numbers: list[int] = []
        self._is_first = True

    def on_step(self, environment: Environment, transition: Transition) -> None:
        del environment, transition
        if not self._is_first:
            self.numbers.append(len(self._gpu.waits))
        self._is_first = False
        self._gpu.waits.clear()


def waits_of(
    gpu: PretendGpu, env: ArenaEnvironment, directory: Path, kept: RecordedObservations, steps: int
) -> list[int]:
    """Number of CPU waits between two recorded control steps."""
    waits = WaitsOfRecording(gpu)
    options = RecordingOptions(observations=kept)
    recorder = EpisodeRecorder(directory, RecordedJob(name="job", rank=0, world_size=1, attempt=1), options)
    observers: Sequence[Observer] = [recorder, waits]
    limits = RolloutLimits(max_steps=steps)
    rollout(env, RandomActionPolicy(), map(episode, range(NUM_ENVS)), observers, limits=limits)
    recorder.close()
    return waits.numbers


def test_a_recorded_control_step_waits_as_one_that_is_not_until_many_are_copied(gpu, monkeypatch, tmp_path):
    simulate_with_warp(monkeypatch)
    env = build("reach", num_envs=NUM_ENVS, device=GPU, backend="warp")
    waits = waits_of(gpu, env, tmp_path, RecordedObservations.STATE, HELD_STEPS + 2)
    assert waits == [1] * (HELD_STEPS - 2) + [2] + [1] * 2


def test_recorded_pictures_and_all_else_are_read_with_one_wait_more(gpu, monkeypatch, tmp_path):
    simulate_with_warp(monkeypatch)
    env = build("reach", num_envs=NUM_ENVS, device=GPU, backend="warp", enable_cameras=True, camera_size=16)
    assert waits_of(gpu, env, tmp_path, RecordedObservations.ALL, 5) == [2] * 4
