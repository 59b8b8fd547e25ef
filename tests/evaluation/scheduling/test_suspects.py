"""The episodes and jobs that are to blame for the deaths of ranks."""

from isaaclab_arena.evaluation.claims import Blamed, Claim, Death, Suspects
from isaaclab_arena.evaluation.planning import divided_jobs
from isaaclab_arena.storage.ledger import AttemptEntry
from tests.evaluation.jobs import coin_job
from tests.results.evidence import attempt

JOBS = (coin_job("coins", num_episodes=64), coin_job("steps", num_steps=100, index=1))
DIVIDED = divided_jobs(JOBS, attempt(1, jobs=tuple(AttemptEntry(job=job.config.name) for job in JOBS)))
CLAIM = Claim(job_index=0, piece=0)
"""Of the episodes 0 to 7."""


def suspects() -> Suspects:
    return Suspects({each.index: each for each in DIVIDED})


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
