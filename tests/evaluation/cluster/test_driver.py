"""The program that starts ranks on a Ray cluster, and such a rank."""

import importlib.util
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import pytest

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import ClaimsLostError, ranks_of_one
from isaaclab_arena.evaluation.cluster.claim_server import (
    Call,
    ClaimServer,
    Life,
    RunOrders,
    directory_of_process,
    needs_of,
    run_rank,
)
from isaaclab_arena.evaluation.eval_runner import asked_for, main
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.evaluation.run import consolidate_what_ranks_left
from isaaclab_arena.evaluation.run_start import start_run
from isaaclab_arena.results.merge import MergedResults, merge_results
from isaaclab_arena.storage.atomic import adapter, json_line
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.ledger import ReportedStatus, read_attempt, read_job_reports
from tests.end_to_end.launching import write_jobs
from tests.faults.invariants import committed


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--num_ranks", "2"], "--num_ranks"),
        (["--cluster", "ray", "--nproc_per_node", "2"], "--nproc_per_node"),
        (["--cluster", "ray", "--assignment", "split"], "--assignment"),
        (["--cluster", "ray", "--assignment", "dinamic"], "did you mean 'dynamic'?"),
        (["--assignment", "dinamic"], "did you mean 'dynamic'?"),
        (["--cluster", "ray", "--gpus_per_rank", "2"], "--gpus_per_rank"),
        (["--cluster", "ray", "--device", "cuda"], "--device"),
        # A rank of torchrun starts no cluster.
        (["--cluster", "ray"], "--cluster"),
    ],
)
def test_options_that_contradict_each_other_are_refused(capsys, monkeypatch, words, named):
    if named == "--cluster":
        monkeypatch.setenv("RANK", "0")
    assert main(["--eval_jobs_config", "jobs.json", *words]) == 2
    assert named in capsys.readouterr().err.splitlines()[0]


def test_without_ray_the_message_names_the_extra(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["--eval_jobs_config", "jobs.json", "--cluster", "ray"]) == 2
    assert "pip install 'isaaclab-arena-mujoco[ray]'" in capsys.readouterr().err


def test_a_rank_removes_what_killed_ranks_of_its_node_have_left_and_nothing_else(tmp_path):
    if (killed := os.fork()) == 0:
        with directory_of_process(tmp_path, 3) as own:
            (own / "episode").touch()
            os._exit(9)
    os.waitpid(killed, 0)
    (left,) = tmp_path.iterdir()
    elsewhere = tmp_path / left.name.replace(left.name.split("_")[3], "00000000")
    elsewhere.mkdir()
    (tmp_path / "isaaclab_arena_ranking").mkdir()
    with directory_of_process(tmp_path, 0) as mine, directory_of_process(tmp_path, 1) as other:
        assert {*tmp_path.iterdir()} == {mine, other, elsewhere, tmp_path / "isaaclab_arena_ranking"}
    assert {*tmp_path.iterdir()} == {elsewhere, tmp_path / "isaaclab_arena_ranking"}


class ClaimServerNextDoor:
    """A claim server in this process, which answers one rank at a time, as an actor does."""

    def __init__(self, claim_server: ClaimServer) -> None:
        self._claim_server = claim_server
        self._lock = Lock()
        self.calls: list[Call] = []

    def ask(self, calls: Sequence[Call]):
        with self._lock:
            self.calls += calls
            return self._claim_server.ask(calls, Life(rank=0))

    def asked(self, name: str) -> list[Call]:
        """Return the calls of a method."""
        return [call for call in self.calls if call[0] == name]


class DyingClaimServer(ClaimServerNextDoor):
    """Dies once it has been told that episodes begin."""

    def ask(self, calls: Sequence[Call]):
        if calls[0][0] == "begin":
            raise ClaimsLostError("the run's claim server does not answer")
        return super().ask(calls)


def run_alone(
    directory: Path,
    job: dict[str, object],
    *,
    node: Path | None,
    claim_server_class: Callable[[ClaimServer], ClaimServerNextDoor] = ClaimServerNextDoor,
) -> tuple[str, ClaimServerNextDoor]:
    """Run one rank of a cluster in this process; its orders reach it as they would another machine."""
    jobs = write_jobs(directory / "jobs.json", [job])
    words = ("--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out"), "--device", "cpu")
    request = asked_for((*words, "--cluster", "ray"))
    started = start_run(request, ranks_of_one(DistributedContext()), devices_to_come=["cpu"])
    assert started.attempt is not None
    with started.lock:
        orders = RunOrders(
            run="run",
            needs=needs_of(request, ClusterOptions(cluster="ray"), working_directory=None),
            config_hash=started.plan.config_hash,
            output_directory=str(started.output_directory),
            attempt=started.attempt,
            node_directory=None if node is None else str(node),
        )
        received = adapter(RunOrders).validate_json(json_line(orders))
        claim_server = claim_server_class(ClaimServer(request, started.attempt, started.output_directory))
        return run_rank(received, Life(rank=0), claim_server.ask), claim_server


