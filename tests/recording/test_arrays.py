"""Arrays of an episode while it runs."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.interfaces.observer import Transition
from isaaclab_arena.interfaces.specs import ArraySpec, SideBySide
from isaaclab_arena.recording.recorder import (
    HELD_STEPS,
    EpisodeArrays,
    RecordedObservations,
    StepRing,
    recorded_entries,
)
from tests.fakes_environment import OwnTensorsEnvironment, PartsEnvironment, ScriptedEnvironment


class OwnPartsEnvironment(PartsEnvironment):
    returns_own_tensors = True


def begun(
    environment: ScriptedEnvironment, observations: RecordedObservations = RecordedObservations.STATE
) -> EpisodeArrays:
    """Return the arrays of an environment in whose env slots episodes have just begun."""
    arrays = EpisodeArrays(environment, observations)
    env_ids = range(environment.num_envs)
    conditions = environment.draw_conditions(np.random.default_rng(0))
    environment.reset(torch.tensor(env_ids), [conditions for _ in env_ids])
    arrays.start(list(env_ids))
    return arrays


def transition(environment: ScriptedEnvironment) -> Transition:
    """Make one step."""
    number, action = environment.num_envs, torch.rand(environment.num_envs, 3)
    seen, running = environment.step(action).observation, torch.ones(number, dtype=torch.bool)
    return Transition(
        running=running, num_running=number, observation=seen, action=action, step=environment.step(action)
    )


@pytest.mark.parametrize("made", [ScriptedEnvironment, PartsEnvironment, OwnTensorsEnvironment, OwnPartsEnvironment])
def test_what_was_taken_does_not_change_afterwards(made):
    environment = made(1)
    environment.max_episode_length = 2
    arrays = begun(environment)
    arrays.append(transition(environment))
    taken = arrays.take(0)
    before = {name: array.copy() for name, array in taken.items()}
    for _ in range(3):
        arrays.start([0])
        arrays.append(transition(environment))
        arrays.take(0)
    for name, array in taken.items():
        np.testing.assert_array_equal(array, before[name])


class TogetherEnvironment(OwnPartsEnvironment):
    """Its terms lie side by side in some steps and on their own in others, as variations may have it."""

    steps = 0

    def step(self, action: torch.Tensor) -> Step:
        step = super().step(action)
        self.steps += 1
        if self.steps % 3 == 0:
            return step
        terms = {name: term.reshape(self.num_envs, -1).float() for name, term in step.observation["policy"].items()}
        together = SideBySide(torch.cat(list(terms.values()), dim=1), {name: t.shape[1] for name, t in terms.items()})
        return replace(step, observation={**step.observation, "policy": together})


class KeepsNothing(OwnPartsEnvironment):
    """Uses its memory again, so that steps are copied at once."""

    returns_own_tensors = False


@pytest.mark.parametrize("num_steps", [2, HELD_STEPS, 2 * HELD_STEPS + 3])
def test_what_is_held_of_steps_is_recorded_as_what_is_written_at_once(num_steps):
    recordings = []
    for made in (KeepsNothing, OwnPartsEnvironment, TogetherEnvironment):
        torch.manual_seed(0)
        environment = made(2)
        environment.max_episode_length = 20
        arrays, steps = begun(environment), []
        for step in range(num_steps):
            if step == num_steps // 2:
                arrays.take(1)
                arrays.start([1])
            steps.append(transition(environment))
            arrays.append(steps[-1])
            if made is KeepsNothing:
                steps[-1].step.reward.fill_(-1.0)
        recordings.append([arrays.take(0), arrays.take(1)])
        assert (SideBySide in {type(step.observation["policy"]) for step in steps}) is (made is TogetherEnvironment)
    for at_once, *others in zip(*recordings, strict=True):
        assert len(at_once["actions"]) in (num_steps, num_steps - num_steps // 2)
        for held in others:
            assert at_once.keys() == held.keys()
            for name, array in at_once.items():
                # Terms that lie side by side are all numbers of one type.
                assert array.dtype == held[name].dtype or (name == "obs/clock" and held[name].dtype == np.float32)
                np.testing.assert_array_equal(array, held[name], err_msg=name)


def test_groups_have_isaac_labs_places():
    environment = ScriptedEnvironment(1)
    arrays = begun(environment, RecordedObservations.ALL)
    step, term = transition(environment), {"height": torch.zeros(1, 2)}
    arrays.append(replace(step, observation={"policy": term, "camera_obs": term, "teacher": {"above": term}}))
    assert {"obs/height", "camera_obs/height", "obs_teacher/above/height"} <= arrays.take(0).keys()


def packs(step: int) -> list[list[torch.Tensor]]:
    env_ids = torch.arange(3)
    return [
        [(env_ids * 100 + step).float()[:, None].repeat(1, 2), (env_ids * 100 + step).float()],
        [(env_ids + step).to(torch.uint8)[:, None, None, None].repeat(1, 2, 2, 3)],
    ]


@pytest.mark.parametrize("most_at_once", [1, 8])
@pytest.mark.parametrize("capacity", [1, 2, 5, 7, 64])
def test_episodes_of_any_lengths_are_kept_whole_in_any_room(capacity, most_at_once):
    generator = np.random.default_rng(capacity)
    ring = StepRing(3, capacity)
    begun, step = dict.fromkeys(range(3), 0), 0
    ring.start([0, 1, 2])
    while step < 300:
        number = int(generator.integers(1, most_at_once + 1))
        steps = [packs(each) for each in range(step, step + number)]
        ring.append([[tensor for each in steps for tensor in each[pack]] for pack in range(2)], number)
        step += number
        for env_id in np.flatnonzero(generator.random(3) < 0.3).tolist():
            numbers, pictures = ring.take(env_id)
            np.testing.assert_array_equal(numbers[:, 2], env_id * 100 + np.arange(begun[env_id], step))
            np.testing.assert_array_equal(pictures[:, 5], (env_id + np.arange(begun[env_id], step)) % 256)
            assert (pictures.shape[1], pictures.dtype) == (12, np.uint8)
            begun[env_id] = step
            ring.start([env_id])
    assert ring.capacity <= max(capacity, 128)


def test_an_episode_that_starts_again_has_forgotten_its_steps_and_tensors_may_be_side_by_side_already():
    ring = StepRing(3, 10)
    ring.start([1])
    steps = [torch.arange(6.0).reshape(3, 2) + 10 * step for step in range(4)]
    ring.append([steps[:1]])
    ring.start([1])
    ring.append([[torch.cat(steps[:3], dim=1)]], 3)
    ring.append([steps[3:]])
    assert ring.take(1)[0].tolist() == [[2 + 10 * step, 3 + 10 * step] for step in range(4)]


TOUCHED = """
import sys
from pathlib import Path
import torch
from isaaclab_arena.recording.recorder import StepRing

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

