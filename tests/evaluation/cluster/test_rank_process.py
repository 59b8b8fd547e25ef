"""What a rank of a cluster runs, and the directories that ranks make on their nodes."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Lock

import pytest

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import ClaimsLostError
from isaaclab_arena.evaluation.cluster.claim_server import ClaimServer
from isaaclab_arena.evaluation.cluster.driver import needs_of
from isaaclab_arena.evaluation.cluster.rank_process import (
    make_own_directory,
    remove_directories_of_the_dead,
    run_rank,
)
from isaaclab_arena.evaluation.cluster.supervisor import (
    BegunEpisodes,
    ClaimAnswer,
    ClaimQuestion,
    ClusterOptions,
    Delivery,
    DeliveryAnswer,
    Life,
    RankEnd,
    RunOrders,
)
from isaaclab_arena.evaluation.eval_runner import asked_for
from isaaclab_arena.evaluation.run import consolidate_what_ranks_left
from isaaclab_arena.evaluation.start_up import start_run_alone
from isaaclab_arena.results.merge import MergedResults, merge_results
from isaaclab_arena.storage.commits import ReportedStatus, read_commits, read_job_reports
from isaaclab_arena.storage.hdf5.episodes import list_episodes
from isaaclab_arena.storage.json_values import adapter, json_line
from isaaclab_arena.storage.run_plan import read_attempt
from tests.end_to_end.launching import ROOT, write_jobs

DIES = """
import os, pathlib, sys
from isaaclab_arena.evaluation.cluster.rank_process import make_own_directory
(make_own_directory(pathlib.Path(sys.argv[1]), 3) / "episode").touch()
os._exit(9)
"""


def test_a_rank_removes_what_killed_ranks_of_its_node_have_left_and_nothing_else(tmp_path):
    assert subprocess.run([sys.executable, "-c", DIES, tmp_path], cwd=ROOT, check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    mine = make_own_directory(tmp_path, 0)
    machine = left.name.split("_")[3]
    elsewhere = tmp_path / left.name.replace(machine, "00000000")
    elsewhere.mkdir()
    (tmp_path / "isaaclab_arena_ranking").mkdir()
    remove_directories_of_the_dead(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, elsewhere.name, "isaaclab_arena_ranking"}


class ClaimServerNextDoor:
    """A claim server in this process, which answers one question at a time, as an actor does."""

    def __init__(self, claim_server: ClaimServer) -> None:
        self._claim_server = claim_server
        self._lock = Lock()
        self.delivered: list[Delivery] = []

    def claim(self, question: ClaimQuestion) -> ClaimAnswer:
        with self._lock:
            return self._claim_server.claim(question)

    def begin(self, begun: BegunEpisodes) -> bool:
        with self._lock:
            return self._claim_server.begin(begun)

    def deliver(self, delivery: Delivery, content: bytes) -> DeliveryAnswer:
        with self._lock:
            self.delivered.append(delivery)
            return self._claim_server.deliver(delivery, content)


class DyingClaimServer(ClaimServerNextDoor):
    """Dies once it has been told that episodes begin."""

    def begin(self, begun: BegunEpisodes) -> bool:
        raise ClaimsLostError("the run's claim server does not answer")

    def deliver(self, delivery: Delivery, content: bytes) -> DeliveryAnswer:
        if delivery.finished or delivery.failed:
            raise ClaimsLostError("the run's claim server does not answer")
        return super().deliver(delivery, content)


class ClaimServerWithoutReports(ClaimServerNextDoor):
    """Keeps what a rank has delivered that died just before its report arrived."""

    def deliver(self, delivery: Delivery, content: bytes) -> DeliveryAnswer:
        begin, kept = sum(each.size for each in delivery.episodes), []
        for file in delivery.files:
            if "job_report" in file.path:
                content = content[:begin] + content[begin + file.size :]
            else:
                kept.append(file)
                begin += file.size
        return super().deliver(replace(delivery, files=tuple(kept)), content)


def run_alone(
    directory: Path,
    job: dict[str, object],
    *,
    node: Path | None,
    claim_server_class: type[ClaimServerNextDoor] = ClaimServerNextDoor,
) -> tuple[RankEnd, ClaimServerNextDoor]:
    """Run one rank of a cluster in this process; its orders reach it as they would another machine."""
    jobs = write_jobs(directory / "jobs.json", [job])
    words = ("--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out"), "--device", "cpu")
    request = asked_for((*words, "--cluster", "ray"), may_import=True)
    started = start_run_alone(request, DistributedContext(), ["cpu"])
    assert started.attempt is not None
    with started.lock:
        orders = RunOrders(
            run="run",
            needs=needs_of(request, ClusterOptions(cluster="ray"), working_directory=None),
            config_hash=started.plan.config_hash,
            output_directory=str(started.output_directory),
            attempt=started.attempt,
            num_ranks=1,
            node_directory=None if node is None else str(node),
        )
        received = adapter(RunOrders).validate_json(json_line(orders))
        claim_server = claim_server_class(ClaimServer(request, started.attempt, started.output_directory))
        return run_rank(received, Life(rank=0), claim_server), claim_server


REACH = {
    "name": "reach",
    "arena_env_args": {"environment": "reach", "num_envs": 2},
    "policy_type": "random_action",
    "num_episodes": 2,
}


def test_a_job_whose_latency_was_measured_at_the_start_runs_with_it(tmp_path):
    end, _ = run_alone(tmp_path, {**REACH, "latency": "measured"}, node=tmp_path / "node")
    (report,), _ = read_job_reports(tmp_path / "out" / "reach", "reach")
    assert (end.state, report.status, report.error) == ("finished", ReportedStatus.COMPLETED, None)
    assert len(read_commits(tmp_path / "out" / "reach", "reach").lines) == 2


def test_a_rank_that_sees_the_directory_of_the_run_sends_no_file_there(tmp_path):
    end, claim_server = run_alone(tmp_path, REACH, node=None)
    assert end.state == "finished"
    assert [each for each in claim_server.delivered if each.episodes or each.files or each.status] == []
    assert len(read_commits(tmp_path / "out" / "reach", "reach").lines) == 2
    assert json.loads((tmp_path / "out" / "logs" / "rank0.status.json").read_text())["state"] == "finished"


def test_a_rank_with_a_disk_of_its_own_leaves_nothing_there(tmp_path):
    end, claim_server = run_alone(tmp_path, REACH, node=tmp_path / "node")
    assert end.state == "finished"
    assert sum(len(each.episodes) for each in claim_server.delivered) == 2
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


def test_a_rank_that_dies_before_its_report_has_arrived_leaves_a_complete_job(tmp_path):
    # Long enough that the rank's first word on the job arrives in a delivery before that of the last episodes.
    job = {**REACH, "num_episodes": 80}
    _, claim_server = run_alone(tmp_path, job, node=tmp_path / "node", claim_server_class=ClaimServerWithoutReports)
    assert any("job_begun" in file.path for delivery in claim_server.delivered for file in delivery.files)
    merged = ended_by_the_driver(tmp_path / "out")
    assert merged.complete
    (row,) = merged.jobs.to_dict("records")
    assert (row["status"], row["reproducible"]) == ("completed", "bitwise")
    assert list_episodes(tmp_path / "out" / "reach" / "dataset_reach.hdf5") == [*range(80)]
    assert not [*(tmp_path / "out").rglob("job_report_*")]


def test_a_job_whose_recordings_vanish_before_they_are_in_a_dataset_has_failed(tmp_path):
    run_alone(tmp_path, REACH, node=tmp_path / "node")
    shutil.rmtree(tmp_path / "out" / "reach" / "episodes")
    (row,) = ended_by_the_driver(tmp_path / "out").jobs.to_dict("records")
    assert row["status"] == "failed"
    told = "the recordings of demo_0 to demo_1 are damaged or gone since they finished; --resume runs them again"
    assert row["error"] == told
