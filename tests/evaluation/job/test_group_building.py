"""While a job is built, what draws its pictures is loaded, and its policy is probed as it will be asked."""

import dataclasses
import logging

import pytest
import torch

from isaaclab_arena.config.schema import LatencyConfig, Meanwhile
from isaaclab_arena.evaluation.builds import GroupBuilder, StartUpClock
from isaaclab_arena.evaluation.latency import JobLatency, in_steps
from isaaclab_arena.interfaces.connections import Connections
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from tests.evaluation.jobs import coin_job, settings
from tests.evaluation.latency.plants import NoisyChunks
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, ShrugPolicy


class BlindPolicy(ShrugPolicy):
    """Looks at no picture."""

    traits = PolicyTraits(sees_pictures=False)

    def get_action(self, env, observation):
        return super().get_action(env, observation)


class SlowToDraw(CoinEnvironment):
    """Counts how often what draws its pictures is loaded."""

    num_loads = 0

    def load_renderer(self) -> None:
        self.num_loads += 1


class SlowToDrawBuilder(CoinBuilder):
    """Builds `SlowToDraw`."""

    def build(self, config: CoinConfig, *, num_envs: int, device: torch.device, num_threads: int) -> SlowToDraw:
        del device, num_threads
        environment = SlowToDraw(config, num_envs)
        self.built.append(environment)
        return environment


def loads(tmp_path, policy_class) -> list[int]:
    """Number of times each group's environment loaded its renderer."""
    builder = SlowToDrawBuilder()
    job = coin_job(builder=builder, policy_class=policy_class)
    GroupBuilder(settings(tmp_path, pipeline=2)).build(job, tmp_path, StartUpClock("coins", import_s=None))
    return [environment.num_loads for environment in builder.built if isinstance(environment, SlowToDraw)]


def test_a_policy_that_looks_finds_everything_loaded(tmp_path):
    assert loads(tmp_path, ShrugPolicy) == [1, 1]


def test_a_policy_that_never_looks_waits_for_nothing(tmp_path):
    assert loads(tmp_path, BlindPolicy) == [0, 0]


class PointingPolicy(ShrugPolicy):
    """Says that it looks through the wrong camera."""

    def connections(self, env) -> Connections:
        return Connections(pictures={"left": "right_cam", "right": "left_cam"})

    def get_action(self, env, observation):
        return super().get_action(env, observation)


class QuietPolicy(PointingPolicy):
    """Acts in a way of its own, of which what its base says may be wrong."""

    def get_action(self, env, observation):
        return super().get_action(env, observation)


def test_a_job_says_once_what_goes_where_and_what_speaks_against_it(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("isaaclab_arena"), "propagate", True)
    caplog.set_level(logging.INFO, logger="isaaclab_arena")
    for policy_class in (PointingPolicy, QuietPolicy):
        job = dataclasses.replace(coin_job(policy_class=policy_class), doubts=("a recording of another robot",))
        GroupBuilder(settings(tmp_path, pipeline=2)).build(job, tmp_path, StartUpClock("coins", import_s=None))
    told = [(each.levelname, each.getMessage()) for each in caplog.records if "job 'coins': " in each.getMessage()]
    crossed = "job 'coins': the policy is shown 'left' by camera 'right_cam' and 'right' by 'left_cam'"
    assert told == [
        ("INFO", "job 'coins': left <- right_cam; right <- left_cam"),
        ("WARNING", "job 'coins': a recording of another robot"),
        ("WARNING", f"{crossed}: by their names it is the other way round"),
        ("WARNING", "job 'coins': a recording of another robot"),
    ]


class PlacedWhenItGoesOn(NoisyChunks):
    """Knows its place in the batch as soon as it is given actions to go on from."""

    traits = PolicyTraits(reproducible=True)
    TERM = "clock"

    def __init__(self, config=None) -> None:
        super().__init__()

    def chunks(self, env, observation, env_ids, going_on=None):
        answer = super().chunks(env, observation, env_ids, going_on)
        return answer if going_on is None else answer + 1e-6 * torch.arange(len(answer))[:, None, None]


@pytest.mark.parametrize(
    ("meanwhile", "steps", "is_bitwise"),
    [(Meanwhile.RTC, 2, False), (Meanwhile.RTC, 0, True), (Meanwhile.CHUNK, 2, True)],
)
def test_the_same_bits_are_promised_of_a_policy_as_the_job_asks_it(tmp_path, meanwhile, steps, is_bitwise):
    config = LatencyConfig(steps=(steps, steps), meanwhile=meanwhile)
    job = dataclasses.replace(
        coin_job(policy_class=PlacedWhenItGoesOn, latency=config),
        latency=JobLatency(config=config, delays=in_steps(steps, steps)),
    )
    built = GroupBuilder(settings(tmp_path)).build(job, tmp_path, StartUpClock("coins", import_s=None))
    assert (built.plan_because is None) == is_bitwise
