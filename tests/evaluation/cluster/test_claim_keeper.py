"""The keeper of a run on a cluster, asked by ranks that write in directories of their own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.cluster.claim_keeper import ClaimKeeper
from isaaclab_arena.evaluation.cluster.messages import ClaimQuestion, Delivery, Life, SentEpisode, SentFile
from isaaclab_arena.evaluation.cluster.remote_claims import RemoteClaims
from isaaclab_arena.evaluation.cluster.result_sender import ResultSender
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.plan.planning import RunRequest
from isaaclab_arena.evaluation.scheduling.cost import Measured
from isaaclab_arena.evaluation.scheduling.divided_jobs import divided_jobs
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.provenance import Node
from isaaclab_arena.storage.run.attempts import Attempt, AttemptEntry
from isaaclab_arena.storage.run.commits import CommitLine, CommitWriter, read_commits
from tests.evaluation.jobs import coin_job

JOB = coin_job("coins", num_episodes=8)
REQUEST = RunRequest(jobs=(JOB,), config_hash="", source_file=None, command_line=(), options=RunOptions())
ATTEMPT = Attempt(
    number=1,
    run_id="run",
    started_at="",
    command_line=(),
    assignment="dynamic",
    world_size=2,
    devices=("cpu", "cpu"),
    versions={},
    git_revision=None,
    machine=Node(host="here", cpu="", cores=1, platform=""),
    jobs=(AttemptEntry(job="coins"),),
)
MEASURED = Measured(episodes=1, env_steps=10, seconds=0.1)


def line_of(index: int, rank: int) -> CommitLine:
    return CommitLine(
        job_name="coins",
        env_id=0,
        episode_in_env=0,
        language_instruction=None,
        seed=0,
        success=True,
        episode_length=1,
        timestamp="",
        episode_index=index,
        outcome=None,
        termination="",
        episode_return=0.0,
        rank=rank,
        episode_seed=0,
    )


class Rank:
    """A rank as the keeper sees it; its node shares no directory with the run."""

    def __init__(self, keeper: ClaimKeeper, directory: Path, rank: int, life: int = 0) -> None:
        self.life = Life(rank=rank, number=life)
        self.directory = directory
        (directory / "coins").mkdir(parents=True)
        (directory / "logs").mkdir()
        self.stopped_by: list[int] = []
        self.sender = ResultSender(self.life, directory, keeper.deliver, stop=self.stopped_by.append)
        self.sender.follow("coins")
        jobs = divided_jobs(REQUEST.jobs, ATTEMPT)
        self.claims = RemoteClaims(jobs, self.life, keeper.claim, self.sender, output_directory=directory)
        self.commits = CommitWriter(directory / "coins", rank)

    def claim(self):
        claim = self.claims.claim_next(None)
        assert claim is not None
        return claim

    def play(self, claim, *, arrays: bytes = b"") -> None:
        (begin, end), *_ = claim.divided.pieces[claim.piece]
        for index in range(begin, end):
            name = f"episodes/e{index:06d}.h5" if arrays else None
            if name is not None:
                (self.directory / "coins" / "episodes").mkdir(exist_ok=True)
                (self.directory / "coins" / name).write_bytes(arrays)
            self.commits.write(replace(line_of(index, self.life.rank), episode_file=name))

    def finish(self, claim) -> None:
        self.play(claim)
        self.claims.finish(claim, MEASURED)


@pytest.fixture
def home(tmp_path) -> Path:
    (tmp_path / "home" / "logs").mkdir(parents=True)
    return tmp_path / "home"


@pytest.fixture
def keeper(home) -> ClaimKeeper:
    return ClaimKeeper(REQUEST, ATTEMPT, home)


def committed(home: Path) -> list[int]:
    return [line.episode_index for line in read_commits(home / "coins", "coins").lines]


def test_ranks_get_every_piece_once_and_their_episodes_come_home(tmp_path, home, keeper):
    ranks = [Rank(keeper, tmp_path / f"node{rank}", rank) for rank in range(2)]
    for turn in range(8):
        ranks[turn % 2].finish(ranks[turn % 2].claim())
    assert ranks[0].claims.claim_next(None) is None
    for rank in ranks:
        rank.sender.send()
    assert committed(home) == list(range(8))
    assert ranks[0].claims.claim_next(None) is None
    assert (ranks[0].claims.pieces_of_others(), keeper.state().num_unfinished_jobs) == (0, 0)


def test_an_episode_is_in_place_before_its_line_and_gone_from_its_node(tmp_path, home, keeper):
    rank = Rank(keeper, tmp_path / "node", 0)
    claim = rank.claim()
    rank.play(claim, arrays=b"arrays")
    rank.sender.send()
    name = f"episodes/e{claim.piece:06d}.h5"
    assert (home / "coins" / name).read_bytes() == b"arrays"
    assert not (tmp_path / "node" / "coins" / name).exists()
    assert committed(home) == [claim.piece]


def test_what_a_dead_rank_held_is_taken_over_and_what_it_had_committed_is_not_run_again(tmp_path, home, keeper):
    dead, other = (Rank(keeper, tmp_path / f"node{rank}", rank) for rank in range(2))
    claim = dead.claim()
    dead.play(claim)
    dead.sender.send()
    assert keeper.end(dead.life) == 1
    over = next(each for each in iter(other.claim, None) if each.generation > 1)
    assert (over.piece, over.taken_from, over.committed) == (claim.piece, 0, frozenset({claim.piece}))


def test_a_rank_that_was_taken_for_dead_commits_nothing_any_more(tmp_path, home, keeper):
    dead = Rank(keeper, tmp_path / "node", 0)
    claim = dead.claim()
    keeper.end(dead.life)
    dead.play(claim)
    dead.sender.send()
    assert dead.sender.is_gone
    assert not dead.claims.holds(claim)
    assert dead.claims.claim_next(None) is None
    assert committed(home) == []
    again = Rank(keeper, tmp_path / "again", 0, life=1)
    again.finish(again.claim())
    again.sender.send()
    assert len(committed(home)) == 1


def test_a_rank_hears_with_its_next_delivery_that_the_run_is_to_stop(tmp_path, keeper):
    rank = Rank(keeper, tmp_path / "node", 0)
    keeper.stop(15)
    rank.sender.send()
    assert rank.stopped_by == [15]


@pytest.mark.parametrize("path", ["run.json", "coins/../run.json", "coins/episodes/e000001.h5", "other/settled.json"])
def test_a_rank_writes_no_file_that_is_not_its_own(home, keeper, path):
    delivery = Delivery(life=Life(rank=0), files=(SentFile(path=path, size=1),))
    with pytest.raises(StorageError, match="no file that a rank writes"):
        keeper.deliver(delivery, b"x")


def test_lines_of_another_job_or_rank_are_refused(keeper):
    episode = SentEpisode(job="coins", line=json_line(line_of(0, rank=1)))
    with pytest.raises(StorageError, match="rank 1"):
        keeper.deliver(Delivery(life=Life(rank=0), episodes=(episode,)), b"")


def test_claims_are_the_files_that_ranks_of_one_directory_make(home, keeper):
    given = keeper.claim(ClaimQuestion(life=Life(rank=1))).given
    (path,) = (home / "claims" / "attempt_1").iterdir()
    assert path.name == f"j000000_p{given.piece:05d}.g1"
    assert json.loads(path.read_text())["rank"] == 1
