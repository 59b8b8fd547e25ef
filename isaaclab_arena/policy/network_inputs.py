"""Choose a network's observations and their order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from isaaclab_arena.errors import Problem
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.pictures import CAMERAS
from isaaclab_arena.interfaces.specs import ArraySpec, ObservationSpec

DEFAULT_GROUP = "policy"


@dataclass(frozen=True, kw_only=True)
class InputGroup:
    """One group of the environment, as far as the network is shown it.

    Attributes:
        name: Its name in the environment.
        terms: The terms that it is shown, in order.
        missing: Terms that it was trained on and that are not there.
        available: All terms that are there.
    """

    name: str
    terms: Mapping[str, ArraySpec]
    missing: tuple[str, ...] = ()
    available: tuple[str, ...] = ()

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {prod(spec.shape)}" for name, spec in self.terms.items())
        return f"group '{self.name}' with {flat_size(self.terms)} numbers ({sizes})"


@dataclass(frozen=True, kw_only=True)
class NetworkInputs:
    """What a network is shown of an environment.

    Attributes:
        groups: One behind the other.
        missing_groups: Groups that it was trained on and that the environment does not have.
        available_groups: Those that it has.
    """

    groups: tuple[InputGroup, ...]
    missing_groups: tuple[str, ...] = ()
    available_groups: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Numbers per env slot."""
        return sum(flat_size(group.terms) for group in self.groups)

    def flat(self, observation: Observation, num_envs: int, device: torch.device) -> torch.Tensor:
        """Return what the network is shown.

        Args:
            observation: What is observed.
            num_envs: Number of env slots.
            device: Where it lives.

        Returns:
            Shape: (num_envs, size), float32.
        """
        parts = [
            flattened(observation[group.name], tuple(group.terms), num_envs=num_envs, device=device)
            for group in self.groups
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def problems(self, num_inputs: int | None) -> list[Problem]:
        """Return why a network cannot be shown this; empty where it can.

        Args:
            num_inputs: Numbers per env slot that it takes, None where it does not say.
        """
        problems = [
            Problem(
                f"the network was trained on the observation group '{name}', this environment has "
                f"{', '.join(self.available_groups)}; say with observation_groups which to show it"
                + ("; enable_cameras: true in arena_env_args adds the pictures" if name == CAMERAS else "")
            )
            for name in self.missing_groups
        ]
        problems += [
            Problem(
                f"the network was trained on '{term}', which group '{group.name}' of this environment lacks; it has "
                f"{', '.join(group.available)}; say with observation_terms which to show it"
            )
            for group in self.groups
            for term in group.missing
        ]
        if not problems and num_inputs not in {None, self.size}:
            message = f"the network takes {num_inputs} numbers, this environment would show it {self}"
            problems.append(Problem(message))
        return problems

    def __str__(self) -> str:
        return " and ".join(map(str, self.groups))


def network_inputs(spec: ObservationSpec, groups: Sequence[str], terms: Mapping[str, Sequence[str]]) -> NetworkInputs:
    """Return what a network is shown of an environment.

    Args:
        spec: What the environment observes.
        groups: What the network was trained on. A single group that the environment lacks stands for its group
            ``policy``: mjlab calls it ``actor``.
        terms: The terms of each group in the order of the training; where a group is not named, all of them in the
            environment's order.
    """
    here = {name: group for name, group in spec.items() if not isinstance(group, ArraySpec)}
    if len(groups) == 1 and groups[0] not in here and DEFAULT_GROUP in here:
        order = terms.get(DEFAULT_GROUP, terms.get(groups[0]))
        groups, terms = (DEFAULT_GROUP,), {} if order is None else {DEFAULT_GROUP: order}
    found = [_input_group(name, here[name], terms.get(name)) for name in groups if name in here]
    missing = tuple(name for name in groups if name not in here)
    return NetworkInputs(groups=tuple(found), missing_groups=missing, available_groups=tuple(here))


def flat_size(terms: Mapping[str, ArraySpec]) -> int:
    """Return how many numbers a group of observation terms has, which may be 0."""
    return sum(prod(spec.shape) for spec in terms.values())


def flattened(
    group: Mapping[str, torch.Tensor], terms: Sequence[str], *, num_envs: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return terms of an observation group side by side.

    Args:
        group: Term to its value. Shape of each: (num_envs, ...).
        terms: Which ones, in this order; none gives a vector without numbers.
        num_envs: Number of env slots.
        device: Where a vector without numbers lives; others live where their terms do.

    Returns:
        Shape: (num_envs, sum of sizes), float32.

    Raises:
        KeyError: If the group lacks a term.
    """
    parts = [group[name].reshape(num_envs, -1).to(torch.float32) for name in terms]
    return torch.cat(parts, dim=1) if parts else torch.zeros(num_envs, 0, device=device)


def _input_group(name: str, group: ObservationSpec, wanted: Sequence[str] | None) -> InputGroup:
    available = {term: spec for term, spec in group.items() if isinstance(spec, ArraySpec)}
    shown = tuple(available) if wanted is None else wanted
    return InputGroup(
        name=name,
        terms={term: available[term] for term in shown if term in available},
        missing=tuple(term for term in shown if term not in available),
        available=tuple(available),
    )
