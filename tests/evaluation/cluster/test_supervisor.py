"""The ranks of a run on a pretended cluster, by a clock of the test."""

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ConfigError, DiskUnusableError
from isaaclab_arena.evaluation.cluster.claim_server import Call, Life, NodeNeeds, RankDiedError, RefusedError, RunOrders
from isaaclab_arena.evaluation.eval_runner import asked_for, main
from isaaclab_arena.evaluation.heartbeat import RankFate, RankReport, RankStatus
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.evaluation.process import Interruption
from tests.end_to_end.launching import write_jobs
from tests.evaluation.cluster.test_claim_server import ORDERS

ray_engine = pytest.importorskip(
    "isaaclab_arena.evaluation.cluster.ray_engine", reason="needs ray", exc_type=ImportError
)

Ended = tuple[Life, str | Exception]


class PretendedCluster:
    """A cluster in which things happen second by second, as a test has written them down.

    Args:
        story: By second, the ranks that end then.
        starts: By rank, when the cluster has resources for it; a rank that is not here never starts.
        jobs_end_s: When nothing is left to do.
    """

    def __init__(self, story: dict[int, list[Ended]], *, starts: dict[int, int], jobs_end_s: int) -> None:
        self.now_s = 0
        self.told: list[tuple[object, ...]] = []
        self.silent: dict[int, float] = {}
        self._story = story
        self._starts = starts
        self._jobs_end_s = jobs_end_s
        self._ended: set[Life] = set()
        self._lives: dict[int, Life] = {}
        self.life_end = 1, False, 0
        self.blamed: dict[Life, str] = {}
        self.nodes = {"good", "bad"}

    def __call__(self) -> float:
        return float(self.now_s)

    def start_rank(self, orders: RunOrders, life: Life, *, avoid: Mapping[str, str]) -> None:
        self._lives[life.rank] = life
        self.told.append(("start", life.rank, life.number, *avoid))

    def waiting(self) -> Sequence[Life]:
        return [life for rank, life in self._lives.items() if rank not in self._starts]

    def wait(self, timeout_s: float) -> Sequence[Ended]:
        self.now_s += 1
        return self._story.get(self.now_s, [])

    def ask(self, calls: Sequence[Call]):
        ((method, arguments, _),) = calls
        if method == "end":
            life, reason = arguments
            self._ended.add(life)
            self.blamed[life] = reason
            return self.life_end
        if method == "stop":
            self.told.append(("stop", *arguments))
        return int(self.now_s < self._jobs_end_s)

    def look(self) -> Sequence[RankReport]:
        """Status and silence [s] of each started rank."""
        reports = []
        for rank, life in self._lives.items():
            is_heard = life not in self._ended and self._starts.get(rank, 10**9) <= self.now_s
            status = RankStatus(rank=rank, run_id="run") if is_heard else None
            silent_s = self.silent.get(rank, 0.0)
            reports.append(RankReport(rank=rank, fate=RankFate.WORKING, status=status, alive=True, silent_s=silent_s))
        return reports

    def kill(self, life: Life) -> None:
        self.silent.pop(life.rank, None)
        self.told.append(("kill", life.rank, life.number))

    def has_nodes(self, needs: NodeNeeds, avoided: Mapping[str, str]) -> bool:
        return bool(self.nodes - avoided.keys())

    def resources(self) -> str:
        return "1 core"


def supervisor_of(cluster: Any, interruption: Interruption | None = None, **options) -> Any:
    return ray_engine.RankSupervisor(
        cluster, ORDERS, cluster.look, interruption or Interruption(), clock=cluster, **options
    )


def work(cluster: PretendedCluster, interruption: Interruption | None = None, **options) -> list[tuple[object, ...]]:
    supervisor_of(cluster, interruption, **options).work(60.0)
    return cluster.told


def died(rank: int, life: int = 0) -> Ended:
    return Life(rank=rank, number=life), RankDiedError("its node has died")


def refused(rank: int, life: int = 0, node: str = "bad") -> Ended:
    error = RefusedError("has other versions")
    error.host, error.node = f"the {node} one", node
    return Life(rank=rank, number=life), error


