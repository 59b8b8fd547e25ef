"""The collectives of training, and the exchange of small tensors between the ranks of one machine."""

import json
import logging
import select
import socket
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
import torch.distributed as dist

from isaaclab_arena.distributed.context import machine_identity
from isaaclab_arena.distributed.ranks import DistributedError, Ranks
from isaaclab_arena.errors import first_line

# Exchange tensors between the ranks of one machine over Unix sockets; gloo takes many times as long for small ones.

_LOG = logging.getLogger(__name__)
_MOST_RANKS = 8
"""Every rank sends to every other one, which would be too much for many ranks."""
_HEAD = struct.Struct("=QQ")
"""Before each message: how many there were, and its size in bytes. Two ranks that call different things differ here."""


@dataclass(eq=False)
class _Connection:
    """A connection to one rank, with the rest of the message under way."""

    rank: int
    socket: socket.socket
    left_to_send: memoryview
    left_to_receive: memoryview


class Neighbours:
    """This rank's connections to all others, which are processes of the same machine."""

    def __init__(self, rank: int, sockets: Mapping[int, socket.socket], *, timeout_s: float) -> None:
        self._rank = rank
        self._timeout_s = timeout_s  # limit of the wait for the others in one exchange [s]
        nothing = memoryview(b"")
        self._connections = [_Connection(other, sockets[other], nothing, nothing) for other in sorted(sockets)]
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
        for connection in self._connections:
            connection.left_to_send = messages[self._rank]
            connection.left_to_receive = messages[connection.rank]
        self._exchange()
        # A different head shows that the ranks are in different exchanges.
        for connection in self._connections:
            if messages[connection.rank][: _HEAD.size] != head:
                raise self._failure([connection], "it takes part in another exchange than this rank does")
        return gathered

    def close(self) -> None:
        """Close all connections; the others can still receive earlier messages."""
        for connection in self._connections:
            connection.socket.close()

    def _exchange(self) -> None:
        """Send and receive until all messages are through; no rank waits to send before it receives."""
        while True:
            waiting = select.poll()
            awaited = []
            for connection in self._connections:
                # Send and receive as much as possible without waiting.
                try:
                    with suppress(BlockingIOError):
                        while connection.left_to_send:
                            sent = connection.socket.send(connection.left_to_send)
                            connection.left_to_send = connection.left_to_send[sent:]
                    with suppress(BlockingIOError):
                        while connection.left_to_receive:
                            received = connection.socket.recv_into(connection.left_to_receive)
                            if not received:
                                raise ConnectionResetError("closed by the other rank")
                            connection.left_to_receive = connection.left_to_receive[received:]
                except OSError as error:
                    raise self._failure([connection], f"its connection is lost ({first_line(error)})") from error
                events = select.POLLOUT if connection.left_to_send else 0
                events |= select.POLLIN if connection.left_to_receive else 0
                if events:
                    waiting.register(connection.socket, events)
                    awaited.append(connection)
            if not awaited:
                return
            if not waiting.poll(self._timeout_s * 1000.0):
                raise self._failure(awaited, f"nothing came for {self._timeout_s:g} s")

    def _failure(self, connections: Sequence[_Connection], reason: str) -> DistributedError:
        lost = " and ".join(f"rank {connection.rank}" for connection in connections)
        world_size = len(self._connections) + 1
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
    if not dist.is_initialized():
        return number
    if _CONNECTED:
        return max(int(each) for each in _CONNECTED[-1].gather(torch.tensor(number)))
    highest = torch.tensor(number, device=_device())
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return int(highest)


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of the ranks' tensors, with the same bits on all ranks. Shape: that of ``values``."""
    if not dist.is_initialized():
        return values.clone()
    if _CONNECTED:
        return _sum_by_rank(_CONNECTED[-1].gather(values.cpu())).to(values.device, copy=True)
    total = values.to(_device(), copy=True)
    dist.all_reduce(total)
    return total.to(values.device)


def average_over_ranks_(values: torch.Tensor) -> None:
    """Replace a floating-point tensor by the mean of the ranks' tensors, with the same bits on all ranks."""
    if not dist.is_initialized():
        return
    if _CONNECTED:
        values.copy_(_sum_by_rank(_CONNECTED[-1].gather(values)))
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


def _sum_by_rank(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum in rank order, the same order on all ranks. Overwrites the first tensor."""
    total = tensors[0]
    for each in tensors[1:]:
        total += each
    return total


def _device() -> torch.device:
    """Return the device for tensors of a collective; NCCL works with tensors on GPUs only."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
