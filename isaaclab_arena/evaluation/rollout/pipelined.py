"""The loop for groups of env slots that take turns: while one group is simulated, the policy acts for another."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import torch

from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.evaluation.rollout.background_stepping import Stepping, stepping_of, wait_for_one
from isaaclab_arena.evaluation.rollout.limits import NO_LIMITS, RolloutLimits
from isaaclab_arena.evaluation.rollout.policy_answers import PolicyAnswer
from isaaclab_arena.evaluation.rollout.rollout import EpisodeLoop
from isaaclab_arena.evaluation.rollout.running_episodes import RolloutResult
from isaaclab_arena.evaluation.rollout.stopwatch import Phase, Stopwatch
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.policy import PolicyBase


@dataclass(frozen=True, kw_only=True)
class EnvGroup:
    """Env slots that are simulated together, and whose actions are asked for together.

    Attributes:
        environment: Its env slots run episodes.
        policy: Gives their actions, and remembers their episodes and no others.
    """

    environment: Environment
    policy: PolicyBase


def group_sizes(num_envs: int, num_groups: int) -> list[int]:
    """Return how many of some env slots each group has: as equal as can be, the first groups one more."""
    size, left = divmod(num_envs, num_groups)
    return [size + (group < left) for group in range(num_groups)]


@torch.no_grad()
def pipelined_rollout(
    groups: Sequence[EnvGroup],
    episodes: Iterable[Episode],
    observers: Sequence[Observer],
    *,
    language_instruction: str | None = None,
    limits: RolloutLimits = NO_LIMITS,
    stop_requested: Callable[[], bool] = lambda: False,
    stopwatch: Stopwatch | None = None,
) -> RolloutResult:
    """Run episodes in groups of env slots; see `rollout` for the arguments and what is raised.

    The groups take turns in an order that changes nothing; see `_take_turns`. Every group may make
    ``max_steps``; ``max_envs`` are shared among them. Policies and observers are called in the caller's thread only,
    steps are made in others or in workers.
    """
    pending, watch = iter(episodes), stopwatch or Stopwatch()
    taking_turns: list[_GroupTurns] = []
    try:
        with ExitStack() as stack:
            for group in groups:
                common = pending, observers, language_instruction, limits, watch
                loop = stack.enter_context(closing(EpisodeLoop(group.environment, group.policy, *common)))
                stepping = stack.enter_context(closing(stepping_of(group.environment, watch)))
                taking_turns.append(_GroupTurns(loop, stepping))
            for group, num_used in zip(taking_turns, _num_used(groups, limits), strict=True):
                group.loop.reset(range(num_used))
            in_order = limits.max_steps is not None or not all(_stands_alone(group.policy) for group in groups)
            interrupted = _take_turns(taking_turns, stop_requested, watch, in_order=in_order)
    except PolicyLostError as error:
        for group in taking_turns:
            group.loop.end_lost_episodes(error)
        raise
    results = [group.loop.episodes.result(interrupted=interrupted) for group in taking_turns]
    return RolloutResult(
        finished_episodes=sum(result.finished_episodes for result in results),
        cut_episodes=sum(result.cut_episodes for result in results),
        env_steps=sum(result.env_steps for result in results),
        interrupted=interrupted,
    )


def _num_used(groups: Sequence[EnvGroup], limits: RolloutLimits) -> list[int]:
    num_envs = [group.environment.num_envs for group in groups]
    sizes = group_sizes(limits.num_used(sum(num_envs)), len(groups))
    return [min(size, most) for size, most in zip(sizes, num_envs, strict=True)]


def _stands_alone(policy: PolicyBase) -> bool:
    """Return whether what a policy answers depends on nothing but the episode in the env slot."""
    return policy.traits.reproducible and policy.traits.batch_invariant


def _take_turns(
    groups: Sequence["_GroupTurns"], stop_requested: Callable[[], bool], stopwatch: Stopwatch, *, in_order: bool
) -> bool:
    """Let groups take turns until nothing is left to do; return whether a stop request ended it before.

    What comes out must not depend on which group is quicker. So they take turns in a fixed order, unless each policy
    answers by the episode alone and no number of steps ends the rollout: then the group that is ready goes first.
    """
    interrupted = False
    while not interrupted and any(group.is_stepping or group.loop.may_step for group in groups):
        for group in groups if in_order else _ready(groups, stopwatch):
            group.loop.reset(group.finish_step())
            if not group.loop.may_step:
                continue
            interrupted = stop_requested()
            if interrupted:
                break
            group.begin_step()
    for group in groups:
        group.finish_step()
    return interrupted


def _ready(groups: Sequence["_GroupTurns"], stopwatch: Stopwatch) -> Sequence["_GroupTurns"]:
    """Return the groups whose turn need not wait for a step; wait until there is one."""
    if all(group.is_stepping or not group.loop.may_step for group in groups):
        with stopwatch.measure(Phase.SIMULATE):
            wait_for_one([group.stepping for group in groups if group.is_stepping])
    return [group for group in groups if not group.is_stepping or group.stepping.is_done]


class _GroupTurns:
    """One group's turns: what the policy answers in one turn is simulated until the next."""

    def __init__(self, loop: EpisodeLoop, stepping: Stepping) -> None:
        self.loop = loop
        self.stepping = stepping
        self._answer: PolicyAnswer | None = None

    @property
    def is_stepping(self) -> bool:
        """Whether a step was begun and not finished."""
        return self._answer is not None

    def begin_step(self) -> None:
        """Ask the policy, and begin the step that it answers."""
        answer = self.loop.act()
        self.stepping.begin(answer.action)
        self._answer = answer

    def finish_step(self) -> Sequence[int]:
        """Finish the step that was begun, if any; return the env slots whose episodes ended with it."""
        answer, self._answer = self._answer, None
        if answer is None:
            return ()
        step, over = self.loop.settle(answer, self.stepping.finish())
        self.loop.observe(answer, step)
        return self.loop.end(step, over)
