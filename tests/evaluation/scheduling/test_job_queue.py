from dataclasses import replace

import pytest

from isaaclab_arena.config.schema import Question
from isaaclab_arena.evaluation.job import FixedShare
from isaaclab_arena.evaluation.queues import FixedQueue, jobs_of_rank
from isaaclab_arena.storage.ledger import AttemptEntry
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


ASKED = (Question(name="q", jobs=("job3", "job1"), max_episodes=10),)


def turns_of(rank, work=ALL, *, split=False, world_size=2):
    start = attempt(2, world_size=world_size, jobs=work)
    assigned = jobs_of_rank(JOBS, start, rank=rank, split=split, questions=ASKED)
    return [(each.job.config.name, list(each.supply.take(range(10)))) for each in assigned]


def test_compared_jobs_take_turns_on_the_rank_of_the_first_of_them():
    assert [name for name, _ in turns_of(0)] == ["job0", "job2", "job4"]
    assert turns_of(1) == [
        ("job1", [0, 1, 2, 3]),
        ("job3", [0, 1, 2, 3]),
        ("job1", [4, 5, 6, 7]),
        ("job3", [4, 5, 6, 7]),
        ("job1", [8, 9]),
        ("job3", [8, 9]),
    ]


def test_ranks_that_split_jobs_share_each_round():
    work = (ALL[1], ALL[3])
    first, second = (turns_of(rank, work, split=True) for rank in range(2))
    assert first == [("job1", [4, 5, 6, 7]), ("job3", [4, 5, 6, 7]), ("job1", [9]), ("job3", [9])]
    assert second == [("job1", [0, 1, 2, 3]), ("job3", [0, 1, 2, 3]), ("job1", [8]), ("job3", [8])]


def test_a_compared_job_that_owes_only_its_report_gets_a_turn_without_episodes():
    work = (AttemptEntry(job="job1", finished=((0, 10),)), AttemptEntry(job="job3", finished=((0, 7),)))
    assert turns_of(1, work) == [("job1", []), ("job3", [7]), ("job3", [8, 9])]


def test_no_turn_begins_of_a_job_that_is_over_or_has_failed_but_its_first_one():
    start = attempt(2, world_size=1, jobs=ALL)
    over = {"job3"}
    queue = FixedQueue(jobs_of_rank(JOBS, start, rank=0, split=False, questions=ASKED), over.__contains__)
    names = []
    while (assigned := queue.next_job()) is not None:
        names.append(assigned.job.config.name)
        queue.job_ended(assigned.job, failed=names == ["job0", "job1", "job3", "job1"])
    assert names == ["job0", "job1", "job3", "job1", "job2", "job4"]


def test_a_supply_hands_out_nothing_once_its_job_is_over():
    answers = iter([False, False, True])
    supply = FixedShare(is_over=lambda: next(answers))
    assert list(supply.take(range(10))) == [0, 1]


def test_a_job_that_owes_only_its_report_is_asked_about_too():
    asked = []

    def is_over(job: str) -> bool:
        asked.append(job)
        return False

    start = attempt(2, world_size=1, jobs=(AttemptEntry(job="job1", finished=((0, 10),)),))
    (assigned,) = jobs_of_rank(JOBS, start, rank=0, split=False, is_over=is_over)
    assert (list(assigned.supply.take(range(10))), asked) == ([], ["job1"])


def test_a_share_without_an_end_is_handed_out_lazily():
    indices = FixedShare(finished=((0, 2),)).take(iter(range(10**9)))
    assert [next(indices), next(indices)] == [2, 3]
