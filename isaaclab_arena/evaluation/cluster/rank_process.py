"""One rank of a run on a cluster: the run's claims and commits as it reaches them, and its jobs."""

import os
import re
import shutil
import tempfile
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch

from isaaclab_arena.distributed.context import (
    DistributedContext,
    limit_threads,
    machine_identity,
    process_is_running,
    process_start_ticks,
)
from isaaclab_arena.distributed.devices import calculate_deterministically
from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.evaluation.claims import Claim, Measured, claims_directory, is_taken_over
from isaaclab_arena.evaluation.cluster.claim_server import (
    FILES_OF_JOB,
    Call,
    ClaimAnswer,
    Life,
    RefusedError,
    RunOrders,
    checked_request,
    interval_s,
)
from isaaclab_arena.evaluation.heartbeat import status_path
from isaaclab_arena.evaluation.job_run import ready_to_run
from isaaclab_arena.evaluation.planning import DividedJob, divided_jobs, settled_jobs
from isaaclab_arena.evaluation.process import Interruption
from isaaclab_arena.evaluation.queues import claimed_work
from isaaclab_arena.garbage import join_freed_memory_at_once
from isaaclab_arena.interfaces.episode import of_ranges
from isaaclab_arena.logs import log_file, set_up_console_logging
from isaaclab_arena.storage.disk import adapter, storage_errors, write_text
from isaaclab_arena.storage.layout import EPISODES_DIRECTORY, SETTLED_FILE, episode_file_name
from isaaclab_arena.storage.ledger import CommitLine, read_attempt

# The claims and commits of a run for a rank that reaches them through the claim server.

Ask: TypeAlias = Callable[[Sequence[Call]], Any]
"""Makes calls of the claim server in order, and returns the last answer, which may be plain JSON; see `answered`."""

_MAX_BYTES = 16_000_000
_MAX_CALLS = 2_000


