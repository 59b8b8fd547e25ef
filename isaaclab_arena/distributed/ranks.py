"""The ranks together: their process group, the exchange at start-up, the trial of NCCL, the collectives of training."""

import itertools
import json
import logging
import select
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import reduce
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist

# torch.distributed has these names too, but only at run time, where a type checker does not see them.
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from isaaclab_arena.distributed.context import DistributedContext, machine_identity
from isaaclab_arena.distributed.devices import gpu_address
from isaaclab_arena.errors import ArenaError, ConfigError, first_line

# Exchange values between ranks at start-up, over torch's key-value store.
#
# No rank waits for another one once the jobs run, because their work is very unequal.

_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.05
_BEAT_INTERVAL_S = 1.0
_LINGER_S = 0.3
_PATIENCE_S = 5.0
"""How long a rank waits before it logs that it is waiting [s]."""
_PIECE_LENGTH = 500_000
_MAX_TOLD = 8


class DistributedError(ArenaError):
    """The ranks could not find each other, because a process is missing or the network fails."""


class ClaimsLostError(DistributedError):
    """The store of all ranks' claims is gone, so that no rank knows which work is left."""


class PeerStoppedError(DistributedError):
    """Another rank gave up during start-up, and has reported the reason."""


@dataclass(kw_only=True)
class Ranks:
    """All ranks of this run, seen from one of them during start-up. ValueError if a message name is used twice."""

    context: DistributedContext = field(kw_only=False)
    backend: str | None  # None for a single process
    store: Store
    timeout_s: float  # limit of the wait for another rank's message [s]
    prefix: str = ""  # of the message names
    said: set[str] = field(default_factory=set)

    def within(self, name: str) -> "Ranks":
        """Return the same ranks with fresh message names, for an activity `name` that all ranks begin together."""
        self._use_once(f"within/{name}")
        return replace(self, prefix=f"{self.prefix}{name}/", said=set())

    def share_from_rank_zero(self, name: str, value: str) -> str:
        """Return rank 0's value on every rank; PeerStoppedError or DistributedError if it does not arrive."""
        # A message has a limited length, so the value goes in pieces. After a piece of full length there is another.
        key, pieces = f"shared/{name}", list[str]()
        if self.context.is_rank_zero:
            for number, start in enumerate(range(0, len(value) + 1, _PIECE_LENGTH)):
                self._say(key + "/more" * number, value[start : start + _PIECE_LENGTH])
            return value
        while not pieces or len(pieces[-1]) == _PIECE_LENGTH:
            pieces.append(self._hear(key + "/more" * len(pieces), rank=0, name=name))
        return "".join(pieces)

    def agree_on(
        self, name: str, values: Mapping[str, str], *, way_out: str = "start all of them with the same input"
    ) -> None:
        """Check that all ranks hold the same values, with one message; ConfigError names the first difference."""
        held = [json.loads(text) for text in self.gather(name, json.dumps(dict(values)))]
        # A name that one rank lacks counts as the value "none". The message ends with ``way_out``, the remedy.
        for each in dict.fromkeys(key for own in held for key in own):
            ranks_of: dict[str, list[str]] = {}
            for rank, own in enumerate(held):
                ranks_of.setdefault(own.get(each, "none"), []).append(str(rank))
            if len(ranks_of) > 1:
                listed = ", ".join(
                    f"rank{'s' if len(ranks) > 1 else ''} {' '.join(ranks[:_MAX_TOLD])}"
                    f"{' and more' if len(ranks) > _MAX_TOLD else ''}: {value}"
                    for value, ranks in ranks_of.items()
                )
                raise ConfigError(f"the ranks do not agree on {each} ({listed}); {way_out}")

    def gather(self, name: str, value: str) -> list[str]:
        """Return every rank's value, in rank order; errors as in `share_from_rank_zero`."""
        self._say(f"gathered/{name}/{self.context.rank}", value)
        return [self._hear(f"gathered/{name}/{rank}", rank=rank, name=name) for rank in range(self.context.world_size)]

    @contextmanager
    def keep_waiting(self) -> Iterator[None]:
        """On rank 0, keep the others from timing out during the ``with`` block."""
        if not (self.context.is_rank_zero and self.context.is_distributed):
            yield
            return
        done = threading.Event()

        def beat() -> None:
            for number in itertools.count(1):
                if done.wait(min(_BEAT_INTERVAL_S, self.timeout_s / 4)):
                    return
                try:
                    self.store.set("patience", str(number))
                except RuntimeError:
                    _LOG.debug("the other ranks cannot be told to wait, the store is gone", exc_info=True)
                    return

        beating = threading.Thread(target=beat, name="keep-waiting", daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()

    def give_up(self, reason: str) -> None:
        """Tell ranks that still wait in start-up that this one will not take part."""
        if not self.context.is_distributed:
            return
        try:
            self.store.set("stopped", f"rank {self.context.rank}: {reason}")
        except RuntimeError:
            _LOG.debug("the other ranks cannot be told, the store is gone", exc_info=True)
        else:
            # Without torchrun, rank 0 holds the store. Leave the others time to read the message before it is gone.
            time.sleep(0.0 if self.context.launched_by_torchrun else _LINGER_S)

    def _use_once(self, key: str) -> None:
        """Refuse a key that this rank has used: a slower rank would take the second value for the first."""
        if key in self.said:
            raise ValueError(f"the ranks have said '{self.prefix}{key}' before; give each message a name of its own")
        self.said.add(key)

    def _say(self, key: str, value: str) -> None:
        self._use_once(key)
        with network_failures(self.context, self.timeout_s):
            self.store.set(f"{self.prefix}{key}", value)

    def _hear(self, key: str, *, rank: int, name: str) -> str:
        key = f"{self.prefix}{key}"
        started = time.monotonic()
        deadline, heard, has_warned = started + self.timeout_s, b"", False
        with network_failures(self.context, self.timeout_s):
            while not self.store.check([key]):
                # While it waits: stop if a rank gave up, extend the deadline with each beat of rank 0, and tell the
                # user once.
                if self.store.check(["stopped"]):
                    raise PeerStoppedError(f"ended because of {self.store.get('stopped').decode()}")
                beat = self.store.get("patience") if self.store.check(["patience"]) else b""
                if beat != heard:
                    deadline, heard = time.monotonic() + self.timeout_s, beat
                if not has_warned and time.monotonic() - started > min(_PATIENCE_S, self.timeout_s / 2):
                    has_warned = True
                    left = timedelta(seconds=deadline - time.monotonic())
                    _LOG.warning(
                        "rank %d of %d waits for rank %d to send its %s, until %s, or longer if that rank asks for it",
                        self.context.rank,
                        self.context.world_size,
                        rank,
                        name,
                        (datetime.now().astimezone() + left).strftime("%H:%M:%S"),
                    )
                if time.monotonic() > deadline:
                    raise DistributedError(
                        f"rank {rank} sent no {name} within {self.timeout_s:g} s; check that all "
                        f"{self.context.world_size} processes were started and still run"
                    )
                time.sleep(_POLL_INTERVAL_S)
            return self.store.get(key).decode()


@contextmanager
def network_failures(context: DistributedContext, timeout_s: float) -> Iterator[None]:
    """Turn torch's network errors inside the ``with`` block into a `DistributedError` with a remedy."""
    try:
        yield
    except RuntimeError as error:
        reason = first_line(error).rstrip(".")
        where = f"rank {context.rank} of {context.world_size} at {context.master_address}"
        if "EADDRINUSE" in str(error):
            raise DistributedError(
                f"{where}: the port is taken; choose another with torchrun's --master-port, or MASTER_PORT"
            ) from error
        raise DistributedError(
            f"{where} could not reach the other ranks within {timeout_s:g} s: {reason}; check that "
            f"{context.world_size} processes were started and that this address can be reached from their machines"
        ) from error


# Try NCCL on all ranks at once, so that all agree on whether it works.
# NCCL may fail on one rank while another waits for ever or notices nothing. So each rank tries it in a thread and
# writes the outcome into the store. NCCL is used only if all ranks report success.

_TRIAL_LOOK_INTERVAL_S = 0.1
_TRIAL_PATIENCE_S = 3.0
"""How long a rank goes on after another one has failed [s], because its own failure may say more."""

_FAILED = "NCCL fails"
_CPP_TRACE = "Exception raised from"


def try_together(ranks: Ranks, speak: Callable[[], None], *, limit_s: float) -> str | None:
    """Use NCCL once on all ranks; return None if it worked everywhere, else the failure, the same on all ranks."""
    # ``speak`` opens the process group and uses it. It may raise or never return; the thread is then abandoned.
    errors: list[str] = []
    failed = f"{ranks.prefix}announced/{_FAILED}"

    def try_it() -> None:
        try:
            speak()
        except (RuntimeError, ValueError, OSError) as error:
            # NCCL's own last line of torch's message.
            text = str(error).partition(_CPP_TRACE)[0]
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            errors.append(lines[-1] if lines else type(error).__name__)

    trial = threading.Thread(target=try_it, name="nccl-trial", daemon=True)
    trial.start()
    deadline, has_heard = time.monotonic() + limit_s, False
    is_own, failure = True, None
    while trial.is_alive():
        if time.monotonic() >= deadline:
            is_own = not has_heard
            failure = "waits for a rank that failed" if has_heard else f"no answer within {limit_s:g} s"
            break
        # After another rank's failure, wait a little: this rank's own failure may say more.
        with network_failures(ranks.context, ranks.timeout_s):
            if not has_heard and ranks.store.check([failed]):
                has_heard, deadline = True, min(deadline, time.monotonic() + _TRIAL_PATIENCE_S)
        trial.join(_TRIAL_LOOK_INTERVAL_S)
    else:
        failure = next(iter(errors), None)

    # All ranks hear of all outcomes, so that all reach the same conclusion.
    if failure is not None:
        with network_failures(ranks.context, ranks.timeout_s):
            ranks.store.set(failed, "")
    said = [json.loads(text) for text in ranks.gather("NCCL", json.dumps([is_own, failure]))]
    failures = [(rank, own, words) for rank, (own, words) in enumerate(said) if words is not None]
    if not failures:
        return None
    # NCCL's own message says more than a rank's time-out.
    rank, _, words = min(failures, key=lambda each: (not each[1], each[0]))
    return f"rank {rank}: {words}"


# Open and leave the process group, through which ranks find each other, on the right backend.
#
# It serves the exchange at start-up, and training. The ranks of an evaluation have very unequal work and never wait
# in a collective. So an evaluation works without NCCL if that fails.

_LOOK_INTERVAL_S = 1.0
_LEAVE_TIMEOUT_S = 10.0
_NCCL_TIMEOUT_S = 60.0
_WITH_NCCL = "cpu:gloo,cuda:nccl"
_NO_GPU = "no GPU"
_NO_NCCL = "no NCCL"
_LEFT_GROUPS: list[dist.ProcessGroup | None] = []
"""Groups that were left, kept until the process ends. Deleting the last reference, which a trained model may hold,
waits for gloo's threads while holding Python's lock, and such a thread may wait for that lock (torch 2.13)."""

_joined = itertools.count()
"""How often this process has joined the others. Messages of an earlier time may still be in the store."""

ProcessGroupChoice: TypeAlias = Literal["auto", "nccl", "gloo"]
"""Values of ``--process_group``: NCCL if it works, NCCL or an error, or gloo only."""


_NCCL_WAY_OUT = "a container's small /dev/shm is the usual cause (docker run --shm-size=1g, or --ipc=host)"


@contextmanager
def initialise(
    context: DistributedContext, *, timeout_s: float = 120.0, process_group: ProcessGroupChoice = "auto"
) -> Iterator[Ranks]:
    """Select the rank's GPU and, with several ranks, join the process group for a ``with`` block; yield the ranks."""
    # Select the GPU before anything touches one. The group speaks NCCL and gloo if every rank has its own GPU and NCCL
    # works on all of them, otherwise gloo alone.
    # DistributedError: the ranks do not find each other in time, or NCCL was requested and fails. ConfigError: an
    # existing group does not match ``context``, ranks request different backends, or NCCL is impossible here.
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    joined_here = context.is_distributed and not dist.is_initialized()
    ranks = _join(context, timeout_s, process_group)
    gpu = ""
    if context.device.type == "cuda":
        gpu = f" ({torch.cuda.get_device_name(context.device)} at PCI {gpu_address(context.device)})"
    rank, world_size = context.rank, context.world_size
    _LOG.info("rank %d of %d runs on %s%s: %s", rank, world_size, context.device, gpu, context.device_reason)
    try:
        yield ranks
    except Exception as error:
        ranks.give_up(first_line(error))
        raise
    # A group that existed before is left to its owner. NCCL may wait here for peers that are hours from done, or dead.
    # The group is not needed any more.
    if joined_here:
        _LEFT_GROUPS.append(dist.group.WORLD)
        leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
        leaving.start()
        leaving.join(_LEAVE_TIMEOUT_S)
        if leaving.is_alive():
            _LOG.warning("left the process group without waiting for the other ranks")


def ranks_of_one(context: DistributedContext) -> Ranks:
    """Return the ranks of a process that is alone or acts alone: rank 0 of 1."""
    return Ranks(context, backend=None, store=HashStore(), timeout_s=0.0)


def choose_backend(gpus: Sequence[str]) -> tuple[str, str]:
    """Return the process group's backend and the reason, from each rank's `gpu_name`."""
    if _NO_GPU in gpus:
        return "gloo", "not every rank has a GPU"
    if _NO_NCCL in gpus:
        return "gloo", "this build of torch has no NCCL"
    if len(set(gpus)) < len(gpus):
        ranks_on = sorted(Counter(gpus).values())
        each = str(ranks_on[-1]) if ranks_on[0] == ranks_on[-1] else f"{ranks_on[0]} to {ranks_on[-1]}"
        shared = f"{len(gpus)} ranks on {len(ranks_on)} GPUs, {each} on each"
        if len(ranks_on) == 1:
            shared = f"all {len(gpus)} are on the only one that they see"
        return "gloo", f"ranks share a GPU ({shared})"
    return _WITH_NCCL, "every rank has a GPU of its own"


def gpu_name(device: torch.device) -> str:
    """Return the unique name of a rank's GPU for `choose_backend`, or the reason why it has none."""
    if device.type != "cuda":
        return _NO_GPU
    return str(torch.cuda.get_device_properties(device).uuid) if dist.is_nccl_available() else _NO_NCCL


def _join(context: DistributedContext, timeout_s: float, wanted: ProcessGroupChoice) -> Ranks:
    time_joined = f"isaaclab_arena/time_{next(_joined)}"
    if dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
        if (rank, world_size) != (context.rank, context.world_size):
            raise ConfigError(
                f"a process group exists already, with rank {rank} of {world_size}, but the environment variables say "
                f"rank {context.rank} of {context.world_size}"
            )
        # torch has no public access to the store of an existing group.
        store = PrefixStore(time_joined, dist.distributed_c10d._get_default_store())
        return Ranks(context, backend=dist.get_backend(), store=store, timeout_s=timeout_s)
    if not context.is_distributed:
        return ranks_of_one(context)

    # A cluster may publish names only once its machines have started. torch would try to resolve them for ever.
    host = (context.master_address or "").rpartition(":")[0]
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.getaddrinfo(host, None)
            break
        except (OSError, UnicodeError) as error:
            if time.monotonic() + _LOOK_INTERVAL_S > deadline:
                raise DistributedError(
                    f"rank {context.rank} of {context.world_size} cannot find the host '{host}' ({error}); "
                    "correct MASTER_ADDR, or torchrun's --master-addr"
                ) from error
        time.sleep(_LOOK_INTERVAL_S)

    timeout = timedelta(seconds=timeout_s)
    with network_failures(context, timeout_s):
        # The prefix keeps a restart by torchrun from reading the addresses of the previous attempt.
        begun = f"{time_joined}/attempt_{context.attempt}"
        store = PrefixStore(begun, _find_store(context, timeout, begun))
        ranks = Ranks(context, backend=None, store=store, timeout_s=timeout_s)
        try:
            ranks.backend, reason = _open(ranks, store, timeout, wanted)
        except ArenaError as error:
            # Rank 0 may hold the store, which the others still need to reach the same conclusion.
            ranks.give_up(first_line(error))
            raise
    _LOG.info("process group of %d ranks over %s: %s", context.world_size, ranks.backend, reason)
    return ranks


def _open(ranks: Ranks, store: Store, timeout: timedelta, wanted: ProcessGroupChoice) -> tuple[str, str]:
    """Open a group on a backend that all ranks support, and return the backend and its reason."""
    backend, reason = choose_backend(ranks.gather("GPU", gpu_name(ranks.context.device)))
    ranks.agree_on("--process_group", {"--process_group": wanted})
    if wanted == "nccl" and backend != _WITH_NCCL:
        raise ConfigError(f"nccl cannot be: {reason}", key="--process_group")
    if wanted == "gloo" and backend == _WITH_NCCL:
        backend, reason = "gloo", "asked for"
    if backend == "gloo":
        open_group("gloo", ranks.context, PrefixStore("process_group", store), timeout)
        return backend, reason

    # Open the group over NCCL on all ranks or on none. The limit is shorter than the group's own, after which torch
    # would end the process.
    failure = try_together(
        ranks,
        lambda: open_group(_WITH_NCCL, ranks.context, PrefixStore("process_group_nccl", store), timeout),
        limit_s=min(_NCCL_TIMEOUT_S, timeout.total_seconds() / 2),
    )
    if failure is None:
        return _WITH_NCCL, "every rank has a GPU of its own"

    # Leave a broken group without waiting for other ranks, which torch's public functions do not. They also name the
    # next group by a count, which must be equal on ranks that opened a group and on ranks that did not.
    if dist.is_initialized():
        dropping = threading.Thread(target=dist.distributed_c10d._abort_process_group, daemon=True)
        dropping.start()
        dropping.join(_LEAVE_TIMEOUT_S)
        if dist.is_initialized():
            raise DistributedError("NCCL hangs; use --process_group gloo")
    dist.distributed_c10d._world.group_count = 0

    if wanted == "nccl":
        raise DistributedError(f"NCCL fails on {failure}; {_NCCL_WAY_OUT}, or use --process_group gloo")
    if ranks.context.is_rank_zero:
        _LOG.warning(
            "NCCL fails on %s; the ranks use gloo instead, which is enough for evaluations; %s, or use "
            "--process_group gloo",
            failure,
            _NCCL_WAY_OUT,
        )
    open_group("gloo", ranks.context, PrefixStore("process_group", store), timeout)
    return "gloo", "NCCL fails"


def open_group(backend: str, context: DistributedContext, store: Store, timeout: timedelta) -> None:
    """Open the process group; over NCCL, send a first message. RuntimeError if it cannot be opened."""
    has_nccl = backend == _WITH_NCCL
    if has_nccl:
        # CUDA's current device belongs to a thread, and another thread may have selected the GPU.
        torch.cuda.set_device(context.device)
    dist.init_process_group(
        backend,
        store=store,
        rank=context.rank,
        world_size=context.world_size,
        timeout=timeout,
        device_id=context.device if has_nccl else None,
    )
    if has_nccl:
        # Only a first message allocates NCCL's memory, and shows whether NCCL works.
        word = torch.ones(1, device=context.device)
        dist.all_reduce(word)
        word.item()


def _find_store(context: DistributedContext, timeout: timedelta, begun: str) -> Store:
    """Return the store for messages between ranks, once it exists; DistributedError if an earlier run keeps it."""
    if context.launched_by_torchrun:
        return next(rendezvous("env://", context.rank, context.world_size, timeout=timeout))[0]
    host, _, port = (context.master_address or "").rpartition(":")
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            store = TCPStore(
                host,
                int(port),
                is_master=context.is_rank_zero,
                timeout=timeout,
                wait_for_workers=False,
                multi_tenant=True,
            )
            # The previous program's store on rank 0 may outlive this rank's part of it. A second registration of the
            # same rank shows that the store is the old one.
            if context.is_rank_zero or store.add(f"{begun}/has_rank_{context.rank}", 1) == 1:
                return store
        except dist.DistError:
            # The old store may end during the request.
            if context.is_rank_zero or time.monotonic() + _LOOK_INTERVAL_S > deadline:
                raise
        if time.monotonic() + _LOOK_INTERVAL_S > deadline:
            raise DistributedError(
                f"rank {context.rank} of {context.world_size} finds an earlier run of these ranks at "
                f"{context.master_address} that is still running; end it, or set another MASTER_PORT"
            )
        time.sleep(_LOOK_INTERVAL_S)


# Exchange tensors between the ranks of one machine over Unix sockets; gloo takes many times as long for small ones.

_MOST_RANKS = 8
"""Every rank sends to every other one, which would be too much for many ranks."""
_HEAD = struct.Struct("=QQ")
"""Before each message: how many there were, and its size in bytes. Two ranks that call different things differ here."""


class Neighbours:
    """This rank's connections to all others, which are processes of the same machine."""

    def __init__(self, rank: int, sockets: Mapping[int, socket.socket], *, timeout_s: float) -> None:
        self._rank = rank
        self._timeout_s = timeout_s  # limit of the wait for the others in one exchange [s]
        self._sockets = {other: sockets[other] for other in sorted(sockets)}
        for to_rank in sockets.values():
            to_rank.settimeout(0.0)
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(len(sockets) + 1)]
        self._num_exchanged = 0

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's CPU tensor, in rank order; DistributedError if a rank fails. Every rank calls it."""
        # Shapes and types must be the same on all ranks. The next call overwrites the returned tensors.
        size = values.numel() * values.element_size()
        self._num_exchanged += 1
        head = _HEAD.pack(self._num_exchanged, size)
        if len(self._buffers[0]) < _HEAD.size + size:
            self._buffers = [torch.empty(_HEAD.size + size, dtype=torch.uint8) for _ in self._buffers]
        messages = [buffer.numpy().data[: _HEAD.size + size] for buffer in self._buffers]
        gathered = [
            buffer[_HEAD.size : _HEAD.size + size].view(values.dtype).view(values.shape) for buffer in self._buffers
        ]
        messages[self._rank][: _HEAD.size] = head
        gathered[self._rank].copy_(values.detach())
        self._exchange(messages)
        # A different head shows that the ranks are in different exchanges.
        for other in self._sockets:
            if messages[other][: _HEAD.size] != head:
                raise self._failure([other], "it takes part in another exchange than this rank does")
        return gathered

    def close(self) -> None:
        """Close all connections; the others can still receive earlier messages."""
        for to_rank in self._sockets.values():
            to_rank.close()

    def _exchange(self, messages: Sequence[memoryview]) -> None:
        """Send this rank's message and receive the others'; no rank waits to send before it receives."""
        left_to_send = dict.fromkeys(self._sockets, messages[self._rank])
        left_to_receive = {other: messages[other] for other in self._sockets}
        while True:
            waiting = select.poll()
            awaited = []
            for other, to_rank in self._sockets.items():
                # Send and receive as much as possible without waiting.
                try:
                    with suppress(BlockingIOError):
                        while left_to_send[other]:
                            sent = to_rank.send(left_to_send[other])
                            left_to_send[other] = left_to_send[other][sent:]
                    with suppress(BlockingIOError):
                        while left_to_receive[other]:
                            received = to_rank.recv_into(left_to_receive[other])
                            if not received:
                                raise ConnectionResetError("closed by the other rank")
                            left_to_receive[other] = left_to_receive[other][received:]
                except OSError as error:
                    raise self._failure([other], f"its connection is lost ({first_line(error)})") from error
                events = select.POLLOUT if left_to_send[other] else 0
                events |= select.POLLIN if left_to_receive[other] else 0
                if events:
                    waiting.register(to_rank, events)
                    awaited.append(other)
            if not awaited:
                return
            if not waiting.poll(self._timeout_s * 1000.0):
                raise self._failure(awaited, f"nothing came for {self._timeout_s:g} s")

    def _failure(self, ranks: Sequence[int], reason: str) -> DistributedError:
        lost, world_size = " and ".join(f"rank {rank}" for rank in ranks), len(self._sockets) + 1
        return DistributedError(f"rank {self._rank} of {world_size} cannot go on without {lost}: {reason}; see its log")