REACH = {
    "name": "reach",
    "arena_env_args": {"environment": "reach", "num_envs": 2},
    "policy_type": "random_action",
    "num_episodes": 2,
}


def test_a_rank_that_sees_the_directory_sends_no_file_there_and_runs_with_the_latency_of_the_start(tmp_path):
    end, claim_server = run_alone(tmp_path, {**REACH, "latency": "measured"}, node=None)
    (report,), _ = read_job_reports(tmp_path / "out" / "reach", "reach")
    assert (end, report.status, report.error) == ("finished", ReportedStatus.COMPLETED, None)
    assert claim_server.asked("commit") + claim_server.asked("keep") == []
    assert len(read_commits(tmp_path / "out" / "reach", "reach").lines) == 2
    assert json.loads((tmp_path / "out" / "logs" / "rank0.status.json").read_text())["state"] == "finished"


def test_a_rank_beats_until_all_that_it_has_written_is_delivered_and_leaves_nothing_on_its_node(tmp_path):
    # What is left at the end may take longer than the silence after which a rank is taken for dead.
    end, claim_server = run_alone(tmp_path, REACH, node=tmp_path / "node")
    kept = claim_server.asked("keep")
    statuses = [json.loads(content or b"") for _, arguments, content in kept if "status" in arguments[0]]
    assert (end, statuses[-1]["state"]) == ("finished", "finished")
    assert not any(status["exited"] for status in statuses)
    assert len(claim_server.asked("commit")) == 2
    assert list((tmp_path / "node").iterdir()) == []


def ended_by_the_driver(directory: Path) -> MergedResults:
    """Do what the program that drives a run does once its ranks have gone."""
    consolidate_what_ranks_left(read_attempt(directory, 1), directory, is_all=True)
    return merge_results(directory)


@pytest.mark.parametrize("is_own", [True, False])
def test_a_claim_server_that_dies_fails_no_job(tmp_path, is_own):
    with pytest.raises(ClaimsLostError, match="does not answer"):
        run_alone(tmp_path, REACH, node=tmp_path / "node" if is_own else None, claim_server_class=DyingClaimServer)
    (row,) = ended_by_the_driver(tmp_path / "out").jobs.to_dict("records")
    assert row["status"] in ("interrupted", "missing")
    assert not [*tmp_path.rglob("traceback_*"), *tmp_path.rglob("job_report_*")]


CUTS = {
    "a piece is claimed": ("claim", ""),
    "a job begins": ("keep", "job_begun_"),
    "an episode may begin": ("begin", ""),
    "an episode is committed": ("commit", ""),
    "a piece is played": ("finish", ""),
    "a job is reported": ("keep", "job_report_"),
}
"""The call of each transition, and a part of the name of its file."""


JOB: dict[str, object] = {**REACH, "policy_type": "tests.evaluation.cluster.policies.LatePolicy"}


class CutClaimServer(ClaimServerNextDoor):
    """Dies once it has done what a call asks for, and before it says so."""

    def __init__(self, claim_server: ClaimServer, event: str) -> None:
        super().__init__(claim_server)
        self._method, self._word = CUTS[event]
        self.is_cut = False

    def ask(self, calls: Sequence[Call]):
        for number, (method, arguments, _) in enumerate(calls):
            if not self.is_cut and method == self._method and self._word in str(arguments):
                self.is_cut = True
                self._claim_server.ask(calls[: number + 1], Life(rank=0))
                self._claim_server.lock.release()
        if self.is_cut:
            raise ClaimsLostError("the run's claim server does not answer")
        return super().ask(calls)


@pytest.mark.slow
@pytest.mark.parametrize("event", CUTS)
def test_the_next_start_ends_a_run_whose_claim_server_died(tmp_path, event):
    cuts: list[CutClaimServer] = []

    def cut(claim_server: ClaimServer) -> CutClaimServer:
        cuts.append(CutClaimServer(claim_server, event))
        return cuts[0]

    with pytest.raises(ClaimsLostError, match="does not answer"):
        run_alone(tmp_path, JOB, node=tmp_path / "node", claim_server_class=cut)
    assert cuts[0].is_cut
    words = ["--eval_jobs_config", str(tmp_path / "jobs.json"), "--resume", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*words, "--no_report"]) == 0
    assert committed(tmp_path / "out") == Counter({("reach", 0): 1, ("reach", 1): 1})
    assert merge_results(tmp_path / "out").complete
