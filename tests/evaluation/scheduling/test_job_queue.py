from dataclasses import replace

import pytest

from isaaclab_arena.evaluation.plan.episode_supply import FixedShare
from isaaclab_arena.evaluation.scheduling.job_queue import FixedQueue, jobs_of_rank
from isaaclab_arena.storage.run.attempts import AttemptEntry
from tests.evaluation.jobs import coin_job
from tests.results.evidence import attempt

JOBS = tuple(coin_job(f"job{index}", index=index, num_episodes=10) for index in range(5))
ALL = tuple(AttemptEntry(job=job.config.name) for job in JOBS)


def taken(assigned):
    return {each.job.config.name: list(each.supply.take(range(10))) for each in assigned}


def of_rank(rank, work=ALL, *, world_size=2, split=False, jobs=JOBS):
    start = attempt(2, world_size=world_size, jobs=work)
    return jobs_of_rank(jobs, start, rank=rank, split=split)


def test_round_robin_goes_by_the_index_in_the_file_also_when_jobs_are_finished():
    left = (ALL[1], ALL[2], ALL[4])
    assert list(taken(of_rank(0, left))) == ["job2", "job4"]
    assert list(taken(of_rank(1, left))) == ["job1"]


def test_only_episodes_that_are_not_finished_are_handed_out():
    left = (AttemptEntry(job="job0", finished=((0, 3), (5, 9))),)
    (assigned,) = of_rank(0, left)
    assert list(assigned.supply.take(range(10))) == [3, 4, 9]
    assert assigned.num_episodes == 3


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
def test_split_jobs_give_every_unfinished_episode_to_exactly_one_rank(world_size):
    left = (AttemptEntry(job="job0", finished=((2, 4),)), *ALL[1:])
    everything = [taken(of_rank(rank, left, world_size=world_size, split=True)) for rank in range(world_size)]
    for work in left:
        given = sorted(index for shares in everything for index in shares.get(work.job, []))
        assert given == [index for index in range(10) if work.job != "job0" or index not in (2, 3)]


def test_a_job_of_unknown_length_is_not_split():
    unknown = (replace(JOBS[0], config=replace(JOBS[0].config, num_episodes=None)),)
    shares = [of_rank(rank, ALL[:1], world_size=3, split=True, jobs=unknown) for rank in range(3)]
    assert [len(share) for share in shares] == [1, 0, 0]
    assert shares[0][0].num_episodes is None


def test_a_job_that_owes_only_its_report_stays_with_one_rank():
    work = (AttemptEntry(job="job1", finished=((0, 10),)),)
    shares = [of_rank(rank, work, split=True) for rank in range(2)]
    assert [len(share) for share in shares] == [0, 1]


def test_a_job_that_the_file_says_not_to_run_is_left_out():
    skipped = replace(JOBS[0], config=replace(JOBS[0].config, status="completed"))
    assert of_rank(0, ALL[:1], jobs=(skipped,)) == []


def test_the_queue_ends_after_its_last_job():
    queue = FixedQueue(of_rank(0))
    names = []
    while (assigned := queue.next_job()) is not None:
        names.append(assigned.job.config.name)
        queue.job_ended(assigned.job, failed=False)
    assert names == ["job0", "job2", "job4"]


def test_a_share_without_an_end_is_handed_out_lazily():
    indices = FixedShare(finished=((0, 2),)).take(iter(range(10**9)))
    assert [next(indices), next(indices)] == [2, 3]
