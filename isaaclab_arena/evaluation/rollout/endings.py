"""Decide how an episode ended."""

from collections.abc import Iterable
from dataclasses import dataclass

from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.interfaces.episode import POLICY_LOST, SOLVED_AT_START, Outcome

OUT_OF_TIME = "episode_timeout"
"""Termination of an episode that took longer than its wall time allowed."""

POLICY_FINISHED = "policy_finished"
"""Termination of an episode that ended because its policy had nothing more to do."""

RANKS_LOST = "ranks_lost"
"""Termination of an episode over which ranks died, one after the other."""

BAD_START = "bad_start"
"""Termination of an episode whose reset gave what cannot be shown to a policy."""

BROKEN_OFF = frozenset({OUT_OF_TIME, POLICY_LOST, RANKS_LOST, SOLVED_AT_START, BAD_START})
"""Terminations that do not follow from an episode's actions, so that to play these again does not repeat them."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of an episode; see `EpisodeRecord` for the attributes."""

    outcome: Outcome | None
    success: bool | None
    termination: str
    error: str | None = None


def ending_of(step: Step, env_id: int) -> Ending:
    """Return the end of the episode in env slot ``env_id`` that ended with ``step``.

    A diverged env slot is an error whatever the task made of its state. Success that is not measured stays None: such
    an episode is a time-out or has no outcome, but is never called a failure.
    """
    if bool(step.diverged[env_id]):
        error = step.errors.get(env_id, "the physics diverged")
        return Ending(outcome=Outcome.ERROR, success=None, termination="diverged", error=error)
    terminated, truncated = bool(step.terminated[env_id]), bool(step.truncated[env_id])
    termination = "terminated" if terminated else "time_limit" if truncated else POLICY_FINISHED
    timed_out = truncated and not terminated
    if step.success is None:
        return Ending(outcome=Outcome.TIMEOUT if timed_out else None, success=None, termination=termination)
    if bool(step.success[env_id]):
        return Ending(outcome=Outcome.SUCCESS, success=True, termination=termination)
    outcome = Outcome.TIMEOUT if timed_out else Outcome.FAILURE
    return Ending(outcome=outcome, success=False, termination=termination)


def out_of_time(limit_s: float) -> Ending:
    """Return the end of an episode that took longer than its wall time allowed [s]."""
    error = f"the episode took longer than {limit_s:g} s, its episode_timeout_s"
    return Ending(outcome=Outcome.ERROR, success=None, termination=OUT_OF_TIME, error=error)


def solved_before(task: str) -> Ending:
    """Return the end of an episode whose goal was met before its policy had done anything.

    Args:
        task: What the policy would have been told.
    """
    error = (
        f"the task '{task}' was solved at the start, before the policy had done anything; "
        "that is an error of the task, and says nothing of the policy"
    )
    return Ending(outcome=Outcome.ERROR, success=None, termination=SOLVED_AT_START, error=error)


def bad_start(reason: str) -> Ending:
    """Return the end of an episode whose reset gave what cannot be shown to a policy."""
    return Ending(outcome=Outcome.ERROR, success=None, termination=BAD_START, error=f"at the reset, {reason}")


def policy_lost(reason: str) -> Ending:
    """Return the end of an episode whose policy answered no more."""
    return Ending(outcome=Outcome.ERROR, success=None, termination=POLICY_LOST, error=f"the policy was lost: {reason}")


def ranks_lost(deaths: Iterable[tuple[int, str]]) -> Ending:
    """Return the end of an episode over which ranks died, each with its number and how it died, in a line."""
    told = "; ".join(f"rank {rank}: {reason}" for rank, reason in deaths)
    error = f"every rank that ran this episode died, the last with nothing beside it: {told}"
    return Ending(outcome=Outcome.ERROR, success=None, termination=RANKS_LOST, error=error)
