"""What draws pictures is loaded while a job is built, where its policy looks at any: kernels may take minutes."""

import torch

from isaaclab_arena.evaluation.job.group_building import GroupBuilder
from isaaclab_arena.evaluation.job.start_up_clock import StartUpClock
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from tests.evaluation.jobs import coin_job, settings
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
    """Return how often each group's environment was told to load what draws pictures."""
    builder = SlowToDrawBuilder()
    job = coin_job(builder=builder, policy_class=policy_class)
    GroupBuilder(settings(tmp_path, num_groups=2)).build(job, tmp_path, StartUpClock("coins", import_s=None))
    return [environment.num_loads for environment in builder.built if isinstance(environment, SlowToDraw)]


def test_a_policy_that_looks_finds_everything_loaded(tmp_path):
    assert loads(tmp_path, ShrugPolicy) == [1, 1]


def test_a_policy_that_never_looks_waits_for_nothing(tmp_path):
    assert loads(tmp_path, BlindPolicy) == [0, 0]
