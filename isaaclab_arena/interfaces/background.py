"""Quicker ways of a class, which never bypass one of its own, and the work of environments that other processes do."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.specs import Observation

_LOG = logging.getLogger(__name__)


class Background(ABC):
    """The work of an environment that other processes do, while this one does something else.

    Attributes:
        steps_while_starting: Control steps that other env slots make before a reset is waited for; 0 if resets are not
            begun early. Env slots whose reset was begun rest until it is finished.
    """

    steps_while_starting: int = 0

    @property
    def unanswered(self) -> Sequence[int]:
        """Descriptors, each of which can be read once its part of the step is made; none if all of it is."""
        return ()

    @abstractmethod
    def begin_step(self, action: torch.Tensor) -> None:
        """Begin the step that `Environment.step` would make. Shape of ``action``: (num_envs, action_dim).

        Until `finish_step` nothing but `unanswered` is asked of the environment.
        """

    @abstractmethod
    def finish_step(self) -> Any:
        """Wait for the step that was begun, and return its `Step`."""

    def begin_reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        """Begin the reset that `Environment.reset` would make."""
        raise NotImplementedError

    def finish_reset(self, env_ids: Sequence[int]) -> Observation:
        """Wait for the resets of these env slots, ascending, and return the observation of all; others may go on."""
        raise NotImplementedError

    def unplanned(self) -> Sequence[int]:
        """Return the running env slots whose next steps may be made before they are asked for, if they are planned."""
        return ()

    def plan_steps(self, planned: Mapping[int, torch.Tensor]) -> None:
        """Take, before a step, the actions (n, action_dim) that will follow its own, by env slot out of `unplanned`."""


def background_of(environment: Any) -> Background | None:
    """Return an environment's work elsewhere, None without; an environment may use the name for something else."""
    background = environment.background
    return background if isinstance(background, Background) else None


def set_aside(cls: type, whole: str, quicker: str, default: object) -> None:
    """Give a class the default of a quicker way, if its `whole` way comes from below the class that has the quicker."""
    owner_of_whole, owner = (
        next(number for number, each in enumerate(cls.__mro__) if name in vars(each)) for name in (whole, quicker)
    )
    # A claim of a class beside the one with the whole way is not about that way; a method may go on to it.
    is_beside = isinstance(default, bool) and not issubclass(cls.__mro__[owner], cls.__mro__[owner_of_whole])
    if (owner_of_whole < owner or is_beside) and getattr(cls, quicker) is not default:
        setattr(cls, quicker, default)
        _LOG.info("%s has a '%s' of its own, so '%s' of its base is set aside", cls.__name__, whole, quicker)
