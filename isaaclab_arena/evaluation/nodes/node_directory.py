"""Which folder each rank writes in: the one that rank 0 has made, or, where machines share no disk, one of its own."""

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
"""Names of the files by which ranks find out whether they share a folder; one stays if rank 0 dies meanwhile."""

_POLL_INTERVAL_S = 0.05
_SHARED_DISK_DELAY_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a rank writes.

    Attributes:
        host: Name of its machine, for people.
        machine: Identity of its machine; see `machine_identity`.
        folder: Absolute path of the folder.
        with_rank_zero: Whether it is the folder that rank 0 has made, by whatever name.
    """

    host: str
    machine: str
    folder: str
    with_rank_zero: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.folder}"

    def shares_with(self, other: "Place") -> bool:
        """Whether what is written at the other place appears at this one."""
        if self.with_rank_zero or other.with_rank_zero:
            return self.with_rank_zero == other.with_rank_zero
        return (self.machine, self.folder) == (other.machine, other.folder)


def find_places(ranks: Ranks, folders: Sequence[Path], *, delay_s: float = _SHARED_DISK_DELAY_S) -> tuple[Place, ...]:
    """Find out which ranks see the folder that rank 0 has made; all ranks come to the same answer.

    Args:
        ranks: All of them. Asked once in a run.
        folders: Where this rank looks for that folder; on rank 0 the folder itself. If it is at none of them, this
            rank writes in the last.
        delay_s: How long a disk may take to show another machine a new file [s].

    Returns:
        The place of each rank, by rank.

    Raises:
        PeerStoppedError: If another rank has given up.
        DistributedError: If a rank does not answer in time.
    """
    here = {"host": socket.gethostname(), "machine": machine_identity()}
    if not ranks.context.is_distributed:
        return (Place(**here, folder=str(folders[0]), with_rank_zero=True),)
    probe = folders[0] / PROBE_PATTERN.replace("*", str(os.getpid()))
    if ranks.context.is_rank_zero:
        probe.touch()
    said = ranks.share_from_rank_zero("probe of the folder", json.dumps([probe.name, here["machine"]]))
    name, machine_of_rank_zero = json.loads(said)
    # On one machine there is no delay, and ranks that were given folders of their own need not wait.
    patience_s = 0.0 if here["machine"] == machine_of_rank_zero else delay_s
    seen = folders[0] if ranks.context.is_rank_zero else _first_that_shows(name, folders, within_s=patience_s)
    place = Place(**here, folder=str(seen or folders[-1]), with_rank_zero=seen is not None)
    places = ranks.gather("place", json.dumps(asdict(place)))
    if ranks.context.is_rank_zero:
        probe.unlink(missing_ok=True)
    return tuple(Place(**json.loads(text)) for text in places)


def lowest_rank_at(places: Sequence[Place], rank: int) -> int:
    """Return the lowest of the ranks that write in the folder of a rank: the one that makes it."""
    return next(other for other, place in enumerate(places) if place.shares_with(places[rank]))


def _first_that_shows(name: str, folders: Sequence[Path], *, within_s: float) -> Path | None:
    # A network file system may show a new file to other machines only after seconds.
    deadline = time.monotonic() + within_s
    while True:
        seen = next((folder for folder in folders if (folder / name).exists()), None)
        if seen is not None or time.monotonic() >= deadline:
            return seen
        time.sleep(_POLL_INTERVAL_S)
