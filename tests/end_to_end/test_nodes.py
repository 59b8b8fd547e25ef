"""Several nodes, played by launchers on this machine: with a shared disk, and each with a directory of its own."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.result_files import write_tables
from isaaclab_arena.storage.recovery.recovery import recover_run
from tests.end_to_end.launching import (
    EVAL_RUNNER,
    TORCHRUN,
    episodes_table,
    free_port,
    patience_s,
    same_tables,
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


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Path:
    return write_jobs(tmp_path_factory.mktemp("jobs") / "jobs.json", [{**job, "num_episodes": 4} for job in JOBS])


@pytest.fixture(scope="module")
def on_a_shared_disk(jobs, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("shared")
    output = directory / "out"
    codes = exit_codes(launch_by_torchrun(jobs, [output, output], directory))
    assert codes == [0, 0], (directory / "launcher0.log").read_text()
    return output


def test_two_launchers_that_share_a_disk_write_into_one_directory(on_a_shared_disk):
    for job in JOBS:
        for rank in range(2):
            assert (on_a_shared_disk / job["name"] / f"dataset_{job['name']}_rank{rank}.hdf5").is_file()
    assert json.loads((on_a_shared_disk / "results.json").read_text())["elsewhere"] == []


@pytest.fixture(scope="module")
def on_two_disks(jobs, tmp_path_factory) -> list[Path]:
    directory = tmp_path_factory.mktemp("apart")
    outputs = [directory / "first" / "out", directory / "second" / "out"]
    codes = exit_codes(launch_by_torchrun(jobs, outputs, directory))
    assert codes == [0, 0], (directory / "launcher0.log").read_text()
    return outputs


def test_the_tables_are_the_same_where_machines_share_no_disk(on_a_shared_disk, on_two_disks):
    first, second = on_two_disks
    assert same_tables(first, on_a_shared_disk)
    assert not (second / "results.json").exists()
    assert (first / "run.json").read_bytes() == (second / "run.json").read_bytes()


def test_each_machine_keeps_its_recordings_and_the_results_say_which(on_two_disks):
    first, second = on_two_disks
    datasets = [sorted(path.name for path in output.glob("*/*.hdf5")) for output in on_two_disks]
    assert datasets == [sorted(f"dataset_{job['name']}_rank{rank}.hdf5" for job in JOBS) for rank in range(2)]
    place = f"{socket.gethostname()}:{second}"
    assert json.loads((first / "results.json").read_text())["elsewhere"] == [
        {"dataset": f"{job['name']}/dataset_{job['name']}_rank1.hdf5", "rank": 1, "place": place} for job in JOBS
    ]
    assert f"what rank 1 has recorded is in {place}" in (first.parents[1] / "launcher0.log").read_text()


@pytest.mark.parametrize("onto", [0, 1])
def test_directories_that_are_put_into_one_merge_to_the_same_tables(on_two_disks, tmp_path, onto):
    together = tmp_path / "together"
    for output in (on_two_disks[1 - onto], on_two_disks[onto]):
        shutil.copytree(output, together, dirs_exist_ok=True)
    merged = merge_results(together)
    write_tables(together, merged)
    assert same_tables(together, on_two_disks[0])
    assert merged.complete
    assert not merged.problems
    assert not merged.elsewhere
    assert not recover_run(together, merged.plan, retry_errors=False, attempt=2).left


@pytest.mark.slow
def test_comparisons_are_refused_where_machines_share_no_disk(tmp_path):
    compared = [{**JOBS[0], "name": name, "num_episodes": 4} for name in ("new", "old")]
    asked = {"name": "new-vs-old", "jobs": ["new", "old"], "stop": {}}
    jobs = write_jobs(tmp_path / "jobs.json", compared, comparisons=[asked])
    outputs = [tmp_path / "first" / "out", tmp_path / "second" / "out"]
    codes = exit_codes(launch_by_torchrun(jobs, outputs, tmp_path))
    assert all(codes)
    assert "comparisons and bars need one directory that all ranks see" in (tmp_path / "launcher0.log").read_text()
    assert not list(tmp_path.rglob("*.jsonl"))


def long_job(name: str, num_episodes: int) -> dict[str, object]:
    environment = {"environment": "lift_object", "num_envs": 2}
    return {"name": name, "arena_env_args": environment, "policy_type": "random_action", "num_episodes": num_episodes}


def num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_what_a_machine_had_sent_before_it_died_is_in_the_table(tmp_path):
    broken = {"policy_type": "tests.fakes.ShrugPolicy", "policy_config_dict": {"raise_at": 1}, "num_episodes": 2}
    bad = {"name": "bad", "arena_env_args": {"environment": "reach", "num_envs": 2}, **broken}
    path = write_jobs(tmp_path / "jobs.json", [long_job("short", 2), bad, long_job("last", 2), long_job("long", 5000)])
    outputs = [tmp_path / "first", tmp_path / "second"]
    processes = launch_one_by_one(path, outputs, tmp_path)
    received = outputs[0] / "long" / "episode_results_rank1_received.jsonl"
    try:
        wait_until(lambda: num_lines(received) >= 4)
    finally:
        processes[1].send_signal(signal.SIGKILL)
    assert exit_codes(processes) == [1, -signal.SIGKILL]
    document = json.loads((outputs[0] / "results.json").read_text())
    jobs = {job["name"]: job for job in document["jobs"]}
    assert [jobs[name]["status"] for name in ("short", "bad", "last", "long")] == [
        "completed", "failed", "completed", "interrupted",
    ]  # fmt: skip
    assert jobs["long"]["episodes"] == num_lines(received) >= 4
    assert num_lines(received) <= num_lines(outputs[1] / "long" / "episode_results_rank1.jsonl")
    (missing,) = (entry for entry in document["missing"] if entry["job"] == "long")
    assert (missing["rank"], len(missing["episode_indices"])) == (1, 5000 - num_lines(received))
    assert "I would rather not" in (outputs[0] / jobs["bad"]["traceback_file"]).read_text()


def test_a_machine_goes_on_when_that_of_rank_0_has_died_and_keeps_its_results(tmp_path):
    path = write_jobs(tmp_path / "jobs.json", [long_job("long", 5000), long_job("short", 30)])
    outputs = [tmp_path / "first", tmp_path / "second"]
    processes = launch_one_by_one(path, outputs, tmp_path)
    try:
        wait_until(lambda: num_lines(outputs[1] / "short" / "episode_results_rank1.jsonl") >= 2)
    finally:
        processes[0].send_signal(signal.SIGKILL)
    assert exit_codes(processes) == [-signal.SIGKILL, 0]
    assert "rank 0 cannot be reached any more" in (tmp_path / "rank1.log").read_text()
    write_tables(outputs[1], merge_results(outputs[1]))
    assert len(episodes_table(outputs[1]).query("job == 'short'")) == 30
