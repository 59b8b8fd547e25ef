"""The table of claims: which rank runs which piece of which job, written down in files that only one rank can make.

The first claim on a piece is ``<piece>.g1``; the rank that takes the piece over from one that is gone makes the next
generation, ``<piece>.g2``. A rank holds a piece as long as there is no newer generation. Files are made with O_EXCL,
which is safe between nodes on NFS too, so ranks need neither a server nor rank 0. What a table has read may be a
second old, and that is safe: making the file decides.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from isaaclab_arena.errors import DamagedFileError
from isaaclab_arena.evaluation.heartbeat.rank_watch import RankFate, RankReport, RankWatch
from isaaclab_arena.evaluation.scheduling.claim import Claim, claim_name, is_taken_over, job_name, piece_name
from isaaclab_arena.evaluation.scheduling.cost import (
    Measured,
    Measurements,
    OpenWork,
    choose,
    expected_s,
    order_of_work,
)
from isaaclab_arena.evaluation.scheduling.divided_jobs import DividedJob
from isaaclab_arena.paths import now
from isaaclab_arena.storage.atomic import storage_error, storage_errors
from isaaclab_arena.storage.json_values import read_json

_NAME = re.compile(r"j([0-9]+)(?:_p([0-9]+)\.(?:g([1-9][0-9]*)|(done))|\.failed)")
_REFRESH_INTERVAL_S = 1.0
_BLIND_AFTER_S = 5.0
"""A rank that has not looked for this long has seen nothing of that time."""


@dataclass(kw_only=True)
class _Claimed:
    """A piece under way.

    Attributes:
        generation: That of its newest claim.
        first_seen_s: When this rank first saw that claim, by its own clock [s].
        owner: The rank that made the claim, None as long as that is not known.
        is_held: Whether this rank holds it.
        has_lapsed: Whether it may be taken over.
        is_given_back: Whether that is because `ClaimTable.give_back` or `release` was called.
    """

    generation: int
    first_seen_s: float
    owner: int | None = None
    is_held: bool = False
    has_lapsed: bool = False
    is_given_back: bool = False


class ClaimTable:
    """The pieces of all jobs, as far as one rank knows: free, claimed by a rank, or done.

    A rank keeps what it has claimed while it works and its heartbeat goes on. It loses it when it has finished, was
    interrupted or died, and when it was silent for the length of a lease. Silence is what this process has seen
    itself, by its own monotonic clock. A process that was stopped or busy gives everybody a whole lease from then on.

    One process may keep the table for several ranks. It names the rank in each call, and `give_back` tells of its end.
    If it is the only one that makes claims there, it knows all of them, and need not look.

    Args:
        jobs: The jobs of this attempt.
        directory: Where the claims of this attempt lie, on a disk that all ranks share; it is made if need be.
        watch: Looks at the ranks; used by nobody else. None where nobody but this table makes claims in that directory.
        rank: This rank.
        run_id: Which start of the program.
        lease_s: How long a rank may be silent [s].
        is_over: Whether no further episode of a job is needed, by its name.
        clock: Monotonic time [s]; the one that ``watch`` has.

    Raises:
        StorageError: If the directory cannot be made. Methods raise it if a file cannot be read or written.
    """

    def __init__(
        self,
        jobs: Sequence[DividedJob],
        directory: Path,
        watch: RankWatch | None,
        *,
        rank: int,
        run_id: str,
        lease_s: float,
        is_over: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = {divided.index: divided for divided in jobs}
        self._directory = directory
        self._watch = watch
        self._rank = rank
        self._run_id = run_id
        self._lease_s = lease_s
        self._is_over = is_over
        self._clock = clock
        self._measurements = Measurements({divided.index: divided.kind for divided in jobs})
        self._open = {divided.index: set(range(len(divided.pieces))) for divided in jobs}
        self._claimed: dict[tuple[int, int], _Claimed] = {}
        self._done: set[tuple[int, int]] = set()
        self._failed: set[int] = set()
        self._names: set[str] = set()
        self._order: list[OpenWork] | None = None
        self._refreshed_at: float | None = None
        self._watching_since = 0.0
        with storage_errors("make", directory):
            directory.mkdir(parents=True, exist_ok=True)

    @property
    def num_episodes(self) -> int:
        """How many episodes there are to run in all jobs, as far as known beforehand."""
        return sum(sum(divided.num_episodes) for divided in self._jobs.values())

    def refresh(self, *, now: bool = False) -> None:
        """Take note of what other ranks did; unless asked for now, at most once a second."""
        at = self._clock()
        since = None if self._refreshed_at is None else at - self._refreshed_at
        if since is not None and since < _REFRESH_INTERVAL_S and not now:
            return
        if since is None or since > _BLIND_AFTER_S:
            self._watching_since = at
        self._refreshed_at = at
        if self._watch is not None:
            self._read_names(at)
            self._find_lapsed(at, self._watch.look())
        self._order = None

    def claim_next(self, built_environment: str | None, *, rank: int | None = None) -> Claim | None:
        """Claim a piece of the job that comes next; None if nothing is free, as far as is known.

        Args:
            built_environment: Key of the environment that the rank has built.
            rank: The rank that claims; this one where None.
        """
        # Ordering thousands of jobs takes a while, so one order serves until the next refresh.
        order = order_of_work(list(self._open_work())) if self._order is None else self._order
        self._order = order
        while order:
            work = order.pop(choose(order, built_environment))
            job_index = self._whose_turn(work.job_index)
            pieces = self._open_pieces(job_index)
            if not pieces:
                continue
            claim = self.claim(job_index, min(pieces), rank=rank)
            if self._open_pieces(work.job_index):
                # Whoever has got the piece, one rank more is at work on this job.
                order[:] = order_of_work([*order, replace(work, num_ranks=work.num_ranks + 1)])
            if claim is not None:
                return claim
        return None

    def claim(self, job_index: int, piece: int, *, rank: int | None = None) -> Claim | None:
        """Claim a piece, for this rank unless another one is named.

        Returns:
            None if another rank has it, it is done, or its job has failed.
        """
        rank = self._rank if rank is None else rank
        if piece not in self._open_pieces(job_index):
            return None
        before = self._claimed.get((job_index, piece))
        claim = Claim(
            divided=self._jobs[job_index],
            piece=piece,
            generation=1 if before is None else before.generation + 1,
            taken_from=None if before is None else before.owner,
        )
        content = {"rank": rank, "run_id": self._run_id, "claimed_at": now()}
        is_held = self._create(claim_name(claim), content)
        self._open[job_index].discard(piece)
        self._claimed[job_index, piece] = _Claimed(
            generation=claim.generation,
            first_seen_s=self._clock(),
            owner=rank if is_held else None,
            is_held=is_held,
        )
        return claim if is_held else None

    def holds(self, claim: Claim) -> bool:
        """Whether nobody has taken the piece over."""
        return not is_taken_over(self._directory, claim)

    def finish(self, claim: Claim, measured: Measured) -> None:
        """Say that a piece is finished, unless it was taken over; its new owner will say so."""
        key = claim.divided.index, claim.piece
        claimed = self._claimed.get(key)
        rank = self._rank if claimed is None or claimed.owner is None else claimed.owner
        if claimed is not None:
            claimed.is_held = False
        if self.holds(claim):
            content = {"rank": rank, "generation": claim.generation, "done_at": now(), **asdict(measured)}
            self._create(f"{piece_name(claim)}.done", content)
            if self._watch is None:
                self._close(key)
                self._measurements.add(key[0], measured)

    def give_up(self, job_index: int) -> None:
        """Say that a job has failed, so that no rank claims more of it."""
        self._failed.add(job_index)
        self._create(f"{job_name(job_index)}.failed", {"rank": self._rank, "failed_at": now()})

    def give_back(self, rank: int) -> list[tuple[int, int]]:
        """Let others take over what a rank has claimed here; return its jobs' indices, each with a piece."""
        given = [key for key, claimed in self._claimed.items() if claimed.is_held and claimed.owner == rank]
        for key in given:
            self._let_go(key, self._claimed[key])
        return given

    def release(self, claim: Claim) -> None:
        """Let any rank take over a piece that was claimed here, because not all of it was to run."""
        key = claim.divided.index, claim.piece
        claimed = self._claimed.get(key)
        if claimed is not None and claimed.is_held and claimed.generation == claim.generation:
            self._let_go(key, claimed)

    def _let_go(self, key: tuple[int, int], claimed: _Claimed) -> None:
        claimed.is_held, claimed.has_lapsed, claimed.is_given_back = False, True, True
        self._open[key[0]].add(key[1])
        self._order = None

    def open_pieces(self, job_index: int) -> frozenset[int]:
        """Return the pieces of a job that nobody works on."""
        return frozenset(self._open_pieces(job_index))

    def open_episodes(self, job_index: int) -> int:
        """Return how many episodes of a job are in pieces that nobody works on."""
        return sum(self._jobs[job_index].num_episodes[piece] for piece in self._open_pieces(job_index))

    def num_unfinished_jobs(self) -> int:
        """Return how many jobs have pieces that are free or under way."""
        free = {job_index for job_index in self._open if self._open_pieces(job_index)}
        return len((free | {job_index for job_index, _ in self._claimed}) - self._failed)

    def pieces_of_others(self, rank: int | None = None) -> int:
        """Return how many pieces other ranks work on, of jobs that have not failed.

        Args:
            rank: Others than this one; where None, others than those that claim here.
        """
        return sum(
            (not claimed.is_held or (rank is not None and claimed.owner != rank))
            and key[0] not in self._failed
            and not (claimed.has_lapsed and self._ends_early(key[0]))
            for key, claimed in self._claimed.items()
        )

    def _open_pieces(self, job_index: int) -> set[int]:
        return set() if job_index in self._failed or self._ends_early(job_index) else self._open[job_index]

    def _ends_early(self, job_index: int) -> bool:
        divided = self._jobs[job_index]
        # A report is owed whatever was decided.
        return not divided.owes_only_report and self._is_over(divided.job.config.name)

    def _whose_turn(self, job_index: int) -> int:
        """Return the job with the earliest open round among those with which a job takes turns."""
        open_rounds = [
            (self._jobs[each].round_of(min(pieces)), each)
            for each in self._jobs[job_index].takes_turns_with
            if each in self._jobs and (pieces := self._open_pieces(each))
        ]
        return min(open_rounds)[1] if open_rounds else job_index

    def _open_work(self) -> Iterator[OpenWork]:
        ranks_at: dict[int, set[int | None]] = {}
        for (job_index, _), claimed in self._claimed.items():
            if not claimed.has_lapsed:
                ranks_at.setdefault(job_index, set()).add(claimed.owner)
        for job_index, divided in self._jobs.items():
            if not self._open_pieces(job_index):
                continue
            config = divided.job.config
            episodes, env_steps = self.open_episodes(job_index), 0
            if divided.pieces[0] is None and config.num_steps is not None:
                env_steps = config.num_steps * config.num_envs * config.num_rebuilds
            elif divided.pieces[0] is None:
                # Only the policy knows how much it is; an episode in every env slot is a guess.
                episodes = config.num_envs
            known, of_piece = self._measurements.of(job_index), divided.num_episodes[min(self._open_pieces(job_index))]
            yield OpenWork(
                job_index=job_index,
                expected_s=expected_s(known, episodes=episodes, env_steps=env_steps),
                piece_s=expected_s(known, episodes=of_piece or episodes, env_steps=env_steps),
                num_ranks=len(ranks_at.get(job_index, ())),
                environment_key=divided.environment_key,
            )

    def _read_names(self, at: float) -> None:
        """Take note of the files that have appeared since the last look. It lists the whole directory."""
        with storage_errors("list", self._directory):
            names = set(os.listdir(self._directory))  # noqa: PTH208  half the time for 20,000 names
        fresh = names - self._names
        self._names |= names
        for match in filter(None, map(_NAME.fullmatch, sorted(fresh))):
            job_index = int(match[1])
            divided = self._jobs.get(job_index)
            if match[2] is None:
                self._failed.add(job_index)
            elif divided is not None and (piece := int(match[2])) < len(divided.pieces):
                if match[4]:
                    self._note_done((job_index, piece), match[0])
                else:
                    self._note_claim((job_index, piece), int(match[3]), at)

    def _note_claim(self, key: tuple[int, int], generation: int, at: float) -> None:
        known = self._claimed.get(key)
        if key not in self._done and (known is None or generation > known.generation):
            self._claimed[key] = _Claimed(generation=generation, first_seen_s=at)
            self._open[key[0]].discard(key[1])

    def _close(self, key: tuple[int, int]) -> None:
        self._done.add(key)
        self._claimed.pop(key, None)
        self._open[key[0]].discard(key[1])

    def _note_done(self, key: tuple[int, int], name: str) -> None:
        self._close(key)
        content = self._read(name)
        try:
            measured = Measured(
                episodes=int(content["episodes"]),
                env_steps=int(content["env_steps"]),
                seconds=float(content["seconds"]),
            )
        except (KeyError, TypeError, ValueError):
            return
        self._measurements.add(key[0], measured)

    def _find_lapsed(self, at: float, reports: Sequence[RankReport]) -> None:
        """Find the claims whose owners have lost them. Only claims under way are read, each of them once."""
        watched_s = at - self._watching_since
        lost = {
            report.rank
            for report in reports
            if report.fate is not RankFate.WORKING or min(report.silent_s, watched_s) >= self._lease_s
        }
        for key, claimed in self._claimed.items():
            if claimed.is_held or claimed.is_given_back:
                continue
            if claimed.owner is None:
                claimed.owner = self._owner(key, claimed.generation)
            if claimed.owner is None:
                claimed.has_lapsed = at - claimed.first_seen_s >= self._lease_s
            else:
                # A claim of its own that it does not hold is one of which the answer got lost on a network disk.
                claimed.has_lapsed = claimed.owner == self._rank or claimed.owner in lost
            if claimed.has_lapsed:
                self._open[key[0]].add(key[1])
            else:
                self._open[key[0]].discard(key[1])

    def _owner(self, key: tuple[int, int], generation: int) -> int | None:
        """Return the rank that made a claim; None if it died, or is still busy, between making and writing the file."""
        name = claim_name(Claim(divided=self._jobs[key[0]], piece=key[1], generation=generation))
        content = self._read(name)
        rank = content.get("rank")
        return rank if isinstance(rank, int) and content.get("run_id") == self._run_id else None

    def _create(self, name: str, content: dict[str, Any]) -> bool:
        """Make a file unless it is there; return whether this rank has made it."""
        path = self._directory / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        except OSError as error:
            raise storage_error("make", path, error) from error
        try:
            with storage_errors("write", path):
                os.write(descriptor, f"{json.dumps(content)}\n".encode())
        finally:
            os.close(descriptor)
        return True

    def _read(self, name: str) -> dict[str, Any]:
        """Return the content of a file, empty if there is none that makes sense: its maker may have died over it."""
        path = self._directory / name
        try:
            content = read_json(path)
        except DamagedFileError:
            return {}
        return content if isinstance(content, dict) else {}
