"""Environments and policies that a job builds, shares and keeps."""

import dataclasses
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.config.schema import Delays, JobConfig, LatencyConfig, Meanwhile
from isaaclab_arena.evaluation.builds import GroupBuilder, StartUpClock, StartUpPart
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.queues import FixedShare
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.connections import Connections
from isaaclab_arena.interfaces.policy import PolicyTraits
from isaaclab_arena.logs import KernelTimes
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.ledger import JobReport, Reproducible, StartUp
from tests.evaluation.jobs import coin_job, config_of, settings
from tests.evaluation.plants import NoisyChunks
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, ShrugPolicy, shrugging
from tests.models.trainings import exported_onnx, trained
from tests.policy.checkpoints import write_checkpoint

BLIND = shrugging(traits=PolicyTraits(sees_pictures=False))


class SlowToDraw(CoinEnvironment):
    """Counts how often what draws its pictures is loaded."""

    num_loads = 0

    def __init__(self, config: CoinConfig, num_envs: int) -> None:
        super().__init__(config, num_envs)
        self.observation_spec = {**self.observation_spec, "camera_obs": {}}

    def load_renderer(self) -> None:
        self.num_loads += 1


@pytest.mark.parametrize(("policy_class", "loads"), [(ShrugPolicy, [1, 1]), (BLIND, [0, 0])])
def test_a_policy_that_looks_finds_every_renderer_loaded_and_one_that_never_does_waits_for_none(
    tmp_path, policy_class, loads
):
    builder = CoinBuilder(SlowToDraw)
    job = coin_job(builder=builder, policy_class=policy_class)
    GroupBuilder(settings(tmp_path, pipeline=2)).build(job, tmp_path, StartUpClock("coins", import_s=None))
    assert [each.num_loads for each in builder.built if isinstance(each, SlowToDraw)] == loads


class PointingPolicy(ShrugPolicy):
    """Says that it looks through the wrong camera."""

    def connections(self, env) -> Connections:
        return Connections(pictures={"left": "right_cam", "right": "left_cam"})

    def get_action(self, env, observation):
        return super().get_action(env, observation)


def test_a_job_says_once_what_goes_where_and_what_speaks_against_it(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("isaaclab_arena"), "propagate", True)
    caplog.set_level(logging.INFO, logger="isaaclab_arena")
    job = dataclasses.replace(coin_job(policy_class=PointingPolicy), doubts=("a recording of another robot",))
    GroupBuilder(settings(tmp_path, pipeline=2)).build(job, tmp_path, StartUpClock("coins", import_s=None))
    told = [each for each in caplog.records if "job 'coins': " in each.getMessage()]
    assert [each.levelname for each in told] == ["INFO", "WARNING", "WARNING"]
    words = ("left <- right_cam; right <- left_cam", "a recording of another robot", "'left' from camera 'right_cam'")
    for each, record in zip(words, told, strict=True):
        assert each in record.getMessage()


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
        coin_job(policy_class=PlacedWhenItGoesOn, latency=config), delays=Delays(steps=((steps, 1),))
    )
    built = GroupBuilder(settings(tmp_path)).build(job, tmp_path, StartUpClock("coins", import_s=None))
    assert (built.plan_because is None) == is_bitwise


ROOT = Path(__file__).parents[3]


REACH = {"num_inputs": 26, "num_actions": 8, "action_scaling": "within_bounds"}


def played(directory: Path, job: JobConfig, shares: list[list[tuple[int, int]]]) -> tuple[list[JobReport], dict]:
    """Return the reports of ranks that share a job, and the checksum of every episode's arrays."""
    [resolved] = resolve_jobs([job])
    reports = []
    for rank, share in enumerate(shares):
        ranks = settings(directory, rank=rank, world_size=len(shares), no_dataset=False)
        runner = JobRunner(ranks)
        reports.append(runner.run(FixedShare(job=resolved, share=tuple(share))))
        runner.close()
    lines = read_commits(directory / job.name, job.name).lines
    return reports, {line.episode_index: (line.checksum, line.length, line.episode_return) for line in lines}


def assert_what_is_said_is_true(tmp_path: Path, job: JobConfig) -> None:
    num_episodes = job.num_episodes or 0
    middle = num_episodes // 3
    whole, halves = [[(0, num_episodes)]], [[(0, middle)], [(middle, num_episodes)]]
    alone, together = played(tmp_path / "one", job, whole), played(tmp_path / "two", job, halves)
    reports = alone[0] + together[0]
    assert [report.error for report in reports] == [None] * 3
    assert len(alone[1]) == num_episodes
    promises = {report.reproducible for report in reports}
    assert all(bool(report.plan_because) == (report.reproducible is Reproducible.PLAN) for report in reports)
    if promises == {Reproducible.BITWISE}:
        assert len({report.policy_batch for report in reports}) == 1
        assert alone[1] == together[1]


def job_of(environment: str, file: Path, **options: Any) -> JobConfig:
    options["checkpoint_path"] = os.fspath(file)
    return config_of(environment, "rsl_rl", environment, num_envs=3, num_episodes=3, policy_config_dict=options)


def shipped(directory: Path) -> JobConfig:
    return job_of("cartpole", ROOT / "models" / "cartpole" / "model_200.pt")


def recurrent(directory: Path) -> JobConfig:
    checkpoint = write_checkpoint(directory / "logs", name="model_1.pt", **REACH, recurrent=True)
    return job_of("reach", checkpoint, stochastic=True)


def exported(directory: Path) -> JobConfig:
    training = trained(directory / "logs", num_observations=26, num_actions=8)
    return job_of("reach", exported_onnx(training, any_batch_size=False), action_scaling="within_bounds")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("make", [shipped, recurrent, exported])
def test_a_job_that_says_bitwise_is_the_same_bits_on_one_rank_and_on_two(tmp_path, make):
    assert_what_is_said_is_true(tmp_path, make(tmp_path))


@dataclass
class World:
    """Time as it passes, and kernels as they come."""

    now_s: float = 100.0
    kernels: KernelTimes = field(default_factory=lambda: KernelTimes(compile_s=50.0))
    told: list[str | None] = field(default_factory=list)

    def passes(self, seconds: float, **kernels: float) -> None:
        self.now_s += seconds
        self.kernels += KernelTimes(**kernels)

    def clock(self, import_s: float | None = 2.0) -> StartUpClock:
        now = {"now_s": lambda: self.now_s, "kernels": lambda: self.kernels}
        return StartUpClock("lift", import_s=import_s, on_part=self.told.append, **now)


def test_every_second_until_the_first_step_belongs_to_one_part_and_those_of_kernels_to_them():
    world = World()
    clock = world.clock()
    world.passes(15.0, compile_s=9.0, wait_s=4.0)
    clock.finish(StartUpPart.ENVIRONMENT)
    world.passes(1.0)
    clock.finish(StartUpPart.POLICY)
    world.passes(0.75, load_s=0.25)
    clock.finish(StartUpPart.FIRST_RESET)
    world.passes(1.0)
    clock.finish(StartUpPart.FIRST_RESET)
    world.passes(2.0, compile_s=2.0)
    clock.finish(StartUpPart.FIRST_STEP)
    world.passes(5.0, compile_s=5.0)
    named = ("building the environment", "loading the policy", "starting its first episodes", "making its first step")
    assert world.told == [*named, None]
    assert clock.start_up() == StartUp(
        import_s=2.0,
        compile_s=11.0,
        kernel_wait_s=4.0,
        kernel_load_s=0.25,
        build_environment_s=2.0,
        build_policy_s=1.0,
        first_reset_s=0.5,
        first_step_s=1.0,
    )
