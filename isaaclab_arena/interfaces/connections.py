"""Descriptions of a policy's files, and the connections between a policy and the entries of an environment."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.specs import CAMERAS

_RATE_TOLERANCE = 1e-3
_MEAN_NOTHING = frozenset(
    ("cam", "camera", "rgb", "image", "images", "picture", "observation", "obs", "view", "video", "color", "colour")
)
"""Words that are in most names of pictures, and so tell none from another."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """The description that a policy's files hold of themselves, for a comparison with the job that uses them.

    Attributes:
        source: Their name in messages.
        environment: The environment that they were made in, as in ``env_args`` of a recording; empty if they do not
            say it.
        seed: Seed of the conditions that recorded episodes started from, None if they do not say it.
        episodes: Each episode of a job that they hold actions for, with the number under which it was recorded; None
            for files that hold no episodes, or of which one is played in every episode.
        holds: The episodes that they hold, in words.
        way_out: The remedy if they lack some episodes of the job.
        unreadable: Episode to the fault, for episodes that they should hold and that cannot be read.
        doubts: Untrue statements about themselves, one sentence each.
    """

    source: str
    environment: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    episodes: Mapping[int, int] | None = None
    holds: str = ""
    way_out: str = ""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Connections:
    """The entries of an environment that a policy is shown, and those that it sets.

    In words, ``<-`` stands for an entry that is shown, and ``->`` for one that is set.

    Attributes:
        pictures: Camera of each picture, by the policy's name of it.
        states: Entries of the observation that form each vector, by the policy's name of it; see `entries`.
        actions: Entries of the action that each output sets, by the policy's name of it.
        source: The origin of the policy, for messages.
        control_hz: Control steps per second that the source states, None if it states none.
        action_names: The source's names of the action's numbers, in order, None if it states none.
        notes: Further doubts about the connections, one sentence each.
    """

    pictures: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    actions: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    control_hz: float | None = None
    action_names: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = [f"{name} <- {entry}" for name, entry in (*self.pictures.items(), *self.states.items())]
        return "; ".join([*shown, *(f"{name} -> {entry}" for name, entry in self.actions.items())])

    def doubts(self, env: Environment) -> list[str]:
        """Return doubts about these connections that follow from names and rates, one sentence each."""
        doubts, pictures = list(self.notes), self.pictures
        # The cameras of two pictures belong to each other by their names.
        for first, second in combinations(pictures, 2):
            straight = _alike(first, pictures[first]) + _alike(second, pictures[second])
            if _alike(first, pictures[second]) + _alike(second, pictures[first]) > straight:
                doubts.append(
                    f"the policy gets '{first}' from camera '{pictures[first]}' and '{second}' from "
                    f"'{pictures[second]}', although their names suggest the opposite"
                )

        # A picture has another camera, although an unused camera has its name.
        cameras = env.observation_spec.get(CAMERAS, {})
        unused = [each for each in cameras if each not in pictures.values()] if isinstance(cameras, Mapping) else []
        doubts += [
            f"the policy gets '{key}' from camera '{camera}', but its name suggests camera '{other}'"
            for key, camera in pictures.items()
            for other in unused
            if _alike(key, other) > 0 and _alike(key, camera) == 0
        ]
        rate = 1 / env.control_dt
        if self.control_hz is not None and abs(rate - self.control_hz) > _RATE_TOLERANCE * rate:
            doubts.append(
                f"{self.source} has {self.control_hz:g} control steps per second, the environment {rate:g}: it will "
                "move at another speed"
            )
        here, there = env.action_spec.names, self.action_names
        if here is not None and there is not None and here != there and sorted(here) == sorted(there):
            doubts.append(
                f"{self.source} has its action in the order {', '.join(there)}, the environment takes {', '.join(here)}"
            )
        return doubts


def set_entries(env: Environment, columns: Sequence[int] | None = None) -> dict[str, str]:
    """Map numbers of a policy's action to those of an environment's; see `Connections.actions`."""
    # `columns`: the place in the policy's action of each number of the environment's, None if both are the same.
    (action_dim,) = env.action_spec.shape
    given = "action" if columns is None else f"action{_spelled(columns)}"
    return {given: entries(range(action_dim), {"action": action_dim}, env.action_spec.names)}


def entries(places: Sequence[int], sizes: Mapping[str, int], names: Sequence[str] | None = None) -> str:
    """Return numbers of arrays in words: ``robot_joint_pos[0:7] + gripper_pos``."""
    # `places`: positions in the arrays side by side, in order. `sizes`: numbers of each array, in order. `names`: the
    # name of each number, if they have any; the text holds the first and the last.
    starts: dict[str, int] = {}
    for name in sizes:
        starts[name] = sum(sizes[earlier] for earlier in starts)
    owners = [
        next(name for name, start in reversed(starts.items()) if place >= start and sizes[name]) for place in places
    ]
    parts: list[tuple[str, list[int]]] = []
    for owner, place in zip(owners, places, strict=True):
        if not parts or parts[-1][0] != owner:
            parts.append((owner, []))
        parts[-1][1].append(place - starts[owner])
    # A whole array needs no positions.
    words = " + ".join(
        f"{name}{'' if inside == list(range(sizes[name])) else _spelled(inside)}" for name, inside in parts
    )
    words = words or "nothing"
    if names is None or not places:
        return words
    called = [names[place] for place in dict.fromkeys((places[0], places[-1]))]
    return f"{words} ({' to '.join(called)})"


def _spelled(places: Sequence[int]) -> str:
    """Return positions in an array as they would be written in Python: ``[0:7, 9]``."""
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    return f"[{', '.join(str(begin) if end == begin + 1 else f'{begin}:{end}' for begin, end in runs)}]"


def _alike(one: str, other: str) -> int:
    """Return the number of words that two names share and that tell cameras apart."""
    first, second = ({*re.findall(r"[a-z]+|\d+", re.sub(r"([A-Z])", r" \1", name).lower())} for name in (one, other))
    return len((first & second) - _MEAN_NOTHING)
