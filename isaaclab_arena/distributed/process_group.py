"""Ranks find each other: the process group, and the few words exchanged at start-up.

Nothing here is called once the jobs run. Ranks have very unequal work, and nobody waits in a collective for it.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# torch.distributed has these names too, but only at run time, where a type checker does not see them.
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ArenaError, ConfigError

_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.05
_BEAT_INTERVAL_S = 1.0
_LINGER_S = 0.3
_SHARED_DISK_DELAY_S = 10.0
_LEAVE_TIMEOUT_S = 10.0
_NO_GPU = "no GPU"
_NO_NCCL = "no NCCL"


class DistributedError(ArenaError):
    """The ranks could not find each other: a process is missing, or the network is in the way."""


class PeerStoppedError(DistributedError):
    """Another rank gave up during start-up; it has said why itself."""


class Ranks:
    """All ranks of this run, as one of them sees them during start-up.

    Args:
        context: Who this process is.
        backend: Backend of the process group, None for a single process.
        store: Where ranks leave words for each other.
        timeout_s: How long to wait for another rank's word [s].
    """

    def __init__(self, context: DistributedContext, *, backend: str | None, store: Store, timeout_s: float) -> None:
        self.context = context
        self.backend = backend
        self._store = store
        self._timeout_s = timeout_s

    def share_from_rank_zero(self, name: str, value: str) -> str:
        """Return rank 0's value, on every rank.

        Args:
            name: What it is, the same on every rank and used once.
            value: What rank 0 says; other ranks' is ignored.

        Raises:
            PeerStoppedError: If another rank has given up.
            DistributedError: If rank 0 does not say it in time.
        """
        if self.context.is_rank_zero:
            self._say(f"shared/{name}", value)
            return value
        return self._hear(f"shared/{name}", rank=0, name=name)

    def agree(self, name: str, value: str) -> None:
        """Check that every rank holds the same value; all ranks come to the same verdict.

        Args:
            name: What it is, the same on every rank and used once.
            value: What this rank holds, for example the hash of the job file it read.

        Raises:
            ConfigError: If they differ; the message says which rank holds what.
            PeerStoppedError: If another rank has given up.
            DistributedError: If a rank does not answer in time.
        """
        values = self.gather(name, value)
        if len(set(values)) > 1:
            held = ", ".join(f"rank {rank}: {text}" for rank, text in enumerate(values))
            raise ConfigError(f"the ranks do not agree on {name} ({held}); start all of them with the same input")

    def gather(self, name: str, value: str) -> list[str]:
        """Return every rank's value, by rank; see `agree` for arguments and errors."""
        self._say(f"gathered/{name}/{self.context.rank}", value)
        return [self._hear(f"gathered/{name}/{rank}", rank=rank, name=name) for rank in range(self.context.world_size)]

    def check_shared(self, directory: Path) -> None:
        """Check that every rank sees the directory that rank 0 sees; all ranks come to the same verdict.

        Args:
            directory: An existing directory, named alike on all machines. Asked once in a run.

        Raises:
            ConfigError: If it is another one on some machine; the message names the ranks.
            PeerStoppedError: If another rank has given up.
            DistributedError: If a rank does not answer in time.
        """
        if not self.context.is_distributed:
            return
        probe = directory / f".seen_by_all.{os.getpid()}.tmp"
        if self.context.is_rank_zero:
            probe.touch()
        name = self.share_from_rank_zero("probe of the shared disk", probe.name)
        seen = _appears(directory / name, within_s=min(_SHARED_DISK_DELAY_S, self._timeout_s / 2))
        verdicts = self.gather("view of the shared disk", str(seen))
        if self.context.is_rank_zero:
            probe.unlink(missing_ok=True)
        blind = [str(rank) for rank, verdict in enumerate(verdicts) if verdict != str(True)]
        if blind:
            raise ConfigError(
                f"{directory} is not the same directory on every machine: what rank 0 writes does not appear for rank "
                f"{', '.join(blind)}; choose one on a disk that all machines share"
            )

    @contextmanager
    def keep_waiting(self) -> Iterator[None]:
        """On rank 0, let the others wait as long as the ``with`` block takes, and not lose patience."""
        if not (self.context.is_rank_zero and self.context.is_distributed):
            yield
            return
        done = threading.Event()
        beating = threading.Thread(target=self._beat_until, args=(done,), name="keep-waiting", daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()

    def _beat_until(self, done: threading.Event) -> None:
        beat = 0
        while not done.wait(min(_BEAT_INTERVAL_S, self._timeout_s / 4)):
            beat += 1
            try:
                self._store.set("patience", str(beat))
            except RuntimeError:
                _LOG.debug("the other ranks cannot be told to wait, the store is gone", exc_info=True)
                return

    def give_up(self, reason: str) -> None:
        """Tell ranks that still wait in start-up that this one will not take part."""
        if not self.context.is_distributed:
            return
        try:
            self._store.set("stopped", f"rank {self.context.rank}: {reason}")
        except RuntimeError:
            _LOG.debug("the other ranks cannot be told, the store is gone", exc_info=True)
        else:
            # Without torchrun, rank 0 holds the store, and the others must have read it before it is gone.
            time.sleep(0.0 if self.context.launched_by_torchrun else _LINGER_S)

    def _say(self, key: str, value: str) -> None:
        with _network_failures(self.context, self._timeout_s):
            self._store.set(key, value)

    def _hear(self, key: str, *, rank: int, name: str) -> str:
        deadline, heard = time.monotonic() + self._timeout_s, b""
        with _network_failures(self.context, self._timeout_s):
            while not self._store.check([key]):
                if self._store.check(["stopped"]):
                    raise PeerStoppedError(f"stopped because of {self._store.get('stopped').decode()}")
                beat = self._store.get("patience") if self._store.check(["patience"]) else b""
                if beat != heard:
                    deadline, heard = time.monotonic() + self._timeout_s, beat
                if time.monotonic() > deadline:
                    raise DistributedError(f"rank {rank} did not say its {name} within {self._timeout_s:g} s")
                time.sleep(_POLL_INTERVAL_S)
            return self._store.get(key).decode()


@contextmanager
def initialise(context: DistributedContext, *, timeout_s: float = 120.0) -> Iterator[Ranks]:
    """Select the rank's GPU and, with several ranks, join the process group for the length of a ``with`` block.

    The GPU is selected before anything touches one. The group speaks NCCL and gloo where every rank has a GPU of
    its own, gloo alone elsewhere. A group that exists already is used, and left as it is.

    Args:
        context: Who this process is, from its own environment variables.
        timeout_s: How long to wait for the other ranks [s].

    Yields:
        The ranks, for words at start-up.

    Raises:
        DistributedError: If the ranks do not find each other in time.
        ConfigError: If a process group exists already and does not match ``context``.
    """
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    joined_here = context.is_distributed and not dist.is_initialized()
    ranks = _join(context, timeout_s)
    _LOG.info("%s", _describe(ranks))
    try:
        yield ranks
    except Exception as error:
        ranks.give_up(str(error).partition("\n")[0])
        raise
    if joined_here:
        _leave()


def choose_backend(gpus: Sequence[str]) -> tuple[str, str]:
    """Return the backend for the process group, and why.

    Args:
        gpus: For each rank the unique name of its GPU, ``no GPU``, or ``no NCCL`` for a GPU that NCCL cannot serve.
    """
    if _NO_GPU in gpus:
        return "gloo", "not every rank has a GPU"
    if _NO_NCCL in gpus:
        return "gloo", "this build of torch has no NCCL"
    if len(set(gpus)) < len(gpus):
        return "gloo", "ranks share a GPU"
    return "cpu:gloo,cuda:nccl", "every rank has a GPU of its own"


def _join(context: DistributedContext, timeout_s: float) -> Ranks:
    if dist.is_initialized():
        return _ranks_of_existing_group(context, timeout_s)
    if not context.is_distributed:
        return Ranks(context, backend=None, store=HashStore(), timeout_s=timeout_s)
    _await_host(context, timeout_s)
    timeout = timedelta(seconds=timeout_s)
    with _network_failures(context, timeout_s):
        # The prefix keeps a restart by torchrun from reading the addresses that the attempt before has left.
        found, _, _ = next(rendezvous("env://", context.rank, context.world_size, timeout=timeout))
        store = PrefixStore(f"isaaclab_arena/attempt_{context.attempt}", found)
        ranks = Ranks(context, backend=None, store=store, timeout_s=timeout_s)
        ranks.backend, reason = choose_backend(ranks.gather("GPU", _gpu_name(context.device)))
        dist.init_process_group(
            ranks.backend,
            store=PrefixStore("process_group", store),
            rank=context.rank,
            world_size=context.world_size,
            timeout=timeout,
            device_id=context.device if "nccl" in ranks.backend else None,
        )
    _LOG.info("process group of %d ranks over %s: %s", context.world_size, ranks.backend, reason)
    return ranks


def _await_host(context: DistributedContext, timeout_s: float) -> None:
    """Wait until the name of rank 0's machine is known; torch would look for it for ever.

    Raises:
        DistributedError: If it is not known in time. A cluster may make names known only once machines have started.
    """
    host = (context.master_address or "").rpartition(":")[0]
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            if time.monotonic() + _BEAT_INTERVAL_S > deadline:
                raise DistributedError(
                    f"rank {context.rank} of {context.world_size} cannot find the host '{host}' ({error}); "
                    "correct MASTER_ADDR, or torchrun's --master-addr"
                ) from error
        else:
            return
        time.sleep(_BEAT_INTERVAL_S)


def _ranks_of_existing_group(context: DistributedContext, timeout_s: float) -> Ranks:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if (rank, world_size) != (context.rank, context.world_size):
        raise ConfigError(
            f"a process group exists already, with rank {rank} of {world_size}, but the environment variables say "
            f"rank {context.rank} of {context.world_size}"
        )
    # torch has no public way to the store of a group that somebody else made.
    store = dist.distributed_c10d._get_default_store()
    return Ranks(
        context,
        backend=dist.get_backend(),
        store=PrefixStore("isaaclab_arena", store),
        timeout_s=timeout_s,
    )


def _leave() -> None:
    # NCCL may wait for its peers here, and they may be hours from done, or dead. Nobody needs the group any more.
    leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
    leaving.start()
    leaving.join(_LEAVE_TIMEOUT_S)
    if leaving.is_alive():
        _LOG.warning("left the process group without waiting for the other ranks")


def _appears(path: Path, *, within_s: float) -> bool:
    # A network file system may show a new file to other machines only after seconds.
    deadline = time.monotonic() + within_s
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_INTERVAL_S)
    return True


def _gpu_name(device: torch.device) -> str:
    if device.type != "cuda":
        return _NO_GPU
    return str(torch.cuda.get_device_properties(device).uuid) if dist.is_nccl_available() else _NO_NCCL


def _describe(ranks: Ranks) -> str:
    context = ranks.context
    return f"rank {context.rank} of {context.world_size} runs on {context.device}: {context.device_reason}"


@contextmanager
def _network_failures(context: DistributedContext, timeout_s: float) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        first_line = str(error).partition("\n")[0].rstrip(".")
        where = f"rank {context.rank} of {context.world_size} at {context.master_address}"
        if "EADDRINUSE" in str(error):
            raise DistributedError(
                f"{where}: the port is taken; choose another with torchrun's --master-port, or MASTER_PORT"
            ) from error
        raise DistributedError(
            f"{where} could not reach the other ranks within {timeout_s:g} s: {first_line}; check that "
            f"{context.world_size} processes were started and that this address can be reached from their machines"
        ) from error
