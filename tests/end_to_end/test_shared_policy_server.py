"""Recurrent networks in one policy server for several ranks, through the program as a user starts it."""

import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.launching import command, patience_s, run, same_tables, start, wait_until, write_jobs
from tests.policy.checkpoints import write_checkpoint

pytestmark = pytest.mark.slow

EPISODES = 60


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A directory with job files with and without a server, and with what one rank makes of the latter."""
    directory = tmp_path_factory.mktemp("shared")
    sizes = {"num_inputs": 26, "num_actions": 8, "action_scaling": "within_bounds"}
    checkpoint = write_checkpoint(directory / "recurrent", recurrent=True, **sizes)
    job = {
        "name": "reach",
        "arena_env_args": {"environment": "reach", "num_envs": 4},
        "policy_type": "rsl_rl",
        "policy_config_dict": {"checkpoint_path": str(checkpoint), "stochastic": True},
        "num_episodes": EPISODES,
    }
    write_jobs(directory / "none.json", [job])
    for scope in ("node", "run"):
        write_jobs(directory / f"{scope}.json", [{**job, "policy_server": {"shared": scope}}])
    finished = run(words(directory, "none", directory / "none", ranks=1), timeout_s=300)
    assert finished.returncode == 0, finished.stderr
    return directory


def words(place: Path, jobs: str, output: Path, *options: object, ranks: int) -> list[str]:
    common = ("--eval_jobs_config", place / f"{jobs}.json", "--device", "cpu", "--split_jobs", "--output_dir", output)
    return command(*common, *options, ranks=ranks)


def rank_of(mark: str, rank: int) -> int:
    """Return the process number of a rank of a run, which is known by a variable that the run was given."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            said = set((entry / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if {f"TEST_RUN={mark}".encode(), f"RANK={rank}".encode()} <= said:
            return int(entry.name)
    raise AssertionError(f"there is no rank {rank}")


@pytest.mark.parametrize(("ranks", "scope"), [(1, "run"), (2, "node"), (3, "run")])
def test_the_tables_are_those_without_a_server(place, tmp_path, ranks, scope):
    finished = run(words(place, scope, tmp_path / "shared", ranks=ranks), timeout_s=patience_s(120))
    assert finished.returncode == 0, finished.stderr
    assert same_tables(tmp_path / "shared", place / "none")


@pytest.mark.parametrize("killed", [0, 2])
def test_a_rank_that_is_killed_costs_nothing_but_time_whether_it_owned_the_server_or_not(place, tmp_path, killed):
    log, output = tmp_path / "log.txt", tmp_path / "shared"
    running = start(words(place, "node", output, ranks=3), log, extra={"TEST_RUN": str(tmp_path)}, fresh=True)
    wait_until(lambda: any(file.stat().st_size for file in output.glob("reach/episode_results_*.jsonl")), timeout_s=120)
    os.kill(rank_of(str(tmp_path), killed), signal.SIGKILL)
    assert running.wait(patience_s(120)) != 0, log.read_text()
    finished = run(words(place, "run", output, "--resume", output, ranks=2), timeout_s=patience_s(120))
    assert finished.returncode == 0, finished.stderr
    assert same_tables(output, place / "none")
