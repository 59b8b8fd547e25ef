"""Choose the episodes that a verification runs again. Pure functions."""

from collections.abc import Mapping, Sequence

import numpy as np


def draw_sample(finished: Mapping[str, Sequence[int]], size: int, *, seed: int) -> dict[str, tuple[int, ...]]:
    """Draw episodes at random, from all jobs as evenly as their lengths allow, none twice.

    Args:
        finished: Episodes that may be drawn, by job.
        size: How many to draw; fewer if there are fewer.
        seed: Decides which.

    Returns:
        The episodes of each job, ascending; jobs without any are left out. The order of jobs is that of ``finished``.
    """
    generator = np.random.default_rng(seed)
    shuffled = {job: generator.permutation(np.asarray(episodes, np.int64)) for job, episodes in finished.items()}
    names = list(shuffled)
    turns = [names[position] for position in generator.permutation(len(names))]
    drawn: dict[str, list[int]] = {job: [] for job in names}
    left = min(size, sum(map(len, shuffled.values())))
    while left > 0:
        for job in turns:
            taken = len(drawn[job])
            if left > 0 and taken < len(shuffled[job]):
                drawn[job].append(int(shuffled[job][taken]))
                left -= 1
    return {job: tuple(sorted(episodes)) for job, episodes in drawn.items() if episodes}


def another_num_envs(num_envs: int, *, largest: int | None = None) -> int:
    """Return a number of env slots that is not that of the job: one for a batch, else three.

    Args:
        num_envs: Env slots of the job.
        largest: No more than that, even if it is then the same.
    """
    wanted = 1 if num_envs > 1 else 3
    return wanted if largest is None else max(1, min(wanted, largest))
