"""What ranks of a cluster were playing when they died, and what follows: an error of an episode, or a failed job."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from isaaclab_arena.episode_ranges import of_ranges
from isaaclab_arena.evaluation.cluster.messages import BegunEpisodes
from isaaclab_arena.evaluation.plan.episode_plan import episode_of
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.rollout.endings import ranks_lost
from isaaclab_arena.evaluation.scheduling.claim import Claim
from isaaclab_arena.evaluation.scheduling.divided_jobs import DividedJob
from isaaclab_arena.evaluation.scheduling.suspects import LIVES_OF_AN_EPISODE, Condemned, Death, Suspects
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.paths import now
from isaaclab_arena.storage.run.attempts import Attempt
from isaaclab_arena.storage.run.commits import CommitContext, CommitLine, commit_line
from isaaclab_arena.storage.run.job_reports import JobReport, failed_report

_Key = tuple[int, int]
"""A job's index, and a piece of it."""


@dataclass(frozen=True, kw_only=True)
class FailedJob:
    """A job over which ranks died before any of its episodes had begun.

    Attributes:
        job_index: Which job.
        deaths: Of the ranks, in order.
    """

    job_index: int
    deaths: tuple[Death, ...]


class Casualties:
    """What the ranks of a run are playing, and what the deaths of ranks make of it.

    What is kept grows with the number of ranks and of deaths, not with that of episodes.

    Args:
        jobs: The jobs of the attempt, by their index.
        committed: Returns the episodes of a job that were committed in this attempt.
    """

    def __init__(self, jobs: Mapping[int, DividedJob], committed: Callable[[DividedJob], frozenset[int]]) -> None:
        self._jobs = jobs
        self._committed = committed
        self._suspects = Suspects()
        self._begun: dict[int, dict[_Key, BegunEpisodes]] = {}
        self._parts: dict[_Key, bool] = {}
        self._has_begun: set[int] = set()
        self._deaths_of_jobs: dict[int, list[Death]] = {}

    def begin(self, begun: BegunEpisodes) -> None:
        """Take note of what a rank is about to play."""
        key = begun.job_index, begun.piece
        # Beside an episode that is suspected nothing runs, though the rank's last word on other pieces may be missing.
        before = {} if key in self._parts else self._begun.get(begun.life.rank, {})
        others = {each: told for each, told in before.items() if each not in self._parts}
        self._begun[begun.life.rank] = {**others, key: begun}
        self._has_begun.add(begun.job_index)
        self._deaths_of_jobs.pop(begun.job_index, None)

    def suspected_pieces(self, job_index: int) -> frozenset[int]:
        """Return the pieces of a job that are to be played with nothing beside them."""
        return self._suspects.pieces(job_index)

    def give(self, claim: Claim, committed: frozenset[int]) -> frozenset[int]:
        """Return the episodes of a piece that a rank is to play one at a time, and no others; none for all of it.

        Args:
            claim: The rank's claim.
            committed: Episodes of the job that were committed before.
        """
        key = claim.divided.index, claim.piece
        self._suspects.clear(*key, committed)
        suspects = self._suspects.among(*key)
        if suspects:
            self._parts[key] = bool(of_ranges(claim.divided.pieces[claim.piece] or ()) - committed - suspects)
        return suspects

    def finish(self, rank: int, claim: Claim) -> bool:
        """Take note that a rank has played what it was given of a piece; return whether that was all that was left."""
        key = claim.divided.index, claim.piece
        self._begun.get(rank, {}).pop(key, None)
        self._suspects.clear(*key, self._suspects.among(*key))
        return not self._parts.pop(key, False)

    def leave(self, rank: int, pieces: Collection[_Key]) -> None:
        """Take note that a rank has ended, which held some pieces, and did not die."""
        self._begun.pop(rank, None)
        for key in pieces:
            self._parts.pop(key, None)

    def die(
        self, death: Death, pieces: Sequence[_Key], *, num_machines: int
    ) -> tuple[Condemned | None, list[FailedJob]]:
        """Take note that a rank has died.

        Args:
            death: How.
            pieces: What it held.
            num_machines: How many machines the ranks of the run have been on.

        Returns:
            The episode that is not to be played again, None if there is none, and the jobs that have failed.
        """
        begun = self._begun.get(death.rank, {})
        running = [each for key in pieces if key in begun for each in self._running(begun[key])]
        self.leave(death.rank, pieces)
        jobs = sorted({job_index for job_index, _ in pieces} - self._has_begun)
        return self._suspects.blame(running, death), list(self._failed(jobs, death, num_machines))

    def _running(self, begun: BegunEpisodes) -> Iterator[tuple[int, int, int]]:
        """Yield what a rank had begun of a piece and not committed, each with the job's index and the piece."""
        divided = self._jobs[begun.job_index]
        committed = self._committed(divided)
        self._suspects.clear(begun.job_index, begun.piece, committed)
        for begin, end in divided.pieces[begun.piece] or ():
            for index in range(max(begin, begun.first), min(end, begun.last + 1)):
                if index not in committed:
                    yield begun.job_index, begun.piece, index

    def _failed(self, jobs: Sequence[int], death: Death, num_machines: int) -> Iterator[FailedJob]:
        for job_index in jobs:
            deaths = self._deaths_of_jobs.setdefault(job_index, [])
            deaths.append(death)
            # One machine on which nothing works must not fail what others could play.
            machines = {each.machine for each in deaths}
            if len(deaths) >= LIVES_OF_AN_EPISODE and len(machines) >= min(2, num_machines):
                yield FailedJob(job_index=job_index, deaths=tuple(self._deaths_of_jobs.pop(job_index)))


def error_line(job: Job, condemned: Condemned, *, attempt: int) -> CommitLine:
    """Return the line of an episode that is an error because ranks died over it; nothing of it was recorded."""
    episode = episode_of(job, condemned.episode_index)
    ending = ranks_lost((death.rank, death.reason) for death in condemned.deaths)
    record = EpisodeRecord(
        episode=episode,
        env_id=0,
        outcome=ending.outcome,
        success=ending.success,
        length=0,
        episode_return=0.0,
        termination=ending.termination,
        conditions=episode.saved_conditions or {},
        language_instruction=job.config.language_instruction or "",
        error=ending.error,
    )
    context = CommitContext(
        rank=condemned.deaths[-1].rank, episode_in_env=0, timestamp=now(local=True), wall_s=0.0, attempt=attempt
    )
    return commit_line(record, context)


def report_of_failure(job: Job, failed: FailedJob, attempt: Attempt) -> JobReport:
    """Return the report on a job that has failed because ranks died over it."""
    told = "; ".join(f"rank {death.rank}: {death.reason}" for death in failed.deaths)
    error = f"ranks died over the job as a whole, over no single episode of it: {told}"
    rank = failed.deaths[-1].rank
    device = attempt.devices[rank]
    return failed_report(job.config.name, error, rank=rank, device=device, attempt=attempt.number, run=attempt.run)
