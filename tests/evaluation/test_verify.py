"""Episodes that are played again and compared."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.rerun import (
    Difference,
    ReplayedEpisode,
    ReplayJudge,
    first_difference,
    recorded_observations,
    replay_in,
)
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.verification import draw_sample
from isaaclab_arena.recording.recorder import EpisodeArrays, EpisodeRecorder, RecordedObservations
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import read_episode
from tests.environments.building import ALL_ENVIRONMENTS, build
from tests.fakes_environment import PushPolicy, ScriptedEnvironment, episodes

ATTRIBUTES = {"outcome": "success", "success": True, "termination": "terminated", "episode_return": 2.5}


def recorded(length: Any = 6, attributes: Any = None, **changed: Any) -> RecordedEpisode:
    """Return an episode; a changed array is named with ``__`` for each slash, and given as what changes a copy."""
    generator = np.random.default_rng(3)
    arrays = {
        "actions": generator.random((length, 4)).astype(np.float32),
        "camera_obs/front": generator.integers(0, 255, (length, 6, 6, 3), np.uint8),
        "dones": np.zeros(length, np.uint8),
        "initial_state/simulator/integration_state": generator.random(9),
        "obs/joint_pos": generator.random((length, 7)).astype(np.float32),
        "obs_extra/nothing": np.zeros((length, 0), np.float32),
        "rewards": generator.random(length).astype(np.float32),
        "states/rigid_object/cube/root_pose": generator.random((length, 7)),
    }
    for name, change in changed.items():
        change(arrays[name.replace("__", "/")])
    return RecordedEpisode(episode_index=0, arrays=arrays, attributes={**ATTRIBUTES, **(attributes or {})}, env_args={})


def the_difference(found: RecordedEpisode, before: RecordedEpisode | None = None) -> Difference:
    difference = first_difference(before or recorded(), found)
    assert difference is not None
    return difference


def at(place, amount):
    def change(array):
        array[place] += amount

    return change


def test_the_same_episode_has_no_difference_nor_has_one_that_holds_more():
    whole = recorded()
    less = {name: array for name, array in whole.arrays.items() if not name.startswith("obs")}
    assert first_difference(whole, recorded()) is first_difference(replace(whole, arrays=less), whole) is None


def last_bit(array):
    array[2, 0] = np.nextafter(array[2, 0], 1)


def no_number(array):
    array[5] = np.nan


POSE = "states__rigid_object__cube__root_pose"
IN_ONE_STEP: dict[str, Any] = {name: at(1, 1) for name in ("actions", "rewards", POSE)}
SCALAR = "initial_state__simulator__integration_state"


@pytest.mark.parametrize(
    ("changed", "step", "field", "most"),
    [
        ({POSE: at((4, 2), 0.25)}, 4, POSE, 0.25),
        # The earliest step is named, and within it what happens first.
        ({"actions": at(5, 1), "rewards": at(2, 1), "obs__joint_pos": at(3, 1)}, 2, "rewards", 1),
        (IN_ONE_STEP, 1, "actions", 1),
        ({**IN_ONE_STEP, "camera_obs__front": at((1, 0, 0, 0), 1)}, 1, "camera_obs__front", 1),
        ({POSE: last_bit}, 2, POSE, 1e-16),
        ({"rewards": no_number}, 5, "rewards", None),
    ],
)
def test_the_first_difference_is_told_with_step_field_and_amount(changed, step, field, most):
    difference = the_difference(recorded(**changed))
    assert (difference.step, difference.field) == (step, field.replace("__", "/"))
    assert difference.max_abs == (None if most is None else pytest.approx(most, rel=1e-6, abs=1e-15))
    assert difference.max_abs != 0
    assert f"at control step {step}: {difference.field}" in str(difference)


def test_a_nan_is_equal_to_a_nan():
    assert first_difference(recorded(rewards=no_number), recorded(rewards=no_number)) is None


def test_what_an_episode_starts_from_comes_before_its_first_step():
    difference = the_difference(recorded(obs__joint_pos=at(0, 1), **{SCALAR: at(3, 1e-9)}))
    assert difference.at_start
    assert str(difference) == f"at the start: {SCALAR.replace('__', '/')} by 1e-09"


def test_an_episode_of_another_length_is_compared_as_far_as_both_go():
    whole = recorded()
    cut = {name: array if name.startswith("initial") else array[:4] for name, array in whole.arrays.items()}
    shorter = replace(whole, arrays=cut)
    assert str(first_difference(whole, shorter)) == "at the end: num_samples was 6, is now 4"
    assert the_difference(shorter, recorded(actions=at(3, 1))).field == "actions"


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"outcome": "failure"}, "outcome was success, is now failure"),
        ({"episode_return": 2.5000001}, "episode_return was 2.5, is now 2.5000001"),
        ({"error": "gone"}, "error was not there, is now gone"),
    ],
)
def test_how_it_ended_is_compared_too(attributes, words):
    assert str(first_difference(recorded(), recorded(attributes=attributes))) == f"at the end: {words}"


def test_an_array_that_is_absent_or_of_another_kind_is_named():
    whole = recorded()
    absent = {name: array for name, array in whole.arrays.items() if name != "obs/joint_pos"}
    assert "obs/joint_pos was float32 of shape (7,), is now absent" in str(
        the_difference(replace(whole, arrays=absent))
    )
    other = {**whole.arrays, "rewards": whole.arrays["rewards"].astype(np.float64)}
    assert "rewards was float32 of shape (), is now float64 of shape ()" in str(
        the_difference(replace(whole, arrays=other))
    )


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
    recorder = EpisodeRecorder(directory, job="push", rank=0, world_size=1, attempt=1, observations=observations)
    rollout(environment, policy, episodes(number), [recorder])
    recorder.consolidate()
    recorder.close()
    return [read_episode(directory / "dataset_push.hdf5", index) for index in range(number)]


def replays(environment, recorded) -> list[ReplayedEpisode]:
    found: list[ReplayedEpisode] = []
    observations = recorded_observations(recorded[0])
    judge = ReplayJudge(EpisodeArrays(environment, observations), found.append, now={}, contents={})
    replay_in(environment, recorded, [judge])
    return found


def differences(environment, recorded) -> dict[int, str | None]:
    found = {each.episode_index: each.difference for each in replays(environment, recorded)}
    assert sorted(found) == sorted(episode.episode_index for episode in recorded)
    return {index: None if difference is None else str(difference) for index, difference in found.items()}


# One of each kind of body that moves.
FAST = {"reach", "sort_two", "open_microwave"}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in FAST else pytest.mark.slow) for each in ALL_ENVIRONMENTS]
)
def test_a_recording_of_every_task_comes_out_again_to_the_last_bit(tmp_path, name):
    recorded = record(tmp_path, build(name, num_envs=2), ShortPolicy(), 2)
    assert {len(episode.arrays["actions"]) for episode in recorded} == {NUM_STEPS}
    again = replays(build(name), recorded)
    assert all(each.from_exact_state for each in again)
    assert all((each.difference, each.is_damaged) == (None, False) for each in again)


@pytest.fixture(scope="module")
def lifted(tmp_path_factory) -> RecordedEpisode:
    return record(tmp_path_factory.mktemp("lifted"), build("lift_object"), ShortPolicy(), 1)[0]


@pytest.fixture(scope="module")
def reached(tmp_path_factory) -> RecordedEpisode:
    return record(tmp_path_factory.mktemp("reached"), build("reach"), ShortPolicy(), 1)[0]


def test_it_starts_from_the_recorded_state_and_not_from_the_conditions(lifted):
    conditions = json.loads(str(lifted.attributes["conditions"]))
    elsewhere = {**conditions, "cube.position": [0.45, 0.1, conditions["cube.position"][2]]}
    assert elsewhere != conditions
    moved = replace(lifted, attributes={**lifted.attributes, "conditions": json.dumps(elsewhere)})
    assert differences(build("lift_object"), [moved]) == {0: None}


def test_without_a_state_it_starts_from_the_conditions_and_says_so(reached):
    arrays = {name: array for name, array in reached.arrays.items() if "simulator" not in name}
    (again,) = replays(build("reach"), [replace(reached, arrays=arrays)])
    assert (again.from_exact_state, again.difference, again.is_damaged) == (False, None, False)


def test_the_state_of_another_model_is_a_difference_at_the_start_and_a_changed_action_in_its_step(reached):
    name = "initial_state/simulator/integration_state"
    other = replace(reached, arrays={**reached.arrays, name: reached.arrays[name][:-1]})
    assert str(differences(build("reach"), [other])[0]).startswith(f"at the start: {name} was float64 of shape ")
    actions = reached.arrays["actions"].copy()
    actions[3] *= -1
    changed = replace(reached, arrays={**reached.arrays, "actions": actions})
    assert str(differences(build("reach"), [changed])[0]).startswith("at control step 3: states/articulation/")


def test_actions_that_do_not_fit_are_refused(tmp_path):
    recorded = record(tmp_path, ScriptedEnvironment(1), PushPolicy(), 1)
    with pytest.raises(ArenaError, match=r"\(1 or more, 8\)"):
        replays(ScriptedEnvironment(1, action_dim=8), recorded)


@pytest.mark.parametrize("termination", ["episode_timeout", "policy_lost"])
def test_an_episode_that_was_broken_off_need_not_be_again(reached, termination):
    attributes = {name: value for name, value in reached.attributes.items() if name != "success"}
    broken_off = {"outcome": "error", "termination": termination, "error": "it took too long"}
    assert differences(build("reach"), [replace(reached, attributes=attributes | broken_off)]) == {0: None}


FINISHED = {"long": list(range(1000)), "short": [4, 7], "none": [], "other": list(range(5, 50))}


def test_a_sample_is_spread_over_the_jobs():
    sample = draw_sample(FINISHED, 8, seed=0)
    assert {job: len(episodes) for job, episodes in sample.items()} == {"long": 3, "short": 2, "other": 3}
    assert all(set(episodes) <= set(FINISHED[job]) for job, episodes in sample.items())
    assert all(list(episodes) == sorted(set(episodes)) for episodes in sample.values())
