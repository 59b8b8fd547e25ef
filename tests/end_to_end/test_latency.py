"""Late answers on ranks that claim their work, of which one is killed: the table is that of one rank."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from isaaclab_arena.config.latency import Meanwhile
from isaaclab_arena.storage.run.attempts import read_attempts
from tests.end_to_end.launching import EVAL_RUNNER, command, free_port, run, same_tables, start, wait_until, write_jobs

JOBS = [
    {
        "name": str(meanwhile),
        "arena_env_args": {"environment": "reach"},
        "policy_type": "tests.evaluation.latency.plants.NoisyReaching",
        "num_episodes": 8,
        "latency": {"steps": [0, 2], "meanwhile": meanwhile},
    }
    for meanwhile in Meanwhile
]


def job_file(directory: Path, num_envs: int) -> Path:
    jobs = [{**job, "arena_env_args": {"environment": "reach", "num_envs": num_envs}} for job in JOBS]
    return write_jobs(directory / "jobs.json", jobs)


def num_committed(output: Path, rank: int) -> int:
    return sum(len(path.read_text().splitlines()) for path in output.glob(f"*/episode_results_rank{rank}*.jsonl"))


def start_ranks(directory: Path, num_ranks: int):
    jobs, port = job_file(directory, 3), free_port()
    arguments = ["--eval_jobs_config", jobs, "--output_dir", directory / "out", "--assignment", "dynamic"]
    variables = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        start(
            [sys.executable, *EVAL_RUNNER, *map(str, arguments)],
            directory / f"rank{rank}.log",
            extra={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(num_ranks)
    ]


@pytest.mark.slow
def test_late_answers_do_not_depend_on_ranks_env_slots_kills_or_resumes(tmp_path):
    one = tmp_path / "one"
    one.mkdir()
    finished = run(command("--eval_jobs_config", job_file(one, 2), "--output_dir", one / "out"), timeout_s=600)
    assert finished.returncode == 0, finished.stderr

    processes, output = start_ranks(tmp_path, 2), tmp_path / "out"
    try:
        wait_until(lambda: num_committed(output, 1) >= 2, timeout_s=300)
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert not (output / "results.json").exists()
    resumed = run(command("--eval_jobs_config", tmp_path / "jobs.json", "--resume", output), timeout_s=600)
    assert resumed.returncode == 0, resumed.stderr
    assert same_tables(output, one / "out")
    jobs = json.loads((output / "results.json").read_text())["jobs"]
    assert [job["stale_action_share"] is not None for job in jobs] == [False, True, True, True]


@pytest.mark.slow
def test_what_was_measured_stands_after_a_kill_for_the_resumed_run_and_for_verify(tmp_path):
    job = {**JOBS[0], "name": "measured", "latency": {"measured": True, "meanwhile": "hold"}, "num_episodes": 6}
    jobs, output = write_jobs(tmp_path / "jobs.json", [job]), tmp_path / "out"
    arguments = ["--eval_jobs_config", str(jobs), "--output_dir", str(output)]
    process = start([sys.executable, *EVAL_RUNNER, *arguments], tmp_path / "killed.log")
    try:
        wait_until(lambda: num_committed(output, 0) >= 2, timeout_s=300)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    resumed = run(command("--eval_jobs_config", jobs, "--resume", output), timeout_s=300)
    assert resumed.returncode == 0, resumed.stderr
    attempts, _ = read_attempts(output)
    first, second = (entry for attempt in attempts for entry in attempt.jobs)
    assert first.latency is not None
    assert second.latency == first.latency
    verified = run([sys.executable, "-m", "isaaclab_arena.cli", "verify", str(output), "--sample", "6"], timeout_s=300)
    assert verified.returncode == 0, verified.stderr
