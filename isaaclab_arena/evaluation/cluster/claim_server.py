"""The claim server of a run on a cluster, beside the run's directory: it commits there what ranks deliver."""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path, PurePosixPath

from isaaclab_arena.episode_ranges import as_ranges, of_ranges
from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.claims import (
    LIVES_OF_AN_EPISODE,
    Claim,
    ClaimTable,
    Death,
    DividedJob,
    PoisonedEpisode,
    Suspects,
    divided_jobs,
)
from isaaclab_arena.evaluation.cluster.supervisor import (
    BegunEpisodes,
    ClaimAnswer,
    ClaimQuestion,
    ClaimServerState,
    Delivery,
    DeliveryAnswer,
    GivenPiece,
    Life,
    LifeEnd,
    Pace,
    SentEpisode,
    SentFile,
)
from isaaclab_arena.evaluation.heartbeat import status_path
from isaaclab_arena.evaluation.job import Job, episode_of
from isaaclab_arena.evaluation.planning import RunRequest, answer_watch
from isaaclab_arena.evaluation.queues import claims_directory
from isaaclab_arena.evaluation.running_episodes import ranks_lost
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome
from isaaclab_arena.paths import now
from isaaclab_arena.storage.atomic import append_line, storage_errors, write_at, write_bytes, write_text
from isaaclab_arena.storage.commits import (
    CommitContext,
    CommitLine,
    CommitWriter,
    JobReport,
    commit_line,
    failed_report,
    parse_line,
    read_commits,
    write_job_report,
)
from isaaclab_arena.storage.json_values import adapter, json_line
from isaaclab_arena.storage.layout import (
    CONTACT_SHEET_FILE,
    EPISODES_DIRECTORY,
    JOB_BEGUN_PATTERN,
    JOB_REPORT_PATTERN,
    SETTLED_FILE,
    VIDEOS_DIRECTORY,
    episode_file_name,
    job_directory,
)
from isaaclab_arena.storage.recovery import put_in_place
from isaaclab_arena.storage.run_plan import Attempt

# The rate of messages from ranks to the claim server: bounded per second for any number of ranks.

DELIVERIES_PER_S = 400.0
BEATS_PER_S = 200.0
POLLS_PER_S = 200.0
"""Of all ranks together, at most. An actor of Ray answers some 1,350 calls a second."""

SLOWEST_S = 8.0
"""A rank is taken for dead after 30 s of silence, of which several beats should get lost first [s]."""


def pace_of(num_ranks: int) -> Pace:
    """Return the intervals of deliveries and heartbeats of each of `num_ranks` ranks."""
    return Pace(
        delivery_s=min(max(0.25, num_ranks / DELIVERIES_PER_S), SLOWEST_S),
        beat_s=min(max(0.5, num_ranks / BEATS_PER_S), SLOWEST_S),
    )


def rest_of(num_idle: int) -> float:
    """Return the pause [s] of each of `num_idle` ranks without work before it asks again."""
    return min(max(0.5, num_idle / POLLS_PER_S), SLOWEST_S)


# Put deliveries of ranks into the run's directory: an episode's file by rename, then its commit line.

_LOGS = "logs"
_FILES_OF_JOB = (SETTLED_FILE, JOB_BEGUN_PATTERN, CONTACT_SHEET_FILE, "traceback_*.txt", JOB_REPORT_PATTERN)


