"""Keeps the claims of a run on a cluster, beside the run's directory, and commits there what its ranks deliver."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from isaaclab_arena.episode_ranges import as_ranges
from isaaclab_arena.evaluation.cluster.keeper.casualties import Casualties, error_line, report_of_failure
from isaaclab_arena.evaluation.cluster.keeper.committed_files import CommittedFiles
from isaaclab_arena.evaluation.cluster.keeper.pace import pace_of, rest_of
from isaaclab_arena.evaluation.cluster.messages import (
    BegunEpisodes,
    ClaimAnswer,
    ClaimQuestion,
    Delivery,
    DeliveryAnswer,
    GivenPiece,
    KeeperState,
    Life,
    LifeEnd,
)
from isaaclab_arena.evaluation.plan.answered import answer_watch
from isaaclab_arena.evaluation.plan.planning import RunRequest
from isaaclab_arena.evaluation.scheduling.claim import Claim
from isaaclab_arena.evaluation.scheduling.claim_table import ClaimTable
from isaaclab_arena.evaluation.scheduling.cost import Measured
from isaaclab_arena.evaluation.scheduling.divided_jobs import DividedJob, divided_jobs
from isaaclab_arena.evaluation.scheduling.rank_work import claims_directory
from isaaclab_arena.evaluation.scheduling.suspects import Death
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.layout import SETTLED_FILE, job_directory
from isaaclab_arena.storage.run.attempts import Attempt
from isaaclab_arena.storage.run.commits import parse_line, read_commits
from isaaclab_arena.storage.run.job_reports import write_job_report

_LOG = logging.getLogger(__name__)
_BLIND_AFTER_S = 5.0
"""How long nobody may ask how the run stands before that means that this process could not go on [s]."""


class ClaimKeeper:
    """Answers the ranks of a run, one question at a time.

    It uses the claim table of ranks that share a directory, for all ranks at once, and writes the same files.

    Args:
        request: What the run is to do.
        attempt: What of it is left.
        output_directory: The run's directory.
        clock: Monotonic time [s].

    Raises:
        StorageError: If the claims cannot be written. Methods raise it if a file cannot be read or written.
    """

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
            # No rank makes claims itself, and whoever drives the run says which of them have died.
            None,
            rank=0,
            run_id=attempt.run_id,
            lease_s=request.options.lease_s,
            is_over=self._watch.is_over,
        )
        self._files = CommittedFiles(output_directory, [divided.job.config.name for divided in jobs])
        self._casualties = Casualties(self._jobs, self._committed)
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
        """Give a rank a piece, or say how things are."""
        began_s = self._clock()
        if not self._is_current(question.life):
            return ClaimAnswer(is_gone=True)
        self._table.refresh()
        claim = self._claim(question)
        job_index = question.job_index if claim is None else claim.divided.index
        is_idle = job_index is None
        (self._idle.add if is_idle else self._idle.discard)(question.life.rank)
        answer = ClaimAnswer(
            given=None if claim is None else self._given(claim),
            open_pieces=() if job_index is None else as_ranges(self._open_pieces(job_index)),
            num_unfinished_jobs=self._table.num_unfinished_jobs(),
            # Nobody else looks at it, and it takes a look at every claim.
            pieces_of_others=self._table.pieces_of_others(question.life.rank) if is_idle else 0,
            settled=None if claim is None or question.job_index is not None else self._settled(claim.divided),
            rest_s=rest_of(len(self._idle)),
        )
        self._count(began_s)
        return answer

    def begin(self, begun: BegunEpisodes) -> bool:
        """Take note of what a rank is about to play; return whether the rank was taken for dead."""
        began_s = self._clock()
        if not self._is_current(begun.life):
            return True
        self._casualties.begin(begun)
        self._count(began_s)
        return False

    def deliver(self, delivery: Delivery, content: bytes) -> DeliveryAnswer:
        """Commit what a rank has done, and say what it has to know; of a rank taken for dead nothing is kept."""
        began_s = self._clock()
        if not self._is_current(delivery.life):
            return DeliveryAnswer(is_gone=True)
        self._files.keep(delivery, content)
        self._note_machine(delivery)
        for each in delivery.finished:
            claim = Claim(divided=self._jobs[each.job_index], piece=each.piece, generation=each.generation)
            self._finish(delivery.life, claim, each.measured)
        if delivery.finished or delivery.episodes:
            self._fruitful.add(delivery.life.rank)
        for job_index in delivery.failed:
            self._table.give_up(job_index)
        for episode in delivery.episodes:
            if parse_line(episode.line).outcome is Outcome.ERROR:
                self._watch.suspect(episode.job)
        over = self._jobs_over()
        self._count(began_s)
        return DeliveryAnswer(stop_signal=self._stop_signal, jobs_over=over, pace=pace_of(len(self._heard_at)))

    def end(self, life: Life, reason: str = "") -> LifeEnd:
        """Take note that a rank has ended; others take over what it has not finished.

        Args:
            life: The rank.
            reason: How it died, in a line, so that what it played is suspected; empty if it did not die.
        """
        if self._lives.get(life.rank, 0) != life.number:
            return LifeEnd()
        self._lives[life.rank] = life.number + 1
        self._heard_at.pop(life.rank, None)
        self._idle.discard(life.rank)
        pieces = self._table.give_back(life.rank)
        was_fruitful = life.rank in self._fruitful
        self._fruitful.discard(life.rank)
        death = Death(rank=life.rank, reason=reason, machine=self._machines.pop(life.rank, None))
        explained = self._judge(life, death, pieces) if reason else 0
        self._casualties.leave(life.rank, pieces)
        return LifeEnd(pieces=len(pieces), was_fruitful=was_fruitful, lives_explained=explained)

    def stop(self, signal_number: int) -> None:
        """Ask all ranks to stop."""
        self._stop_signal = signal_number

    def state(self) -> KeeperState:
        """Return how the run stands."""
        self._table.refresh()
        at = self._clock()
        if at - self._looked_at > _BLIND_AFTER_S:
            # This process was stopped, or its machine slept, and could hear nobody.
            self._heard_at = dict.fromkeys(self._heard_at, at)
        self._looked_at = at
        return KeeperState(
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

    def _claim(self, question: ClaimQuestion) -> Claim | None:
        if question.job_index is None:
            return self._table.claim_next(question.built_environment, rank=question.life.rank)
        if question.piece is None or question.piece in self._casualties.suspected_pieces(question.job_index):
            # What is suspected runs with nothing beside it, not in the env slots that become free.
            return None
        return self._table.claim(question.job_index, question.piece, rank=question.life.rank)

    def _open_pieces(self, job_index: int) -> frozenset[int]:
        return self._table.open_pieces(job_index) - self._casualties.suspected_pieces(job_index)

    def _given(self, claim: Claim) -> GivenPiece:
        # The rank before may have committed a part of it.
        committed = self._committed(claim.divided) if claim.generation > 1 else frozenset[int]()
        return GivenPiece(
            job_index=claim.divided.index,
            piece=claim.piece,
            generation=claim.generation,
            taken_from=claim.taken_from,
            committed=as_ranges(committed),
            suspects=as_ranges(self._casualties.give(claim, committed)),
        )

    def _committed(self, divided: DividedJob) -> frozenset[int]:
        """Return the episodes of a job that were committed in this attempt."""
        name = divided.job.config.name
        lines = read_commits(job_directory(self._output_directory, name), name).lines
        return frozenset(line.episode_index for line in lines if line.attempt == self._attempt.number)

    def _finish(self, life: Life, claim: Claim, measured: Measured) -> None:
        """Take note that a rank has played what it was given of a piece; where that was a part, the rest is open."""
        if self._casualties.finish(life.rank, claim):
            self._table.finish(claim, measured)
        else:
            self._table.release(claim)

    def _judge(self, life: Life, death: Death, pieces: Sequence[tuple[int, int]]) -> int:
        """Draw the consequences of a death, and return how many deaths are explained by them."""
        condemned, failed = self._casualties.die(death, pieces, num_machines=len(self._known_machines))
        if condemned is not None:
            line = error_line(self._jobs[condemned.job_index].job, condemned, attempt=self._attempt.number)
            _LOG.error("episode %d of job '%s' is an error: %s", line.episode_index, line.job_name, line.error)
            self._files.commit(life, line)
        for each in failed:
            report = report_of_failure(self._jobs[each.job_index].job, each, self._attempt)
            _LOG.error("job '%s' has failed: %s", report.job, report.error)
            self._table.give_up(each.job_index)
            directory = job_directory(self._output_directory, report.job)
            with storage_errors("make", directory):
                directory.mkdir(parents=True, exist_ok=True)
            write_job_report(directory, report)
        return sum(len(each.deaths) for each in (condemned, *failed) if each is not None)

    def _note_machine(self, delivery: Delivery) -> None:
        """Remember on which machine a rank is."""
        if delivery.machine:
            self._machines[delivery.life.rank] = delivery.machine
            self._known_machines.add(delivery.machine)

    def _settled(self, divided: DividedJob) -> str | None:
        path = job_directory(self._output_directory, divided.job.config.name) / SETTLED_FILE
        return path.read_text(encoding="utf-8") if path.exists() else None

    def _jobs_over(self) -> tuple[str, ...]:
        names = (divided.job.config.name for divided in self._jobs.values())
        return tuple(name for name in names if self._watch.is_over(name))
