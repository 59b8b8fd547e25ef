"""Which rank runs which jobs and episodes: pure functions that every rank evaluates alike, without talking."""

from isaaclab_arena.episode_ranges import EpisodeRanges, count_episodes, cut
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.registry import Registry

_PIECES_PER_RANK = 8
"""Into how many pieces per rank a job is cut: an eighth of a rank's share is lost at most by an uneven end."""

_PIECES_PER_RANK_AT_MOST = 1000
"""No piece is smaller than this part of a rank's share of the whole run: each one costs two small files."""

ASSIGNMENTS = Registry(
    "assignment",
    {
        "round_robin": "isaaclab_arena.distributed.assignment:round_robin",
        "contiguous": "isaaclab_arena.distributed.assignment:contiguous",
    },
    entry_point_group="isaaclab_arena.assignments",
)
"""Names for ``--assignment``: functions of ``(num_jobs, world_size)`` that return one list of job indices per rank."""


DYNAMIC = "dynamic"
"""The assignment by which ranks claim work while they run; `ASSIGNMENTS` holds those that are settled before."""


def round_robin(num_jobs: int, world_size: int) -> list[list[int]]:
    """Deal the jobs like cards: rank ``r`` gets those with ``job_index % world_size == r``."""
    return [list(range(rank, num_jobs, world_size)) for rank in range(world_size)]


def contiguous(num_jobs: int, world_size: int) -> list[list[int]]:
    """Cut the list of jobs into one piece per rank, sizes differing by at most one.

    Neighbouring jobs often share environment and policy, which are then built once.
    """
    bounds = [rank * num_jobs // world_size for rank in range(world_size + 1)]
    return [list(range(bounds[rank], bounds[rank + 1])) for rank in range(world_size)]


def assign_jobs(assignment: str, num_jobs: int, world_size: int) -> list[list[int]]:
    """Return one ascending list of job indices per rank.

    Args:
        assignment: A name in `ASSIGNMENTS`.
        num_jobs: Number of jobs in the file, those that are not pending included.
        world_size: Number of ranks.

    Raises:
        ConfigError: If the name is unknown, or what it stands for leaves a job out or gives one away twice.
        ValueError: If ``world_size`` is not positive.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    shares = [sorted(share) for share in ASSIGNMENTS.get(assignment)(num_jobs, world_size)]
    if len(shares) != world_size or sorted(index for share in shares for index in share) != list(range(num_jobs)):
        raise ConfigError(
            f"assignment '{assignment}' does not give each of {num_jobs} jobs to exactly one of {world_size} ranks"
        )
    return shares


def split_shares(remaining: EpisodeRanges, world_size: int, *, first_rank: int) -> list[EpisodeRanges]:
    """Cut a job's remaining episodes into one consecutive share per rank, sizes differing by at most one.

    Shares go round from ``first_rank``, and the longer ones come first. So many short jobs do not all burden the
    same rank, and a job of one episode stays where round robin would have put it.

    Args:
        remaining: Episodes to run.
        world_size: Number of ranks.
        first_rank: The rank that gets the first share: ``job_index % world_size``.

    Returns:
        The episodes of each rank, by rank; empty where there are fewer episodes than ranks.
    """
    shares = cut(remaining, _even_sizes(count_episodes(remaining), world_size))
    return [shares[(rank - first_rank) % world_size] for rank in range(world_size)]


def pieces_of(remaining: EpisodeRanges, *, total_remaining: int, world_size: int) -> list[EpisodeRanges]:
    """Cut a job's remaining episodes into the consecutive pieces that ranks claim one at a time.

    There are eight per rank, of at least one episode. In a run of many jobs they are larger, up to a whole job: never
    smaller than a thousandth of a rank's share of the run, so that thousands of jobs do not make millions of claims.

    Args:
        remaining: Episodes to run.
        total_remaining: Episodes to run in all jobs.
        world_size: Number of ranks.
    """
    num_episodes = count_episodes(remaining)
    smallest = max(1, total_remaining // (_PIECES_PER_RANK_AT_MOST * world_size))
    num_pieces = min(_PIECES_PER_RANK * world_size, max(1, num_episodes // smallest))
    return cut(remaining, _even_sizes(num_episodes, num_pieces)) if num_episodes else []


def _even_sizes(total: int, num_parts: int) -> list[int]:
    size, longer = divmod(total, num_parts)
    return [size + 1] * longer + [size] * (num_parts - longer)
