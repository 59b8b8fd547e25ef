"""Ranks that claim their work, started by hand: unlike torchrun nobody ends the others when one of them dies."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.end_to_end.launching import (
    EVAL_RUNNER,
    command,
    free_port,
    run,
    same_tables,
    start,
    wait_until,
    write_jobs,
)

JOBS = [
    {
        "name": "long",
        "arena_env_args": {"environment": "lift_object", "num_envs": 2},
        "policy_type": "scripted",
        "num_episodes": 40,
    },
    {
        "name": "short",
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "random_action",
        "num_episodes": 10,
    },
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed")
    jobs = write_jobs(directory / "jobs.json", JOBS)
    finished = run(command("--eval_jobs_config", jobs, "--output_dir", directory / "out"))
    assert finished.returncode == 0, finished.stderr
    return directory / "out"


def start_ranks(directory: Path, *options: object, ranks: int = 2) -> list[subprocess.Popen[bytes]]:
    """Start ranks without a launcher; what each of them says goes to a file."""
    jobs = write_jobs(directory / "jobs.json", JOBS)
    port = free_port()
    arguments = ["--eval_jobs_config", jobs, "--output_dir", directory / "out", "--assignment", "dynamic", *options]
    return [
        start(
            [sys.executable, *EVAL_RUNNER, *map(str, arguments)],
            directory / f"rank{rank}.log",
            extra={
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(ranks)
    ]


def committed(output: Path, rank: int | str = "") -> Counter[tuple[str, int]]:
    """Count the commit lines of each episode. A line that a running process has begun to write does not count yet."""
    lines = [
        json.loads(line)
        for path in output.glob(f"*/episode_results_rank{rank}*.jsonl")
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
    return Counter((line["job_name"], line["episode_index"]) for line in lines)


def kill_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


EVERY_EPISODE = Counter((str(job["name"]), index) for job in JOBS for index in range(int(str(job["num_episodes"]))))


@pytest.mark.parametrize(("victim", "options"), [(1, ()), (0, ("--split_jobs",))])
def test_what_a_killed_rank_left_is_finished_by_the_other(tmp_path, undisturbed, victim, options):
    output = tmp_path / "out"
    processes = start_ranks(tmp_path, *options)
    try:
        wait_until(lambda: committed(output, victim).total() >= 3)
        os.kill(processes[victim].pid, signal.SIGKILL)
        assert processes[1 - victim].wait(timeout=120) == 0, (tmp_path / f"rank{1 - victim}.log").read_text()
    finally:
        kill_all(processes)
    assert committed(output) == EVERY_EPISODE
    assert committed(output, 1 - victim).total() < sum(EVERY_EPISODE.values())
    assert same_tables(output, undisturbed)


def test_a_stopped_rank_loses_its_work_and_does_no_harm_when_it_goes_on(tmp_path, undisturbed):
    output = tmp_path / "out"
    processes = start_ranks(tmp_path, "--lease_s", 1)
    try:
        wait_until(lambda: committed(output, 1).total() >= 3)
        stopped = json.loads((output / "logs" / "rank1.status.json").read_text())["pid"]
        os.kill(stopped, signal.SIGSTOP)
        before = committed(output, 1).total()
        assert processes[0].wait(timeout=120) == 0, (tmp_path / "rank0.log").read_text()
        assert same_tables(output, undisturbed)
        os.kill(stopped, signal.SIGCONT)
        assert processes[1].wait(timeout=60) == 0, (tmp_path / "rank1.log").read_text()
    finally:
        kill_all(processes)
    assert set(committed(output)) == set(EVERY_EPISODE)
    assert committed(output, 1).total() - before <= 2, "only the episodes that it was in the middle of"
    assert same_tables(output, undisturbed)


def test_ranks_that_are_left_alone_share_the_work(tmp_path, undisturbed):
    output = tmp_path / "out"
    processes = start_ranks(tmp_path, ranks=3)
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    finally:
        kill_all(processes)
    assert committed(output) == EVERY_EPISODE
    assert all(committed(output, rank).total() > 0 for rank in range(3))
    assert same_tables(output, undisturbed)
