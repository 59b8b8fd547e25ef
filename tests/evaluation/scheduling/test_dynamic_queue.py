"""Ranks that claim their work, in one process: each has a queue and a status file, and they share a clock."""

import dataclasses
import json
import threading
from collections import Counter
from typing import Any

import pytest

from isaaclab_arena.evaluation.claims import Blamed, Claim, ClaimTable, Death, Measured, Suspects
from isaaclab_arena.evaluation.heartbeat import RankState, RankStatus, RankWatch, write_rank_status
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.planning import DividedJob, divided_jobs
from isaaclab_arena.evaluation.queues import ClaimedEpisodes, DynamicQueue
from isaaclab_arena.interfaces.episode import of_ranges
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.ledger import JobState, ReportedStatus
from tests.evaluation.jobs import coin_job, settings
from tests.fakes import Clock, CoinConfig
from tests.results.evidence import attempt

LEASE_S = 30.0
SHORT = CoinConfig(success_step=2, failure_step=4)


class World:
    """What the ranks of a run share: its directory, the jobs, the time."""

    def __init__(self, directory, jobs, *, world_size: int = 2, work=None) -> None:
        (directory / "logs").mkdir()
        self.directory = directory
        self.jobs = jobs
        self.clock = Clock()
        self.beating = set(range(world_size))
        self.beats = Counter()
        work = tuple(JobState(job=job.config.name) for job in jobs) if work is None else work
        self.attempt = attempt(1, world_size=world_size, jobs=work)
        for rank in range(world_size):
            self.beat(rank)

    @property
    def run_id(self) -> str:
        return self.attempt.run_id

    def beat(self, rank: int, **changes) -> None:
        self.beats[rank] += 1
        status = RankStatus(rank=rank, run_id=self.run_id)
        status = dataclasses.replace(status, state=RankState.RUNNING, beat=self.beats[rank])
        write_rank_status(self.directory, dataclasses.replace(status, **changes))

    def pass_time(self, seconds: float = 1.0) -> None:
        self.clock.now_s += seconds
        for rank in self.beating:
            self.beat(rank)

    def die(self, rank: int) -> None:
        self.beating.discard(rank)
        self.beat(rank, start_ticks=1)

    def fall_silent(self, rank: int) -> None:
        self.beating.discard(rank)

    def queue(self, rank: int, **options) -> DynamicQueue:
        options.setdefault("pause", self.pass_time)
        return DynamicQueue(self.table(rank), world_size=self.attempt.world_size, clock=self.clock, **options)

    def table(self, rank: int) -> ClaimTable:
        watch = RankWatch(self.directory, world_size=self.attempt.world_size, run_id=self.run_id, clock=self.clock)
        return ClaimTable(
            divided_jobs(self.jobs, self.attempt),
            self.directory,
            self.attempt,
            watch,
            rank=rank,
            lease_s=LEASE_S,
            clock=self.clock,
        )

    def runner(self, rank: int) -> JobRunner:
        return JobRunner(settings(self.directory, rank=rank, world_size=self.attempt.world_size))

    def committed_by(self, name: str) -> dict[int, list[int]]:
        """Ranks that committed each episode, from all commit lines."""
        committed: dict[int, list[int]] = {}
        for path in sorted((self.directory / name).glob("episode_results_rank*.jsonl")):
            for text in path.read_text().splitlines():
                line = json.loads(text)
                committed.setdefault(line["episode_index"], []).append(line["rank"])
        return committed


def jobs_of(*lengths: int, **config):
    return tuple(
        coin_job(f"job{index}", index=index, num_episodes=length, environment=SHORT, **config)
        for index, length in enumerate(lengths)
    )


def task_of(queue: DynamicQueue) -> ClaimedEpisodes:
    """Return the task that a rank must get."""
    task = queue.next_job()
    assert task is not None
    return task


def claim_everything(queue: DynamicQueue) -> ClaimedEpisodes:
    """Claim every piece of the first job that a rank gets, and return the task."""
    task = task_of(queue)
    assert list(task.take(range(task.job.config.num_episodes or 0)))
    return task


def run_job(runner: JobRunner, queue: DynamicQueue, task: ClaimedEpisodes, observers=()) -> ReportedStatus:
    report = runner.run(task, [*observers, *task.observers])
    queue.job_ended(task, failed=report.status is ReportedStatus.FAILED)
    return report.status


def run_to_the_end(world: World, rank: int, observers=()) -> list[str]:
    """Run whatever the rank can get, and return the jobs it worked on."""
    queue, runner, names = world.queue(rank), world.runner(rank), []
    while (task := queue.next_job()) is not None:
        names.append(task.job.config.name)
        run_job(runner, queue, task, observers)
        world.pass_time()
    runner.close()
    world.beat(rank, state=RankState.FINISHED)
    world.beating.discard(rank)
    return names


class Died(BaseException):
    """Stands for the end of a process."""


class DiesAfter(Observer):
    """Ends the process, so to speak, after a number of episodes."""

    def __init__(self, episodes: int) -> None:
        self.left = episodes

    def on_episode_end(self, environment, record) -> None:
        self.left -= 1
        if self.left == 0:
            raise Died


