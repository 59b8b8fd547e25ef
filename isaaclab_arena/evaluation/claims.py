"""The claims of ranks on pieces of jobs, written down in files that only one rank can make."""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from isaaclab_arena.errors import DamagedFileError
from isaaclab_arena.evaluation import heartbeat, planning
from isaaclab_arena.interfaces.episode import EpisodeRanges, as_ranges, of_ranges
from isaaclab_arena.paths import now
from isaaclab_arena.storage import atomic, layout, ledger
from isaaclab_arena.storage.commits import read_commits

# One claim on a piece of a job, and the names of the claim files.


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A piece of a job that a rank has claimed."""

    job_index: int
    piece: int
    generation: int = 1  # number of claims on the piece up to this one
    taken_from: int | None = None  # rank that lost the piece; None if there was none or it is unknown
    committed: EpisodeRanges = ()  # its episodes that an earlier owner committed in this attempt
    suspects: EpisodeRanges = ()  # over which ranks died: run only these, one at a time; else empty

    @property
    def key(self) -> tuple[int, int]:
        """The job's index, and the piece."""
        return self.job_index, self.piece


@dataclass(frozen=True, kw_only=True)
class ClaimState:
    """The state of all claims, as one rank sees them."""

    job_index: int | None = None  # of the job in question, None if there is none
    open_pieces: EpisodeRanges = ()  # of that job, claimed by no rank
    num_unfinished_jobs: int = 0  # jobs with pieces that are open or under way
    pieces_of_others: int = 0  # under way on other ranks; 0 with a job in question, as only idle ranks use it


def claims_directory(output_directory: Path, attempt: ledger.Attempt) -> Path:
    """Return the directory of an attempt's claims."""
    return output_directory / layout.CLAIMS_DIRECTORY / f"attempt_{attempt.number}"


def claim_name(claim: Claim) -> str:
    """Return the file name of a claim."""
    return f"j{claim.job_index:06d}_p{claim.piece:05d}.g{claim.generation}"


def is_taken_over(output_directory: Path, attempt: ledger.Attempt, claim: Claim) -> bool:
    """Whether there is a later claim on the piece."""
    later = claim_name(replace(claim, generation=claim.generation + 1))
    return (claims_directory(output_directory, attempt) / later).exists()


# Choose the next job of a free rank. Pure functions, which ranks and the simulation of a run use.
#
# The job with the longest expected time comes first, divided by the ranks that would share it. So ranks begin with
# different jobs, build few environments, and share the last jobs. Towards the end jobs with long pieces come first: a
# long episode that begins late keeps one rank busy while the others are idle.


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The work of a rank on one job in one stretch of time."""

    episodes: int  # that ended
    env_steps: int  # control steps, summed over running env slots
    seconds: float


@dataclass
class Measurements:
    """Sums of measured work by job, by kind of job, and over all jobs."""

    kinds: Mapping[int, str]  # by job index
    _totals: dict[int | str | None, Measured] = field(default_factory=dict)

    def add(self, job_index: int, measured: Measured) -> None:
        """Add a measurement of a job."""
        for group in (job_index, self.kinds[job_index], None):
            known = self._totals.get(group)
            before = {} if known is None else vars(known)
            sums = {name: before.get(name, 0) + value for name, value in vars(measured).items()}
            self._totals[group] = Measured(**sums)

    def of(self, job_index: int) -> tuple[Measured, ...]:
        """Return the sums of the job, its kind and all jobs, in this order, without those not measured yet."""
        groups = (job_index, self.kinds[job_index], None)
        return tuple(self._totals[group] for group in groups if group in self._totals)


def expected_s(measured: Iterable[Measured], *, episodes: int = 0, env_steps: int = 0) -> float:
    """Return one rank's expected time [s] for `episodes` or `env_steps` (control steps over all env slots)."""
    # The most specific measurement with the right unit counts (see `Measurements.of`).
    for known in measured:
        if known.seconds <= 0.0:
            continue
        if env_steps and known.env_steps:
            return env_steps * known.seconds / known.env_steps
        if episodes and known.episodes:
            return episodes * known.seconds / known.episodes
    # Without a measurement, a number that orders jobs by their size: an episode counts for 100 steps.
    return episodes + env_steps / 100


