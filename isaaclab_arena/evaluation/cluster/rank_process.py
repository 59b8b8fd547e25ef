"""One rank of a run on a cluster: checks its node, and runs the jobs that it claims from the keeper."""

import logging
import os
import re
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.devices import calculate_deterministically
from isaaclab_arena.distributed.process import (
    limit_threads,
    machine_identity,
    process_is_running,
    process_start_ticks,
)
from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.evaluation.cluster.messages import (
    BegunEpisodes,
    ClaimAnswer,
    ClaimQuestion,
    Delivery,
    DeliveryAnswer,
    Life,
    RankEnd,
    RunOrders,
)
from isaaclab_arena.evaluation.cluster.node_check import checked_request
from isaaclab_arena.evaluation.cluster.remote_claims import RemoteClaims
from isaaclab_arena.evaluation.cluster.result_sender import ResultSender
from isaaclab_arena.evaluation.heartbeat.rank_status import RankState, RankStatus
from isaaclab_arena.evaluation.heartbeat.status_publisher import StatusPublisher
from isaaclab_arena.evaluation.job.rank_settings import RankSettings, rank_settings
from isaaclab_arena.evaluation.plan.planning import RunRequest
from isaaclab_arena.evaluation.process.interruption import Interruption
from isaaclab_arena.evaluation.rank_jobs import RankJobs
from isaaclab_arena.evaluation.scheduling.divided_jobs import divided_jobs
from isaaclab_arena.evaluation.scheduling.dynamic_queue import DynamicQueue
from isaaclab_arena.evaluation.scheduling.rank_work import RankWork, claims_directory
from isaaclab_arena.evaluation.startup.measured_latency import with_settled_latencies
from isaaclab_arena.evaluation.startup.settled_backends import with_settled_backends
from isaaclab_arena.garbage import join_freed_memory_at_once
from isaaclab_arena.logs import log_file, set_up_console_logging
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.run.attempts import Attempt, read_attempt

_LOG = logging.getLogger(__name__)
_OWN_DIRECTORY = "isaaclab_arena_rank"
_OWNER = re.compile(rf"{_OWN_DIRECTORY}[0-9]+_([0-9a-f]{{8}})_([0-9]+)_([0-9]+)_.*")


class Keeper(Protocol):
    """The keeper of the run, as a rank asks it; see `ClaimKeeper`."""

    def claim(self, question: ClaimQuestion) -> ClaimAnswer:
        """Give this rank a piece."""
        ...

    def begin(self, begun: BegunEpisodes) -> bool:
        """Take note of what this rank is about to play; return whether it was taken for dead."""
        ...

    def deliver(self, delivery: Delivery, content: bytes) -> DeliveryAnswer:
        """Commit what this rank has done."""
        ...


def run_rank(orders: RunOrders, life: Life, keeper: Keeper) -> RankEnd:
    """Run what this rank claims until nothing is left, and return how it ended.

    Raises:
        StorageError: If a file cannot be written, here or by the keeper.
    """
    set_up_console_logging(life.rank)
    host = socket.gethostname()
    try:
        request = checked_request(orders.needs)
        context = _context(orders, life, device=request.options.device)
        jobs = with_settled_backends(request.jobs, orders.attempt)
        request = replace(request, jobs=with_settled_latencies(jobs, orders.attempt))
    except ArenaError as error:
        return RankEnd(refused=str(error), host=host)
    limit_threads(request.options.torch_threads)
    join_freed_memory_at_once()
    if request.options.deterministic:
        calculate_deterministically()
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    with _directory(orders, life) as (directory, is_own):
        state = _ClusterRank(orders, life, keeper, directory, is_own=is_own).run(request, context)
    return RankEnd(state=state, host=host)


