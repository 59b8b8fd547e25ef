"""A job that says ``bitwise`` is the same bits on one rank and on two, whatever make of processor it runs on.

The answer of a matrix library for a batch entry may depend on where the entry stands, and ranks that share a job put
its episodes into other env slots. Nothing here says which level a job must have, only that what it says is true.
"""

import os
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml

from isaaclab_arena import ConfigError
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.evaluation.job.job_runner import JobRunner
from isaaclab_arena.evaluation.plan.episode_supply import FixedShare
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.recording.recorder import RecordingOptions
from isaaclab_arena.storage.run.commits import read_commits
from isaaclab_arena.storage.run.job_reports import JobReport, Reproducible
from tests.evaluation.jobs import settings
from tests.models.trainings import exported_onnx, exported_torchscript, trained
from tests.policy.checkpoints import write_checkpoint

ROOT = Path(__file__).parents[2]
REACH = {"num_inputs": 26, "num_actions": 8, "action_scaling": "within_bounds"}


def played(directory: Path, job: JobConfig, shares: list[list[tuple[int, int]]]) -> tuple[list[JobReport], dict]:
    """Return the reports of ranks that share a job, and the checksum of every episode's arrays."""
    [resolved] = resolve_jobs([job])
    reports = []
    for rank, share in enumerate(shares):
        ranks = settings(directory, rank=rank, world_size=len(shares), recording=RecordingOptions())
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


class Picked(torch.nn.Module):
    """Gives half of some of the numbers that it is shown: no sum is rounded, so no processor can differ."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(0.5 * torch.eye(26)[:, :8])

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return seen @ self.weight


class Placed(Picked):
    """Adds to each answer what stands at which place, as nothing that was learned does."""

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return super().forward(seen) + torch.cumsum(torch.ones_like(seen[:, :8]), dim=0)


def torchscript(path: Path, network: torch.nn.Module, batch_size: int = 1) -> Path:
    torch.jit.save(torch.jit.trace(network, torch.zeros(batch_size, 26)), str(path))
    return path


def onnx(path: Path, network: torch.nn.Module, batch_size: int = 1) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    torch.onnx.export(network, (torch.zeros(batch_size, 26),), str(path), opset_version=18, dynamo=False)
    return path


def onnx_for_any_batch_size(path: Path, network: torch.nn.Module) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    seen = {"input_names": ["obs"], "dynamic_axes": {"obs": {0: "batch"}}}
    torch.onnx.export(network, (torch.zeros(1, 26),), str(path), opset_version=18, dynamo=False, **seen)
    return path


KINDS = {"policy.pt": torchscript, "policy.onnx": onnx, "any.onnx": onnx_for_any_batch_size}


def evaluated(directory: Path, file: Path) -> dict:
    """Run a job of 3 env slots with a network in a file, and return what the table says of it."""
    job = {
        "name": "reach",
        "arena_env_args": {"environment": "reach", "num_envs": 3},
        "policy_type": "rsl_rl",
        "policy_config_dict": {"checkpoint_path": os.fspath(file), "action_scaling": "within_bounds"},
        "num_episodes": 4,
    }
    (directory / "jobs.yaml").write_text(yaml.safe_dump({"jobs": [job]}))
    assert evaluate(["--eval_jobs_config", str(directory / "jobs.yaml"), "--output_dir", str(directory / "out")]) == 0
    [told] = pd.read_csv(directory / "out" / "results.csv").to_dict("records")
    return {str(name): value for name, value in told.items()}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", KINDS)
def test_an_exported_network_whose_batch_entries_stand_alone_is_bitwise_on_a_batch_that_the_table_names(tmp_path, name):
    told = evaluated(tmp_path, KINDS[name](tmp_path / name, Picked()))
    assert (told["reproducible"], told["policy_batch"], told["episodes"]) == ("bitwise", 4, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    ("name", "promised"), [("policy.pt", "plan"), ("any.onnx", "plan"), ("policy.onnx", "bitwise")]
)
def test_an_exported_program_that_looks_at_places_is_found_out_unless_it_is_asked_entry_by_entry(
    tmp_path, name, promised
):
    told = evaluated(tmp_path, KINDS[name](tmp_path / name, Placed()))
    assert (told["reproducible"], told["policy_batch"]) == (promised, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_an_onnx_file_for_a_fixed_batch_is_refused_before_anything_starts(tmp_path):
    file = onnx(tmp_path / "eight.onnx", Picked(), batch_size=8)
    with pytest.raises(ConfigError) as refused:
        resolve_jobs([reach_job(file, num_envs=8)], file="jobs.yaml")
    [problem] = refused.value.problems
    assert (problem.file, problem.job, problem.key) == ("jobs.yaml", "reach", "policy_config_dict.checkpoint_path")
    assert f"{file}: is for a batch of 8; export it for a batch of 1, or of any size" in problem.message