@dataclass(frozen=True, kw_only=True)
class OpenWork:
    """The work left on a job that no rank has claimed."""

    job_index: int
    expected_s: float  # time of one rank for all of it
    piece_s: float = 0.0  # time of one rank for the next piece
    num_ranks: int = 0  # ranks at work on other pieces of the job
    environment_key: str


def order_of_work(open_work: Sequence[OpenWork]) -> list[OpenWork]:
    """Return the jobs in the order of work: most work per rank first, long pieces first near the end."""
    left_s = sum(work.expected_s for work in open_work) / max(1, sum(work.num_ranks for work in open_work))

    # The end begins for a job if each rank has less left than eight of its pieces. The time of a piece then counts 16
    # times: the makespan of a simulated hour hardly changes between 8 and 32.
    return sorted(
        open_work,
        key=lambda work: (
            -(work.expected_s / (1 + work.num_ranks) + (16 * work.piece_s if 8 * work.piece_s > left_s else 0.0)),
            work.job_index,
        ),
    )


def choose(order: Sequence[OpenWork], built_environment: str | None) -> int:
    """Return the position of the job to take: the first that reuses the built environment, else 0."""
    # Only the longer half counts, so that a long job never waits behind many short ones.
    longer_half = order[: (len(order) + 1) // 2]
    return next((position for position, work in enumerate(longer_half) if work.environment_key == built_environment), 0)


def slots_to_use(num_envs: int, *, open_episodes: int, world_size: int, unfinished_jobs: int) -> int:
    """Return the number of env slots that a rank uses of a job that several ranks may share."""
    # A rank that started an episode in every slot could take a whole job before other ranks join. So it leaves room for
    # the ranks per unfinished job (this job included): for all ranks at the last job, for none while jobs outnumber
    # ranks. `open_episodes` are those that no rank has started, with the claimed ones of this rank.
    sharing_ranks = -(-world_size // max(1, unfinished_jobs))
    return max(1, min(num_envs, -(-open_episodes // sharing_ranks)))


# Find the episode that kills ranks: the episodes of a dead rank are played one at a time until one is left.
#
# A rank dies with its node, by a lack of memory, or because an episode crashes its process. The causes look the same
# from outside. The episodes that the dead rank had begun are suspects, and each is played again alone. A suspect that
# ends is cleared. A suspect that was the only running episode when a third rank died is to blame.

LIVES_OF_AN_EPISODE = 3
"""How many ranks may die over an episode, or over a job of which no episode has begun."""

_Key = tuple[int, int]
"""A job's index, and a piece of it."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """The death of a rank."""

    rank: int
    reason: str  # in one line
    machine: str | None = None  # identity of the rank's machine, None if unknown


@dataclass(frozen=True, kw_only=True)
class Blamed:
    """An episode or a whole job over which ranks died, and which is not played again."""

    job_index: int
    episode_index: int | None  # None for the job, of which no episode had begun
    deaths: tuple[Death, ...]  # of the ranks, in order


@dataclass
class Suspects:
    """The episodes that ranks are playing, and those over which ranks may have died."""

    # The size grows with the number of ranks and of deaths, not with that of episodes.
    jobs: Mapping[int, planning.DividedJob]
    _deaths: dict[_Key, dict[int, tuple[Death, ...]]] = field(default_factory=dict)
    # By rank and piece: the claim, and the first and last index of the episodes that it may be playing.
    playing: dict[int, dict[_Key, tuple[Claim, int, int]]] = field(default_factory=dict)
    _started_jobs: set[int] = field(default_factory=set)
    _deaths_of_jobs: dict[int, tuple[Death, ...]] = field(default_factory=dict)

    def pieces(self, job_index: int) -> frozenset[int]:
        """Return the pieces of a job that have suspected episodes."""
        return frozenset(piece for index, piece in self._deaths if index == job_index)

    def give(self, claim: Claim) -> Claim:
        """Return a claim with the suspects of its piece, to be played alone; without any for the whole piece."""
        self._clear(claim.key, of_ranges(claim.committed))
        return replace(claim, suspects=as_ranges(self._deaths.get(claim.key, ())))

    def begin(self, rank: int, claim: Claim, first: int, last: int) -> None:
        """Note the episodes of a piece that a rank may be playing from now on."""
        # A suspect runs alone, even if the rank's messages about its other pieces have not arrived.
        before = {} if claim.suspects else self.playing.get(rank, {})
        others = {key: part for key, part in before.items() if not part[0].suspects}
        self.playing[rank] = {**others, claim.key: (claim, first, last)}
        self._started_jobs.add(claim.job_index)
        self._deaths_of_jobs.pop(claim.job_index, None)

    def finish(self, rank: int, claim: Claim) -> bool:
        """Note that a rank has played its part of a piece. Return True if nothing of the piece is left."""
        self.playing.get(rank, {}).pop(claim.key, None)
        self._clear(claim.key, of_ranges(claim.suspects))
        played = of_ranges(claim.committed) | of_ranges(claim.suspects)
        return not claim.suspects or of_ranges(self.jobs[claim.job_index].pieces[claim.piece] or ()) <= played

    def die(
        self,
        death: Death,
        pieces: Sequence[_Key],  # that the rank held
        committed: Callable[[_Key], frozenset[int]],  # episodes of a piece
        *,
        num_machines: int,  # all on which ranks of the run have been
    ) -> list[Blamed]:
        """Note a death, and return the episode and the jobs that are to blame."""
        blamed, playing = [], self.playing.pop(death.rank, {})
        running: list[tuple[_Key, int]] = []
        for key in (key for key in pieces if key in playing):
            ended, (_, first, last) = committed(key), playing[key]
            self._clear(key, ended)
            for begin, end in self.jobs[key[0]].pieces[key[1]] or ():
                running += [
                    (key, index) for index in range(max(begin, first), min(end, last + 1)) if index not in ended
                ]
        for key, index in running:
            of_piece = self._deaths.setdefault(key, {})
            of_piece[index] = (*of_piece.get(index, ()), death)
        # Among several running episodes the guilty one is unknown.
        if len(running) == 1:
            ((key, index),) = running
            deaths = self._deaths[key][index]
            if len(deaths) >= LIVES_OF_AN_EPISODE:
                self._clear(key, [index])
                blamed.append(Blamed(job_index=key[0], episode_index=index, deaths=deaths))

        # Jobs of which no episode has begun on any rank: their build may kill ranks.
        for job_index in sorted({job_index for job_index, _ in pieces} - self._started_jobs):
            deaths = self._deaths_of_jobs[job_index] = (*self._deaths_of_jobs.get(job_index, ()), death)
            # One broken machine must not fail a job that other machines could run.
            machines = {each.machine for each in deaths}
            if len(deaths) >= LIVES_OF_AN_EPISODE and len(machines) >= min(2, num_machines):
                del self._deaths_of_jobs[job_index]
                blamed.append(Blamed(job_index=job_index, episode_index=None, deaths=deaths))
        return blamed

    def _clear(self, key: _Key, ended: Collection[int]) -> None:
        """Clear the suspected episodes of a piece that have ended."""
        of_piece = self._deaths.get(key, {})
        for index in of_piece.keys() & set(ended):
            del of_piece[index]
        if not of_piece:
            self._deaths.pop(key, None)


# The table of claims: which rank runs which piece of which job, kept in files that only one rank can create.
#
# The first claim on a piece is ``<piece>.g1``; the rank that takes the piece over from one that is gone makes the
# next generation, ``<piece>.g2``. A rank holds a piece as long as there is no newer generation. Files are made with
# O_EXCL, which is safe between nodes on NFS too, so ranks need neither a server nor rank 0. A table may be a second out
# of date. That is safe, because the creation of the file decides.

_NAME = re.compile(r"j([0-9]+)(?:_p([0-9]+)\.(?:g([1-9][0-9]*)|(done))|\.failed)")


@dataclass(kw_only=True)
class _Claimed:
    """A piece under way."""

    generation: int  # of its newest claim
    first_seen_s: float  # time of this rank's clock at which it first saw that claim
    owner: int | None = None  # rank that made the claim, None while unknown
    is_held: bool = False  # by this rank
    has_lapsed: bool = False  # another rank may take it over
    is_given_back: bool = False  # lapsed by `ClaimTable.give_back`


@dataclass(eq=False)
class ClaimTable:
    """The pieces of all jobs as one rank knows them: free, claimed or done. May raise `StorageError`."""

    # A rank keeps its claims while it works and its heartbeat continues. It loses them if it has finished, was
    # interrupted, died, or was silent for a whole lease. This process measures the silence itself, by its own monotonic
    # clock. So a process that was stopped or busy gives every rank a whole new lease.
    #
    # One process may keep the table for several ranks. It then names the rank in each call, and calls `give_back` if
    # that rank ends. Without `watch` it is the only one that makes claims in the directory, so it need not read them.
    jobs: Mapping[int, planning.DividedJob]  # by index
    output_directory: Path  # on a disk that all ranks share
    attempt: ledger.Attempt
    watch: heartbeat.RankWatch | None  # used by this table only, and blind after a pause
    _: KW_ONLY
    rank: int
    lease_s: float = float("inf")  # longest silence of a rank
    is_over: Callable[[str], bool] = lambda _: False  # job name -> it needs no further episode
    clock: Callable[[], float] = time.monotonic  # monotonic [s], the one of `watch`
    _claimed: dict[tuple[int, int], _Claimed] = field(default_factory=dict, init=False)
    _done: set[tuple[int, int]] = field(default_factory=set, init=False)
    _failed: set[int] = field(default_factory=set, init=False)
    _names: set[str] = field(default_factory=set, init=False)
    _order: list[OpenWork] | None = field(default=None, init=False)
    _refreshed_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._directory = claims_directory(self.output_directory, self.attempt)
        # Jobs of one kind can share an environment and a policy.
        kinds = {index: f"{each.job.environment_key} {each.job.policy_key}" for index, each in self.jobs.items()}
        self._measurements = Measurements(kinds)
        self._open = {index: set(range(len(each.pieces))) for index, each in self.jobs.items()}
        with atomic.storage_errors("make", self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)

    def refresh(self, *, now: bool = False) -> None:
        """Read the claims of other ranks, at most once a second unless `now`."""
        at = self.clock()
        since = None if self._refreshed_at is None else at - self._refreshed_at
        if since is not None and since < 1.0 and not now:
            return
        self._refreshed_at = at
        self._order = None
        if self.watch is None:
            return
        self._read_names(at)

        # Mark the claims whose owners have lost them. Only the files of claims under way are read, each once.
        lost = {
            report.rank
            for report in self.watch.look()
            if report.fate is not heartbeat.RankFate.WORKING or report.silent_s >= self.lease_s
        }
        for (job_index, piece), claimed in self._claimed.items():
            if claimed.is_held or claimed.is_given_back:
                continue
            if claimed.owner is None:
                # The owner may have died before it wrote the file, or still be writing.
                claim = Claim(job_index=job_index, piece=piece, generation=claimed.generation)
                content = self._read(claim_name(claim))
                rank = content.get("rank")
                if isinstance(rank, int) and content.get("run_id") == self.attempt.run_id:
                    claimed.owner = rank
            if claimed.owner is None:
                claimed.has_lapsed = at - claimed.first_seen_s >= self.lease_s
            else:
                # This rank owns the claim but does not hold it: the reply to its creation was lost on a network disk.
                claimed.has_lapsed = claimed.owner == self.rank or claimed.owner in lost
            (self._open[job_index].add if claimed.has_lapsed else self._open[job_index].discard)(piece)

    def claim_next(self, built_environment: str | None, *, rank: int | None = None) -> Claim | None:
        """Claim a piece of the next job for `rank` (None: this rank). None if no piece is free."""
        # The table may be a second old, and other ranks' pieces may have become free: then look again.
        for is_new in (False, True) if self.watch is not None else (False,):
            self.refresh(now=is_new)
            # Ordering thousands of jobs takes a while, so one order serves until the next refresh.
            self._order = order = order_of_work(list(self._open_work())) if self._order is None else self._order
            while order:
                work = order.pop(choose(order, built_environment))
                # Among interleaved jobs, the one with the earliest open round comes first.
                open_rounds = [
                    (self.jobs[each].rounds[min(open_pieces)], each)
                    for each in self.jobs[work.job_index].interleaved_with
                    if each in self.jobs and (open_pieces := self.open_pieces(each))
                ]
                job_index = min(open_rounds)[1] if open_rounds else work.job_index
                pieces = self.open_pieces(job_index)
                if not pieces:
                    continue
                claim = self.claim(job_index, min(pieces), rank=rank)
                if self.open_pieces(work.job_index):
                    # This rank or another one took the piece, so one more rank is at work on this job.
                    order[:] = order_of_work([*order, replace(work, num_ranks=work.num_ranks + 1)])
                if claim is not None:
                    return claim
        return None

    def claim(self, job_index: int, piece: int, *, rank: int | None = None) -> Claim | None:
        """Claim a piece for `rank` (None: this rank). None if another rank has it, it is done or its job failed."""
        self.refresh()
        rank = self.rank if rank is None else rank
        if piece not in self.open_pieces(job_index):
            return None
        before = self._claimed.get((job_index, piece))
        claim = Claim(
            job_index=job_index,
            piece=piece,
            generation=1 if before is None else before.generation + 1,
            taken_from=None if before is None else before.owner,
        )
        content = {"rank": rank, "run_id": self.attempt.run_id, "claimed_at": now()}
        is_held = self._create(claim_name(claim), content)
        # The piece is taken in both cases: by this rank, or by the rank that made the file first.
        self._open[job_index].discard(piece)
        self._claimed[job_index, piece] = _Claimed(
            generation=claim.generation, first_seen_s=self.clock(), owner=rank if is_held else None, is_held=is_held
        )
        if before is not None and is_held:
            claim = replace(claim, committed=as_ranges(self.committed(claim.key)))
        return claim if is_held else None

    def committed(self, key: tuple[int, int]) -> frozenset[int]:
        """Return the episodes of a piece that were committed in this attempt."""
        # Only this attempt's commits count: errors of an earlier one may have to run again.
        divided = self.jobs[key[0]]
        name, piece = divided.job.config.name, divided.pieces[key[1]]
        lines = read_commits(self.output_directory / name, name).lines
        committed = frozenset(line.episode_index for line in lines if line.attempt == self.attempt.number)
        return committed if piece is None else committed & of_ranges(piece)

    def begin(self, claim: Claim, first: int, last: int) -> None:
        """Do nothing: ranks that share a directory suspect no episode; see `Claims`."""

    def holds(self, claim: Claim) -> bool:
        """Whether no other rank has taken the piece over."""
        return not is_taken_over(self.output_directory, self.attempt, claim)

    def finish(self, claim: Claim, measured: Measured) -> None:
        """Mark a piece as finished, unless it was taken over; then its new owner does."""
        key, claimed = claim.key, self._claimed.get(claim.key)
        rank = self.rank if claimed is None or claimed.owner is None else claimed.owner
        if claimed is not None:
            claimed.is_held = False
        if self.holds(claim):
            content = {"rank": rank, "generation": claim.generation, "done_at": now(), **asdict(measured)}
            self._create(f"j{claim.job_index:06d}_p{claim.piece:05d}.done", content)
            if self.watch is None:
                self._claimed.pop(key, None)
                self._open[key[0]].discard(key[1])
                self._measurements.add(key[0], measured)

    def give_up(self, job_index: int) -> None:
        """Mark a job as failed, so that no rank claims more of it."""
        self._failed.add(job_index)
        self._create(f"j{job_index:06d}.failed", {"rank": self.rank, "failed_at": now()})

    def give_back(self, rank: int, claim: Claim | None = None) -> list[tuple[int, int]]:
        """Let any rank take over one claim or all claims that were made here for a rank; return (job index, piece)."""
        given = [
            key
            for key, claimed in self._claimed.items()
            if claimed.is_held and claimed.owner == rank
            if claim is None or (key == claim.key and claimed.generation == claim.generation)
        ]
        for key in given:
            claimed = self._claimed[key]
            claimed.is_held, claimed.has_lapsed, claimed.is_given_back = False, True, True
            self._open[key[0]].add(key[1])
        self._order = None if given else self._order
        return given

    def open_pieces(self, job_index: int) -> set[int]:
        """Return the pieces of a job that no rank has claimed."""
        divided = self.jobs[job_index]
        # A missing report is written even if the job is decided.
        if job_index in self._failed or (divided.pieces != ((),) and self.is_over(divided.job.config.name)):
            return set()
        return self._open[job_index]

    def state(self, job_index: int | None = None, *, rank: int | None = None) -> ClaimState:
        """Return the state of the claims for `rank` (None: for all ranks that claim here)."""
        unfinished = {index for index in self._open if self.open_pieces(index)} | {index for index, _ in self._claimed}
        # Pieces of failed jobs do not count, nor lapsed ones that are not open, because their job ends early.
        others = (
            (not claimed.is_held or (rank is not None and claimed.owner != rank))
            and key[0] not in self._failed
            and not (claimed.has_lapsed and not self.open_pieces(key[0]))
            for key, claimed in self._claimed.items()
        )
        return ClaimState(
            job_index=job_index,
            open_pieces=() if job_index is None else as_ranges(self.open_pieces(job_index)),
            num_unfinished_jobs=len(unfinished - self._failed),
            pieces_of_others=sum(others) if job_index is None else 0,
        )

    def _open_work(self) -> Iterator[OpenWork]:
        owners = {(key[0], claimed.owner) for key, claimed in self._claimed.items() if not claimed.has_lapsed}
        num_ranks = Counter(job_index for job_index, _ in owners)
        for job_index, divided in self.jobs.items():
            open_pieces = self.open_pieces(job_index)
            if not open_pieces:
                continue
            config = divided.job.config
            episodes, env_steps = sum(divided.num_episodes[piece] for piece in open_pieces), 0
            if divided.pieces[0] is None and config.num_steps is not None:
                env_steps = config.num_steps * config.num_envs * config.num_rebuilds
            elif divided.pieces[0] is None:
                # Only the policy knows the length; one episode in every env slot is a guess.
                episodes = config.num_envs
            known, of_piece = self._measurements.of(job_index), divided.num_episodes[min(open_pieces)]
            yield OpenWork(
                job_index=job_index,
                expected_s=expected_s(known, episodes=episodes, env_steps=env_steps),
                piece_s=expected_s(known, episodes=of_piece or episodes, env_steps=env_steps),
                num_ranks=num_ranks[job_index],
                environment_key=divided.job.environment_key,
            )

    def _read_names(self, at: float) -> None:
        """List the directory, and note the files that have appeared since the last call."""
        with atomic.storage_errors("list", self._directory):
            names = set(os.listdir(self._directory))  # noqa: PTH208  half the time for 20,000 names
        fresh = names - self._names
        self._names |= names
        for match in filter(None, map(_NAME.fullmatch, sorted(fresh))):
            job_index = int(match[1])
            if match[2] is None:
                self._failed.add(job_index)
                continue
            divided, piece = self.jobs.get(job_index), int(match[2])
            if divided is None or piece >= len(divided.pieces):
                continue
            key = job_index, piece
            if not match[4]:
                generation, known = int(match[3]), self._claimed.get(key)
                if key not in self._done and (known is None or generation > known.generation):
                    self._claimed[key] = _Claimed(generation=generation, first_seen_s=at)
                    self._open[job_index].discard(piece)
                continue
            self._done.add(key)
            self._claimed.pop(key, None)
            self._open[job_index].discard(piece)
            content = self._read(match[0])
            try:
                measured = Measured(
                    episodes=int(content["episodes"]),
                    env_steps=int(content["env_steps"]),
                    seconds=float(content["seconds"]),
                )
            except (KeyError, TypeError, ValueError):
                # An incomplete file marks a finished piece too, but holds no measurement.
                continue
            self._measurements.add(job_index, measured)

    def _create(self, name: str, content: dict[str, Any]) -> bool:
        """Create a file exclusively; return False if it exists."""
        path = self._directory / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        except OSError as error:
            raise atomic.storage_error("make", path, error) from error
        try:
            with atomic.storage_errors("write", path):
                os.write(descriptor, f"{json.dumps(content)}\n".encode())
        finally:
            os.close(descriptor)
        return True

    def _read(self, name: str) -> dict[str, Any]:
        """Return the JSON object of a file, {} if it is damaged, because its maker may have died while writing it."""
        path = self._directory / name
        try:
            content = atomic.read_json(path)
        except DamagedFileError:
            return {}
        return content if isinstance(content, dict) else {}
