"""Claims on pieces of jobs."""

import dataclasses
from typing import Any

import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.claims import Blamed, Claim, ClaimTable, Death, Measured, Suspects
from isaaclab_arena.evaluation.heartbeat import RankState, RankStatus, RankWatch, write_rank_status
from isaaclab_arena.evaluation.planning import DividedJob, divided_jobs
from isaaclab_arena.interfaces.episode import of_ranges
from isaaclab_arena.storage.ledger import JobState
from tests.evaluation.jobs import coin_job
from tests.fakes import Clock
from tests.results.evidence import attempt

# Tables of claims, one per rank, over one directory; each looks at the others' status files by a clock of the test.


MEASURED = Measured(episodes=3, env_steps=300, seconds=1.5)
LEASE_S = 30.0
CLAIMS = "claims/attempt_1"
ENDED = (RankState.FINISHED, RankState.INTERRUPTED, RankState.FAILED)


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


def beat(directory, beat: int, *, rank: int = 1, **changes) -> None:
    status = RankStatus(rank=rank, run_id="run")
    write_rank_status(directory, dataclasses.replace(status, beat=beat, **{"state": RankState.RUNNING} | changes))


def table_of(directory, rank: int, *, pieces: int = 1, clock: Clock | None = None) -> ClaimTable:
    clock = clock or Clock()
    job = coin_job("job", num_episodes=pieces)
    return ClaimTable(
        {0: DividedJob(job=job, finished=(), pieces=tuple(((index, index + 1),) for index in range(pieces)))},
        directory,
        attempt(run_id="run", world_size=3),
        RankWatch(directory, world_size=3, run_id="run", clock=clock),
        rank=rank,
        lease_s=LEASE_S,
        clock=clock,
    )


def made(claim: Claim | None) -> Claim:
    assert claim is not None
    return claim


