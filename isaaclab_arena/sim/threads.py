"""Choose the number of physics threads of a rank."""

import os


def default_num_threads(local_world_size: int = 1) -> int:
    """Return this rank's share of the cores that the process may run on, at least 1.

    Args:
        local_world_size: Number of ranks on this machine.
    """
    return max(1, available_cores() // max(1, local_world_size))


def available_cores() -> int:
    """Return the number of cores that this process may run on, which a container or `taskset` may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
