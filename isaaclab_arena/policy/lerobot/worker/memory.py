"""What a policy keeps of an episode, beside its last observations and the actions that it has still to play."""

from __future__ import annotations

import collections
import typing

import numpy as np
import torch

from .values import packed, raw, unpacked  # noqa: TID252  beside this file, whatever imports it

NOTHING = np.zeros(0, np.uint8)
"""The memory of an episode that begins."""

QUEUES = (("", "_queues"), ("", "_action_queue"))
"""Where LeRobot's policies keep observations and actions: those of a question, and its answer, hold all of it."""

_FURTHER_ACTIONS = 3
"""Further actions after which it is looked what is kept: something may only be kept from the second one on."""

_OF_MODULES = frozenset(vars(torch.nn.Module()))

_Path = tuple[str, ...]
"""The module of a policy, and an attribute of it, or of an object in one of its attributes."""


class EpisodeMemory:
    """The attributes of a policy that an action changes and that `reset` sets back.

    Args:
        policy: A policy.

    Attributes:
        paths: Where it keeps what it remembers; none if it remembers nothing.
    """

    def __init__(self, policy: typing.Any) -> None:
        self._policy, self.paths = policy, list[_Path]()

    def find(self, act: typing.Callable[[], object]) -> None:
        """Find out what is kept, by a trial.

        Args:
            act: Has the policy act. It has acted once already.
        """
        found = self._changed()
        if found <= {*QUEUES}:
            return
        for _ in range(_FURTHER_ACTIONS):
            act()
        acted = _states(self._policy)
        found |= self._changed(acted)
        self.paths = sorted(found | {path for path in QUEUES if path in acted})

    def kept(self) -> np.ndarray:
        """Return what the policy remembers now. Shape: (bytes,), uint8.

        Raises:
            TypeError: If it keeps what is neither numbers nor texts nor containers of them.
        """
        parts = []
        for number, path in enumerate(self.paths):
            owner = _owner(self._policy, path)
            if hasattr(owner, path[-1]):
                parts.append((number, getattr(owner, path[-1])))
        try:
            return np.frombuffer(packed(parts), np.uint8)
        except TypeError as error:
            names = ", ".join(".".join(filter(None, path)) for path in self.paths)
            raise TypeError(f"what the policy remembers is in {names}: {error}") from error

    def recall(self, kept: np.ndarray, device: torch.device) -> None:
        """Have the policy remember what it remembered once, and nothing else.

        Args:
            kept: What `kept` gave, and perhaps zeros behind it; nothing, or zeros alone, for an episode that begins.
            device: Where the policy is.
        """
        self._policy.reset()
        if not kept.any():
            return
        values = dict(unpacked(kept.tobytes(), device))
        for number, path in enumerate(self.paths):
            owner = _owner(self._policy, path)
            if number in values:
                setattr(owner, path[-1], values[number])
            elif hasattr(owner, path[-1]):
                delattr(owner, path[-1])

    def _changed(self, acted: dict[_Path, object] | None = None) -> set[_Path]:
        """Return what differs between a policy that has acted and one that was reset, which it is afterwards."""
        before = _states(self._policy) if acted is None else acted
        self._policy.reset()
        after = _states(self._policy)
        return {path for path in before.keys() | after.keys() if before.get(path, _Path) != after.get(path, _Path)}


def _states(policy: typing.Any) -> dict[_Path, object]:
    """Return all attributes of a policy's modules, and of objects of theirs, in a form that tells whether they differ.

    Objects of packages that none of the modules is from are only known by which they are.
    """
    modules = dict(policy.named_modules())
    packages = {_package(module) for module in modules.values()}
    states: dict[_Path, object] = {}
    seen: set[int] = set()

    def look_at(values: dict[str, object], path: _Path) -> None:
        for name, value in values.items():
            own = (*path, name)
            states[own] = _form(value)
            is_object = not isinstance(value, (type, torch.nn.Module, torch.Tensor)) and hasattr(value, "__dict__")
            if is_object and _package(value) in packages and id(value) not in seen:
                seen.add(id(value))
                states[own] = type(value)
                look_at(vars(value), own)

    for name, module in modules.items():
        own = {key: value for key, value in vars(module).items() if key not in _OF_MODULES}
        look_at({**own, **dict(module.named_buffers(recurse=False))}, (name,))
    return states


def _form(value: typing.Any) -> object:
    """Return what is equal for equal values. An object is equal to itself."""
    kind = type(value)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type != "meta":
        return torch.Tensor, value.dtype, value.shape, raw(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return np.ndarray, value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return kind, [(key, _form(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return kind, [_form(each) for each in value]
    # A NaN is no other than before.
    return (kind, repr(value)) if value is None or kind in (bool, int, float, str) else _Same(value)


class _Same:
    """Equal to another one for the same object, which it holds so that no other gets its place in memory."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _owner(policy: typing.Any, path: _Path) -> typing.Any:
    owner = policy.get_submodule(path[0])
    for name in path[1:-1]:
        owner = getattr(owner, name)
    return owner


def _package(value: object) -> str:
    return type(value).__module__.partition(".")[0]