def connect_neighbours(ranks: Ranks, *, timeout_s: float) -> Neighbours | None:
    """Connect the ranks, if few and on the CPU of one machine; None on all otherwise. All ranks call it."""
    # None sends the collectives through the process group. ``timeout_s`` also limits each exchange [s].
    context = ranks.context
    if not 1 < context.world_size <= _MOST_RANKS:
        return None
    with (
        tempfile.TemporaryDirectory(prefix="isaaclab_arena_rank_") as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        # Only processes of this user can connect, because the directory is private. Its path may be too long, at about
        # 100 bytes.
        path: str | None = f"{directory}/rank"
        try:
            listener.bind(path)
            listener.listen(_MOST_RANKS)
        except OSError as error:
            _LOG.debug("no Unix socket in %s: %s", path, error)
            path = None
        own = json.dumps([context.device.type, machine_identity(), path])
        devices, machines, paths = zip(*map(json.loads, ranks.gather("neighbour", own)), strict=True)
        if set(devices) != {"cpu"} or len(set(machines)) > 1 or None in paths:
            return None

        # Ranks of one machine may be in containers that see other directories.
        sockets = {rank: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for rank in range(context.rank)}
        is_connected = True
        for rank, to_rank in sockets.items():
            try:
                to_rank.connect(paths[rank])
            except OSError as error:
                _LOG.debug("cannot connect to %s: %s", paths[rank], error)
                is_connected = False
                break
        if "False" in ranks.gather("whether neighbours are connected", str(is_connected)):
            for to_rank in sockets.values():
                to_rank.close()
            return None

        # Each rank connects to the lower ones, and tells them its number first.
        for to_rank in sockets.values():
            to_rank.sendall(bytes([context.rank]))

        higher = {}
        try:
            listener.settimeout(timeout_s)
            for _ in range(context.world_size - context.rank - 1):
                to_rank = listener.accept()[0]
                to_rank.settimeout(timeout_s)
                higher[to_rank.recv(1)[0]] = to_rank
        except (OSError, IndexError) as error:
            raise DistributedError(f"a rank of this machine has gone while the ranks connected: {error}") from error
    return Neighbours(context.rank, {**sockets, **higher}, timeout_s=timeout_s)


_CONNECTED: list[Neighbours] = []
"""The connections that collectives use, the last ones of these; without any they use the process group."""

_OF_FAILED: list[Neighbours] = []
"""Connections of trainings that failed, open until the process ends. Before that the rank tells the launcher why it
failed, and the others, which fail at once when a connection closes, tell it only afterwards."""


@contextmanager
def between_neighbours(ranks: Ranks, *, timeout_s: float) -> Iterator[None]:
    """Use Unix sockets for the collectives of the ``with`` block, if `connect_neighbours` can; every rank calls it."""
    # The sum over three or more ranks may differ from gloo's in its last bits.
    neighbours = connect_neighbours(ranks, timeout_s=timeout_s)
    if neighbours is None:
        yield
        return
    _CONNECTED.append(neighbours)
    try:
        yield
    except BaseException:
        _OF_FAILED.append(neighbours)
        raise
    else:
        neighbours.close()
    finally:
        _CONNECTED.pop()


def highest_of_ranks(number: int) -> int:
    """Return the largest of the ranks' numbers, the same on all ranks; waits until all have called."""
    return max(int(each) for each in gather_from_ranks(torch.tensor(number)))


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of the ranks' tensors, with the same bits on all ranks. Shape: that of ``values``."""
    if not dist.is_initialized():
        return values.clone()
    if _CONNECTED:
        # In the order of ranks, the same on all of them. The sum overwrites the first tensor.
        total = reduce(torch.Tensor.add_, _CONNECTED[-1].gather(values.cpu()))
        return total.to(values.device, copy=True)
    total = values.to(_device(), copy=True)
    dist.all_reduce(total)
    return total.to(values.device)


def average_over_ranks_(values: torch.Tensor) -> None:
    """Replace a floating-point tensor by the mean of the ranks' tensors, with the same bits on all ranks."""
    if not dist.is_initialized():
        return
    # In place: a training calls this for every message of every mini-batch.
    if _CONNECTED:
        values.copy_(reduce(torch.Tensor.add_, _CONNECTED[-1].gather(values)))
    else:
        dist.all_reduce(values)
    values /= dist.get_world_size()


def gather_from_ranks(values: torch.Tensor) -> list[torch.Tensor]:
    """Return every rank's tensor on the CPU, in rank order; shapes and types must be the same on all ranks."""
    if not dist.is_initialized():
        return [values.cpu()]
    if _CONNECTED:
        return [each.clone() for each in _CONNECTED[-1].gather(values.cpu())]
    own = values.to(_device()).contiguous()
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    return [each.cpu() for each in gathered]


def gather_bytes_to_rank_zero(content: bytes) -> list[bytes]:
    """Return every rank's bytes on rank 0, in rank order, and an empty list on the others."""
    if not dist.is_initialized():
        return [content]
    # A collective needs one shape, so the bytes are padded to the longest.
    sizes = [int(size) for size in gather_from_ranks(torch.tensor(len(content)))]
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    own = padded.to(_device())
    is_zero = dist.get_rank() == 0
    gathered = [torch.empty_like(own) for _ in sizes] if is_zero else None
    dist.gather(own, gathered, dst=0)
    if gathered is None:
        return []
    return [each.cpu()[:size].numpy().tobytes() for each, size in zip(gathered, sizes, strict=True)]


def _device() -> torch.device:
    """Return the device for tensors of a collective; NCCL works with tensors on GPUs only."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
