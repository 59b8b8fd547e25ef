"""Makes steps and resets of an environment as early as it lets them be made, and tells it which steps follow."""

from collections.abc import Callable
from typing import TypeGuard

import torch

from isaaclab_arena.interfaces.environment import (
    BeginsResets,
    BeginsSteps,
    Environment,
    Step,
    StepsAhead,
    TriesSteps,
)
from isaaclab_arena.interfaces.policy import PolicyBase, plans_of


def attempt_of(environment: Environment) -> Callable[[torch.Tensor], Step]:
    """Return what makes a control step of an environment, or none if ``Step.made`` says so.

    It is `TriesSteps.try_step`, unless a class derived from the one that has it, or a wrapper, has a `step` of its own.

    Args:
        environment: The environment.
    """
    if isinstance(environment, TriesSteps) and _is_its_own(environment, "try_step", "step"):
        return environment.try_step
    return environment.step


def begins_steps(environment: Environment) -> TypeGuard[BeginsSteps]:
    """Return whether steps of an environment, begun here, are made in other processes.

    They are not if a class derived from the one that begins them, or a wrapper, has a `step` of its own.
    """
    return (
        isinstance(environment, BeginsSteps)
        and _is_its_own(environment, "begin_step", "step")
        and environment.steps_elsewhere
    )


def begins_resets(environment: Environment) -> TypeGuard[BeginsResets]:
    """Return whether other env slots of an environment can make steps while some are reset in other processes.

    They cannot if a class derived from the one that begins resets, or a wrapper, has a `reset` of its own.
    """
    return (
        isinstance(environment, BeginsResets)
        and _is_its_own(environment, "begin_reset", "reset")
        and environment.steps_while_starting > 0
    )


def telling_plans(policy: PolicyBase, environment: Environment) -> Callable[[], None] | None:
    """Return what tells an environment the actions that a policy has planned; None where nobody plans or listens.

    An environment does not listen if a class derived from the one that does, or a wrapper, has a `step` of its own.
    """
    plans = plans_of(policy)
    if plans is None or not isinstance(environment, StepsAhead) or not _is_its_own(environment, "plan_steps", "step"):
        return None
    if not environment.makes_steps_ahead:
        return None

    def tell() -> None:
        environment.plan_steps({env_id: plans.planned(env_id) for env_id in environment.unplanned()})

    return tell


def made_again(environment: Environment) -> Step:
    """Return a control step whose first attempt did not make it.

    Raises:
        TypeError: If the environment makes no attempts.
    """
    if not isinstance(environment, TriesSteps):
        raise TypeError(f"{type(environment).__name__} says that it made no step, and cannot make it again")
    return environment.step_again()


def _is_its_own(environment: Environment, method: str, whole: str) -> bool:
    """Return whether a method is made for the same ``step`` or ``reset`` that the environment has."""
    # A wrapper has the other environment's methods without a class that defines them.
    classes = type(environment).__mro__
    has_method, has_whole = (
        next((number for number, each in enumerate(classes) if name in each.__dict__), len(classes))
        for name in (method, whole)
    )
    return has_method <= has_whole
