"""What hangs does not stay: no rank outlives its launcher, and no step goes on for ever."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.launching import command, patience_s, run, start, write_jobs
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_running import IN_WORKERS


def job(name: str, tmp_path: Path, **policy_config) -> dict:
    return {
        "name": name,
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "tests.fakes_slow.SluggishPolicy",
        "policy_config_dict": {"marks": str(tmp_path / "marks"), **policy_config},
        "num_episodes": 50,
    }


def children_of(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def all_gone(pids: list[int]) -> bool:
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", ",".join(map(str, pids))], capture_output=True, text=True, check=False
    )
    # A zombie process only waits for somebody to ask how it ended.
    return all(state.startswith("Z") for state in listed.stdout.split())


def committed(output: Path, name: str, rank: int) -> list[dict]:
    """Return the commit lines of a rank, every one of which must be whole."""
    text = (output / name / f"episode_results_rank{rank}.jsonl").read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("when", ["build", "step"])
def test_no_rank_outlives_a_launcher_that_was_killed_however_long_it_takes(tmp_path, when):
    (tmp_path / "marks").mkdir()
    jobs = [job(f"job{rank}", tmp_path, when=when, from_step=300) for rank in range(2)]
    path, output = write_jobs(tmp_path / "jobs.json", jobs), tmp_path / "out"
    launcher = start(command("--eval_jobs_config", path, "--output_dir", output, ranks=2), tmp_path / "log")
    try:
        assert wait_for(lambda: len(list((tmp_path / "marks").iterdir())) == 2, timeout_s=100)
    finally:
        launcher.kill()
        launcher.wait()
    ranks = [int(mark.name) for mark in (tmp_path / "marks").iterdir()]
    assert wait_for(lambda: all_gone(ranks), timeout_s=patience_s(60.0))
    if when == "step":
        assert all(len(committed(output, f"job{rank}", rank)) > 0 for rank in range(2))


def test_no_worker_outlives_a_launcher_that_was_killed(tmp_path):
    options = {"make_kwargs": {"misbehaviour": "hang", "at_step": 1}, **IN_WORKERS, "step_timeout_s": 200.0}
    hanging = {
        "name": "hanging",
        "arena_env_args": {"environment": f"gym:{ID}", "num_envs": 2, **options},
        "policy_type": "random_action",
        "num_episodes": 8,
    }
    path, output = write_jobs(tmp_path / "jobs.json", [hanging, {**hanging, "name": "too"}]), tmp_path / "out"
    arguments = command("--eval_jobs_config", path, "--output_dir", output, ranks=2)
    launcher = start(arguments, tmp_path / "log", fresh=True)
    started: list[int] = []
    try:

        def all_workers_run() -> bool:
            ranks = children_of(launcher.pid)
            workers = [worker for rank in ranks for worker in children_of(rank)]
            started[:] = [*ranks, *workers]
            return len(ranks) == 2 and len(workers) == 4

        assert wait_for(all_workers_run, timeout_s=100)
    finally:
        launcher.kill()
        launcher.wait()
    assert wait_for(lambda: all_gone(started), timeout_s=patience_s(60.0))


def test_a_step_that_hangs_in_native_code_ends_the_process_and_what_had_finished_is_kept(tmp_path):
    (tmp_path / "marks").mkdir()
    jobs = [job("stuck", tmp_path, from_step=300, holds_interpreter=True)]
    path, output = write_jobs(tmp_path / "jobs.json", jobs), tmp_path / "out"
    finished = run(command("--eval_jobs_config", path, "--output_dir", output, "--step_timeout_s", "3"))
    assert finished.returncode == 1
    last_words = (output / "logs" / "rank0.watchdog.txt").read_text()
    assert last_words.startswith("job 'stuck' has made no control step for 3 s:\n")
    assert "fakes_slow.py" in last_words
    assert len(committed(output, "stuck", 0)) > 0
    merged = run(command("merge", output, module=["-m", "isaaclab_arena.cli"]))
    assert merged.returncode == 1
    assert json.loads((output / "results.json").read_text())["complete"] is False


def test_what_hangs_before_the_first_step_ends_the_process_too(tmp_path):
    (tmp_path / "marks").mkdir()
    jobs = [job("unbuilt", tmp_path, when="build", holds_interpreter=True)]
    path, output = write_jobs(tmp_path / "jobs.json", jobs), tmp_path / "out"
    finished = run(command("--eval_jobs_config", path, "--output_dir", output, "--build_timeout_s", "2"))
    assert finished.returncode == 1
    last_words = (output / "logs" / "rank0.watchdog.txt").read_text()
    assert last_words.startswith("job 'unbuilt' has not been built in 2 s:\n")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_warning_before_the_time_limit_leaves_the_table_of_what_had_finished(tmp_path, ranks):
    """The launcher passes it on if it is told to, and exits with 1 whatever its ranks exit with."""
    endless = {
        "arena_env_args": {"environment": "reach", "num_envs": 2},
        "policy_type": "random_action",
        "num_episodes": 100_000,
    }
    jobs = [{"name": f"job{rank}", **endless} for rank in range(ranks)]
    path, output = write_jobs(tmp_path / "jobs.json", jobs), tmp_path / "out"
    line = command("--eval_jobs_config", path, "--output_dir", output, ranks=ranks)
    if ranks > 1:
        line.insert(line.index("--standalone"), "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")
    process = start(line, tmp_path / "log")
    try:
        commits = [output / f"job{rank}" / f"episode_results_rank{rank}.jsonl" for rank in range(ranks)]
        assert wait_for(lambda: all(file.exists() and file.stat().st_size > 0 for file in commits), timeout_s=100)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=60) == (1 if ranks > 1 else 128 + signal.SIGUSR1)
    finally:
        process.kill()
        process.wait()
    document = json.loads((output / "results.json").read_text())
    assert document["complete"] is False
    episodes = [job["episodes"] for job in document["jobs"]]
    assert episodes == [len(committed(output, f"job{rank}", rank)) for rank in range(ranks)]
