"""The directories that the ranks of a run write in: rank 0's, and one per node that does not share its disk."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.nodes.node_directory import NodeDirectory, find_node_directories, lowest_rank_in
from isaaclab_arena.evaluation.options import Assignment, RunOptions
from isaaclab_arena.evaluation.startup.output_directory import clear_unbegun, make_output_directory, named_directory
from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.run.attempts import attempt_path
from isaaclab_arena.storage.run.run_lock import RunLock

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """The directory that rank 0 has chosen for a run.

    Attributes:
        path: Its path there.
        resumes: Whether it holds a run that is to go on.
    """

    path: Path
    resumes: bool


def directories_of_ranks(ranks: Ranks, options: RunOptions, directory: RunDirectory) -> tuple[NodeDirectory, ...]:
    """Find out where each rank writes, and refuse what several directories cannot serve.

    Args:
        ranks: All ranks of the run.
        options: The shared options.
        directory: What rank 0 has chosen.

    Raises:
        ConfigError: If nodes share no disk, and ranks were to claim work from each other or to resume a run.
        DistributedError: If a rank does not answer.
    """
    directories = find_node_directories(
        ranks, [directory.path] if ranks.context.is_rank_zero else _where_it_may_be(options, directory.path)
    )
    away = [f"rank {rank} on {each}" for rank, each in enumerate(directories) if not each.with_rank_zero]
    if not away:
        return directories
    apart = f"what rank 0 writes to {directories[0]} does not appear for {', '.join(away)}"
    if options.mode is Assignment.DYNAMIC:
        message = (
            f"ranks claim work through files on a disk that all nodes share, but {apart}; use round_robin or split"
        )
        raise ConfigError(Problem(message, key="--assignment"))
    if directory.resumes:
        message = (
            f"needs all files of the run in one directory, but {apart}; put the directories of all nodes into that of "
            "rank 0, then go on with it on one node or on a disk that all share, or make its tables: "
            "isaaclab-arena merge"
        )
        raise ConfigError(Problem(message, key="--resume"))
    if ranks.context.is_rank_zero:
        _LOG.info("%s; those keep their recordings, and send their results here", apart)
    return directories


def make_own_directory(ranks: Ranks, directories: Sequence[NodeDirectory]) -> RunLock | None:
    """Make the directories of the nodes that do not share rank 0's; all ranks come to the same verdict.

    Returns:
        The lock of the directory, held alone by the rank that has made it; None on all others.

    Raises:
        ConfigError: If one of them is not empty or cannot be made; the message names the rank.
        DistributedError: If a rank does not answer.
    """
    rank = ranks.context.rank
    lock, verdict = None, ""
    if _makes_own_directory(directories, rank):
        try:
            path = make_output_directory(output_dir=directories[rank].directory, output_base_dir="")
            lock = RunLock(path).hold_alone()
            clear_unbegun(path)
        except ConfigError as error:
            verdict = f"rank {rank} on {directories[rank].host}: {error}"
    verdicts = [each for each in ranks.gather("verdict on the directory", verdict) if each]
    if verdicts:
        raise ConfigError([Problem(each) for each in verdicts])
    return lock


def describe_run_in_own_directory(ranks: Ranks, directories: Sequence[NodeDirectory], *, attempt: int) -> None:
    """Write rank 0's ``run.json`` and its attempt into the directories of the other nodes too.

    Args:
        ranks: All ranks of the run.
        directories: Where each writes.
        attempt: Number of the attempt.

    Raises:
        DistributedError: If a rank does not answer.
        StorageError: If a file cannot be read or written.
    """
    directory = Path(directories[ranks.context.rank].directory)
    for path in (directory / RUN_PLAN_FILE, attempt_path(directory, attempt)):
        text = ""
        if ranks.context.is_rank_zero:
            with storage_errors("read", path):
                text = path.read_text(encoding="utf-8")
        text = ranks.share_long_from_rank_zero(path.name, text)
        if _makes_own_directory(directories, ranks.context.rank):
            write_text(path, text)


def _makes_own_directory(directories: Sequence[NodeDirectory], rank: int) -> bool:
    return not directories[rank].with_rank_zero and lowest_rank_in(directories, rank) == rank


def _where_it_may_be(options: RunOptions, path: Path) -> list[Path]:
    """Return where this rank looks for the run's directory; in the last of them it writes if it is nowhere."""
    if options.output_dir is not None:
        return [named_directory(options.output_dir)]
    # A directory with the date has a name that only rank 0 knows.
    return [path, named_directory(options.output_base_dir) / path.name]
