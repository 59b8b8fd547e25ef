"""What a rank knows of the pieces of all jobs: which are free, who works on which, what is done.

It only reads the claims of the others and makes its own. What it knows may be a second old, and that is safe: whether
a piece is free is decided by making the claim's file.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from isaaclab_arena.evaluation.scheduling.claims import Claim, ClaimFolder
from isaaclab_arena.evaluation.scheduling.divided_jobs import DividedJob
from isaaclab_arena.evaluation.scheduling.leases import Leases
from isaaclab_arena.evaluation.scheduling.selection import (
    ExpectedWork,
    Measured,
    OpenWork,
    WorkSize,
    choose,
    order_of_work,
)

_PIECE_NAME = re.compile(r"j(\d+)_p(\d+)")
_JOB_NAME = re.compile(r"j(\d+)")
_REFRESH_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class HeldPiece:
    """A piece that this rank has claimed.

    Attributes:
        divided: Its job.
        number: Which piece.
        claim: The claim.
        taken_from: The rank that it was taken over from, None for a piece that nobody had.
    """

    divided: DividedJob
    number: int
    claim: Claim
    taken_from: int | None = None

    @property
    def was_claimed_before(self) -> bool:
        """Whether another rank may have finished a part of it."""
        return self.claim.generation > 1


class WorkBoard:
    """The pieces of all jobs, as far as this rank knows.

    Args:
        jobs: The jobs of this start of the program.
        claims: Where pieces are claimed.
        leases: Tells which ranks have lost what they claimed.
        rank: This rank.
        lease_s: How long a claim counts whose maker cannot be read [s].
        clock: Monotonic time [s].
    """

    def __init__(
        self,
        jobs: Sequence[DividedJob],
        claims: ClaimFolder,
        leases: Leases,
        *,
        rank: int,
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = {divided.index: divided for divided in jobs}
        self._claims = claims
        self._leases = leases
        self._rank = rank
        self._lease_s = lease_s
        self._clock = clock
        self._expected = ExpectedWork({divided.index: divided.kind for divided in jobs})
        self._free = {divided.index: set(range(len(divided.pieces))) for divided in jobs}
        self._running: dict[tuple[int, int], Claim] = {}
        self._held: dict[tuple[int, int], Claim] = {}
        self._lapsed: dict[int, set[int]] = {}
        self._done: set[tuple[int, int]] = set()
        self._failed: set[int] = set()
        self._owners: dict[Claim, int] = {}
        self._first_seen: dict[Claim, float] = {}
        self._order: list[OpenWork] | None = None
        self._refreshed_at: float | None = None

    def refresh(self, *, now: bool = False) -> None:
        """Take note of what other ranks did; unless asked for now, at most once a second.

        Raises:
            StorageError: If the claims cannot be read.
        """
        at = self._clock()
        if not now and self._refreshed_at is not None and at - self._refreshed_at < _REFRESH_INTERVAL_S:
            return
        self._refreshed_at = at
        self._read_news()
        self._leases.look()
        self._find_lapsed(at)
        self._order = None

    def claim_next(self, built_environment: str | None) -> HeldPiece | None:
        """Claim a piece of the job that comes next; None if nothing is free, as far as is known.

        Args:
            built_environment: Key of the environment that this rank has built.

        Raises:
            StorageError: If a claim cannot be made.
        """
        # Ordering thousands of jobs takes a while, so one order serves until the next refresh.
        order = order_of_work(list(self._open_work())) if self._order is None else self._order
        self._order = order
        while order:
            work = order.pop(choose(order, built_environment))
            number = next(self._open_pieces(work.job_index), None)
            if number is None:
                continue
            held = self.claim(work.job_index, number)
            if next(self._open_pieces(work.job_index), None) is not None:
                # Whoever has got the piece, one rank more is at work on this job.
                order[:] = order_of_work([*order, replace(work, num_ranks=work.num_ranks + 1)])
            if held is not None:
                return held
        return None

    def claim(self, job_index: int, number: int) -> HeldPiece | None:
        """Claim a piece; None if another rank has it, it is done, or its job has failed.

        Raises:
            StorageError: If the claim cannot be made.
        """
        if number not in set(self._open_pieces(job_index)):
            return None
        key = (job_index, number)
        before = self._running.get(key)
        generation = 1 if before is None else before.generation + 1
        claim = self._claims.claim(_piece_name(key), generation=generation)
        self._free[job_index].discard(number)
        self._lapsed.get(job_index, set()).discard(number)
        self._running[key] = claim or Claim(piece=_piece_name(key), generation=generation)
        if claim is None:
            return None
        self._held[key] = claim
        return HeldPiece(
            divided=self._jobs[job_index],
            number=number,
            claim=claim,
            taken_from=None if before is None else self._owners.get(before),
        )

    def holds(self, held: HeldPiece) -> bool:
        """Whether nobody has taken the piece over."""
        return self._claims.holds(held.claim)

    def finish(self, held: HeldPiece, measured: Measured) -> None:
        """Say that a piece is finished, unless it was taken over; its new owner will say so.

        Raises:
            StorageError: If it cannot be written.
        """
        self._held.pop((held.divided.index, held.number), None)
        if self.holds(held):
            self._claims.mark_done(held.claim, measured)

    def give_up(self, job_index: int) -> None:
        """Say that a job has failed, so that no rank claims more of it.

        Raises:
            StorageError: If it cannot be written.
        """
        self._failed.add(job_index)
        self._claims.mark_failed(_job_name(job_index))

    def open_episodes(self, job_index: int) -> int:
        """Return how many episodes of a job are in pieces that nobody works on."""
        divided = self._jobs[job_index]
        return sum(divided.num_episodes[number] for number in self._open_pieces(job_index))

    def num_unfinished_jobs(self) -> int:
        """Return how many jobs have pieces that are free or under way."""
        free = {job_index for job_index, numbers in self._free.items() if numbers}
        return len((free | {job_index for job_index, _ in self._running}) - self._failed)

    def pieces_of_others(self) -> int:
        """Return how many pieces other ranks work on, of jobs that have not failed."""
        return sum(key not in self._held and key[0] not in self._failed for key in self._running)

    def _open_pieces(self, job_index: int) -> Iterator[int]:
        if job_index in self._failed:
            return iter(())
        return iter(sorted(self._free[job_index] | self._lapsed.get(job_index, set())))

    def _open_work(self) -> Iterator[OpenWork]:
        ranks_at: dict[int, set[int | None]] = {}
        for (job_index, number), claim in self._running.items():
            if number not in self._lapsed.get(job_index, ()):
                ranks_at.setdefault(job_index, set()).add(self._owners.get(claim))
        for job_index in {index for index, numbers in self._free.items() if numbers} | self._lapsed.keys():
            if job_index in self._failed:
                continue
            divided = self._jobs[job_index]
            whole = divided.pieces[0] is None
            size = divided.whole if whole else WorkSize(episodes=self.open_episodes(job_index))
            yield OpenWork(
                job_index=job_index,
                expected_s=self._expected.seconds(job_index, size),
                num_ranks=len(ranks_at.get(job_index, ())),
                environment_key=divided.environment_key,
            )

    def _read_news(self) -> None:
        news = self._claims.news()
        for claim in news.claims:
            key = self._key_of(claim.piece)
            known = None if key is None else self._running.get(key)
            if key is not None and key not in self._done and (known is None or claim.generation > known.generation):
                self._running[key] = claim
                self._free[key[0]].discard(key[1])
        for piece in news.done:
            key = self._key_of(piece)
            if key is not None:
                self._note_done(key, self._claims.measured(piece))
        for name in news.failed:
            match = _JOB_NAME.fullmatch(name)
            if match is not None:
                self._failed.add(int(match[1]))

    def _note_done(self, key: tuple[int, int], measured: Measured | None) -> None:
        self._done.add(key)
        self._running.pop(key, None)
        self._free[key[0]].discard(key[1])
        if measured is not None:
            self._expected.learn(key[0], measured)

    def _find_lapsed(self, at: float) -> None:
        """Find the claims whose owners have lost them. Only claims under way are read, each of them once."""
        self._lapsed = {}
        for key, claim in self._running.items():
            if key not in self._held and self._has_lapsed(claim, at):
                self._lapsed.setdefault(key[0], set()).add(key[1])

    def _has_lapsed(self, claim: Claim, at: float) -> bool:
        owner = self._owners.get(claim)
        if owner is None:
            owner = self._claims.owner(claim)
            if owner is None:
                return at - self._first_seen.setdefault(claim, at) >= self._lease_s
            self._owners[claim] = owner
        # A claim of its own that it does not hold is one of which the answer got lost on a network disk.
        return owner == self._rank or self._leases.has_lapsed(owner)

    def _key_of(self, piece: str) -> tuple[int, int] | None:
        match = _PIECE_NAME.fullmatch(piece)
        if match is None:
            return None
        job_index, number = int(match[1]), int(match[2])
        divided = self._jobs.get(job_index)
        return (job_index, number) if divided is not None and number < len(divided.pieces) else None


def _piece_name(key: tuple[int, int]) -> str:
    return f"{_job_name(key[0])}_p{key[1]:05d}"


def _job_name(job_index: int) -> str:
    return f"j{job_index:06d}"
