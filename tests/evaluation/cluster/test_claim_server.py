"""The claim server of a run on a cluster, asked by ranks that write in directories of their own."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from isaaclab_arena.distributed.ranks import ClaimsLostError
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.claims import Measured
from isaaclab_arena.evaluation.cluster.claim_server import (
    EXCHANGES_PER_S,
    Call,
    ClaimServer,
    Life,
    NodeNeeds,
    RemoteLedger,
    RunOrders,
    interval_s,
)
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.planning import RunRequest, divided_jobs
from isaaclab_arena.interfaces.episode import Outcome, of_ranges
from isaaclab_arena.storage.commits import CommitLine, line_text, read_commits
from isaaclab_arena.storage.ledger import JobState, ReportedStatus, read_job_reports
from tests.evaluation.jobs import coin_job
from tests.results.evidence import attempt, commit_lines

JOB = coin_job("coins", num_episodes=8)
REQUEST = RunRequest(jobs=(JOB,), config_hash="", source_file=None, command_line=(), options=RunOptions())
ATTEMPT = attempt(
    run_id="run", assignment="dynamic", world_size=2, devices=("cpu", "cpu"), jobs=(JobState(job="coins"),)
)
NEEDS = NodeNeeds(command_line=(), working_directory=None, jobs_hash="", contents={}, versions={}, cpus=1, gpus=0)
ORDERS = RunOrders(run="run", needs=NEEDS, config_hash="", output_directory="", attempt=ATTEMPT, node_directory=None)
MEASURED = Measured(episodes=1, env_steps=10, seconds=0.1)


def line_of(index: int, rank: int) -> CommitLine:
    (line,) = commit_lines("s", job="coins", rank=rank, first=index)
    return line


class Rank:
    """A rank as the claim server sees it; its node shares no directory with the run."""

    def __init__(
        self, claim_server: ClaimServer, directory: Path, rank: int, life: int = 0, request: RunRequest = REQUEST
    ) -> None:
        self.life = Life(rank=rank, number=life)
        self.directory = directory
        (directory / "coins").mkdir(parents=True)
        (directory / "logs").mkdir()

        def ask(calls: Sequence[Call]):
            return claim_server.ask(calls, self.life)

        jobs = divided_jobs(request.jobs, ATTEMPT)
        self.ledger = RemoteLedger(ORDERS, self.life, jobs, ask, directory, is_own=True)

    def claim(self):
        claim = self.ledger.claim_next(None)
        assert claim is not None
        return claim

    def piece(self, claim) -> tuple[int, int]:
        """Return the first episode of a piece, and the one after its last."""
        piece = self.ledger.jobs[0].pieces[claim.piece]
        assert piece
        return piece[0]

    def play(self, claim, *, arrays: bytes = b"", episodes: Sequence[int] | None = None) -> None:
        begin, end = self.piece(claim)
        for index in range(begin, end) if episodes is None else episodes:
            self.commit(line_of(index, self.life.rank), arrays)

    def commit(self, line: CommitLine, arrays: bytes = b"") -> None:
        def write(path: Path) -> None:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(arrays)

        self.ledger.commit(self.directory / "coins", line, line_text(line), write if arrays else None)

    def finish(self, claim) -> None:
        self.play(claim)
        self.ledger.finish(claim, MEASURED)


@pytest.fixture
def home(tmp_path) -> Path:
    (tmp_path / "home" / "logs").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def claim_server(home) -> ClaimServer:
    return ClaimServer(REQUEST, ATTEMPT, home)


def committed(home: Path) -> list[int]:
    return [line.episode_index for line in read_commits(home / "coins", "coins").lines]


def test_ranks_get_every_piece_once_and_their_episodes_come_home(tmp_path, home, claim_server):
    ranks = [Rank(claim_server, tmp_path / f"node{rank}", rank) for rank in range(2)]
    for turn in range(8):
        claim = ranks[turn % 2].claim()
        ranks[turn % 2].play(claim, arrays=b"arrays")
        ranks[turn % 2].ledger.finish(claim, MEASURED)
    assert ranks[0].ledger.claim_next(None) is None
    for rank in ranks:
        rank.ledger.deliver()
        assert not [*rank.directory.rglob("*.h5")]
    assert committed(home) == list(range(8))
    assert {path.read_bytes() for path in (home / "coins" / "episodes").iterdir()} == {b"arrays"}
    assert ranks[0].ledger.claim_next(None) is None
    assert (ranks[0].ledger.state().pieces_of_others, claim_server.num_unfinished_jobs()) == (0, 0)
    claims = [path for path in (home / "claims" / "attempt_1").iterdir() if path.suffix == ".g1"]
    assert sorted(json.loads(path.read_text())["rank"] for path in claims) == [0] * 4 + [1] * 4


def test_a_rank_that_was_taken_for_dead_commits_nothing_any_more(tmp_path, home, claim_server):
    dead = Rank(claim_server, tmp_path / "node", 0)
    claim = dead.claim()
    claim_server.end(dead.life)
    dead.play(claim)
    with pytest.raises(ClaimsLostError, match="rank 0 was presumed dead"), dead.ledger.delivering():
        pass
    assert not dead.ledger.holds(claim)
    with pytest.raises(ClaimsLostError):
        dead.ledger.claim_next(None)
    assert committed(home) == []
    again = Rank(claim_server, tmp_path / "again", 0, life=1)
    again.finish(again.claim())
    again.ledger.deliver()
    assert len(committed(home)) == 1


@pytest.mark.parametrize("num_ranks", [8, 100, 400, 1000, 1500, 100_000])
def test_ranks_speak_the_less_often_the_more_of_them_there_are_and_none_is_taken_for_dead(num_ranks):
    assert num_ranks > 1600 or num_ranks / interval_s(num_ranks) <= EXCHANGES_PER_S
    assert 0.5 <= interval_s(num_ranks) < 30.0 / 3


def test_a_rank_hears_with_its_next_delivery_that_the_run_is_to_stop(tmp_path, claim_server):
    rank = Rank(claim_server, tmp_path / "node", 0)
    assert not rank.ledger.stop_requested()
    claim_server.stop(15)
    rank.ledger.deliver()
    assert rank.ledger.stop_signal == 15
    assert rank.ledger.stop_requested()


def test_ranks_hear_with_a_delivery_of_errors_that_their_job_is_over(tmp_path, home):
    claim_server = ClaimServer(replace(REQUEST, options=RunOptions(max_equal_errors=2)), ATTEMPT, home)
    ranks = [Rank(claim_server, tmp_path / f"node{number}", number) for number in range(2)]
    for rank in ranks:
        rank.claim()
        assert not rank.ledger.jobs_over
        # Each plays one of two episodes in a row.
        line = line_of(rank.life.rank, rank.life.rank)
        rank.commit(replace(line, outcome=Outcome.ERROR, success=None, error="no renderer"))
        rank.ledger.deliver()
    assert list(ranks[1].ledger.jobs_over) == ["coins"]
    assert ranks[0].ledger.claim_next(None) is None


OF_RANK_1 = line_text(line_of(0, rank=1))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        # A file that is not the rank's own.
        *(
            (("keep", (path, None), b"x"), StorageError)
            for path in ("run.json", "coins/../run.json", "coins/episodes/e000001.h5", "other/settled.json")
        ),
        # A line of another rank, and messages of another form.
        (("commit", (OF_RANK_1,), None), StorageError),
        (("commit", (1,), None), ValueError),
        (("commit", ("{}",), None), StorageError),
        (("begin", ("x", 0, 0), None), ValueError),
        # Something that no rank asks.
        (("_check", (), None), KeyError),
    ],
)
def test_what_a_rank_may_not_ask_is_refused(home, claim_server, call, error):
    before = {path: path.is_file() and path.read_bytes() for path in home.rglob("*")}
    with pytest.raises(error):
        claim_server.ask([call], Life(rank=0))
    assert {path: path.is_file() and path.read_bytes() for path in home.rglob("*")} == before


class Cluster:
    """Ranks of a run whose pieces have four episodes each, which die and begin anew."""

    def __init__(self, directory: Path, home: Path) -> None:
        self.directory, self.home = directory, home
        self.request = replace(REQUEST, jobs=(coin_job("coins", num_episodes=64),))
        self.claim_server = ClaimServer(self.request, ATTEMPT, home)
        self.ranks = [self._rank(Life(rank=rank)) for rank in range(2)]

    def _rank(self, life: Life) -> Rank:
        directory = self.directory / f"rank{life.rank}.{life.number}"
        return Rank(self.claim_server, directory, life.rank, life.number, self.request)

    def die(self, rank: int, reason: str = "its worker was killed"):
        life = self.ranks[rank].life
        end = self.claim_server.end(life, reason)
        self.ranks[rank] = self._rank(Life(rank=rank, number=life.number + 1))
        return end

    def suspected(self, rank: int):
        """Let a rank claim until it is given a piece with suspects, and finish the others."""
        while not (claim := self.ranks[rank].claim()).suspects:
            self.ranks[rank].finish(claim)
            self.ranks[rank].ledger.deliver()
        return claim

    def errors(self) -> dict[int, str | None]:
        lines = read_commits(self.home / "coins", "coins").lines
        return {line.episode_index: line.error for line in lines if line.outcome is Outcome.ERROR}


@pytest.fixture
def cluster(tmp_path, home) -> Cluster:
    return Cluster(tmp_path, home)


def test_what_a_dead_rank_was_playing_is_played_again_one_at_a_time_and_the_rest_as_ever(cluster):
    rank = cluster.ranks[0]
    claim = rank.claim()
    rank.ledger.begin(claim, 0, 2)
    rank.play(claim, episodes=[1])
    rank.ledger.deliver()
    cluster.die(0)
    again = cluster.suspected(1)
    assert (again.piece, again.suspects) == (claim.piece, ((0, 1), (2, 3)))
    cluster.ranks[1].play(again, episodes=[0, 2])
    cluster.ranks[1].ledger.finish(again, MEASURED)
    cluster.ranks[1].ledger.deliver()
    rest = next(each for each in iter(cluster.ranks[0].claim, None) if each.piece == claim.piece)
    assert (rest.suspects, rest.committed) == ((), ((0, 3),))


def test_an_episode_that_kills_three_ranks_is_an_error_that_names_them_and_nothing_else_is_lost(cluster):
    rank = cluster.ranks[0]
    claim = rank.claim()
    rank.ledger.begin(claim, 0, 1)
    assert cluster.die(0, "a bus error")[2] == 0
    for dies, reason in ((1, "a segmentation fault"), (0, "no memory was left")):
        again = cluster.suspected(dies)
        if 0 in of_ranges(again.suspects):
            cluster.ranks[dies].ledger.begin(again, 0, 0)
            cluster.ranks[dies].play(again, episodes=[0])
            cluster.ranks[dies].ledger.deliver()
        cluster.ranks[dies].ledger.begin(again, 1, 1)
        *_, explained = cluster.die(dies, reason)
    assert explained == 3
    assert list(cluster.errors()) == [1]
    error = cluster.errors()[1]
    assert error is not None
    assert "rank 0: a bus error; rank 1: a segmentation fault; rank 0: no memory was left" in error
    while (last := cluster.ranks[1].ledger.claim_next(None)) is not None:
        assert not last.suspects
        begin, end = cluster.ranks[1].piece(last)
        cluster.ranks[1].play(last, episodes=sorted(set(range(begin, end)) - of_ranges(last.committed)))
        cluster.ranks[1].ledger.finish(last, MEASURED)
        cluster.ranks[1].ledger.deliver()
    assert committed(cluster.home) == list(range(64))


def test_a_job_that_kills_three_ranks_before_an_episode_has_begun_is_given_up_with_a_report(cluster):
    for explained in (0, 0, 3):
        cluster.ranks[0].claim()
        assert cluster.die(0) == (1, False, explained)
    assert cluster.errors() == {}
    assert cluster.ranks[0].ledger.claim_next(None) is None
    (report,), _ = read_job_reports(cluster.home / "coins", "coins")
    assert (report.status, report.rank) == (ReportedStatus.FAILED, 0)


def test_a_rank_that_ends_without_dying_makes_nothing_suspect(cluster):
    rank = cluster.ranks[0]
    rank.ledger.begin(rank.claim(), 0, 3)
    cluster.die(0, reason="")
    assert all(not cluster.ranks[1].claim().suspects for _ in range(16))
