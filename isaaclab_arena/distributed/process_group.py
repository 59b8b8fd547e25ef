"""Open and leave the process group, through which ranks find each other, on the right backend.

It serves the exchange at start-up, and training. The ranks of an evaluation have very unequal work and never wait in a
collective. So an evaluation works without NCCL if that fails.
"""

import itertools
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist

# torch.distributed has these names too, but only at run time, where a type checker does not see them.
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.devices.visible_gpus import gpu_address
from isaaclab_arena.distributed.nccl_trial import try_together
from isaaclab_arena.distributed.ranks import DistributedError, Ranks, network_failures
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, first_line

_LOG = logging.getLogger(__name__)
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
    """Select the rank's GPU and, with several ranks, join the process group for the length of a ``with`` block.

    The GPU is selected before anything touches one. The group speaks NCCL and gloo where every rank has a GPU of
    its own and NCCL works on all of them, gloo alone elsewhere. A group that exists already is used, and left as it is.

    Args:
        context: Who this process is, from its own environment variables.
        timeout_s: How long to wait for the other ranks [s].
        process_group: What the user asked for, the same on every rank.

    Yields:
        The ranks, for the exchange at start-up.

    Raises:
        DistributedError: If the ranks do not find each other in time, or NCCL was asked for and fails.
        ConfigError: If a process group exists already and does not match ``context``, if the ranks were asked for
            different backends, or for NCCL where it is impossible.
    """
    if context.device.type == "cuda":
        torch.cuda.set_device(context.device)
    joined_here = context.is_distributed and not dist.is_initialized()
    ranks = _join(context, timeout_s, process_group)
    _LOG.info("%s", _describe(ranks))
    try:
        yield ranks
    except Exception as error:
        ranks.give_up(first_line(error))
        raise
    if joined_here:
        _leave()


def ranks_of_one(context: DistributedContext) -> Ranks:
    """Return the ranks of a process that is alone, or that does something alone.

    Args:
        context: Rank 0 of 1.
    """
    return Ranks(context, backend=None, store=HashStore(), timeout_s=0.0)


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
        return "gloo", f"ranks share a GPU ({_describe_sharing(gpus)})"
    return _WITH_NCCL, "every rank has a GPU of its own"


def _describe_sharing(gpus: Sequence[str]) -> str:
    ranks_on = sorted(Counter(gpus).values())
    if len(ranks_on) == 1:
        return f"all {len(gpus)} are on the only one that they see"
    each = str(ranks_on[-1]) if ranks_on[0] == ranks_on[-1] else f"{ranks_on[0]} to {ranks_on[-1]}"
    return f"{len(gpus)} ranks on {len(ranks_on)} GPUs, {each} on each"


def gpu_name(device: torch.device) -> str:
    """Return the description of a rank's device for `choose_backend`: the GPU's unique name, or why there is none."""
    if device.type != "cuda":
        return _NO_GPU
    return str(torch.cuda.get_device_properties(device).uuid) if dist.is_nccl_available() else _NO_NCCL


def _join(context: DistributedContext, timeout_s: float, wanted: ProcessGroupChoice) -> Ranks:
    time_joined = f"isaaclab_arena/time_{next(_joined)}"
    if dist.is_initialized():
        return _ranks_of_existing_group(context, timeout_s, time_joined)
    if not context.is_distributed:
        return ranks_of_one(context)
    _await_host(context, timeout_s)
    timeout = timedelta(seconds=timeout_s)
    with network_failures(context, timeout_s):
        # The prefix keeps a restart by torchrun from reading the addresses of the attempt before.
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
    """Open a group on a backend that all ranks support, and return the backend and the reason for it."""
    backend, reason = choose_backend(ranks.gather("GPU", gpu_name(ranks.context.device)))
    ranks.agree("--process_group", wanted)
    if wanted == "nccl" and backend != _WITH_NCCL:
        raise ConfigError(Problem(f"nccl cannot be: {reason}", key="--process_group"))
    if wanted == "gloo" and backend == _WITH_NCCL:
        backend, reason = "gloo", "asked for"
    if backend == _WITH_NCCL:
        backend, reason = _with_nccl_if_it_works(ranks, store, timeout, wanted)
    if backend == "gloo":
        open_group("gloo", ranks.context, PrefixStore("process_group", store), timeout)
    return backend, reason


def open_group(backend: str, context: DistributedContext, store: Store, timeout: timedelta) -> None:
    """Open the process group and, over NCCL, send a first message; only this allocates NCCL's memory.

    Raises:
        RuntimeError: If the group cannot be opened.
    """
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
        word = torch.ones(1, device=context.device)
        dist.all_reduce(word)
        word.item()


