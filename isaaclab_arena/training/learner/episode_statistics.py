"""Exact statistics of training episodes: sums and counts over env slots, which the ranks add up."""

import math
from dataclasses import dataclass

import torch

from isaaclab_arena.interfaces.environment import Step


@dataclass(frozen=True, kw_only=True)
class EpisodeStatistics:
    """Statistics of episodes that ended.

    Attributes:
        num_episodes: Number of episodes.
        mean_return: Mean sum of their rewards, NaN for none.
        mean_length: Mean number of control steps, NaN for none.
        success_rate: Share that succeeded, NaN for none, or where the environment measures no success.
        lost_rate: Share that was lost or broke down, NaN for none.
        metrics: Means of the environment's other metrics at the end of an episode, without episodes whose physics
            broke down.
    """

    num_episodes: int
    mean_return: float
    mean_length: float
    success_rate: float
    lost_rate: float
    metrics: dict[str, float]


_FIXED = ("episodes", "return", "length", "measured", "success", "lost", "sound")


class EpisodeCounter:
    """Adds up the episodes of one rank's env slots.

    Args:
        num_envs: Number of env slots.
        metrics: Names of the environment's further numbers, the same on every rank and in the same order.
        device: Where the numbers of a step live.

    Attributes:
        metrics: Names of the further numbers.
        returns: Sum of rewards of the episode under way. Shape: (num_envs,), float64.
        lengths: Its control steps so far. Shape: (num_envs,), float64.
        sums: What ended since `take`. Shape: (7 + number of metrics,), float64.
    """

    def __init__(self, *, num_envs: int, metrics: tuple[str, ...], device: torch.device) -> None:
        self.metrics = metrics
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.sums = torch.zeros(len(_FIXED) + len(metrics), dtype=torch.float64, device=device)

    def add(self, step: Step, ended: torch.Tensor, cut: torch.Tensor) -> None:
        """Count a control step of all env slots.

        Args:
            step: What it gave.
            ended: Env slots whose episode is over. Shape: (num_envs,), bool.
            cut: Env slots that were stopped in the middle of an episode, not counted. Shape: (num_envs,), bool.
        """
        # An env slot that broke down may hold NaN, and NaN times zero is NaN.
        self.returns += torch.where(step.diverged, 0.0, step.reward)
        self.lengths += 1
        sound = ended & ~step.diverged
        success = torch.zeros_like(ended) if step.success is None else step.success & sound
        lost = ended & (step.terminated | step.diverged) & ~success
        measured = torch.zeros_like(ended) if step.success is None else ended
        counted = [
            ended,
            torch.where(ended, self.returns, 0.0),
            torch.where(ended, self.lengths, 0.0),
            measured,
            success,
            lost,
            sound,
            *(torch.where(sound, step.metrics[name], 0.0) for name in self.metrics),
        ]
        self.sums += torch.stack([values.to(torch.float64) for values in counted]).sum(dim=1)
        begins = ended | cut
        self.returns[begins] = 0
        self.lengths[begins] = 0

    def take(self) -> torch.Tensor:
        """Return ``sums``, what ended on this rank since the last call, and begin anew."""
        taken = self.sums.clone()
        self.sums.zero_()
        return taken


def statistics_of(sums: torch.Tensor, metrics: tuple[str, ...]) -> EpisodeStatistics:
    """Return means from sums; see `EpisodeCounter.sums`."""
    episodes, returns, length, measured, success, lost, sound, *others = sums.tolist()
    return EpisodeStatistics(
        num_episodes=round(episodes),
        mean_return=_mean(returns, episodes),
        mean_length=_mean(length, episodes),
        success_rate=_mean(success, measured),
        lost_rate=_mean(lost, episodes),
        metrics={name: _mean(value, sound) for name, value in zip(metrics, others, strict=True)},
    )


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan
