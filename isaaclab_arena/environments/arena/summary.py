"""Describe an environment in a few words, for lists and documents, without simulating anything."""

import inspect
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EnvironmentSummary:
    """What a person wants to know before choosing an environment.

    Attributes:
        instruction: What it asks for with its default options, in the words a policy is told.
        success: When it counts as solved, and when as lost.
        episode_length: Control steps until an episode is cut.
        episode_s: The same as time [s].
        embodiments: Registered robots that it can be built with.
        objects: Registered objects that it can be built with, empty for an environment without that option.
    """

    instruction: str
    success: str
    episode_length: int
    episode_s: float
    embodiments: tuple[str, ...]
    objects: tuple[str, ...] = ()


def described_success(thing: object) -> str:
    """Return what the docstring of a thing's class says, as one line."""
    return " ".join((inspect.getdoc(type(thing)) or "").split())