def raised(rank: int, error: Exception) -> Ended:
    return Life(rank=rank), error


def finished(rank: int, life: int = 0, state: str = "finished") -> Ended:
    return Life(rank=rank, number=life), state


def test_ranks_that_die_for_ever_do_not_begin_anew_for_ever(caplog):
    story = {second: [died(0, second - 1), died(1, second - 1)] for second in range(1, 20)}
    told = work(PretendedCluster(story, starts={0: 0, 1: 0}, jobs_end_s=99))
    assert len(told) == 2 + 6
    assert "have died too often" in caplog.text


@pytest.mark.parametrize("end", [(0, True, 0), (0, False, 1)])
def test_ranks_that_get_on_with_the_work_begin_anew_however_often_they_die(end):
    story = {second: [died(0, second - 1), died(1, second - 1)] for second in range(1, 20)}
    cluster = PretendedCluster(story | {20: [finished(0, 19), finished(1, 19)]}, starts={0: 0, 1: 0}, jobs_end_s=20)
    cluster.life_end = end
    assert len(work(cluster)) == 2 + 2 * 19


def test_a_rank_of_which_nothing_is_heard_for_half_a_minute_is_ended_and_begins_anew():
    cluster = PretendedCluster({39: [finished(0), finished(1, life=1)]}, starts={0: 0, 1: 0}, jobs_end_s=39)
    cluster.silent = {1: 31.0}
    told = work(cluster)
    assert ("kill", 1, 0) in told
    assert ("start", 1, 1) in told


def test_a_run_does_not_wait_for_resources_that_it_needs_no_more(caplog):
    told = work(PretendedCluster({40: [finished(0)]}, starts={0: 2}, jobs_end_s=40))
    assert told[-1] == ("kill", 1, 0)
    assert "1 of 2 ranks wait for resources: each asks for 1 CPU, and the cluster has 1 core" in caplog.text


def test_a_run_without_any_resources_gives_up_in_time():
    with pytest.raises(DistributedError, match="no rank has started within 60 s: 2 of 2 ranks wait for resources: "):
        work(PretendedCluster({}, starts={}, jobs_end_s=99))


def test_all_ranks_are_stopped_when_the_run_is_and_none_begins_anew():
    interruption = Interruption()
    interruption.receive(15)
    cluster = PretendedCluster({3: [died(0), finished(1)]}, starts={0: 0, 1: 0}, jobs_end_s=99)
    assert work(cluster, interruption) == [("start", 0, 0), ("start", 1, 0), ("stop", 15)]


def test_the_first_failure_ends_the_run_where_that_is_asked_for():
    failed = finished(0, state="failed")
    cluster = PretendedCluster({3: [failed], 4: [finished(1)]}, starts={0: 0, 1: 0}, jobs_end_s=99)
    assert ("stop", 15) in work(cluster, fail_fast=True)


def test_ranks_that_a_node_refuses_begin_on_others_and_the_node_is_named_once(caplog):
    story = {2: [refused(0), refused(1)], 9: [finished(0, life=1), finished(1, life=1)]}
    cluster = PretendedCluster(story, starts={0: 1, 1: 1}, jobs_end_s=9)
    told = work(cluster)
    assert told == [("start", 0, 0), ("start", 1, 0), ("start", 0, 1, "bad"), ("start", 1, 1, "bad")]
    assert caplog.text.count("node the bad one runs no ranks of this run: it has other versions") == 1


def test_a_cluster_whose_every_node_refuses_is_told_at_once():
    story = {1: [refused(0), refused(1, node="good")]}
    with pytest.raises(DistributedError, match=r"the bad one runs no ranks .* the good one runs no ranks"):
        work(PretendedCluster(story, starts={}, jobs_end_s=99))


