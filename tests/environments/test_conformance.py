"""Every environment that ships keeps the rules that users' own environments are tested by."""

import pytest

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.testing.environment_conformance import EnvironmentConformance, PictureConformance
from tests.environments.building import ALL_ENVIRONMENTS, FLOOR_ENVIRONMENTS, build
from tests.environments.gym import gym_running

EXAMPLES = ("reach", "sort_two", "cartpole", "track_motion")
OF_NO_TASK = (
    "test_films_are_pictures_and_change_nothing",
    "test_pictures_on_demand_are_those_that_are_always_drawn",
    "test_a_step_leaves_the_action_as_it_is",
    "test_returned_tensors_stay_as_they_are",
    "test_closing_twice_is_allowed",
    "test_a_recorded_state_has_all_env_slots_and_stays_as_it_is",
    "test_the_parts_of_a_state_make_the_state",
    "test_actions_of_resting_env_slots_are_ignored",
    "test_env_slots_rest_until_they_are_reset",
    "test_the_time_limit_truncates",
)
"""Rules that the same code keeps for every task."""


class TestShipped(EnvironmentConformance):
    """The tasks on a table, and those of robots on a floor."""

    num_steps = 4

    @pytest.fixture(autouse=True, params=[*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS, "lift_object ee_delta"])
    def choose(self, request):
        self.name, _, mode = request.param.partition(" ")
        self.options = {"action_mode": mode} if mode else {}
        if request.node.originalname in OF_NO_TASK and self.name not in EXAMPLES:
            pytest.skip("the same code keeps it for every task")

    def make(self, num_envs: int) -> Environment:
        return build(self.name, num_envs=num_envs, **self.options)


class TestSeeing(PictureConformance):
    """A task on a table whose pictures policies see."""

    num_steps = 4

    def make(self, num_envs: int) -> Environment:
        return build("reach", num_envs=num_envs, enable_cameras=True, camera_size=16)


class TestGym(EnvironmentConformance):
    """Environments behind Gymnasium's interface, in this process."""

    def make(self, num_envs: int) -> Environment:
        return gym_running.build(num_envs=num_envs)


@pytest.mark.parametrize("identifier", ["Fake/Seen-v0", "Fake/Sparing-v0"])
class TestGymPictures(PictureConformance):
    """Environments behind Gymnasium's interface that observe pictures."""

    @pytest.fixture(autouse=True)
    def choose(self, identifier):
        self.name = f"gym:tests.environments.gym.gym_pictures:{identifier}"

    def make(self, num_envs: int) -> Environment:
        return gym_running.build(self.name, num_envs=num_envs)
