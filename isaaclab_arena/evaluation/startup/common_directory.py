"""Find out whether every rank sees the run's directory, which rank 0 has made, and refuse the run if one does not."""

import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from isaaclab_arena.distributed.process import machine_identity
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.startup.output_directory import PROBE_PATTERN, named_directory

_POLL_INTERVAL_S = 0.05
_SHARED_DISK_DELAY_S = 10.0
_MAX_RANKS_TOLD = 8


def common_directory(
    ranks: Ranks, options: RunOptions, made: Path | None, *, delay_s: float = _SHARED_DISK_DELAY_S
) -> Path:
    """Return the run's directory by the name under which this rank sees it; all ranks come to the same verdict.

    Args:
        ranks: All ranks of the run. Asked once in a run.
        options: The shared options; each rank looks at the ``--output_dir`` of its own command line.
        made: The directory, on rank 0, which has made it; None elsewhere.
        delay_s: How long a disk may take to show another node a new file [s].

    Raises:
        ConfigError: If a rank does not see it; the message names the ranks and their nodes.
        PeerStoppedError: If another rank has given up.
        DistributedError: If a rank does not answer in time.
    """
    if made is not None and not ranks.context.is_distributed:
        return made
    host, machine = socket.gethostname(), machine_identity()
    probe = None if made is None else made / PROBE_PATTERN.replace("*", str(os.getpid()))
    said = ""
    if probe is not None:
        probe.touch()
        said = json.dumps([str(made), probe.name, host, machine])
    path, name, home, its_machine = json.loads(ranks.share_from_rank_zero("output_directory", said))
    # On one node there is no delay.
    patience_s = 0.0 if machine == its_machine else delay_s
    seen = made or _first_that_shows(name, _where_it_may_be(options, Path(path)), within_s=patience_s)
    own = "" if seen is not None else f"rank {ranks.context.rank} on {host}"
    blind = [each for each in ranks.gather("sight of the directory", own) if each]
    if probe is not None:
        probe.unlink(missing_ok=True)
    if blind or seen is None:
        more = f" and {len(blind) - _MAX_RANKS_TOLD} more" if len(blind) > _MAX_RANKS_TOLD else ""
        message = (
            f"rank 0 has made {path} on {home}, and {', '.join(blind[:_MAX_RANKS_TOLD])}{more} cannot see it; name one "
            "directory on a disk that all nodes share, or run on a Ray cluster, which needs none: --cluster ray"
        )
        raise ConfigError(Problem(message, key="--output_dir"))
    return seen


def _where_it_may_be(options: RunOptions, path: Path) -> list[Path]:
    """Return where this rank looks for the run's directory."""
    if options.output_dir is not None:
        return [named_directory(options.output_dir)]
    # A directory with the date has a name that only rank 0 knows.
    return [path, named_directory(options.output_base_dir) / path.name]


def _first_that_shows(name: str, candidates: Sequence[Path], *, within_s: float) -> Path | None:
    # A network file system may show a new file to other nodes only after seconds.
    deadline = time.monotonic() + within_s
    while True:
        seen = next((path for path in candidates if (path / name).exists()), None)
        if seen is not None or time.monotonic() >= deadline:
            return seen
        time.sleep(_POLL_INTERVAL_S)
