"""What hangs does not stay: no rank outlives its launcher, and no step goes on for ever."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.launching import (
    command,
    committed,
    end,
    job,
    patience_s,
    results_of,
    run,
    run_of,
    start,
    wait_until,
)
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_running import IN_WORKERS


def sluggish(name: str, tmp_path: Path, **options) -> dict:
    (tmp_path / "marks").mkdir(exist_ok=True)
    marks = {"marks": str(tmp_path / "marks"), **options}
    return job(policy="tests.fakes_slow.SluggishPolicy", num_episodes=50, name=name, options=marks)


def listed(*options: str) -> list[str]:
    return subprocess.run(["ps", *options], capture_output=True, text=True, check=False).stdout.split()


def children_of(pid: int) -> list[int]:
    return [*map(int, listed("-o", "pid=", "--ppid", str(pid)))]


def all_gone(pids: list[int]) -> bool:
    # A zombie process only waits for somebody to ask how it ended.
    return all(state.startswith("Z") for state in listed("-o", "stat=", "-p", ",".join(map(str, pids))))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["build", "step"])
def test_no_rank_outlives_a_launcher_that_was_killed_however_long_it_takes(tmp_path, when):
    output, marks = tmp_path / "out", tmp_path / "marks"
    jobs = [sluggish(f"job{rank}", tmp_path, when=when, from_step=300) for rank in range(2)]
    launcher = start(run_of(output, *jobs, ranks=2), tmp_path / "log")
    try:
        wait_until(lambda: len([*marks.iterdir()]) == 2, timeout_s=100)
    finally:
        launcher.kill()
        launcher.wait()
    ranks = [int(mark.name) for mark in marks.iterdir()]
    wait_until(lambda: all_gone(ranks), timeout_s=patience_s(60.0))
    if when == "step":
        assert all(committed(output, f"job{rank}", rank) for rank in range(2))


@pytest.mark.slow
def test_no_worker_outlives_a_launcher_that_was_killed(tmp_path):
    args = {"make_kwargs": {"misbehaviour": "hang", "at_step": 1}, **IN_WORKERS, "step_timeout_s": 200.0}
    jobs = [job(f"gym:{ID}", "random_action", 8, args=args, name=name) for name in ("hanging", "too")]
    launcher = start(run_of(tmp_path / "out", *jobs, ranks=2), tmp_path / "log", fresh=True)
    started: list[int] = []

    def all_workers_run() -> bool:
        ranks = children_of(launcher.pid)
        workers = [worker for rank in ranks for worker in children_of(rank)]
        started[:] = [*ranks, *workers]
        return len(ranks) == 2 and len(workers) == 4

    try:
        wait_until(all_workers_run, timeout_s=100)
    finally:
        launcher.kill()
        launcher.wait()
    wait_until(lambda: all_gone(started), timeout_s=patience_s(60.0))


@pytest.mark.parametrize(
    ("options", "limit", "words"),
    [
        ({"from_step": 300}, ("--step_timeout_s", 3), "has made no control step for 3 s:\n"),
        ({"when": "build"}, ("--build_timeout_s", 2), "has not been built in 2 s:\n"),
    ],
)
def test_what_hangs_in_native_code_ends_the_process_and_what_had_finished_is_kept(tmp_path, options, limit, words):
    output = tmp_path / "out"
    finished = run(run_of(output, sluggish("stuck", tmp_path, holds_interpreter=True, **options), options=limit))
    assert finished.returncode == 1
    last_words = (output / "logs" / "rank0.watchdog.txt").read_text()
    assert last_words.startswith(f"job 'stuck' {words}")
    assert "fakes_slow.py" in last_words
    if "from_step" in options:
        assert committed(output)
        assert run(command("merge", output, module=["-m", "isaaclab_arena.cli"])).returncode == 1
        assert results_of(output)["complete"] is False


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_warning_before_the_time_limit_leaves_the_table_of_what_had_finished(tmp_path, ranks):
    """The launcher passes it on if it is told to, and exits with 1 whatever its ranks exit with."""
    output = tmp_path / "out"
    jobs = [job(policy="random_action", num_episodes=100_000, name=f"job{rank}") for rank in range(ranks)]
    line = run_of(output, *jobs, ranks=ranks)
    if ranks > 1:
        line.insert(line.index("--standalone"), "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")
    process = start(line, tmp_path / "log")
    try:
        wait_until(lambda: all(committed(output, f"job{rank}", rank) for rank in range(ranks)), timeout_s=100)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(timeout=60) == (1 if ranks > 1 else 128 + signal.SIGUSR1)
    finally:
        end(process)
    document = results_of(output)
    assert document["complete"] is False
    found = [committed(output, f"job{rank}", rank).total() for rank in range(ranks)]
    assert [each["episodes"] for each in document["jobs"]] == found
