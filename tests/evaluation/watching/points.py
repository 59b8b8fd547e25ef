"""What came of checkpoints, where no test asks how."""

from pathlib import Path

import numpy as np

from isaaclab_arena.evaluation.learning_curve import Point
from isaaclab_arena.results.statistics import ScoredEpisodes, wilson_interval
from tests.analysis.recorded_runs import write_run


def point(step: int, successes: int, scored: int = 100, job: str = "reach", *, is_baseline: bool = False) -> Point:
    interval = wilson_interval(successes, scored)
    assert interval is not None
    return Point(
        job=job,
        step=step,
        successes=successes,
        scored=scored,
        distinct=scored,
        success_rate=successes / scored,
        interval=interval,
        episodes=ScoredEpisodes(
            success=np.arange(scored) < successes, conditions=[f"{job} {index}" for index in range(scored)]
        ),
        is_baseline=is_baseline,
    )


def write_run_of_checkpoint(
    directory: Path, step: int, jobs: dict[str, str], *, moved: dict[int, float] | None = None
) -> None:
    """Write the run of a checkpoint: job, as the watch calls it, to the outcomes of its episodes.

    Args:
        directory: Where to.
        step: Its step.
        jobs: The jobs.
        moved: Episodes that start from another place than all others, to that place.
    """
    named = {f"{job}-{step}": outcomes for job, outcomes in jobs.items()}
    write_run(directory, named, swept={"checkpoint_step": step}, moved=moved, own_starts=True)