num_envs, width = 64, 250
torch.use_deterministic_algorithms(True)
step = [[torch.ones(num_envs, width)]]
for capacity, num_steps in ((2000, 10), (1000, 1001)):
    before = resident_bytes()
    ring = StepRing(num_envs, capacity)
    ring.start([0])
    for _ in range(num_steps):
        ring.append(step)
    print(resident_bytes() - before, ring.capacity)
    assert ring.take(0)[0].tolist() == [[1.0] * width] * num_steps
"""


def test_memory_is_not_touched_for_steps_that_are_not_made_in_deterministic_runs_either():
    # In a process of its own: what other tests left decides where memory comes from, and whether it goes back.
    done = subprocess.run([sys.executable, "-c", TOUCHED], capture_output=True, text=True, check=True)
    told = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [room_for for _, room_for in told] == [2000, 2000]
    for (touched, room_for), num_steps in zip(told, (10, 1001), strict=True):
        step_bytes = 64 * 250 * 4
        assert touched < num_steps * step_bytes + 30e6 < room_for * step_bytes


def test_names_units_and_bounds_are_told_by_the_paths_of_the_recorded_arrays():
    environment = ScriptedEnvironment(1)
    unbounded = (-1.0, -float("inf"), -1.0)
    environment.action_spec = ArraySpec(shape=(3,), low=unbounded, high=(1.0, 2.0, 3.0), names=("x", "y", "z"))
    environment.observation_spec = {
        "policy": {
            "arm": {"joint_pos": ArraySpec(shape=(2,), names=("a", "b"), unit="rad")},
            "bare": ArraySpec(shape=(2,)),
        },
        "camera_obs": {"head": ArraySpec(shape=(4, 4, 3), unit="colour")},
    }
    entries = recorded_entries(environment)
    assert [*entries] == ["actions", "obs/arm/joint_pos"]
    assert (entries["actions"].low, entries["actions"].high) == ((-1.0, None, -1.0), (1.0, 2.0, 3.0))
    assert (entries["obs/arm/joint_pos"].names, entries["obs/arm/joint_pos"].unit) == (("a", "b"), "rad")
