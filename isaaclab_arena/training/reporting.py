"""Turn the results of an iteration or an evaluation into measures under rsl_rl's names, and a line of the log."""

import math
import time
from collections.abc import Mapping

from isaaclab_arena.training.checkpoints.closed_loop import EvaluatedJob
from isaaclab_arena.training.learner.episode_statistics import EpisodeStatistics
from isaaclab_arena.training.learner.learner import Iteration

EVALUATION_TIME = "Perf/evaluation_time"


class Pace:
    """How fast iterations go, evaluations left out."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._iterations = 0

    def pause(self, seconds: float) -> None:
        """Leave out time in which nothing was learned [s]."""
        self._began += seconds

    def left_s(self, iterations: int) -> float:
        """Count one more iteration, and return how long so many more will take [s]."""
        self._iterations += 1
        return (time.perf_counter() - self._began) / self._iterations * iterations


def measures_of_iteration(done: Iteration, *, env_steps: int) -> dict[str, float]:
    """Return what an iteration gave, without what it does not say.

    Args:
        done: The iteration.
        env_steps: Control steps of the whole training.
    """
    episodes = done.episodes
    measures = {
        **{f"Loss/{name}": value for name, value in done.losses.items()},
        "Loss/learning_rate": done.learning_rate,
        "Policy/mean_std": done.action_std,
        "Perf/total_fps": done.env_steps / (done.collect_s + done.learn_s),
        "Perf/collection_time": done.collect_s,
        "Perf/learning_time": done.learn_s,
        "Perf/total_steps": env_steps,
        "Train/num_episodes": episodes.num_episodes,
        "Train/mean_reward": episodes.mean_return,
        "Train/mean_episode_length": episodes.mean_length,
        "Train/success_rate": episodes.success_rate,
        "Train/lost_rate": episodes.lost_rate,
        **{f"Metrics/{name}": value for name, value in episodes.metrics.items()},
    }
    return {name: value for name, value in measures.items() if not math.isnan(value)}


def line_of_iteration(done: Iteration, *, iterations: int, total: int, left_s: float) -> str:
    """Return what the log says of an iteration.

    Args:
        done: The iteration.
        iterations: Its number, counted from 1.
        total: How many there will be.
        left_s: How long the rest will take [s].
    """
    steps_per_s = done.env_steps / (done.collect_s + done.learn_s)
    return (
        f"iteration {iterations}/{total}: {_of_episodes(done.episodes)}std {done.action_std:.2f}, "
        f"lr {done.learning_rate:.1e}, {steps_per_s:,.0f} steps/s, {_clock(left_s)} left"
    )


def measures_of_evaluation(jobs: Mapping[str, EvaluatedJob], *, evaluation_s: float) -> dict[str, float]:
    """Return what an evaluation gave, without what it does not say.

    Args:
        jobs: Job to what came of it.
        evaluation_s: How long it took [s].
    """
    measures = {EVALUATION_TIME: evaluation_s}
    for name, job in jobs.items():
        if job.success_rate is not None:
            measures[f"Eval/{name}/success_rate"] = job.success_rate
        if job.mean_return is not None:
            measures[f"Eval/{name}/mean_return"] = job.mean_return
    return measures


def line_of_evaluation(jobs: Mapping[str, EvaluatedJob], *, iterations: int) -> str:
    """Return what the log says of the evaluation after so many iterations."""
    told = [
        f"{name}: success not measured"
        if job.success_rate is None
        else f"{name}: success {job.success_rate:.1%} of {job.episodes} episodes"
        for name, job in jobs.items()
    ]
    return f"iteration {iterations}, evaluated: {'; '.join(told) or 'nothing'}"


def _of_episodes(episodes: EpisodeStatistics) -> str:
    if not episodes.num_episodes:
        return ""
    success = "" if math.isnan(episodes.success_rate) else f"success {episodes.success_rate:.0%}, "
    return f"reward {episodes.mean_return:.2f}, length {episodes.mean_length:.0f}, {success}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
