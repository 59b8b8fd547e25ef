"""Which rank runs which jobs: pure functions that every rank evaluates alike, without talking to the others."""

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.registry import Registry

ASSIGNMENTS = Registry(
    "assignment",
    {
        "round_robin": "isaaclab_arena.distributed.assignment:round_robin",
        "contiguous": "isaaclab_arena.distributed.assignment:contiguous",
    },
    entry_point_group="isaaclab_arena.assignments",
)
"""Names for ``--assignment``: functions of ``(num_jobs, world_size)`` that return one list of job indices per rank."""


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
