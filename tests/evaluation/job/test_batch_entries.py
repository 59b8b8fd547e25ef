"""A job that says ``bitwise`` is the same bits on one rank and on two, whatever make of processor it runs on.

The answer of a matrix library for a batch entry may depend on where the entry stands, and ranks that share a job put
its episodes into other env slots. Nothing here says which level a job must have, only that what it says is true.
"""

import os
from pathlib import Path

import pytest

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.evaluation.job import FixedShare
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.storage.ledger import read_commits
from isaaclab_arena.storage.reports import JobReport, Reproducible
from tests.evaluation.jobs import settings
from tests.models.trainings import exported_onnx, exported_torchscript, trained
from tests.policy.checkpoints import write_checkpoint

ROOT = Path(__file__).parents[3]


REACH = {"num_inputs": 26, "num_actions": 8, "action_scaling": "within_bounds"}


def played(directory: Path, job: JobConfig, shares: list[list[tuple[int, int]]]) -> tuple[list[JobReport], dict]:
    """Return the reports of ranks that share a job, and the checksum of every episode's arrays."""
    [resolved] = resolve_jobs([job])
    reports = []
    for rank, share in enumerate(shares):
        ranks = settings(directory, rank=rank, world_size=len(shares), no_dataset=False)
        runner = JobRunner(ranks)
        reports.append(runner.run(resolved, supply=FixedShare(share=tuple(share))))
        runner.close()
    lines = read_commits(directory / job.name, job.name).lines
    return reports, {line.episode_index: (line.checksum, line.episode_length, line.episode_return) for line in lines}


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


@pytest.mark.parametrize("num_envs", [2, 3, 50])
def test_the_shipped_cartpole(tmp_path, num_envs):
    job = JobConfig(
        index=0,
        name="cartpole",
        environment="cartpole",
        num_envs=num_envs,
        num_episodes=60 if num_envs == 50 else 6,
        policy_type="rsl_rl",
        policy_config_dict={"checkpoint_path": os.fspath(ROOT / "models" / "cartpole" / "model_200.pt")},
    )
    assert_what_is_said_is_true(tmp_path, job)


@pytest.mark.parametrize("options", [{}, {"recurrent": True}])
def test_networks_of_random_weights_with_and_without_a_memory(tmp_path, options):
    checkpoint = write_checkpoint(tmp_path / "logs", name="model_1.pt", **REACH, **options)
    job = JobConfig(
        index=0,
        name="reach",
        environment="reach",
        num_envs=3,
        num_episodes=6,
        policy_type="rsl_rl",
        policy_config_dict={"checkpoint_path": os.fspath(checkpoint), "stochastic": True},
    )
    assert_what_is_said_is_true(tmp_path, job)


def reach_job(file: Path, num_envs: int = 3) -> JobConfig:
    return JobConfig(
        index=0,
        name="reach",
        environment="reach",
        num_envs=num_envs,
        num_episodes=6,
        policy_type="rsl_rl",
        policy_config_dict={"checkpoint_path": os.fspath(file), "action_scaling": "within_bounds"},
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", [{}, {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": 8}])
@pytest.mark.parametrize("any_batch_size", [False, True])
def test_networks_in_onnx_files_with_and_without_a_memory(tmp_path, kind, any_batch_size):
    training = trained(tmp_path / "logs", num_observations=26, num_actions=8, **kind)
    file = exported_onnx(training, any_batch_size=any_batch_size)
    assert_what_is_said_is_true(tmp_path, reach_job(file))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [{}, {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 8}])
def test_networks_in_torchscript_files_with_and_without_a_memory(tmp_path, kind):
    training = trained(tmp_path / "logs", num_observations=26, num_actions=8, **kind)
    assert_what_is_said_is_true(tmp_path, reach_job(exported_torchscript(training)))