def test_a_rank_that_raises_ends_the_run_and_is_told_first_and_suspects_nothing(caplog):
    caplog.set_level("DEBUG")
    full = DiskUnusableError("cannot write e000001.h5: no space left on device")
    story = {3: [raised(0, full)], 5: [raised(1, ValueError("something else"))]}
    cluster = PretendedCluster(story, starts={0: 0, 1: 0}, jobs_end_s=99)
    supervisor = supervisor_of(cluster)
    supervisor.work(60.0)
    assert supervisor.failure is full
    assert cluster.told == [("start", 0, 0), ("start", 1, 0), ("stop", 15)]
    assert set(cluster.blamed.values()) == {""}
    assert "rank 0 failed first: cannot write e000001.h5: no space left on device; the run ends: make " in caplog.text
    told = [each.message for each in caplog.records if each.levelno > logging.DEBUG]
    assert not any("something else" in line for line in told)
    assert "rank 1 has failed too: something else" in caplog.text


def test_a_rank_that_dies_begins_anew_and_makes_its_episodes_suspect():
    cluster = PretendedCluster({3: [died(1)], 9: [finished(0), finished(1, life=1)]}, starts={0: 1, 1: 1}, jobs_end_s=9)
    assert work(cluster) == [("start", 0, 0), ("start", 1, 0), ("start", 1, 1)]
    assert cluster.blamed[Life(rank=1)] == "its node has died"


JOB = {
    "name": "reach",
    "arena_env_args": {"environment": "reach"},
    "policy_type": "random_action",
    "num_episodes": 1,
}


SERVED = {
    "arena_env_args": {"environment": "reach", "action_mode": "ee_delta"},
    "policy_type": "rsl_rl",
    "policy_config_dict": {"checkpoint_path": "models/reach"},
    "num_episodes": 2,
}


def test_a_shared_policy_server_is_refused_with_its_key_its_jobs_and_the_way_out(tmp_path):
    jobs = [
        {**SERVED, "name": "alone"},
        {**SERVED, "name": "served", "policy_server": {"shared": "node"}},
        {**SERVED, "name": "served by one", "policy_server": {"shared": "run"}},
    ]
    file = write_jobs(tmp_path / "jobs.json", jobs)
    request = asked_for(("--eval_jobs_config", str(file), "--cluster", "ray"))
    with pytest.raises(ConfigError) as refused:
        ray_engine.execute_on_cluster(request, ClusterOptions(cluster="ray"))
    problems = refused.value.problems
    assert {(str(each.file), each.job, each.key) for each in problems} == {
        (str(file), name, "policy_server.shared") for name in ("served", "served by one")
    }
    assert all("torchrun" in str(each) for each in problems)


@pytest.fixture
def said(tmp_path, capsys) -> Callable[[str], str]:
    jobs = write_jobs(tmp_path / "jobs.json", [JOB])

    def run(address: str) -> str:
        output = tmp_path / "run"
        words = ["--eval_jobs_config", jobs, "--output_dir", output, "--cluster", "ray", "--ray_address", address]
        assert main([*map(str, words)]) == 2
        assert not output.exists()
        return capsys.readouterr().err

    return run


def test_an_address_at_which_nobody_listens_or_that_is_none_of_the_head_is_refused(said):
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = f"127.0.0.1:{server.getsockname()[1]}"
    for address, words in ((free, "ray start --head"), ("ray://head:10001", "ray job submit"), ("head:first", "int()")):
        message = said(address)
        assert message.startswith("error: --ray_address: ")
        assert f"'{address}'" in message
        assert words in message


def test_a_cluster_that_asks_for_a_token_says_where_that_is(said, monkeypatch):
    def refuse(**_: object) -> None:
        raise ray_engine.exceptions.RayError("RPC error: InvalidAuthToken: it is missing. Note: RAY_AUTH_MODE is ...")

    monkeypatch.setattr(ray_engine.ray, "init", refuse)
    message = said("auto")
    assert "(RPC error: InvalidAuthToken: it is missing)" in message
    assert "~/.ray/auth_token" in message


@pytest.mark.parametrize("options", [ray_engine.ONCE, ray_engine.CLAIM_SERVER_OPTIONS])
def test_ray_begins_no_actor_anew_and_calls_none_twice(options):
    assert (options["max_restarts"], options["max_task_retries"]) == (0, 0)