def test_ranks_that_race_run_every_episode_exactly_once(tmp_path):
    world = World(tmp_path, jobs_of(30, 4, 9, 1, 17), world_size=3)
    queues = [world.queue(rank, pause=lambda _: None) for rank in range(3)]
    start = threading.Barrier(3)

    def race(rank: int) -> None:
        runner = world.runner(rank)
        start.wait()
        while (task := queues[rank].next_job()) is not None:
            run_job(runner, queues[rank], task)

    threads = [threading.Thread(target=race, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for job in world.jobs:
        committed = world.committed_by(job.config.name)
        assert sorted(committed) == list(range(job.config.num_episodes))
        assert all(len(ranks) == 1 for ranks in committed.values())


def test_one_rank_runs_what_is_not_finished_longest_job_first(tmp_path):
    work = tuple(JobState(job=name, finished=done) for name, done in (("job0", ((0, 3), (5, 9))), ("job2", ())))
    world = World(tmp_path, jobs_of(10, 10, 5), world_size=1, work=work)
    assert run_to_the_end(world, 0) == ["job2", "job0"]
    for name, indices in (("job0", [3, 4, 9]), ("job2", [0, 1, 2, 3, 4])):
        assert [line.episode_index for line in read_commits(tmp_path / name, name).lines] == indices
    assert not (tmp_path / "job1").exists()
    notes = [json.loads(path.read_text()) for path in (tmp_path / "claims" / "attempt_1").glob("*.done")]
    assert sum(note["episodes"] for note in notes) == 8, "what decides on the time that is left"


@pytest.mark.parametrize(
    ("lengths", "world_size", "num_envs", "slots"),
    [
        ([64], 8, 64, 8),
        ([64] * 8, 8, 64, 64),
        ([64] * 40, 8, 64, 64),
        ([90, 1, 1], 8, 64, 30),
        ([10, 1], 8, 64, 3),
        ([10, 1], 9, 64, 2),
        ([1000], 8, 4, 4),
        ([3], 8, 4, 1),
        # It cannot be shared.
        ([], 8, 64, 64),
    ],
)
def test_the_first_rank_leaves_slots_for_the_others(tmp_path, lengths, world_size, num_envs, slots):
    jobs = jobs_of(*lengths) or (coin_job("steps", num_steps=20),)
    assert task_of(World(tmp_path, jobs, world_size=world_size).queue(0)).max_envs(num_envs) == slots


def test_what_a_dead_rank_left_is_finished_by_another_and_nothing_runs_twice(tmp_path):
    world = World(tmp_path, jobs_of(40))
    dying = world.queue(1)
    task = task_of(dying)
    world.runner(1).run(task, [DiesAfter(7), *task.observers])
    world.die(1)
    run_to_the_end(world, 0)
    committed = world.committed_by("job0")
    assert sorted(committed) == list(range(40))
    assert Counter(rank for ranks in committed.values() for rank in ranks) == {1: 7, 0: 33}


@pytest.mark.parametrize(("dies", "gets"), [(True, [0, 1, 2, 3, 4]), (False, None)])
def test_a_rank_waits_for_another_as_long_as_it_beats_and_takes_over_when_it_dies(tmp_path, dies, gets):
    world = World(tmp_path, jobs_of(5))
    other = world.queue(1)
    held, waits = claim_everything(other), []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        world.pass_time(seconds)
        if len(waits) == 100:
            world.die(1) if dies else run_job(world.runner(1), other, held)

    task = world.queue(0, pause=pause).next_job()
    assert (len(waits), max(waits) <= 1.0) == (100, True)
    assert (task and list(task.take(range(5)))) == gets


def test_a_job_that_failed_is_not_tried_by_others_nor_waited_for(tmp_path):
    world = World(tmp_path, (*jobs_of(20), coin_job("bad", index=1, num_episodes=40, raise_at=6)))
    first, second = world.queue(0), world.queue(1)
    task, other = task_of(first), task_of(second)
    assert (task.job.config.name, other.job.config.name) == ("bad", "job0")
    assert run_job(world.runner(0), first, task) is ReportedStatus.FAILED
    world.pass_time()
    run_job(world.runner(1), second, other)
    assert second.next_job() is None
    assert first.next_job() is None


def test_a_job_limited_by_steps_is_claimed_as_a_whole_and_taken_over_as_a_whole(tmp_path):
    world = World(tmp_path, (coin_job("steps", num_steps=20, environment=SHORT),))
    dying = world.queue(1).next_job()
    assert dying is not None
    assert dying.num_episodes is None
    assert world.queue(0, stop_requested=lambda: world.clock.now_s > 3.0).next_job() is None
    world.runner(1).run(dying, [DiesAfter(3), *dying.observers])
    world.die(1)
    assert run_to_the_end(world, 0) == ["steps"]
    undisturbed = JobRunner(settings(tmp_path / "undisturbed")).run(world.jobs[0])
    lines = read_commits(tmp_path / "undisturbed" / "steps", "steps").lines
    assert undisturbed.status is ReportedStatus.COMPLETED
    log = read_commits(tmp_path / "steps", "steps")
    assert [(line.episode_index, line.length) for line in log.lines] == [
        (line.episode_index, line.length) for line in lines
    ]
    assert log.unequal_episodes == ()


MEASURED = Measured(episodes=3, env_steps=300, seconds=1.5)
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