class CommittedFiles:
    """The files of a run that come from other nodes. Only `jobs` may be delivered."""

    def __init__(self, output_directory: Path, jobs: Iterable[str]) -> None:
        self.num_episodes = 0
        self._output_directory = output_directory
        self._jobs = frozenset(jobs)
        self._commit_files: dict[tuple[Life, str], Path] = {}

    def keep(self, delivery: Delivery, content: bytes) -> None:
        """Write a delivery: its episodes, then other files. `StorageError` if a file is not one that ranks write."""
        # `content` holds the bytes of all files, one after the other.
        life = delivery.life
        sizes = [each.size for each in (*delivery.episodes, *delivery.files)]
        if sum(sizes) != len(content):
            raise StorageError(f"rank {life.rank} sent {len(content)} bytes, and says {sum(sizes)}")
        view = memoryview(content)
        parts = [view[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
        self._commit(life, delivery.episodes, parts[: len(delivery.episodes)])
        for file, part in zip(delivery.files, parts[len(delivery.episodes) :], strict=True):
            path = self._path_of(life, file)
            if file.offset is not None:
                write_at(path, file.offset, bytes(part))
            elif path.match(JOB_REPORT_PATTERN):
                try:
                    report = adapter(JobReport).validate_json(bytes(part))
                except ValueError as error:
                    raise StorageError(f"rank {life.rank} sent '{file.path}', which is no report: {error}") from error
                if report.rank != life.rank:
                    raise StorageError(f"rank {life.rank} sent '{file.path}', a report of rank {report.rank}")
                write_job_report(path.parent, report)
            elif path.name != SETTLED_FILE or not path.exists():
                write_bytes(path, bytes(part), overwrite=True)
        if delivery.status is not None:
            write_text(status_path(self._output_directory, life.rank), delivery.status, overwrite=True)

    def _commit(self, life: Life, episodes: Sequence[SentEpisode], parts: Sequence[memoryview]) -> None:
        lines: dict[Path, list[str]] = {}
        for episode, content in zip(episodes, parts, strict=True):
            if episode.job not in self._jobs:
                raise StorageError(f"'{episode.job}' is no job of this attempt")
            directory = job_directory(self._output_directory, episode.job)
            # A rank's life has a commit file of its own for each job.
            if (life, episode.job) not in self._commit_files:
                writer = CommitWriter(directory, life.rank)
                writer.close()
                self._commit_files[life, episode.job] = writer.path
            try:
                line = parse_line(episode.line)
            except ValueError as error:
                raise StorageError(f"rank {life.rank} sent a line that is no episode: {error}") from error
            if (line.job_name, line.rank) != (episode.job, life.rank):
                raise StorageError(f"rank {life.rank} sent a line of job '{line.job_name}', rank {line.rank}")
            texts = [episode.line]
            if episode.size:
                path = directory / EPISODES_DIRECTORY / episode_file_name(line.episode_index)
                texts = put_in_place(path, line, episode.line, partial(write_bytes, path, bytes(content)))
            lines.setdefault(self._commit_files[life, episode.job], []).extend(texts)

        # Lines come after all files, so that a committed episode always has its file.
        for path, texts in lines.items():
            with storage_errors("open", path):
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                for text in texts:
                    append_line(descriptor, text, path)
            finally:
                os.close(descriptor)
        self.num_episodes += len(episodes)

    def _path_of(self, life: Life, file: SentFile) -> Path:
        """Return a delivered file's path. `StorageError` if this rank does not write it: any process can send names."""
        parts = PurePosixPath(file.path).parts
        name = PurePosixPath(parts[-1]) if parts else PurePosixPath()
        is_of_job = len(parts) == 2 and parts[0] in self._jobs and any(map(name.match, _FILES_OF_JOB))
        is_video = len(parts) == 3 and parts[0] in self._jobs and parts[1] == VIDEOS_DIRECTORY
        is_log = len(parts) == 2 and parts[0] == _LOGS and name.match(f"rank{life.rank}.log")
        if ".." in parts or not (is_of_job or is_video or is_log):
            raise StorageError(f"rank {life.rank} sent '{file.path}', which is no file that a rank writes")
        if is_log and life.number:
            # Each life has its own log.
            return self._output_directory / _LOGS / f"rank{life.rank}_life{life.number}{name.suffix}"
        return self._output_directory / file.path


# The episodes that ranks were playing at their death, and the consequence: an error of an episode, or a failed job.

_Key = tuple[int, int]
"""A job's index, and a piece of it."""


@dataclass(frozen=True, kw_only=True)
class FailedJob:
    """A job over which ranks died before any of its episodes had begun."""

    job_index: int
    deaths: tuple[Death, ...]  # of the ranks, in order


class RankDeaths:
    """The running episodes of ranks, and the consequences of deaths."""

    def __init__(self, jobs: Mapping[int, DividedJob], committed: Callable[[DividedJob], frozenset[int]]) -> None:
        # The size grows with the number of ranks and of deaths, not with that of episodes.
        self._jobs = jobs
        self._committed = committed
        self.suspects = Suspects()  # their pieces run alone
        self._begun: dict[int, dict[_Key, BegunEpisodes]] = {}
        self._parts: dict[_Key, bool] = {}  # piece -> it has other episodes left besides the suspects
        self._has_begun: set[int] = set()
        self._deaths_of_jobs: dict[int, list[Death]] = {}

    def begin(self, begun: BegunEpisodes) -> None:
        """Note the episodes that a rank is about to play."""
        key = begun.job_index, begun.piece
        # A suspect runs alone, even if the rank's messages about its other pieces have not arrived.
        before = {} if key in self._parts else self._begun.get(begun.life.rank, {})
        others = {each: told for each, told in before.items() if each not in self._parts}
        self._begun[begun.life.rank] = {**others, key: begun}
        self._has_begun.add(begun.job_index)
        self._deaths_of_jobs.pop(begun.job_index, None)

    def give(self, claim: Claim, committed: frozenset[int]) -> frozenset[int]:
        """Return the suspects of a claimed piece, to be played alone, one at a time; empty for the whole piece."""
        key = claim.divided.index, claim.piece
        # Episodes that were committed before are cleared.
        self.suspects.clear(*key, committed)
        suspects = self.suspects.among(*key)
        if suspects:
            self._parts[key] = bool(of_ranges(claim.divided.pieces[claim.piece] or ()) - committed - suspects)
        return suspects

    def finish(self, rank: int, claim: Claim) -> bool:
        """Note that a rank has played its part of a piece. Return True if nothing of the piece is left."""
        key = claim.divided.index, claim.piece
        self._begun.get(rank, {}).pop(key, None)
        self.suspects.clear(*key, self.suspects.among(*key))
        return not self._parts.pop(key, False)

    def leave(self, rank: int, pieces: Collection[_Key]) -> None:
        """Forget the running episodes of a rank that has ended, and the parts of its pieces."""
        self._begun.pop(rank, None)
        for key in pieces:
            self._parts.pop(key, None)

    def die(
        self, death: Death, pieces: Sequence[_Key], *, num_machines: int
    ) -> tuple[PoisonedEpisode | None, list[FailedJob]]:
        """Note a death. Return the poisoned episode (None if none) and the failed jobs."""
        # pieces: those that the rank held. num_machines: all on which ranks of the run have been.
        begun = self._begun.get(death.rank, {})
        # (job index, piece, episode index) of each episode that had begun and is not committed.
        running: list[tuple[int, int, int]] = []
        for job_index, piece in (key for key in pieces if key in begun):
            divided, episodes = self._jobs[job_index], begun[job_index, piece]
            committed = self._committed(divided)
            self.suspects.clear(job_index, piece, committed)
            for begin, end in divided.pieces[piece] or ():
                indices = range(max(begin, episodes.first), min(end, episodes.last + 1))
                running += [(job_index, piece, index) for index in indices if index not in committed]
        self.leave(death.rank, pieces)
        poisoned = self.suspects.blame(running, death)

        # Jobs of which no episode has begun on any rank: their build may be what kills ranks.
        failed = []
        for job_index in sorted({job_index for job_index, _ in pieces} - self._has_begun):
            deaths = self._deaths_of_jobs.setdefault(job_index, [])
            deaths.append(death)
            # One broken machine must not fail a job that other machines could run.
            machines = {each.machine for each in deaths}
            if len(deaths) >= LIVES_OF_AN_EPISODE and len(machines) >= min(2, num_machines):
                failed.append(FailedJob(job_index=job_index, deaths=tuple(self._deaths_of_jobs.pop(job_index))))
        return poisoned, failed


def error_line(job: Job, poisoned: PoisonedEpisode, *, attempt: int) -> CommitLine:
    """Return the commit line of an episode over which ranks died, with outcome error and no recording."""
    episode = episode_of(job, poisoned.episode_index)
    ending = ranks_lost((death.rank, death.reason) for death in poisoned.deaths)
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
        rank=poisoned.deaths[-1].rank, episode_in_env=0, timestamp=now(local=True), wall_s=0.0, attempt=attempt
    )
    return commit_line(record, context)


def report_of_failure(job: Job, failed: FailedJob, attempt: Attempt) -> JobReport:
    """Return the report of a job that failed because ranks died over it."""
    told = "; ".join(f"rank {death.rank}: {death.reason}" for death in failed.deaths)
    error = f"ranks died over the job as a whole, over no single episode of it: {told}"
    rank = failed.deaths[-1].rank
    device = attempt.devices[rank]
    return failed_report(job.config.name, error, rank=rank, device=device, attempt=attempt.number, run=attempt.run)


# Keep the claims of a run on a cluster, next to the run's directory, and commit the deliveries of its ranks.

_LOG = logging.getLogger(__name__)
_BLIND_AFTER_S = 5.0
"""Time between two looks after which this process counts as suspended in between [s]."""


class ClaimServer:
    """Answers the ranks of a run, one question at a time. Methods may raise `StorageError`."""

    # One claim table serves all ranks, and writes the same files as ranks that share a directory.
    def __init__(
        self,
        request: RunRequest,
        attempt: Attempt,
        output_directory: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        jobs = divided_jobs(request.jobs, attempt, request.questions)
        finished = {work.job: work.finished for work in attempt.jobs}
        self._jobs = {divided.index: divided for divided in jobs}
        self._attempt = attempt
        self._output_directory = output_directory
        self._clock = clock
        self._watch = answer_watch(
            output_directory,
            request.questions,
            finished,
            attempt=attempt.number,
            max_equal_errors=request.options.max_equal_errors,
        )
        self._table = ClaimTable(
            jobs,
            claims_directory(output_directory, attempt),
            # No rank makes claims itself, and the driver of the run reports dead ranks.
            None,
            rank=0,
            run_id=attempt.run_id,
            lease_s=request.options.lease_s,
            is_over=self._watch.is_over,
        )
        self._files = CommittedFiles(output_directory, [divided.job.config.name for divided in jobs])
        self._rank_deaths = RankDeaths(self._jobs, self._committed)
        self._machines: dict[int, str] = {}
        self._known_machines: set[str] = set()
        self._lives: dict[int, int] = {}
        self._fruitful: set[int] = set()
        self._idle: set[int] = set()
        self._heard_at: dict[int, float] = {}
        self._looked_at = clock()
        self._stop_signal: int | None = None
        self._num_answers, self._busy_s = 0, 0.0

    def claim(self, question: ClaimQuestion) -> ClaimAnswer:
        """Give a rank a piece, or report the state of the claims."""
        began_s, life, job_index = self._clock(), question.life, question.job_index
        if not self._is_current(life):
            return ClaimAnswer(is_gone=True)
        self._table.refresh()
        if job_index is None:
            claim = self._table.claim_next(question.built_environment, rank=life.rank)
        elif question.piece is None or question.piece in self._rank_deaths.suspects.pieces(job_index):
            # A suspect runs alone, not in env slots that become free.
            claim = None
        else:
            claim = self._table.claim(job_index, question.piece, rank=life.rank)

        given, settled = None, None
        if claim is not None:
            # The previous owner may have committed a part of the piece.
            committed = self._committed(claim.divided) if claim.generation > 1 else frozenset[int]()
            given = GivenPiece(
                job_index=claim.divided.index,
                piece=claim.piece,
                generation=claim.generation,
                taken_from=claim.taken_from,
                committed=as_ranges(committed),
                suspects=as_ranges(self._rank_deaths.give(claim, committed)),
            )
            if job_index is None:
                path = job_directory(self._output_directory, claim.divided.job.config.name) / SETTLED_FILE
                settled = path.read_text(encoding="utf-8") if path.exists() else None
            job_index = claim.divided.index
        open_pieces = set[int]()
        if job_index is not None:
            open_pieces = self._table.open_pieces(job_index) - self._rank_deaths.suspects.pieces(job_index)
        is_idle = job_index is None
        (self._idle.add if is_idle else self._idle.discard)(life.rank)
        answer = ClaimAnswer(
            given=given,
            open_pieces=as_ranges(open_pieces),
            num_unfinished_jobs=self._table.num_unfinished_jobs(),
            # Only idle ranks use it, and it iterates over every claim.
            pieces_of_others=self._table.pieces_of_others(life.rank) if is_idle else 0,
            settled=settled,
            rest_s=rest_of(len(self._idle)),
        )
        self._count(began_s)
        return answer

    def begin(self, begun: BegunEpisodes) -> bool:
        """Note the episodes that a rank is about to play. Return True if the rank was taken for dead."""
        began_s = self._clock()
        if not self._is_current(begun.life):
            return True
        self._rank_deaths.begin(begun)
        self._count(began_s)
        return False

    def deliver(self, delivery: Delivery, content: bytes) -> DeliveryAnswer:
        """Commit a rank's delivery, and answer it. Nothing is kept of a rank that was taken for dead."""
        began_s, rank = self._clock(), delivery.life.rank
        if not self._is_current(delivery.life):
            return DeliveryAnswer(is_gone=True)
        self._files.keep(delivery, content)
        if delivery.machine:
            self._machines[rank] = delivery.machine
            self._known_machines.add(delivery.machine)
        # Pieces are finished only after their episodes are committed. A piece that is played in part opens again.
        for each in delivery.finished:
            claim = Claim(divided=self._jobs[each.job_index], piece=each.piece, generation=each.generation)
            if self._rank_deaths.finish(rank, claim):
                self._table.finish(claim, each.measured)
            else:
                self._table.release(claim)
        if delivery.finished or delivery.episodes:
            self._fruitful.add(rank)
        for job_index in delivery.failed:
            self._table.give_up(job_index)
        for episode in delivery.episodes:
            if parse_line(episode.line).outcome is Outcome.ERROR:
                self._watch.suspect(episode.job)
        names = (divided.job.config.name for divided in self._jobs.values())
        over = tuple(name for name in names if self._watch.is_over(name))
        self._count(began_s)
        return DeliveryAnswer(stop_signal=self._stop_signal, jobs_over=over, pace=pace_of(len(self._heard_at)))

    def end(self, life: Life, reason: str = "") -> LifeEnd:
        """Note that a rank has ended, and open its unfinished pieces to other ranks."""
        if self._lives.get(life.rank, 0) != life.number:
            return LifeEnd()
        self._lives[life.rank] = life.number + 1
        self._heard_at.pop(life.rank, None)
        self._idle.discard(life.rank)
        pieces = self._table.give_back(life.rank)
        was_fruitful = life.rank in self._fruitful
        self._fruitful.discard(life.rank)
        death = Death(rank=life.rank, reason=reason, machine=self._machines.pop(life.rank, None))
        explained = 0
        # With a `reason` the rank has died, and its running episodes are suspected; it is empty for a regular end.
        if reason:
            poisoned, failed = self._rank_deaths.die(death, pieces, num_machines=len(self._known_machines))
            if poisoned is not None:
                line = error_line(self._jobs[poisoned.job_index].job, poisoned, attempt=self._attempt.number)
                _LOG.error("episode %d of job '%s' is an error: %s", line.episode_index, line.job_name, line.error)
                self._files.keep(
                    Delivery(life=life, episodes=(SentEpisode(job=line.job_name, line=json_line(line)),)), b""
                )
            for each in failed:
                report = report_of_failure(self._jobs[each.job_index].job, each, self._attempt)
                _LOG.error("job '%s' has failed: %s", report.job, report.error)
                self._table.give_up(each.job_index)
                directory = job_directory(self._output_directory, report.job)
                with storage_errors("make", directory):
                    directory.mkdir(parents=True, exist_ok=True)
                write_job_report(directory, report)
            explained = sum(len(each.deaths) for each in (poisoned, *failed) if each is not None)
        self._rank_deaths.leave(life.rank, pieces)
        return LifeEnd(pieces=len(pieces), was_fruitful=was_fruitful, lives_explained=explained)

    def stop(self, signal_number: int) -> None:
        """Request all ranks to stop."""
        self._stop_signal = signal_number

    def state(self) -> ClaimServerState:
        """Return the state of the run."""
        self._table.refresh()
        at = self._clock()
        if at - self._looked_at > _BLIND_AFTER_S:
            # This process was stopped, or its machine slept, so it could not receive messages.
            self._heard_at = dict.fromkeys(self._heard_at, at)
        self._looked_at = at
        return ClaimServerState(
            num_unfinished_jobs=self._table.num_unfinished_jobs(),
            silent_s={rank: at - heard_at for rank, heard_at in self._heard_at.items()},
            num_episodes=self._files.num_episodes,
            busy_s=self._busy_s,
            num_answers=self._num_answers,
        )

    def _is_current(self, life: Life) -> bool:
        if self._lives.setdefault(life.rank, life.number) != life.number:
            return False
        self._heard_at[life.rank] = self._clock()
        return True

    def _count(self, began_s: float) -> None:
        self._num_answers += 1
        self._busy_s += self._clock() - began_s

    def _committed(self, divided: DividedJob) -> frozenset[int]:
        """Return the episodes of a job that were committed in this attempt."""
        name = divided.job.config.name
        lines = read_commits(job_directory(self._output_directory, name), name).lines
        return frozenset(line.episode_index for line in lines if line.attempt == self._attempt.number)
