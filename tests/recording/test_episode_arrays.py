import gc
from dataclasses import replace

import numpy as np
import pytest
import torch

from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.interfaces.observer import Transition
from isaaclab_arena.interfaces.specs import SideBySide
from isaaclab_arena.recording.recorder import HELD_STEPS, EpisodeArrays, RecordedObservations
from tests.fakes_environment import PartsEnvironment, ScriptedEnvironment


class OwnTensorsEnvironment(ScriptedEnvironment):
    returns_own_tensors = True


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
    action = torch.rand(environment.num_envs, 3)
    observation, running = environment.step(action).observation, torch.ones(environment.num_envs, dtype=torch.bool)
    step = environment.step(action)
    return Transition(
        running=running, num_running=environment.num_envs, observation=observation, action=action, step=step
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


@pytest.mark.parametrize("num_steps", [2, HELD_STEPS, 2 * HELD_STEPS + 3])
def test_what_is_held_of_steps_is_recorded_as_what_is_written_at_once(num_steps):
    class KeepsNothing(OwnPartsEnvironment):
        returns_own_tensors = False

    recordings = []
    for made in (KeepsNothing, OwnPartsEnvironment):
        torch.manual_seed(0)
        environment = made(2)
        environment.max_episode_length = 20
        arrays = begun(environment)
        for step in range(num_steps):
            if step == num_steps // 2:
                arrays.take(1)
                arrays.start([1])
            arrays.append(transition(environment))
        recordings.append([arrays.take(0), arrays.take(1)])
    for at_once, held in zip(*recordings, strict=True):
        assert len(held["actions"]) in (num_steps, num_steps - num_steps // 2)
        assert at_once.keys() == held.keys()
        for name, array in at_once.items():
            assert array.dtype == held[name].dtype
            np.testing.assert_array_equal(array, held[name], err_msg=name)


def test_terms_that_lie_side_by_side_are_recorded_as_those_that_do_not():
    environment = TogetherEnvironment(2)
    arrays = begun(environment)
    steps = [transition(environment) for _ in range(5)]
    for step in steps:
        arrays.append(step)
    assert {type(step.observation["policy"]) for step in steps} == {dict, SideBySide}
    for env_id in range(2):
        taken = arrays.take(env_id)
        for name in steps[0].observation["policy"]:
            seen = torch.stack([step.observation["policy"][name][env_id] for step in steps])
            assert taken[f"obs/{name}"].dtype == np.float32
            np.testing.assert_array_equal(taken[f"obs/{name}"], seen.reshape(taken[f"obs/{name}"].shape).numpy())
        np.testing.assert_array_equal(taken["actions"], torch.stack([step.action[env_id] for step in steps]).numpy())


def test_groups_have_isaac_labs_places():
    environment = ScriptedEnvironment(1)
    arrays = begun(environment, RecordedObservations.ALL)
    step, term = transition(environment), {"height": torch.zeros(1, 2)}
    arrays.append(replace(step, observation={"policy": term, "camera_obs": term, "teacher": {"above": term}}))
    assert {"obs/height", "camera_obs/height", "obs_teacher/above/height"} <= arrays.take(0).keys()


def test_recorded_steps_do_not_make_python_look_for_garbage():
    environment = OwnPartsEnvironment(1)
    environment.max_episode_length = 1000
    arrays = begun(environment)
    many = {f"term{number}": torch.rand(1, 3) for number in range(30)}

    def step() -> Transition:
        seen = transition(environment)
        terms = {name: term.clone() for name, term in many.items()}
        return Transition(
            running=seen.running, num_running=1, observation={"policy": terms}, action=seen.action, step=seen.step
        )

    arrays.append(step())
    gc.collect()
    searches = []
    gc.callbacks.append(lambda phase, info: searches.append(info) if phase == "start" else None)
    try:
        for _ in range(100):
            arrays.append(step())
    finally:
        gc.callbacks.pop()
    assert searches == []
    assert len(arrays.take(0)["obs/term7"]) == 101
