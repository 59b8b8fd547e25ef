"""The claims of a run on a cluster as one rank sees them: it asks the keeper, and remembers what it said last."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from isaaclab_arena.episode_ranges import of_ranges
from isaaclab_arena.evaluation.cluster.messages import (
    BegunEpisodes,
    ClaimAnswer,
    ClaimQuestion,
    FinishedPiece,
    GivenPiece,
    Life,
)
from isaaclab_arena.evaluation.cluster.result_sender import ResultSender
from isaaclab_arena.evaluation.scheduling.claim import Claim, is_taken_over
from isaaclab_arena.evaluation.scheduling.cost import Measured
from isaaclab_arena.evaluation.scheduling.divided_jobs import DividedJob
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.layout import SETTLED_FILE, job_directory

_REFRESH_INTERVAL_S = 1.0
_NAP_S = 0.5


class RemoteClaims:
    """The claims of all ranks; see `Claims`, whose methods these are.

    Args:
        jobs: The jobs of the attempt.
        life: This rank.
        ask: Asks the keeper.
        tell_begun: Tells the keeper which episodes begin; returns whether this rank was taken for dead.
        sender: Brings home what the rank has done; a finished piece is told after its episodes.
        output_directory: Where this rank writes.
        claims_directory: Where the claims of the attempt lie, if this rank sees them; otherwise None.
        clock: Monotonic time [s].
    """

    def __init__(
        self,
        jobs: Sequence[DividedJob],
        life: Life,
        ask: Callable[[ClaimQuestion], ClaimAnswer],
        tell_begun: Callable[[BegunEpisodes], bool],
        sender: ResultSender,
        *,
        output_directory: Path,
        claims_directory: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs: Mapping[int, DividedJob] = {divided.index: divided for divided in jobs}
        self._life = life
        self._ask = ask
        self._tell_begun = tell_begun
        self._sender = sender
        self._output_directory = output_directory
        self._claims_directory = claims_directory
        self._clock = clock
        self._current: int | None = None
        self._open: set[int] = set()
        self._said = ClaimAnswer()
        self._refreshed_at: float | None = None
        self._was_refused = self._refusal_stands = False

    def refresh(self, *, now: bool = False) -> None:
        """Ask which pieces of the current job are open; unless asked for now, at most once a second.

        Where the keeper has just said that nothing is free, that is how things are now.
        """
        self._refusal_stands = now and self._was_refused
        is_fresh = self._refreshed_at is not None and self._clock() - self._refreshed_at < _REFRESH_INTERVAL_S
        if self._current is not None and (now or not is_fresh):
            self._hear(self._current, ClaimQuestion(life=self._life, job_index=self._current))

    def claim_next(self, built_environment: str | None) -> Claim | None:
        """Claim a piece of the job that comes next; None if nothing is free, or this rank has to end."""
        if self._refusal_stands:
            self._refusal_stands = self._was_refused = False
            return None
        answer = self._hear(None, ClaimQuestion(life=self._life, built_environment=built_environment))
        self._was_refused = answer.given is None
        if answer.given is None:
            return None
        divided = self._jobs[answer.given.job_index]
        if answer.settled is not None and self._claims_directory is None:
            path = job_directory(self._output_directory, divided.job.config.name) / SETTLED_FILE
            write_text(path, answer.settled, overwrite=True)
        return self._claim(answer.given)

    def claim(self, job_index: int, piece: int) -> Claim | None:
        """Claim a piece; None if it is not open as far as this rank knows, or as the keeper knows."""
        if job_index != self._current or piece not in self._open:
            return None
        answer = self._hear(job_index, ClaimQuestion(life=self._life, job_index=job_index, piece=piece))
        self._open.discard(piece)
        return None if answer.given is None else self._claim(answer.given)

    def holds(self, claim: Claim) -> bool:
        """Whether nobody has taken the piece over.

        A rank that sees no other rank's files need not know: the keeper commits nothing of a rank taken for dead.
        """
        if self._sender.is_gone:
            return False
        return self._claims_directory is None or not is_taken_over(self._claims_directory, claim)

    def begin(self, claim: Claim, first: int, last: int) -> None:
        """Say which episodes of a piece may be under way from now on; they are suspected if this rank dies.

        The rank waits until the keeper knows, because it may die of them at once.
        """
        begun = BegunEpisodes(life=self._life, job_index=claim.divided.index, piece=claim.piece, first=first, last=last)
        if self._tell_begun(begun):
            self._sender.leave()

    def finish(self, claim: Claim, measured: Measured) -> None:
        """Say that a piece is finished, once its episodes are committed."""
        self._sender.finish_piece(
            FinishedPiece(
                job_index=claim.divided.index, piece=claim.piece, generation=claim.generation, measured=measured
            )
        )

    def give_up(self, job_index: int) -> None:
        """Say that a job has failed."""
        self._sender.give_up(job_index)

    def open_episodes(self, job_index: int) -> int:
        """Return how many episodes of the current job are in pieces that nobody works on, 0 for another job."""
        if job_index != self._current:
            return 0
        return sum(self._jobs[job_index].num_episodes[piece] for piece in self._open)

    def num_unfinished_jobs(self) -> int:
        """Return how many jobs have pieces that are free or under way."""
        return self._said.num_unfinished_jobs

    def pieces_of_others(self) -> int:
        """Return how many pieces other ranks work on; none for a rank that has to end."""
        return 0 if self._sender.is_gone else self._said.pieces_of_others

    def rest(self, must_end: Callable[[], bool], pause: Callable[[float], None] = time.sleep) -> None:
        """Wait, after nothing was free, as long as the keeper wants; not longer than a moment once this rank must end.

        Args:
            must_end: Whether it must.
            pause: Waits for a number of seconds.
        """
        left_s = self._said.rest_s
        while left_s > 0 and not must_end():
            pause(min(left_s, _NAP_S))
            left_s -= _NAP_S

    def _hear(self, job_index: int | None, question: ClaimQuestion) -> ClaimAnswer:
        self._said = answer = self._ask(question)
        if answer.is_gone:
            self._sender.leave()
        self._current = answer.given.job_index if answer.given is not None else job_index
        self._open = set(of_ranges(answer.open_pieces))
        self._refreshed_at = self._clock()
        return answer

    def _claim(self, given: GivenPiece) -> Claim:
        return Claim(
            divided=self._jobs[given.job_index],
            piece=given.piece,
            generation=given.generation,
            taken_from=given.taken_from,
            committed=of_ranges(given.committed),
            suspects=of_ranges(given.suspects),
        )
