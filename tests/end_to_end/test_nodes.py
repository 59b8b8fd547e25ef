"""Several nodes, played by launchers on this machine."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.end_to_end.launching import (
    EVAL_RUNNER,
    TORCHRUN,
    episodes_table,
    free_port,
    patience_s,
    start,
    wait_until,
    write_jobs,
)

JOBS = [
    {"name": "reach", "arena_env_args": {"environment": "reach", "num_envs": 2}, "policy_type": "scripted"},
    {"name": "lift", "arena_env_args": {"environment": "lift_object", "num_envs": 2}, "policy_type": "random_action"},
    {"name": "drawer", "arena_env_args": {"environment": "open_drawer", "num_envs": 2}, "policy_type": "random_action"},
]


def launch_by_torchrun(jobs: Path, outputs: Sequence[Path], logs: Path) -> list[subprocess.Popen[bytes]]:
    """Start one launcher of one rank per directory, as a user does on each machine."""
    meeting = ["--master_addr=127.0.0.1", f"--master_port={free_port()}", "--nproc_per_node=1"]
    return [
        start(
            [*TORCHRUN, f"--nnodes={len(outputs)}", f"--node_rank={node}", *meeting, *EVAL_RUNNER,
             "--eval_jobs_config", str(jobs), "--output_dir", str(output), "--split_jobs"],
            logs / f"launcher{node}.log",
        )
        for node, output in enumerate(outputs)
    ]  # fmt: skip


def launch_one_by_one(jobs: Path, outputs: Sequence[Path], logs: Path) -> list[subprocess.Popen[bytes]]:
    """Start one rank per directory as `srun` does, without torchrun: rank 0 itself holds the store."""
    shared = {"WORLD_SIZE": str(len(outputs)), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [
        start(
            [sys.executable, *EVAL_RUNNER, "--eval_jobs_config", str(jobs), "--output_dir", str(output)],
            logs / f"rank{rank}.log",
            extra={"RANK": str(rank), **shared, **meeting},
        )
        for rank, output in enumerate(outputs)
    ]


def exit_codes(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    try:
        return [process.wait(timeout=patience_s(60)) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def jobs(tmp_path) -> Path:
    return write_jobs(tmp_path / "jobs.json", [{**job, "num_episodes": 4} for job in JOBS])


def test_two_launchers_that_share_a_disk_write_into_one_directory(jobs, tmp_path):
    output = tmp_path / "out"
    codes = exit_codes(launch_by_torchrun(jobs, [output, output], tmp_path))
    assert codes == [0, 0], (tmp_path / "launcher0.log").read_text()
    for job in JOBS:
        for rank in range(2):
            assert (output / job["name"] / f"dataset_{job['name']}_rank{rank}.hdf5").is_file()


def test_nodes_that_share_no_disk_are_refused_before_anything_starts(jobs, tmp_path):
    outputs = [tmp_path / "first" / "out", tmp_path / "second" / "out"]
    assert exit_codes(launch_one_by_one(jobs, outputs, tmp_path)) == [2, 2]
    said = (tmp_path / "rank0.log").read_text()
    assert f"--output_dir: rank 0 made {outputs[0]} on " in said
    assert "rank 1 on" in said
    assert "--cluster ray" in said
    assert not outputs[1].exists()
    assert [path.name for path in outputs[0].iterdir()] == [".lock"]


def test_a_node_goes_on_when_that_of_rank_0_has_died_and_makes_the_tables(tmp_path):
    environment = {"environment": "lift_object", "num_envs": 2}
    job = {"arena_env_args": environment, "policy_type": "random_action"}
    path = write_jobs(
        tmp_path / "jobs.json",
        [{**job, "name": "long", "num_episodes": 5000}, {**job, "name": "short", "num_episodes": 30}],
    )
    output = tmp_path / "out"
    processes = launch_one_by_one(path, [output, output], tmp_path)
    try:
        wait_until(lambda: num_lines(output / "short" / "episode_results_rank1.jsonl") >= 2)
    finally:
        processes[0].send_signal(signal.SIGKILL)
    assert exit_codes(processes) == [-signal.SIGKILL, 1]
    assert len(episodes_table(output).query("job == 'short'")) == 30


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0