@dataclass(eq=False)
class RemoteLedger:
    """What `ClaimTable` and `EpisodeCommits` are for ranks that share the run's directory. A context manager."""

    # The rank only waits for the claim server's answer if it claims a piece, or begins an episode. All else goes in a
    # thread, in the order in which it came about; each delivery is a heartbeat. On exit it delivers what is left.
    orders: RunOrders
    life: Life
    divided: Sequence[DividedJob]
    ask: Ask
    directory: Path  # of this rank's files
    _: KW_ONLY
    is_own: bool  # False: the run's directory, so neither episodes nor files are delivered
    stop: Callable[[int], None] = lambda _: None  # called with the signal that stops the run
    clock: Callable[[], float] = time.monotonic
    failure: Exception | None = field(default=None, init=False)  # ended the deliveries, so this rank must end
    jobs_over: frozenset[str] = field(default=frozenset(), init=False)  # names of jobs that need no further episode
    # The last answer, and the job and the open pieces that it was about.
    _said: ClaimAnswer = field(default=ClaimAnswer(), init=False)
    _said_at: float = field(default=0.0, init=False)
    _said_of: int = field(default=-1, init=False)
    _open: set[int] = field(default_factory=set, init=False)
    # Calls that are to be made, each with the file of its content.
    _outbox: deque[tuple[str, Sequence[Any], Path | None]] = field(default_factory=deque, init=False)
    _log_sent: int = field(default=0, init=False)  # [bytes]
    _kept: set[Path] = field(default_factory=set, init=False)  # delivered files that the rank still needs
    _closing: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        self.jobs: Mapping[int, DividedJob] = {each.index: each for each in self.divided}
        self._claims_directory = None if self.is_own else claims_directory(self.directory, self.orders.attempt)
        self._log = self.directory / "logs" / f"rank{self.life.rank}.log"
        self._thread = threading.Thread(target=self._deliver_until_closed, name="deliveries", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.set()
        self._thread.join()
        if self.failure is None:
            self.deliver()
        elif exception[0] is None:
            raise self.failure

    def claim_next(self, built_environment: str | None) -> Claim | None:
        """Claim a piece of the next job; None if no piece is free."""
        answer = self._hear(built_environment)
        # Without the run's directory the rank needs a copy of the job's settled batch size.
        if answer.claim is not None and answer.settled is not None and self._claims_directory is None:
            name = self.jobs[answer.claim.job_index].job.config.name
            write_text(self.directory / name / SETTLED_FILE, answer.settled, overwrite=True)
        return answer.claim

    def claim(self, job_index: int, piece: int) -> Claim | None:
        """Claim a piece; None if it is not open."""
        if self._said_of != job_index or self.clock() - self._said_at >= 1.0:
            self._hear(None, job_index)
        return self._hear(None, job_index, piece).claim if piece in self._open else None

    def begin(self, claim: Claim, first: int, last: int) -> None:
        """Report the episodes that may run from now on; they are suspected if this rank dies."""
        # This call waits for the claim server, because the rank may die of the episodes at once.
        self.ask([("begin", (self.life, claim, first, last), None)])

    def holds(self, claim: Claim) -> bool:
        """Whether no other rank has taken the piece over."""
        # A rank without access to the claims need not know: nothing is committed of a rank that was taken for dead.
        taken = self._claims_directory is not None and is_taken_over(self._claims_directory, claim)
        return self.failure is None and not taken

    def finish(self, claim: Claim, measured: Measured) -> None:
        """Report a finished piece, after its episodes."""
        self._outbox.append(("finish", (self.life, claim, measured), None))

    def give_up(self, job_index: int) -> None:
        """Report a failed job."""
        self._outbox.append(("give_up", (self.life, job_index), None))

    def open_episodes(self, job_index: int) -> int:
        """Return the number of episodes in open pieces of the current job, 0 for another job."""
        open_pieces = self._open if job_index == self._said_of else ()
        return sum(self.jobs[job_index].num_episodes[piece] for piece in open_pieces)

    def num_unfinished_jobs(self) -> int:
        """Return the number of jobs with pieces that are open or under way."""
        return self._said.num_unfinished_jobs

    def pieces_of_others(self) -> int:
        """Return the number of pieces under way on other ranks."""
        return self._said.pieces_of_others

    def commit(self, directory: Path, line: CommitLine, text: str, write: Callable[[Path], object] | None) -> None:
        """Hand a finished episode of a job over, with its file on this node; see `EpisodeCommits.commit`."""
        path = None
        if write is not None:
            path = directory / EPISODES_DIRECTORY / episode_file_name(line.episode_index)
            # The rank may have played the episode before, in a piece that it lost.
            path.unlink(missing_ok=True)
            write(path)
        self._outbox.append(("commit", (self.life, text), path))

    def deliver(self) -> None:
        """Deliver everything written until now, in as many deliveries as it takes."""
        is_done = False
        while not is_done:
            # Files are listed before results, so that the report of a job does not come before its last episode: the
            # status first, then those of jobs, then the log.
            files: list[Path] = []
            if self._claims_directory is None:
                of_jobs = (path for pattern in FILES_OF_JOB for path in sorted(self.directory.glob(f"*/{pattern}")))
                fresh = (path for path in of_jobs if path not in self._kept and not path.name.startswith("."))
                files = [status_path(self.directory, self.life.rank), *fresh, self._log]
            waiting = list(self._outbox)
            calls: list[Call] = []
            size, number = 0, 0
            for method, arguments, path in waiting[:_MAX_CALLS]:
                if size >= _MAX_BYTES:
                    break
                content = None if path is None else path.read_bytes()
                calls.append((method, arguments, content))
                size += len(content or b"")
                number += 1

            # The status goes with each delivery, other files only after all results.
            is_done, sent = number == len(waiting), list[Path]()
            for path in files if is_done else files[:1]:
                is_done = is_done and size < _MAX_BYTES
                if not (is_done or path == files[0]):
                    break
                offset = self._log_sent if path == self._log else None
                # The final report may just have replaced the report that the rank wrote when the job began.
                with suppress(FileNotFoundError), path.open("rb") as stream:
                    stream.seek(offset or 0)
                    content = stream.read(-1 if offset is None else _MAX_BYTES)
                    calls.append(("keep", (self.life, str(path.relative_to(self.directory)), offset), content))
                    sent.append(path)
                    size += len(content)
                    self._log_sent += 0 if offset is None else len(content)
            calls.append(("beat", (self.life, machine_identity()), None))
            stop_signal, jobs_over = self.ask(calls)

            # The claim server has everything by now, so it can be removed here.
            of_episodes = [self._outbox.popleft()[2] for _ in range(number)]
            self._kept.update(path for path in sent if path.name == SETTLED_FILE or path.parent == self._log.parent)
            for path in {*of_episodes, *sent} - self._kept - {None}:
                path.unlink(missing_ok=True)
            self.jobs_over = frozenset(jobs_over)
            if stop_signal is not None:
                self.stop(stop_signal)
            is_done = is_done and size < _MAX_BYTES

    def _hear(self, built: str | None, job_index: int | None = None, piece: int | None = None) -> ClaimAnswer:
        said = adapter(ClaimAnswer).validate_python(self.ask([("claim", (self.life, built, job_index, piece), None)]))
        about = said.claim.job_index if said.claim is not None else job_index
        self._said, self._said_at, self._said_of = said, self.clock(), -1 if about is None else about
        self._open = set(of_ranges(said.open_pieces))
        return said

    def _deliver_until_closed(self) -> None:
        try:
            self.deliver()
            while not self._closing.wait(interval_s(self.orders.num_ranks)):
                self.deliver()
        except Exception as error:  # noqa: BLE001  on any error the rank must end and report it
            self.failure = error


# One rank of a run on a cluster: check its node, and run the jobs that it claims.


def run_rank(orders: RunOrders, life: Life, ask: Ask) -> str:
    """Run the claimed jobs until none is left, and return the rank's final state. `RefusedError`: not on this node."""
    set_up_console_logging(life.rank)
    needs, attempt = orders.needs, orders.attempt
    # A node that cannot take part refuses the rank, which may then start on another node.
    try:
        request = checked_request(needs)
        options = request.options
        # The device is the GPU that the cluster assigned to this process, or the CPU.
        alone = DistributedContext.from_environment({}, device="cpu" if needs.gpus == 0 else options.device)
        if needs.gpus and options.device is None and alone.device.type != "cuda":
            message = (
                "the cluster has given this rank a GPU, but CUDA finds none; check the driver, or say --device cpu"
            )
            raise ConfigError(Problem(message, key="--gpus_per_rank"))
        context = replace(alone, rank=life.rank, world_size=orders.num_ranks, local_world_size=1)
        request = replace(request, jobs=settled_jobs(request.jobs, attempt))
    except ArenaError as error:
        raise RefusedError(str(error)) from error
    limit_threads(options.torch_threads)
    join_freed_memory_at_once()
    if options.deterministic:
        calculate_deterministically()
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)

    # The rank writes into the directory of the run if this node sees it; it may see another one of that name.
    home, is_seen = Path(orders.output_directory), False
    if orders.node_directory is None:
        with suppress(ArenaError, OSError):
            is_seen = read_attempt(home, attempt.number).run_id == attempt.run_id
    own = directory_of_process(Path(orders.node_directory or tempfile.gettempdir()), life.rank)
    with nullcontext(home) if is_seen else own as directory:
        interruption, jobs = Interruption(), divided_jobs(request.jobs, attempt, request.questions)
        ledger = RemoteLedger(orders, life, jobs, ask, directory, is_own=not is_seen, stop=interruption.receive)

        def must_stop() -> bool:
            return ledger.failure is not None or interruption.stop_requested()

        work = claimed_work(
            ledger,
            rank=life.rank,
            world_size=attempt.world_size,
            stop_requested=must_stop,
            is_over=lambda job: job in ledger.jobs_over,
            rest_s=interval_s(orders.num_ranks),
        )
        # The program that drives the run makes the datasets at the end.
        of_this_rank: dict[str, Any] = {} if is_seen else {"consolidates": False, "hand_over": ledger.commit}
        ready = ready_to_run(
            work,
            request,
            attempt,
            context,
            directory,
            config_hash=orders.config_hash,
            stop_requested=must_stop,
            num_threads=max(1, int(needs.cpus)),
            **of_this_rank,
        )
        log = log_file(directory / "logs" / f"rank{life.rank}.log", life.rank)
        # The status beats until all is delivered: a rank without a beat for too long is taken for dead.
        with ready as (_, play), ledger, log:
            return play()


# A directory for the files of one process, on a disk of its own.

_OF_PROCESS = "isaaclab_arena_rank"
_OWNER = re.compile(rf"{_OF_PROCESS}[0-9]+_([0-9a-f]{{8}})_([0-9]+)_([0-9]+)_.*")


@contextmanager
def directory_of_process(root: Path, rank: int) -> Iterator[Path]:
    """Yield a new directory below `root` for a ``with`` block. Remove those that dead processes have left there."""
    pid, machine = os.getpid(), f"{zlib.crc32(machine_identity().encode()):08x}"
    with storage_errors("make a directory in", root):
        root.mkdir(parents=True, exist_ok=True)
        for path in root.glob(f"{_OF_PROCESS}*"):
            owner = _OWNER.fullmatch(path.name)
            # Only of this machine and user.
            if owner is None or owner[1] != machine or path.is_symlink():
                continue
            with suppress(OSError):
                is_mine = path.stat().st_uid == os.getuid()
                if is_mine and not process_is_running(int(owner[2]), int(owner[3]) or None):
                    shutil.rmtree(path, ignore_errors=True)
        prefix = f"{_OF_PROCESS}{rank}_{machine}_{pid}_{process_start_ticks(pid) or 0}_"
        own = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)
