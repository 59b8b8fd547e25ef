"""Starts that training draws together are those of the episodes, drawn one by one with numpy's own seeding."""

import numpy as np
import pytest

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.models.network import ActionScaler, ActionScaling
from isaaclab_arena.seeding import Stream, episode_seed_sequence
from isaaclab_arena.training.learner import TrainingEnvironment
from tests.environments.building import ALL_ENVIRONMENTS, FLOOR_ENVIRONMENTS, build
from tests.environments.variations.varying import build_varied, everything

SEED = 2**40 + 3


class OneByOne(Episode):
    """An episode whose streams numpy seeds, each on its own."""

    def conditions_generator(self) -> np.random.Generator:
        return np.random.default_rng(episode_seed_sequence(self.seed, Stream.CONDITIONS, self.episode_index))

    def variation_generator(self, variation: str) -> np.random.Generator:
        sequence = episode_seed_sequence(self.seed, Stream.VARIATION, self.episode_index, variation)
        return np.random.default_rng(sequence)


def drawn_one_by_one(environment: Environment, index: int) -> Conditions:
    episode = OneByOne(job="training", episode_index=index, seed=SEED)
    return environment.vary_conditions(environment.draw_conditions(episode.conditions_generator()), episode)


def env_slots(environment: Environment) -> TrainingEnvironment:
    """Return the environment in training, before the first start that a test asks for."""
    scaler = ActionScaler(environment.action_spec, ActionScaling.AS_IS, device=environment.device)
    training = TrainingEnvironment(environment, seed=SEED, scaler=scaler, cfg={})
    training.num_drawn = 0
    return training


def assert_starts_are_those_of_the_episodes(environment: Environment) -> None:
    starts = env_slots(environment)
    drawn = [conditions for count in (200, 1, 3, 96) for conditions in starts.next_conditions(count)]
    assert drawn == [drawn_one_by_one(environment, index) for index in range(300)]
    for conditions in drawn:
        parts = [part for value in conditions.values() for part in (value if isinstance(value, tuple) else (value,))]
        assert {type(part) for part in parts} <= {float, int, str}, "this is no JSON"
    environment.close()


@pytest.mark.parametrize("name", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_every_environment_starts_as_its_episodes_do(name):
    assert_starts_are_those_of_the_episodes(build(name))


@pytest.mark.parametrize("name", ALL_ENVIRONMENTS)
def test_every_environment_with_everything_varied_starts_as_its_episodes_do(name):
    assert_starts_are_those_of_the_episodes(build_varied(name, everything(name)))


def test_starts_go_on_from_where_a_checkpoint_left_them():
    environment = build("reach")
    starts = env_slots(environment)
    starts.num_drawn = 2**32 - 2
    assert starts.next_conditions(4) == [drawn_one_by_one(environment, 2**32 - 2 + each) for each in range(4)]
