"""Runs that stop as soon as the answer is in: on several ranks and after kills the decision is the same one."""

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
    start,
    wait_until,
    write_jobs,
)


def decided(directory: Path, *options: object, ranks: int = 1) -> list[str]:
    """Return the command of a run that compares two policies."""
    policies = {"new": {}, "old": {"speed": 0.03}}
    jobs = [job(num_episodes=100, num_envs=4, name=name, options=options) for name, options in policies.items()]
    comparison = {"name": "new-vs-old", "jobs": ["new", "old"], "stop": {"alpha": 0.05}}
    path = write_jobs(directory / "jobs.json", jobs, comparisons=[comparison])
    return command("--eval_jobs_config", path, "--output_dir", directory / "out", *options, ranks=ranks)


def decision(output: Path) -> tuple[str, int]:
    (answer,) = results_of(output)["answers"]
    return answer["verdict"], answer["episodes"]


@pytest.fixture(scope="module")
def on_one_rank(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("one")
    finished = run(decided(directory))
    assert finished.returncode == 0, finished.stderr
    return directory / "out"


def assert_same_decision(output: Path, on_one_rank: Path) -> None:
    verdict, episodes = decision(on_one_rank)
    assert (verdict, episodes < 90) == ("better", True)
    assert decision(output) == (verdict, episodes)
    assert (output / "results.csv").read_bytes() == (on_one_rank / "results.csv").read_bytes()


SLOW = [(2, "round_robin"), (2, "split"), (3, "split"), (3, "dynamic")]


@pytest.mark.parametrize(
    ("ranks", "assignment"), [(2, "dynamic"), *(pytest.param(*how, marks=pytest.mark.slow) for how in SLOW)]
)
def test_ranks_that_share_a_comparison_stop_at_the_same_episode(tmp_path, on_one_rank, ranks, assignment):
    finished = run(decided(tmp_path, "--assignment", assignment, ranks=ranks), timeout_s=patience_s(120))
    assert finished.returncode == 0, finished.stderr
    assert_same_decision(tmp_path / "out", on_one_rank)


@pytest.mark.slow
def test_after_three_kills_the_decision_is_the_same(tmp_path, on_one_rank):
    words = decided(tmp_path, "--resume")
    for number in (6, 12, 18):
        process = start(words, tmp_path / f"killed{number}.log")
        wait_until(lambda number=number: committed(tmp_path / "out").total() >= number, timeout_s=patience_s(60))
        end(process)
    finished = run(words, timeout_s=patience_s(120))
    assert finished.returncode == 0, finished.stderr
    assert_same_decision(tmp_path / "out", on_one_rank)
    assert "there is nothing to do" in run(words).stderr
