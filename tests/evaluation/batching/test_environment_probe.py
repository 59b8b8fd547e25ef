"""Only an environment whose episodes repeat themselves when they are played again is promised to give the same bits."""

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation.batching import unlike_itself
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.storage.reports import Reproducible
from tests.environments.gym.gym_leaks import LEAKS, CountsResets, GlobalNoise, Leaking, RareNoise, TorchNoise, name_of
from tests.environments.gym.gym_running import build
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinEnvironment, ShrugPolicy


class Table(ShrugPolicy):
    traits = PolicyTraits(reproducible=True, batch_invariant=True)


def probed(maker, num_envs: int) -> str | None:
    environment = build(name_of(maker), num_envs=num_envs, success_key="success")
    try:
        return unlike_itself(environment, sees_pictures=True)
    finally:
        environment.close()


@pytest.mark.parametrize("num_envs", [1, 2, 3])
@pytest.mark.parametrize("maker", [Leaking, GlobalNoise, RareNoise, TorchNoise])
def test_nothing_speaks_against_an_environment_whose_draws_follow_from_the_seed(maker, num_envs):
    assert probed(maker, num_envs) is None


@pytest.mark.parametrize("num_envs", [1, 2, 3])
@pytest.mark.parametrize("maker", LEAKS)
def test_what_an_environment_keeps_or_draws_besides_is_found_by_playing_again(maker, num_envs):
    assert "takes another course" in (probed(maker, num_envs) or "")


def test_where_and_how_an_episode_differs_is_said():
    assert probed(CountsResets, 1) == (
        "an episode that is played again, with the same actions, takes another course: 'terminated' differs in step 5"
    )


@pytest.mark.parametrize(("maker", "promise"), [(GlobalNoise, Reproducible.BITWISE), (CountsResets, Reproducible.PLAN)])
def test_a_job_promises_what_was_measured(tmp_path, maker, promise):
    builder = ENVIRONMENTS.get(name_of(maker))
    config = builder.config_class(success_key="success")
    report = JobRunner(settings(tmp_path)).run(coin_job(builder=builder, environment=config, policy_class=Table))
    assert (report.error, report.reproducible) == (None, promise)


class WearsOut(CoinEnvironment):
    """Pays less from reset to reset."""

    resets = 0

    def reset(self, env_ids, conditions):
        self.resets += 1
        return super().reset(env_ids, conditions)

    def step(self, action):
        step = super().step(action)
        step.reward.div_(self.resets)
        return step


class Refuses(CoinEnvironment):
    """Cannot be stepped the first time."""

    is_first = True

    def step(self, action):
        if self.is_first:
            self.is_first = False
            raise OSError("not yet")
        return super().step(action)


class OwnBuilder(CoinBuilder):
    def __init__(self, environment_class) -> None:
        super().__init__()
        self.environment_class = environment_class

    def build(self, config, *, num_envs, device, num_threads):
        return self.environment_class(config, num_envs)


@pytest.mark.parametrize(
    ("environment_class", "because"),
    [
        (CoinEnvironment, None),
        (WearsOut, "takes another course: 'reward' differs in step 1"),
        (Refuses, "no episode could be played to see whether it repeats itself (OSError: not yet)"),
    ],
)
def test_an_environment_class_of_a_users_own_is_measured_too(tmp_path, environment_class, because):
    report = JobRunner(settings(tmp_path)).run(coin_job(builder=OwnBuilder(environment_class), policy_class=Table))
    assert report.error is None
    assert (report.plan_because is None) if because is None else because in str(report.plan_because)


def test_the_process_wide_generators_are_left_to_the_policy():
    torch.manual_seed(3)
    np.random.seed(3)
    expected = float(torch.rand(1)), np.random.normal()
    environment = WearsOut(CoinBuilder.config_class(), 2)
    torch.manual_seed(3)
    np.random.seed(3)
    unlike_itself(environment, sees_pictures=False)
    assert (float(torch.rand(1)), np.random.normal()) == expected
