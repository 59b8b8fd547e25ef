"""Claims on pieces of jobs."""

import dataclasses
import multiprocessing
import os
import threading

import pytest

from isaaclab_arena.distributed.context import process_start_ticks
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.claims import Blamed, Claim, ClaimTable, Death, Measured, Suspects
from isaaclab_arena.evaluation.heartbeat import RankState, RankStatus, RankWatch, write_rank_status
from isaaclab_arena.evaluation.planning import DividedJob, divided_jobs
from isaaclab_arena.interfaces.episode import of_ranges
from isaaclab_arena.storage.ledger import AttemptEntry
from tests.evaluation.jobs import coin_job
from tests.results.evidence import attempt

# Tables of claims, one per rank, over one directory; each looks at the others' status files by a clock of the test.


MEASURED = Measured(episodes=3, env_steps=300, seconds=1.5)
LEASE_S = 30.0
CLAIMS = "claims/attempt_1"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


def beat(directory, beat: int, *, rank: int = 1, **changes) -> None:
    status = RankStatus(rank=rank, run_id="run")
    write_rank_status(directory, dataclasses.replace(status, state=RankState.RUNNING, beat=beat, **changes))


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


def claim_all(table: ClaimTable, pieces: int) -> list[int]:
    return [piece for piece in range(pieces) if table.claim(0, piece) is not None]


def claim_all_in_a_process(path, rank: int, pieces: int, start, answers) -> None:
    table = table_of(path, rank, pieces=pieces)
    start.wait()
    answers.put(claim_all(table, pieces))


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


