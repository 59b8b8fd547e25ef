from isaaclab_arena.evaluation.claims import Death, PoisonedEpisode, divided_jobs
from isaaclab_arena.evaluation.cluster.claim_server import FailedJob, RankDeaths, error_line, report_of_failure
from isaaclab_arena.evaluation.cluster.supervisor import BegunEpisodes, Life
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.storage.commits import ReportedStatus
from isaaclab_arena.storage.run_plan import AttemptEntry
from tests.evaluation.jobs import coin_job
from tests.results.evidence import attempt

JOBS = (coin_job("coins", num_episodes=8), coin_job("steps", num_steps=100, index=1))
ATTEMPT = attempt(1, world_size=2, jobs=tuple(AttemptEntry(job=job.config.name) for job in JOBS))


def rank_deaths() -> RankDeaths:
    return RankDeaths({each.index: each for each in divided_jobs(JOBS, ATTEMPT)}, lambda _: frozenset())


def death(rank: int, machine: str = "here") -> Death:
    return Death(rank=rank, reason="a segmentation fault", machine=machine)


def failed(under: RankDeaths, *deaths: Death, job_index: int = 0, num_machines: int = 1) -> list[FailedJob]:
    return [each for died in deaths for each in under.die(died, [(job_index, 0)], num_machines=num_machines)[1]]


def test_a_job_over_which_three_ranks_die_before_an_episode_has_begun_has_failed():
    deaths = death(0), death(1), death(0)
    assert failed(rank_deaths(), *deaths) == [FailedJob(job_index=0, deaths=deaths)]


def test_a_job_of_which_another_rank_has_begun_an_episode_does_not_fail():
    under = rank_deaths()
    assert failed(under, death(0), death(0)) == []
    under.begin(BegunEpisodes(life=Life(rank=1), job_index=0, piece=1, first=1, last=1))
    assert failed(under, death(0), death(0), death(0)) == []


def test_a_single_machine_of_several_fails_no_job():
    under = rank_deaths()
    assert failed(under, death(0), death(0), death(0), num_machines=2) == []
    assert len(failed(under, death(1, "there"), num_machines=2)) == 1


def test_a_job_that_runs_again_as_a_whole_has_three_lives_too():
    (after_all,) = failed(rank_deaths(), death(0), death(1), death(0), job_index=1)
    report = report_of_failure(JOBS[1], after_all, ATTEMPT)
    assert (report.job, report.rank, report.attempt, report.status) == ("steps", 0, 1, ReportedStatus.FAILED)
    assert report.error is not None
    assert report.error.count("a segmentation fault") == 3


def test_the_line_of_a_poisoned_episode_names_what_it_was_and_how_the_ranks_died():
    line = error_line(
        JOBS[0], PoisonedEpisode(job_index=0, episode_index=5, deaths=(death(0), death(1), death(1))), attempt=2
    )
    assert (line.job_name, line.episode_index, line.rank, line.attempt) == ("coins", 5, 1, 2)
    assert (line.outcome, line.success, line.termination) == (Outcome.ERROR, None, "ranks_lost")
    assert line.error is not None
    assert "rank 0: a segmentation fault; rank 1: a segmentation fault" in line.error