class _ClusterRank:
    """What a rank runs, writing into a directory, its own or the run's."""

    def __init__(self, orders: RunOrders, life: Life, keeper: Keeper, directory: Path, *, is_own: bool) -> None:
        self._orders = orders
        self._life = life
        self._directory = directory
        self._is_own = is_own
        self._interruption = Interruption()
        self._keeper = keeper
        self._sender = ResultSender(
            life, directory, keeper.deliver, stop=self._interruption.receive, sends_files=is_own
        )

    def run(self, request: RunRequest, context: DistributedContext) -> RankState:
        """Run what this rank claims, and return how that ended."""
        work, rank = self._work(request), self._life.rank
        rank_jobs = RankJobs(
            work,
            self._settings(request, context),
            stop_requested=self._must_stop,
            fail_fast=request.options.fail_fast,
            asks_questions=bool(request.questions),
            begins=self._sender.follow,
        )
        status = RankStatus.of_this_process(
            rank=rank, run_id=self._orders.attempt.run_id, episodes_total=work.num_episodes
        )
        log = log_file(self._directory / "logs" / f"rank{rank}.log", rank)
        with self._sender, log, StatusPublisher(self._directory, status) as publisher:
            return rank_jobs.run(publisher)

    def _work(self, request: RunRequest) -> RankWork:
        attempt = self._orders.attempt
        jobs = divided_jobs(request.jobs, attempt, request.questions)
        claims = RemoteClaims(
            jobs,
            self._life,
            self._keeper.claim,
            self._keeper.begin,
            self._sender,
            output_directory=self._directory,
            claims_directory=None if self._is_own else claims_directory(self._directory, attempt),
        )
        queue = DynamicQueue(
            claims,
            self._directory,
            attempt,
            stop_requested=self._must_stop,
            is_over=lambda job: job in self._sender.jobs_over,
            begins=claims.begin,
            pause=lambda _: claims.rest(self._must_stop),
        )
        total = sum(sum(divided.num_episodes) for divided in jobs)
        return RankWork(
            queue=queue,
            num_jobs=0,
            num_episodes=len(range(self._life.rank, total, attempt.world_size)),
            others_may_finish_jobs=True,
        )

    def _settings(self, request: RunRequest, context: DistributedContext) -> RankSettings:
        settings = rank_settings(
            request.options,
            context,
            output_directory=self._directory,
            attempt=self._orders.attempt,
            config_hash=self._orders.config_hash,
            questions=request.questions,
        )
        num_threads = request.options.num_threads or max(1, int(self._orders.needs.cpus))
        return replace(settings, num_threads=num_threads, consolidates=not self._is_own)

    def _must_stop(self) -> bool:
        return self._sender.is_gone or self._interruption.stop_requested()


def _context(orders: RunOrders, life: Life, *, device: str | None) -> DistributedContext:
    """Return who this process is, and its device: the GPU that the cluster has given to it, or the CPU.

    Raises:
        ConfigError: If the cluster has given it a GPU that CUDA does not find.
    """
    alone = DistributedContext.from_environment({}, device="cpu" if orders.needs.gpus == 0 else device)
    if orders.needs.gpus and device is None and alone.device.type != "cuda":
        message = "the cluster has given this rank a GPU, but CUDA finds none; check the driver, or say --device cpu"
        raise ConfigError(Problem(message, key="--gpus_per_rank"))
    return replace(alone, rank=life.rank, world_size=orders.num_ranks, local_world_size=1)


@contextmanager
def _directory(orders: RunOrders, life: Life) -> Iterator[tuple[Path, bool]]:
    """Give the directory that this rank writes in, and whether that is its own, which is removed at the end."""
    home = Path(orders.output_directory)
    if orders.node_directory is None and _is_seen(home, orders.attempt):
        yield home, False
        return
    root = Path(orders.node_directory or tempfile.gettempdir())
    with storage_errors("make a directory in", root):
        root.mkdir(parents=True, exist_ok=True)
        remove_directories_of_the_dead(root)
        own = make_own_directory(root, life.rank)
    try:
        yield own, True
    finally:
        shutil.rmtree(own, ignore_errors=True)


def make_own_directory(root: Path, rank: int) -> Path:
    """Make a directory for the files of a rank whose name says which process it belongs to."""
    pid = os.getpid()
    name = f"{_OWN_DIRECTORY}{rank}_{_this_machine()}_{pid}_{process_start_ticks(pid) or 0}_"
    return Path(tempfile.mkdtemp(prefix=name, dir=root))


def remove_directories_of_the_dead(root: Path) -> None:
    """Remove what `make_own_directory` made here for processes of this machine and user that have died since."""
    for path in root.glob(f"{_OWN_DIRECTORY}*"):
        owner = _OWNER.fullmatch(path.name)
        if owner is None or owner[1] != _this_machine() or path.is_symlink():
            continue
        with suppress(OSError):
            is_mine = path.stat().st_uid == os.getuid()
            if is_mine and not process_is_running(int(owner[2]), int(owner[3]) or None):
                shutil.rmtree(path, ignore_errors=True)


def _this_machine() -> str:
    return f"{zlib.crc32(machine_identity().encode()):08x}"


def _is_seen(home: Path, attempt: Attempt) -> bool:
    """Whether this node sees the run's directory, and not another one of that name."""
    try:
        return read_attempt(home, attempt.number).run_id == attempt.run_id
    except (ArenaError, OSError):
        return False