def test_threads_that_race_for_pieces_get_each_of_them_once(directory):
    start, won = threading.Barrier(3), [[], [], []]

    def race(rank: int) -> None:
        table = table_of(directory, rank, pieces=300)
        start.wait()
        won[rank] = claim_all(table, 300)

    threads = [threading.Thread(target=race, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(piece for pieces_won in won for piece in pieces_won) == list(range(300))


def test_processes_that_race_for_pieces_get_each_of_them_once(directory):
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=claim_all_in_a_process, args=(directory, rank, 300, start, answers)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    won = answers.get(timeout=60) + answers.get(timeout=60)
    for process in processes:
        process.join(timeout=60)
    assert sorted(won) == list(range(300))


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


def test_what_a_rank_finishes_or_gives_up_is_free_for_nobody(directory):
    first, second = table_of(directory, 0, pieces=3), table_of(directory, 1, pieces=3)
    first.finish(made(first.claim(0, 0)), MEASURED)
    second.refresh()
    assert open_episodes(second) == 2
    assert second.state().num_unfinished_jobs == 1
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


@pytest.mark.parametrize("content", [b"", b'{"episodes": 1}', b'{"episodes": "x", "env_steps": 1, "seconds": 1}'])
def test_a_torn_note_that_a_piece_is_done_still_says_so(directory, content):
    table = table_of(directory, 0)
    (directory / CLAIMS / "j000000_p00000.done").write_bytes(content)
    table.refresh()
    assert table.claim_next(None) is None
    assert table.state().num_unfinished_jobs == 0


def test_saying_twice_that_a_piece_is_done_keeps_what_was_said_first(directory):
    table = table_of(directory, 0)
    claim = made(table.claim(0, 0))
    table.finish(claim, MEASURED)
    said = (directory / CLAIMS / "j000000_p00000.done").read_bytes()
    table.finish(claim, Measured(episodes=9, env_steps=9, seconds=9.0))
    assert (directory / CLAIMS / "j000000_p00000.done").read_bytes() == said


def test_a_directory_that_cannot_be_made_is_named(directory):
    (directory / "claims").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot make .*claims"):
        table_of(directory, 0)


def test_a_rank_whose_heartbeat_goes_on_keeps_its_claims(directory):
    clock = Clock()
    beat(directory, 0)
    table = claimed_by_rank_one(directory, clock)
    for number in range(100):
        beat(directory, number)
        look_each_second(table, clock, 1)
        assert table.claim_next(None) is None


def test_a_rank_that_is_silent_for_a_lease_loses_its_claims_until_its_heartbeat_goes_on(directory):
    clock = Clock()
    beat(directory, 1)
    table = claimed_by_rank_one(directory, clock)
    look_each_second(table, clock, 29)
    assert open_episodes(table) == 0, "its process is there"
    look_each_second(table, clock, 1)
    assert open_episodes(table) == 1
    beat(directory, 2)
    look_each_second(table, clock, 1)
    assert open_episodes(table) == 0


def test_a_rank_that_was_stopped_itself_gives_the_others_a_whole_lease(directory):
    clock = Clock()
    beat(directory, 1)
    table = claimed_by_rank_one(directory, clock)
    clock.now_s = 600.0
    table.refresh()
    assert open_episodes(table) == 0
    look_each_second(table, clock, 29)
    assert open_episodes(table) == 0
    look_each_second(table, clock, 1)
    assert open_episodes(table) == 1


@pytest.mark.parametrize("state", [RankState.FINISHED, RankState.INTERRUPTED, RankState.FAILED])
def test_a_rank_that_works_no_more_loses_its_claims_at_once(directory, state):
    status = RankStatus(rank=1, run_id="run")
    write_rank_status(directory, dataclasses.replace(status, state=state, beat=1))
    assert open_episodes(claimed_by_rank_one(directory, Clock())) == 1


def test_a_rank_whose_process_is_gone_loses_its_claims_at_once(directory):
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    beat(directory, 1, start_ticks=ticks - 1)
    assert open_episodes(claimed_by_rank_one(directory, Clock())) == 1


def test_a_claim_of_its_own_that_it_does_not_know_of_is_taken_over_by_a_rank_at_once(directory):
    """The answer of a network disk got lost after the file had been made."""
    made(table_of(directory, 0).claim(0, 0))
    table = table_of(directory, 0)
    table.refresh()
    assert made(table.claim_next(None)).generation == 2


# The episodes and jobs that are to blame for the deaths of ranks.


JOBS = (coin_job("coins", num_episodes=64), coin_job("steps", num_steps=100, index=1))
DIVIDED = divided_jobs(JOBS, attempt(1, jobs=tuple(AttemptEntry(job=job.config.name) for job in JOBS)))
CLAIM = Claim(job_index=0, piece=0)
"""Of the episodes 0 to 7."""


def suspects() -> Suspects:
    return Suspects(DIVIDED)


def death(rank: int, machine: str = "here") -> Death:
    return Death(rank=rank, reason="a segmentation fault", machine=machine)


def dies(under: Suspects, death: Death, claim: Claim = CLAIM, *, ended=(), num_machines: int = 1) -> list[Blamed]:
    return under.die(death, [claim.key], lambda _: frozenset(ended), num_machines=num_machines)


def played_alone(under: Suspects, rank: int, index: int) -> list[Blamed]:
    """Let a rank die that plays a suspect with nothing beside it."""
    under.begin(rank, under.give(CLAIM), index, index)
    return dies(under, death(rank))


def test_an_episode_is_to_blame_when_the_third_rank_dies_over_it_alone():
    under = suspects()
    under.begin(0, CLAIM, 6, 7)
    assert dies(under, death(0)) == []
    assert played_alone(under, 1, 7) == []
    blamed = Blamed(job_index=0, episode_index=7, deaths=(death(0), death(1), death(2)))
    assert played_alone(under, 2, 7) == [blamed]
    assert under.give(CLAIM).suspects == ((6, 7),)


def test_no_episode_is_to_blame_as_long_as_another_one_may_have_done_it():
    under = suspects()
    for rank in range(5):
        under.begin(rank, CLAIM, 6, 7)
        assert dies(under, death(rank)) == []
    assert under.give(CLAIM).suspects == ((6, 8),)


def test_an_episode_that_ended_begins_with_a_clean_slate():
    under = suspects()
    for rank in range(2):
        under.begin(rank, CLAIM, 7, 7)
        dies(under, death(rank))
    assert under.give(Claim(job_index=0, piece=0, committed=((6, 8),))).suspects == ()
    assert under.pieces(0) == frozenset()
    assert played_alone(under, 2, 7) == []


def test_what_had_ended_before_its_rank_died_is_not_suspect():
    under = suspects()
    under.begin(0, CLAIM, 0, 2)
    dies(under, death(0), ended=[1])
    assert under.give(CLAIM).suspects == ((0, 1), (2, 3))


def test_a_rank_that_played_nothing_makes_nothing_suspect():
    under = suspects()
    assert dies(under, death(0)) == []
    assert under.pieces(0) == frozenset()


def test_a_piece_is_finished_only_when_it_was_played_whole():
    under = suspects()
    under.begin(0, CLAIM, 0, 1)
    dies(under, death(0), ended=[])
    claim = under.give(CLAIM)
    assert not under.finish(1, claim)
    rest = under.give(Claim(job_index=0, piece=0, committed=((0, 2),)))
    assert rest.suspects == ()
    assert under.finish(1, rest)


def test_pieces_and_jobs_are_kept_apart():
    under = suspects()
    other = Claim(job_index=0, piece=1)
    under.begin(0, CLAIM, 4, 4)
    under.begin(0, other, 8, 8)
    under.die(death(0), [CLAIM.key, other.key], lambda _: frozenset(), num_machines=1)
    assert (under.pieces(0), under.pieces(1)) == ({0, 1}, frozenset())
    assert (under.give(CLAIM).suspects, under.give(other).suspects) == (((4, 5),), ((8, 9),))


def test_a_job_over_which_three_ranks_die_before_an_episode_has_begun_is_to_blame():
    under, deaths = suspects(), (death(0), death(1), death(0))
    blamed = [each for died in deaths for each in dies(under, died)]
    assert blamed == [Blamed(job_index=0, episode_index=None, deaths=deaths)]


def test_a_job_of_which_another_rank_has_begun_an_episode_is_not():
    under = suspects()
    assert dies(under, death(0)) + dies(under, death(0)) == []
    under.begin(1, Claim(job_index=0, piece=1), 8, 8)
    assert [each for _ in range(3) for each in dies(under, death(0))] == []


def test_a_single_machine_of_several_is_no_proof_against_a_job():
    under = suspects()
    assert [each for _ in range(3) for each in dies(under, death(0), num_machines=2)] == []
    assert len(dies(under, death(1, "there"), num_machines=2)) == 1


def test_a_job_that_runs_again_as_a_whole_has_three_lives_too():
    under, claim = suspects(), Claim(job_index=1, piece=0)
    assert [each.job_index for rank in range(3) for each in dies(under, death(rank), claim)] == [1]
