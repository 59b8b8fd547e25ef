"""Probes of environments and policies: do env slots influence each other?"""

import random

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation.batching import made_up, probe_policy, unlike_itself
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.storage.ledger import Reproducible
from tests.environments.gym.gym_leaks import LEAKS, CountsResets, GlobalNoise, Leaking, RareNoise, TorchNoise, name_of
from tests.environments.gym.gym_running import build
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, ShrugPolicy, SurePolicy

"""Most calls for a batch of one size: two arrangements of two steps, and one of one step."""


def probed(maker, num_envs: int) -> str | None:
    environment = build(name_of(maker), num_envs=num_envs, success_key="success")
    try:
        return unlike_itself(environment, sees_pictures=True)
    finally:
        environment.close()


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("maker", [Leaking, GlobalNoise, RareNoise, TorchNoise])
def test_nothing_speaks_against_an_environment_whose_draws_follow_from_the_seed(maker, num_envs):
    assert probed(maker, num_envs) is None


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("maker", LEAKS)
def test_what_an_environment_keeps_or_draws_besides_is_found_by_playing_again(maker, num_envs):
    assert "goes differently" in (probed(maker, num_envs) or "")


def test_where_and_how_an_episode_differs_is_said():
    assert str(probed(CountsResets, 1)).endswith("'terminated' differs in step 5")


@pytest.mark.parametrize(("maker", "promise"), [(GlobalNoise, Reproducible.BITWISE), (CountsResets, Reproducible.PLAN)])
def test_a_job_promises_what_was_measured(tmp_path, maker, promise):
    builder = ENVIRONMENTS.get(name_of(maker))
    config = builder.config_class(success_key="success")
    report = JobRunner(settings(tmp_path)).run(coin_job(builder=builder, environment=config, policy_class=SurePolicy))
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


@pytest.mark.parametrize(
    ("environment_class", "because"),
    [
        (CoinEnvironment, None),
        (WearsOut, "goes differently: 'reward' differs in step 1"),
    ],
)
def test_an_environment_class_of_a_users_own_is_measured_too(tmp_path, environment_class, because):
    report = JobRunner(settings(tmp_path)).run(
        coin_job(builder=CoinBuilder(environment_class), policy_class=SurePolicy)
    )
    assert report.error is None
    assert (report.plan_because is None) if because is None else because in str(report.plan_because)


CPU = torch.device("cpu")


class Echo(PolicyBase[None]):
    """Does what it sees, in each env slot."""

    traits = PolicyTraits(reproducible=True)

    def get_action(self, env, observation):
        return observation["policy"]["clock"] * torch.ones(env.num_envs, 2)


def passes(policy: PolicyBase, batch: int = 4, num_envs: int = 4) -> bool:
    result = probe_policy(policy, CoinEnvironment(CoinConfig(), num_envs), batch=batch)
    assert result.error is None
    return result.passes


class Noisy(Echo):
    """Adds noise of each episode's own stream."""

    def start_episodes(self, env, starts):
        self.generators = {start.env_id: start.episode.policy_generator() for start in starts}

    def get_action(self, env, observation):
        noise = [self.generators[env_id].standard_normal() for env_id in range(env.num_envs)]
        return super().get_action(env, observation) + torch.tensor(noise)[:, None]


@pytest.mark.parametrize("policy", [Echo(), Noisy()])
def test_a_policy_whose_env_slots_stand_alone_passes(policy):
    assert passes(policy)


def place(values):
    return torch.arange(float(len(values)))


DEPENDENT = {
    "place": lambda values: values + place(values) * 1e-6,
    "last place": lambda values: values + (place(values) == len(values) - 1) * 1e-6,
    "last four": lambda values: values + (place(values) >= len(values) - 4) * 1e-6 * place(values),
    "odd places": lambda values: values + (place(values) % 2) * 1e-6,
    "place before": lambda values: values + values.roll(1) * 1e-6,
    "mean of all": lambda values: values - values.mean(),
    "largest of all": lambda values: values / values.max(),
    "a generator for all": lambda values: values + torch.rand(len(values)),
    "sign of zero": lambda values: torch.where(place(values) == 0, -0.0, 0.0),
}


@pytest.mark.parametrize("rule", DEPENDENT.values(), ids=DEPENDENT)
@pytest.mark.parametrize("batch", [4, 8, 52])
def test_a_policy_whose_env_slots_depend_on_places_or_neighbours_fails(rule, batch):
    class Spoilt(Echo):
        def get_action(self, env, observation):
            return rule(super().get_action(env, observation)[:, 0])[:, None].expand(-1, 2)

    assert not passes(Spoilt(), batch, batch)


def test_only_the_env_slots_that_are_asked_for_together_are_moved():
    """A model that is asked for a few env slots at a time is not asked for all of the environment."""
    started = []

    class Listed(Echo):
        def start_episodes(self, env, starts):
            started.append([start.env_id for start in starts])
            assert env.num_envs == 50

    assert passes(Listed(), batch=4, num_envs=50)
    assert started == [[0, 1, 2, 3]] * 3


def test_a_policy_and_the_process_are_as_before():
    class Careless(ShrugPolicy):
        traits = PolicyTraits(reproducible=True)
        was_reset = False

        def reset(self, env_ids=None):
            self.was_reset = env_ids is None

        def get_action(self, env, observation):
            self.was_reset = False
            torch.manual_seed(5)
            np.random.rand(700)
            random.random()
            observation["policy"]["clock"].fill_(0.0)
            return torch.zeros(env.num_envs, 2)

    before = torch.random.get_rng_state(), str(np.random.get_state()), random.getstate()
    policy = Careless()
    assert passes(policy)
    assert policy.was_reset
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert str(np.random.get_state()) == before[1]
    assert random.getstate() == before[2]


def test_a_single_env_slot_is_not_asked_for():
    policy = ShrugPolicy()
    assert passes(policy, batch=1, num_envs=1)
    assert policy.num_calls == 0


def test_made_up_observations_are_of_the_types_and_within_the_bounds_that_are_announced():
    spec = {
        "policy": {
            "free": ArraySpec(shape=(500,)),
            "bounded": ArraySpec(shape=(2,), low=(-1.0, 5.0), high=(1.0, 6.0), dtype=torch.float64),
            "above": ArraySpec(shape=(100,), low=(0.0,) * 100),
            "flag": ArraySpec(shape=(20,), dtype=torch.bool),
            "count": ArraySpec(shape=(), dtype=torch.int64),
        },
        "camera_obs": {"front": ArraySpec(shape=(16, 16, 3), dtype=torch.uint8)},
    }
    made = made_up(spec, 60, np.random.default_rng(1), CPU)
    assert all(made[group][name].shape == (60, *term.shape) for group in spec for name, term in spec[group].items())
    assert all(made[group][name].dtype == term.dtype for group in spec for name, term in spec[group].items())
    policy, magnitudes = made["policy"], made["policy"]["free"].abs().mean(dim=1)
    assert magnitudes.min() < 0.1
    assert 1.0 < magnitudes.max() < 10.0
    assert (policy["bounded"][:, 0].abs() <= 1.0).all()
    assert ((policy["bounded"][:, 1] >= 5.0) & (policy["bounded"][:, 1] <= 6.0)).all()
    assert (policy["above"] >= 0.0).all()
    assert 0.3 < policy["flag"].float().mean() < 0.7
    assert made["camera_obs"]["front"].max() > 250
