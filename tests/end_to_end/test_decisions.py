"""Runs that stop as soon as the answer is in: on several ranks and after kills the decision is the same one."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.launching import command, patience_s, run, start, wait_until, write_jobs

REACH = {"environment": "reach", "num_envs": 4}
JOBS = [
    {"name": "new", "policy_type": "scripted", "arena_env_args": REACH, "num_episodes": 100},
    {
        "name": "old",
        "policy_type": "scripted",
        "policy_config_dict": {"speed": 0.03},
        "arena_env_args": REACH,
        "num_episodes": 100,
    },
]
COMPARISON = {"name": "new-vs-old", "jobs": ["new", "old"], "stop": {"alpha": 0.05}}


def job_file(directory: Path) -> Path:
    return write_jobs(directory / "jobs.json", JOBS, comparisons=[COMPARISON])


def decision(output: Path) -> tuple[str, int]:
    (answer,) = json.loads((output / "results.json").read_text())["answers"]
    return answer["verdict"], answer["episodes"]


@pytest.fixture(scope="module")
def on_one_rank(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("one")
    finished = run(command("--eval_jobs_config", job_file(directory), "--output_dir", directory / "out"))
    assert finished.returncode == 0, finished.stderr
    return directory / "out"


def assert_same_decision(output: Path, on_one_rank: Path) -> None:
    verdict, episodes = decision(on_one_rank)
    assert (verdict, episodes < 90) == ("better", True)
    assert decision(output) == (verdict, episodes)
    assert (output / "results.csv").read_bytes() == (on_one_rank / "results.csv").read_bytes()


SHARED = [
    pytest.param(2, "dynamic"),
    *(
        pytest.param(ranks, assignment, marks=pytest.mark.slow)
        for ranks, assignment in [(2, "round_robin"), (2, "split"), (3, "split"), (3, "dynamic")]
    ),
]


@pytest.mark.parametrize(("ranks", "assignment"), SHARED)
def test_ranks_that_share_a_comparison_stop_at_the_same_episode(tmp_path, on_one_rank, ranks, assignment):
    options = ["--eval_jobs_config", job_file(tmp_path), "--output_dir", tmp_path / "out", "--assignment", assignment]
    finished = run(command(*options, ranks=ranks), timeout_s=patience_s(120))
    assert finished.returncode == 0, finished.stderr
    assert_same_decision(tmp_path / "out", on_one_rank)


@pytest.mark.slow
def test_after_three_kills_the_decision_is_the_same(tmp_path, on_one_rank):
    output = tmp_path / "out"
    words = command("--eval_jobs_config", job_file(tmp_path), "--output_dir", output, "--resume")

    def committed() -> int:
        return sum(path.read_bytes().count(b"\n") for path in output.glob("*/episode_results_*.jsonl"))

    for number in (6, 12, 18):
        process = start(words, tmp_path / f"killed{number}.log")
        wait_until(lambda number=number: committed() >= number, timeout_s=patience_s(60))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finished = run(words, timeout_s=patience_s(120))
    assert finished.returncode == 0, finished.stderr
    assert_same_decision(output, on_one_rank)
    again = run(words)
    assert "there is nothing to do" in again.stderr