def _with_nccl_if_it_works(
    ranks: Ranks, store: Store, timeout: timedelta, wanted: ProcessGroupChoice
) -> tuple[str, str]:
    """Open the group over NCCL on all ranks or on none; return the backend to use and the reason.

    Raises:
        DistributedError: If NCCL fails and nothing else was asked for.
    """
    # This must be shorter than the group's own limit, after which torch would end the process.
    limit_s = min(_NCCL_TIMEOUT_S, timeout.total_seconds() / 2)
    failure = try_together(
        ranks,
        lambda: open_group(_WITH_NCCL, ranks.context, PrefixStore("process_group_nccl", store), timeout),
        limit_s=limit_s,
    )
    if failure is None:
        return _WITH_NCCL, "every rank has a GPU of its own"
    _drop_group()
    if wanted == "nccl":
        raise DistributedError(f"NCCL fails on {failure}; {_NCCL_WAY_OUT}, or use --process_group gloo")
    if ranks.context.is_rank_zero:
        _LOG.warning(
            "NCCL fails on %s; the ranks go on with gloo, which evaluations need no more than; %s, or say "
            "--process_group gloo",
            failure,
            _NCCL_WAY_OUT,
        )
    return "gloo", "NCCL fails"


def _drop_group() -> None:
    """Leave a group that does not work, if there is one, without waiting for the other ranks.

    Raises:
        DistributedError: If NCCL does not return.
    """
    # torch's public functions leave a group only together with the other ranks. They also name the next group by a
    # count, which must be equal on ranks that opened a group and on ranks that did not.
    if dist.is_initialized():
        dropping = threading.Thread(target=dist.distributed_c10d._abort_process_group, daemon=True)
        dropping.start()
        dropping.join(_LEAVE_TIMEOUT_S)
        if dist.is_initialized():
            raise DistributedError("NCCL fails and does not let go; use --process_group gloo")
    dist.distributed_c10d._world.group_count = 0


def _find_store(context: DistributedContext, timeout: timedelta, begun: str) -> Store:
    """Return the store through which ranks exchange messages, as soon as it exists; missing ranks are named."""
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
            # The program before this one may end later on rank 0, which holds its store, than here.
            if context.is_rank_zero or store.add(f"{begun}/has_rank_{context.rank}", 1) == 1:
                return store
        except dist.DistError:
            # It may end while it is asked.
            if context.is_rank_zero or time.monotonic() + _LOOK_INTERVAL_S > deadline:
                raise
        if time.monotonic() + _LOOK_INTERVAL_S > deadline:
            raise DistributedError(
                f"rank {context.rank} of {context.world_size} finds an earlier run of these ranks at "
                f"{context.master_address}, which goes on; end it, or set another MASTER_PORT"
            )
        time.sleep(_LOOK_INTERVAL_S)


def _await_host(context: DistributedContext, timeout_s: float) -> None:
    """Wait until the name of rank 0's machine can be resolved; torch would try for ever.

    Raises:
        DistributedError: If it cannot be resolved in time. A cluster may publish names only once machines have started.
    """
    host = (context.master_address or "").rpartition(":")[0]
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError) as error:
            if time.monotonic() + _LOOK_INTERVAL_S > deadline:
                raise DistributedError(
                    f"rank {context.rank} of {context.world_size} cannot find the host '{host}' ({error}); "
                    "correct MASTER_ADDR, or torchrun's --master-addr"
                ) from error
        else:
            return
        time.sleep(_LOOK_INTERVAL_S)


def _ranks_of_existing_group(context: DistributedContext, timeout_s: float, prefix: str) -> Ranks:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if (rank, world_size) != (context.rank, context.world_size):
        raise ConfigError(
            f"a process group exists already, with rank {rank} of {world_size}, but the environment variables say "
            f"rank {context.rank} of {context.world_size}"
        )
    # torch has no public access to the store of an existing group.
    store = dist.distributed_c10d._get_default_store()
    return Ranks(
        context,
        backend=dist.get_backend(),
        store=PrefixStore(prefix, store),
        timeout_s=timeout_s,
    )


def _leave() -> None:
    # NCCL may wait for its peers here, which may be hours from done, or dead. The group is not needed any more.
    _LEFT_GROUPS.append(dist.group.WORLD)
    leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
    leaving.start()
    leaving.join(_LEAVE_TIMEOUT_S)
    if leaving.is_alive():
        _LOG.warning("left the process group without waiting for the other ranks")


def _describe(ranks: Ranks) -> str:
    context = ranks.context
    gpu = ""
    if context.device.type == "cuda":
        gpu = f" ({torch.cuda.get_device_name(context.device)} at PCI {gpu_address(context.device)})"
    return f"rank {context.rank} of {context.world_size} runs on {context.device}{gpu}: {context.device_reason}"
