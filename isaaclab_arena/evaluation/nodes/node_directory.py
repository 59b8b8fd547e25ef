"""Choose the directory of each rank: rank 0's, or its own if the nodes share no disk."""

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from isaaclab_arena.distributed.process import machine_identity
from isaaclab_arena.distributed.ranks import Ranks

PROBE_PATTERN = ".seen_by_all.*.tmp"
"""Names of the files by which ranks find out whether they share a directory; one stays if rank 0 dies meanwhile."""

_POLL_INTERVAL_S = 0.05
_SHARED_DISK_DELAY_S = 10.0


@dataclass(frozen=True, kw_only=True)
class NodeDirectory:
    """The directory that a rank writes in, and the node it is on.

    Attributes:
        host: Name of the node, for people.
        machine: Identity of the node; see `machine_identity`.
        directory: Absolute path.
        with_rank_zero: Whether it is the directory that rank 0 has made, by whatever name.
    """

    host: str
    machine: str
    directory: str
    with_rank_zero: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.directory}"

    def shares_with(self, other: "NodeDirectory") -> bool:
        """Whether what is written in the other directory appears in this one."""
        if self.with_rank_zero or other.with_rank_zero:
            return self.with_rank_zero == other.with_rank_zero
        return (self.machine, self.directory) == (other.machine, other.directory)


def find_node_directories(
    ranks: Ranks, candidates: Sequence[Path], *, delay_s: float = _SHARED_DISK_DELAY_S
) -> tuple[NodeDirectory, ...]:
    """Find out which ranks see the directory that rank 0 has made; all ranks come to the same answer.

    Args:
        ranks: All of them. Asked once in a run.
        candidates: Where this rank looks for that directory; on rank 0 the directory itself. If it is none of them,
            this rank writes in the last.
        delay_s: How long a disk may take to show another node a new file [s].

    Returns:
        The directory of each rank, by rank.

    Raises:
        PeerStoppedError: If another rank has given up.
        DistributedError: If a rank does not answer in time.
    """
    here = {"host": socket.gethostname(), "machine": machine_identity()}
    if not ranks.context.is_distributed:
        return (NodeDirectory(**here, directory=str(candidates[0]), with_rank_zero=True),)
    probe = candidates[0] / PROBE_PATTERN.replace("*", str(os.getpid()))
    if ranks.context.is_rank_zero:
        probe.touch()
    said = ranks.share_from_rank_zero("probe of the directory", json.dumps([probe.name, here["machine"]]))
    name, node_of_rank_zero = json.loads(said)
    # On one node there is no delay, and ranks that were given directories of their own need not wait.
    patience_s = 0.0 if here["machine"] == node_of_rank_zero else delay_s
    seen = candidates[0] if ranks.context.is_rank_zero else _first_that_shows(name, candidates, within_s=patience_s)
    own = NodeDirectory(**here, directory=str(seen or candidates[-1]), with_rank_zero=seen is not None)
    gathered = ranks.gather("place of its files", json.dumps(asdict(own)))
    if ranks.context.is_rank_zero:
        probe.unlink(missing_ok=True)
    return tuple(NodeDirectory(**json.loads(text)) for text in gathered)


def lowest_rank_in(directories: Sequence[NodeDirectory], rank: int) -> int:
    """Return the lowest of the ranks that write in the directory of a rank: the one that makes it."""
    return next(other for other, each in enumerate(directories) if each.shares_with(directories[rank]))


def _first_that_shows(name: str, candidates: Sequence[Path], *, within_s: float) -> Path | None:
    # A network file system may show a new file to other nodes only after seconds.
    deadline = time.monotonic() + within_s
    while True:
        seen = next((path for path in candidates if (path / name).exists()), None)
        if seen is not None or time.monotonic() >= deadline:
            return seen
        time.sleep(_POLL_INTERVAL_S)
