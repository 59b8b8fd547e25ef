"""Makes control steps of an environment without waiting to learn whether there was room for them."""

from collections.abc import Callable

import torch

from isaaclab_arena.interfaces.environment import Environment, Step, TriesSteps


def attempt_of(environment: Environment) -> Callable[[torch.Tensor], Step]:
    """Return what makes a control step of an environment, or none if ``Step.made`` says so.

    It is `TriesSteps.try_step`, unless a class derived from the one that has it, or a wrapper, has a `step` of its own.

    Args:
        environment: The environment.
    """
    if not isinstance(environment, TriesSteps):
        return environment.step
    # A wrapper has the other environment's methods without a class that defines them.
    classes = type(environment).__mro__
    tries, steps = (
        next((number for number, each in enumerate(classes) if name in each.__dict__), len(classes))
        for name in ("try_step", "step")
    )
    return environment.step if steps < tries else environment.try_step


def made_again(environment: Environment) -> Step:
    """Return a control step whose first attempt did not make it.

    Raises:
        TypeError: If the environment makes no attempts.
    """
    if not isinstance(environment, TriesSteps):
        raise TypeError(f"{type(environment).__name__} says that it made no step, and cannot make it again")
    return environment.step_again()
