"""Recurrent networks in one policy server for several ranks, through the program as a user starts it."""

import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.launching import (
    committed,
    job,
    launched,
    patience_s,
    run_of,
    same_tables,
    start,
    wait_until,
    write_jobs,
)
from tests.policy.checkpoints import write_checkpoint

pytestmark = pytest.mark.slow

SPLIT = ("--device", "cpu", "--split_jobs")


@pytest.fixture(scope="module")
def reach(tmp_path_factory) -> dict:
    directory = tmp_path_factory.mktemp("recurrent")
    sizes = {"num_inputs": 26, "num_actions": 8, "action_scaling": "within_bounds"}
    checkpoint = write_checkpoint(directory, recurrent=True, **sizes)
    return job("reach", "rsl_rl", 60, num_envs=4, options={"checkpoint_path": str(checkpoint), "stochastic": True})


@pytest.fixture(scope="module")
def without(reach, tmp_path_factory) -> Path:
    """What one rank makes of the job without a server."""
    return launched(tmp_path_factory.mktemp("without") / "out", reach, options=SPLIT, timeout_s=300)


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
def test_the_tables_are_those_without_a_server(reach, without, tmp_path, ranks, scope):
    served = {**reach, "policy_server": {"shared": scope}}
    assert same_tables(launched(tmp_path / "shared", served, options=SPLIT, ranks=ranks), without)


@pytest.mark.parametrize("killed", [0, 2])
def test_a_rank_that_is_killed_costs_nothing_but_time_whether_it_owned_the_server_or_not(
    reach, without, tmp_path, killed
):
    log, output = tmp_path / "log.txt", tmp_path / "shared"
    served = {**reach, "policy_server": {"shared": "node"}}
    running = start(run_of(output, served, options=SPLIT, ranks=3), log, extra={"TEST_RUN": str(tmp_path)}, fresh=True)
    wait_until(lambda: bool(committed(output)), timeout_s=120)
    os.kill(rank_of(str(tmp_path), killed), signal.SIGKILL)
    assert running.wait(patience_s(120)) != 0, log.read_text()
    write_jobs(output.with_suffix(".json"), [{**served, "policy_server": {"shared": "run"}}])
    assert same_tables(launched(output, options=(*SPLIT, "--resume"), ranks=2), without)
