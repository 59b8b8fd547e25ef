import math

import pytest
import torch

from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.training.learner import EpisodeCounter

NOBODY = torch.zeros(3, dtype=torch.bool)


def mask(*env_ids: int) -> torch.Tensor:
    marked = NOBODY.clone()
    marked[list(env_ids)] = True
    return marked


def step(
    reward: float = 1.0,
    *,
    terminated: torch.Tensor = NOBODY,
    success: torch.Tensor | None = NOBODY,
    diverged: torch.Tensor = NOBODY,
    metric: float = 0.0,
) -> Step:
    return Step(
        observation={},
        reward=torch.full((3,), reward),
        terminated=terminated,
        truncated=NOBODY,
        success=success,
        diverged=diverged,
        metrics={"distance_m": torch.full((3,), metric)},
    )


@pytest.fixture
def counter() -> EpisodeCounter:
    return EpisodeCounter(3, torch.device("cpu"))


def taken(counter: EpisodeCounter) -> dict[str, float]:
    return {name.rpartition("/")[2]: value for name, value in counter.measures(counter.take()).items()}


def test_an_episode_counts_with_the_whole_of_its_rewards_and_steps(counter):
    counter.add(step(1.0), NOBODY, NOBODY)
    counter.add(step(2.0, terminated=mask(0), success=mask(0), metric=0.5), mask(0), NOBODY)
    counter.add(step(4.0, terminated=mask(0, 1)), mask(0, 1), NOBODY)
    told = taken(counter)
    assert told == {
        "num_episodes": 3,
        "mean_reward": pytest.approx((3 + 4 + 7) / 3),
        "mean_episode_length": pytest.approx((2 + 1 + 3) / 3),
        "success_rate": pytest.approx(1 / 3),
        "lost_rate": pytest.approx(2 / 3),
        "distance_m": pytest.approx(0.5 / 3),
    }


def test_what_was_taken_does_not_count_again(counter):
    counter.add(step(terminated=mask(0)), mask(0), NOBODY)
    assert taken(counter)["num_episodes"] == 1
    assert taken(counter) == {"num_episodes": 0}


def test_an_env_slot_that_was_stopped_in_the_middle_begins_from_nothing_and_counts_for_nothing(counter):
    counter.add(step(5.0), NOBODY, mask(2))
    counter.add(step(1.0, terminated=mask(2)), mask(2), NOBODY)
    told = taken(counter)
    assert (told["num_episodes"], told["mean_reward"], told["mean_episode_length"]) == (1, 1.0, 1.0)


def test_success_that_is_not_measured_is_no_failure(counter):
    counter.add(step(terminated=mask(0), success=None), mask(0), NOBODY)
    assert "success_rate" not in taken(counter)


def test_an_env_slot_that_broke_down_is_lost_and_its_numbers_spoil_nothing(counter):
    counter.add(step(math.nan, diverged=mask(1), metric=math.nan), mask(1), NOBODY)
    told = taken(counter)
    assert (told["lost_rate"], told["mean_reward"], told["success_rate"]) == (1.0, 0.0, 0.0)
    counter.add(step(terminated=mask(0), diverged=mask(1), metric=2.0), mask(0, 1), NOBODY)
    assert taken(counter)["distance_m"] == 2.0


def test_a_metric_is_the_mean_of_the_episodes_that_have_it(counter):
    counter.add(step(terminated=mask(0), metric=math.nan), mask(0), NOBODY)
    assert "distance_m" not in taken(counter)
    counter.add(step(terminated=mask(0), metric=math.nan), mask(0), NOBODY)
    counter.add(step(terminated=mask(1), metric=3.0), mask(1), NOBODY)
    told = taken(counter)
    assert (told["num_episodes"], told["distance_m"]) == (2, 3.0)


def test_an_env_slot_that_broke_down_has_not_succeeded_whatever_its_task_says(counter):
    counter.add(step(success=mask(0, 1), diverged=mask(0), terminated=mask(1)), mask(0, 1), NOBODY)
    told = taken(counter)
    assert (told["num_episodes"], told["success_rate"], told["lost_rate"]) == (2, 0.5, 0.5)
