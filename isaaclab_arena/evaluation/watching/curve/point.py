"""Hold the success of a job at one step of a training."""

from dataclasses import dataclass

from isaaclab_arena.results.clusters import ScoredEpisodes


@dataclass(frozen=True, kw_only=True)
class Point:
    """A job's success at one step.

    Attributes:
        job: The job, as the watch's job file calls it.
        step: Step of the checkpoint.
        successes: Episodes that succeeded.
        scored: Episodes whose success was measured, without errors.
        success_rate: Their share.
        success_low: Lower end of its 95 % Wilson interval.
        success_high: Upper end.
        episodes: The scored episodes themselves.
        is_baseline: Whether it is a job without checkpoints, which is the same at every step.
    """

    job: str
    step: int
    successes: int
    scored: int
    success_rate: float
    success_low: float
    success_high: float
    episodes: ScoredEpisodes
    is_baseline: bool = False
