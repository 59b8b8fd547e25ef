"""Every environment that ships keeps the rules that users' own environments are tested by."""

import pytest

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.testing.environment_conformance import EnvironmentConformance
from tests.environments.building import ALL_ENVIRONMENTS, FLOOR_ENVIRONMENTS, build
from tests.environments.gym import gym_running

FILMED = ("reach", "cartpole")


class TestShipped(EnvironmentConformance):
    """The tasks on a table, and those of robots on a floor."""

    num_steps = 4

    @pytest.fixture(autouse=True, params=[*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS, "lift_object ee_delta"])
    def choose(self, request):
        self.name, _, mode = request.param.partition(" ")
        self.options = {"action_mode": mode} if mode else {}

    def make(self, num_envs: int) -> Environment:
        return build(self.name, num_envs=num_envs, **self.options)

    def test_films_are_pictures_and_change_nothing(self) -> None:
        if self.name not in FILMED:
            pytest.skip("seconds of rendering, by the same code for every task")
        super().test_films_are_pictures_and_change_nothing()


class TestSeeing(EnvironmentConformance):
    """A task on a table whose pictures policies see."""

    num_steps = 4

    def make(self, num_envs: int) -> Environment:
        return build("reach", num_envs=num_envs, enable_cameras=True, camera_size=16)


class TestGym(EnvironmentConformance):
    """Environments behind Gymnasium's interface, in this process."""

    def make(self, num_envs: int) -> Environment:
        return gym_running.build(num_envs=num_envs)


@pytest.mark.parametrize("identifier", ["Fake/Seen-v0", "Fake/Sparing-v0"])
class TestGymPictures(EnvironmentConformance):
    """Environments behind Gymnasium's interface that observe pictures."""

    @pytest.fixture(autouse=True)
    def choose(self, identifier):
        self.name = f"gym:tests.environments.gym.gym_pictures:{identifier}"

    def make(self, num_envs: int) -> Environment:
        return gym_running.build(self.name, num_envs=num_envs)
