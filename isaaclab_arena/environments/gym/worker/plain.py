"""Spaces and a base of environments for interpreters that have numpy, but not Gymnasium."""

from __future__ import annotations

import typing

import numpy as np


class Box:
    """Arrays of one shape and type, as Gymnasium's space of this name.

    Args:
        low: Lowest value of every element.
        high: Highest value of every element.
        shape: Their shape.
        dtype: Their type.
    """

    def __init__(self, low: float, high: float, shape: tuple[int, ...], dtype: typing.Any = np.float32) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.low, self.high = np.full(shape, low, self.dtype), np.full(shape, high, self.dtype)


class Dict:
    """Named spaces, as Gymnasium's space of this name.

    Args:
        spaces: They, by name.
    """

    def __init__(self, spaces: typing.Mapping[str, typing.Any]) -> None:
        self.spaces = dict(spaces)


class Spec(typing.NamedTuple):
    """What Gymnasium's registration says of an environment, as far as it is read here."""

    max_episode_steps: int | None
    nondeterministic: bool = False


class PlainEnvironment:
    """An environment with the interface of `gymnasium.Env`.

    Attributes:
        action_space: A space of this module.
        observation_space: A space of this module.
        made_by: The class whose package's version is told.
        spec: How long an episode may take.
    """

    action_space: Box
    observation_space: Dict
    made_by: type
    spec: Spec
    metadata: typing.ClassVar[dict[str, typing.Any]] = {}
    render_mode: str | None = None

    @property
    def unwrapped(self) -> PlainEnvironment:
        """This environment: there are no wrappers."""
        return self

    def close(self) -> None:
        """Close the environment; does nothing by default."""
