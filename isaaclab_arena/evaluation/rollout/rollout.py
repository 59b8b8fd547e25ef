"""The loop: environments, policies, a fixed list of episodes, and whoever watches.

Episodes are assigned to rows before they start, and every episode that starts is finished and counted. A row that
finishes takes the next episode not yet started. So the set of episodes never depends on which of them are short:
stopping at the first K that finish, as vectorised evaluators commonly do, favours short episodes.

The rows may be divided into groups. While one group is simulated, in the background, the policy acts for another.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.evaluation.rollout.env_group import GroupRows, RolloutLimits, RowGroup, SharedParts
from isaaclab_arena.evaluation.rollout.stepping import BackgroundStepping, ImmediateStepping
from isaaclab_arena.evaluation.rollout.stopwatch import Stopwatch
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.policy import PolicyBase

NO_LIMITS = RolloutLimits()


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """What a rollout did.

    Attributes:
        finished_episodes: Episodes that ran to their end.
        cut_episodes: Episodes that had started when the step limit or a stop request ended the rollout.
        env_steps: Control steps summed over running rows.
        interrupted: Whether a stop request ended it.
    """

    finished_episodes: int
    cut_episodes: int
    env_steps: int
    interrupted: bool


def rollout(
    environment: Environment,
    policy: PolicyBase,
    episodes: Iterable[Episode],
    observers: Sequence[Observer],
    *,
    language_instruction: str | None = None,
    limits: RolloutLimits = NO_LIMITS,
    stop_requested: Callable[[], bool] = lambda: False,
    stopwatch: Stopwatch | None = None,
) -> RolloutResult:
    """Run episodes in the rows of one environment; see `rollout_in_groups`."""
    return rollout_in_groups(
        [RowGroup(environment=environment, policy=policy)],
        episodes,
        observers,
        language_instruction=language_instruction,
        limits=limits,
        stop_requested=stop_requested,
        stopwatch=stopwatch,
    )


def rollout_in_groups(
    groups: Sequence[RowGroup],
    episodes: Iterable[Episode],
    observers: Sequence[Observer],
    *,
    language_instruction: str | None = None,
    limits: RolloutLimits = NO_LIMITS,
    stop_requested: Callable[[], bool] = lambda: False,
    stopwatch: Stopwatch | None = None,
) -> RolloutResult:
    """Run episodes until all have finished, or for a number of control steps.

    The groups take turns, always in the same order, so what comes out does not depend on which of them is quicker.
    Policies and observers are called in the caller's thread only; with several groups, steps are made in others.

    Args:
        groups: Their rows run the episodes. Each has an environment and a policy of its own.
        episodes: What to run, in order of start. May be endless if ``limits`` has ``max_steps``.
        observers: Told of everything, in this order.
        language_instruction: What the policy is told in every episode, instead of the environment's own words.
        limits: How much it may do at most. Every group may make ``max_steps``; ``max_rows`` are shared among them.
        stop_requested: Asked before every step; True ends the rollout, and so does whatever it raises.
        stopwatch: Counts where the time goes, and how long each episode takes.

    Returns:
        How many episodes finished and how many were cut.

    Raises:
        PolicyError: If the policy's action has the wrong shape or holds NaN or infinity.
        PolicyLostError: If the policy answers no more. Episodes that had made a step have then ended as errors.
        ArenaError: If the environment lets an episode run past its ``max_episode_length``.
    """
    shared = SharedParts(
        pending=iter(episodes),
        observers=observers,
        language_instruction=language_instruction,
        limits=limits,
        stopwatch=stopwatch or Stopwatch(),
    )
    make_stepping = ImmediateStepping if len(groups) == 1 else BackgroundStepping
    all_rows = [GroupRows(group, shared, make_stepping) for group in groups]
    with torch.no_grad():
        try:
            return _run(all_rows, _rows_to_use(groups, limits.max_rows), stop_requested)
        except PolicyLostError as error:
            for rows in all_rows:
                rows.end_lost_episodes(error)
            raise
        finally:
            for rows in all_rows:
                rows.close()


def row_shares(num_rows: int, num_groups: int) -> list[int]:
    """Return how many of some rows each group has: as equal as can be, the first ones one more."""
    share, left = divmod(num_rows, num_groups)
    return [share + (group < left) for group in range(num_groups)]


def _run(
    all_rows: Sequence[GroupRows], rows_to_use: Sequence[int], stop_requested: Callable[[], bool]
) -> RolloutResult:
    for rows, num_rows in zip(all_rows, rows_to_use, strict=True):
        rows.start(num_rows)
    interrupted = False
    while not interrupted and any(rows.is_stepping or rows.may_step for rows in all_rows):
        for rows in all_rows:
            if rows.is_stepping:
                rows.finish_step()
                rows.refill()
            if not rows.may_step:
                continue
            interrupted = stop_requested()
            if interrupted:
                break
            rows.begin_step()
    for rows in all_rows:
        if rows.is_stepping:
            rows.finish_step()
    return RolloutResult(
        finished_episodes=sum(rows.finished_episodes for rows in all_rows),
        cut_episodes=sum(rows.num_running for rows in all_rows),
        env_steps=sum(rows.env_steps for rows in all_rows),
        interrupted=interrupted,
    )


def _rows_to_use(groups: Sequence[RowGroup], max_rows: int | None) -> list[int]:
    num_rows = sum(group.environment.num_envs for group in groups)
    shares = row_shares(num_rows if max_rows is None else min(max_rows, num_rows), len(groups))
    return [min(share, group.environment.num_envs) for share, group in zip(shares, groups, strict=True)]
