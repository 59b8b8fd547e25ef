"""Define the limits of a rollout."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RolloutLimits:
    """How much a rollout may do at most; None is no limit.

    Attributes:
        max_steps: Control steps of the batch after which the rollout ends and cuts the episodes under way.
        max_envs: Env slots that are used at once; those beyond rest.
        episode_timeout_s: Wall time of an episode [s]. One that takes longer ends as an error after the step under way,
            and its env slot takes the next episode.
    """

    max_steps: int | None = None
    max_envs: int | None = None
    episode_timeout_s: float | None = None

    def allow_step(self, num_steps: int) -> bool:
        """Return whether another control step may follow ``num_steps`` of them."""
        return self.max_steps is None or num_steps < self.max_steps

    def num_used(self, num_envs: int) -> int:
        """Return how many of ``num_envs`` env slots may be used at once."""
        return num_envs if self.max_envs is None else min(self.max_envs, num_envs)


NO_LIMITS = RolloutLimits()