def look_each_second(table: ClaimTable, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now_s += 1.0
        table.refresh()


def claimed_by_rank_one(directory, clock: Clock) -> ClaimTable:
    """Return the table of rank 0 once rank 1 has claimed the only piece."""
    made(table_of(directory, 1).claim(0, 0))
    table = table_of(directory, 0, clock=clock)
    table.refresh()
    return table


def open_episodes(table: ClaimTable) -> int:
    """Count the open pieces of the job; each has one episode."""
    return len(of_ranges(table.state(0).open_pieces))


def test_a_piece_has_one_owner(directory):
    first, second = table_of(directory, 0), table_of(directory, 1)
    claim = made(first.claim_next(None))
    assert (claim.piece, claim.generation, claim.taken_from) == (0, 1, None)
    assert second.claim_next(None) is None
    assert second.state().pieces_of_others == 1
    assert first.state().pieces_of_others == 0
    assert first.holds(claim)


def test_only_one_rank_takes_a_piece_over_and_its_owner_sees_that(directory):
    owner, second, third = (table_of(directory, rank) for rank in range(3))
    lost = made(owner.claim(0, 0))
    for rank in (1, 2):
        beat(directory, 1, rank=rank)
    beat(directory, 1, rank=0, start_ticks=1)
    second.refresh()
    third.refresh()
    taken = made(second.claim(0, 0))
    assert (taken.generation, taken.taken_from) == (2, 0)
    assert third.claim(0, 0) is None
    assert not owner.holds(lost)
    assert second.holds(taken)
    owner.finish(lost, MEASURED)
    assert not (directory / CLAIMS / "j000000_p00000.done").exists(), "its new owner will say so"


def test_what_a_rank_finishes_or_gives_up_is_free_for_nobody_and_what_was_said_first_stands(directory):
    first, second = table_of(directory, 0, pieces=3), table_of(directory, 1, pieces=3)
    claim = made(first.claim(0, 0))
    first.finish(claim, MEASURED)
    said = (directory / CLAIMS / "j000000_p00000.done").read_bytes()
    first.finish(claim, Measured(episodes=9, env_steps=9, seconds=9.0))
    assert (directory / CLAIMS / "j000000_p00000.done").read_bytes() == said
    second.refresh()
    assert (open_episodes(second), second.state().num_unfinished_jobs) == (2, 1)
    first.give_up(0)
    second.refresh(now=True)
    assert second.claim_next(None) is None
    assert second.state().num_unfinished_jobs == 0


def test_files_of_others_in_the_directory_are_no_claims(directory):
    table = table_of(directory, 0)
    names = (".nfs0001", "p1", "j000000_p00000.g0", "j000000_p00000.g1.tmp", "notes.txt", "j000000_p00000.g-1")
    for name in (*names, "j000000_p00009.g1", "j000007_p00000.done"):
        (directory / CLAIMS / name).write_text("{}")
    table.refresh()
    assert table.claim_next(None) is not None


@pytest.mark.parametrize(
    "content", [b"", b'{"rank"', b"[]", b'{"rank": "one", "run_id": "run"}', b"\xff", b'{"rank": 1, "run_id": "old"}']
)
def test_a_claim_of_which_nobody_knows_the_owner_lapses_after_a_lease(directory, content):
    clock = Clock()
    table = claimed_by_rank_one(directory, clock)
    (directory / CLAIMS / "j000000_p00000.g1").write_bytes(content)
    table = table_of(directory, 0, clock=clock)
    table.refresh()
    for number in range(29):
        beat(directory, number)
        look_each_second(table, clock, 1)
        assert table.claim_next(None) is None
    look_each_second(table, clock, 1)
    claim = made(table.claim_next(None))
    assert (claim.generation, claim.taken_from) == (2, None)


@pytest.mark.parametrize("own_stop_s", [0.0, 600.0])
def test_a_silent_rank_loses_its_claims_after_a_lease_that_this_one_watched_until_it_beats_again(directory, own_stop_s):
    clock = Clock()
    beat(directory, 1)
    table = claimed_by_rank_one(directory, clock)
    if own_stop_s:
        # This rank was stopped itself.
        clock.now_s = own_stop_s
        table.refresh()
    look_each_second(table, clock, 29)
    assert open_episodes(table) == 0, "its process is there"
    look_each_second(table, clock, 1)
    assert open_episodes(table) == 1
    beat(directory, 2)
    look_each_second(table, clock, 1)
    assert open_episodes(table) == 0


GONE: list[dict[str, Any]] = [{"state": state} for state in RankState if state in ENDED] + [{"start_ticks": 1}]


@pytest.mark.parametrize("changes", GONE, ids=str)
def test_a_rank_that_works_no_more_or_whose_process_is_gone_loses_its_claims_at_once(directory, changes):
    beat(directory, 1, **changes)
    assert open_episodes(claimed_by_rank_one(directory, Clock())) == 1


# The episodes and jobs that are to blame for the deaths of ranks.


JOBS = (coin_job("coins", num_episodes=64), coin_job("steps", num_steps=100, index=1))
DIVIDED = divided_jobs(JOBS, attempt(1, jobs=tuple(JobState(job=job.config.name) for job in JOBS)))
CLAIM = Claim(job_index=0, piece=0)
"""Of the episodes 0 to 7."""


def suspects() -> Suspects:
    return Suspects(DIVIDED)


def death(rank: int, machine: str = "here") -> Death:
    return Death(rank=rank, reason="a segmentation fault", machine=machine)


def dies(under: Suspects, death: Death, claim: Claim = CLAIM, *, ended=(), num_machines: int = 1) -> list[Blamed]:
    return under.die(death, [claim.key], lambda _: frozenset(ended), num_machines=num_machines)


def test_an_episode_that_ended_begins_with_a_clean_slate():
    under = suspects()
    for rank in range(2):
        under.begin(rank, CLAIM, 7, 7)
        dies(under, death(rank))
    assert under.give(Claim(job_index=0, piece=0, committed=((6, 8),))).suspects == ()
    assert under.pieces(0) == frozenset()
    # It is played alone now.
    under.begin(2, under.give(CLAIM), 7, 7)
    assert dies(under, death(2)) == []


def test_a_single_machine_of_several_is_no_proof_against_a_job():
    under = suspects()
    assert [each for _ in range(3) for each in dies(under, death(0), num_machines=2)] == []
    assert len(dies(under, death(1, "there"), num_machines=2)) == 1


def test_a_job_that_runs_again_as_a_whole_has_three_lives_too():
    under, claim = suspects(), Claim(job_index=1, piece=0)
    assert [each.job_index for rank in range(3) for each in dies(under, death(rank), claim)] == [1]


def test_a_directory_that_cannot_be_made_is_named(directory):
    (directory / "claims").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot make .*claims"):
        table_of(directory, 0)
