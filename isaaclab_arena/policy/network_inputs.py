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
    """A group of the environment's observations, restricted to the network's terms."""

    name: str
    terms: Mapping[str, ArraySpec]  # the terms of the network's input, in order
    missing: tuple[str, ...] = ()  # terms of its training that the group lacks
    available: tuple[str, ...] = ()  # all terms of the group

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {prod(spec.shape)}" for name, spec in self.terms.items())
        return f"group '{self.name}' with {flat_size(self.terms)} numbers ({sizes})"


@dataclass(frozen=True, kw_only=True)
class NetworkInputs:
    """The observations that a network sees of an environment."""

    groups: tuple[InputGroup, ...]  # concatenated in this order
    missing_groups: tuple[str, ...] = ()  # groups of its training that the environment lacks
    available_groups: tuple[str, ...] = ()  # all groups of the environment

    @property
    def size(self) -> int:
        """Numbers per env slot."""
        return sum(flat_size(group.terms) for group in self.groups)

    def flat(self, observation: Observation, num_envs: int, device: torch.device) -> torch.Tensor:
        """Return the network's input. Shape: (num_envs, size), float32."""
        parts = [
            flattened(observation[group.name], tuple(group.terms), num_envs=num_envs, device=device)
            for group in self.groups
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def problems(self, num_inputs: int | None) -> list[Problem]:
        """Return the reasons why a network cannot take this input; `num_inputs` is None if it is unknown."""
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
        # Sizes are comparable only if all groups and terms exist.
        if not problems and num_inputs not in {None, self.size}:
            message = f"the network takes {num_inputs} numbers, this environment would show it {self}"
            problems.append(Problem(message))
        return problems

    def __str__(self) -> str:
        return " and ".join(map(str, self.groups))


def network_inputs(spec: ObservationSpec, groups: Sequence[str], terms: Mapping[str, Sequence[str]]) -> NetworkInputs:
    """Return the observations of an environment that a network sees, by the groups and terms of its training."""
    # Groups without a list in ``terms`` show all their terms in the environment's order.
    # A single group that the environment lacks stands for the group ``policy``: mjlab calls it ``actor``.
    here = {name: group for name, group in spec.items() if not isinstance(group, ArraySpec)}
    if len(groups) == 1 and groups[0] not in here and DEFAULT_GROUP in here:
        order = terms.get(DEFAULT_GROUP, terms.get(groups[0]))
        groups, terms = (DEFAULT_GROUP,), {} if order is None else {DEFAULT_GROUP: order}
    found = [_input_group(name, here[name], terms.get(name)) for name in groups if name in here]
    missing = tuple(name for name in groups if name not in here)
    return NetworkInputs(groups=tuple(found), missing_groups=missing, available_groups=tuple(here))


def flat_size(terms: Mapping[str, ArraySpec]) -> int:
    """Return the number of values in a group of observation terms, which may be 0."""
    return sum(prod(spec.shape) for spec in terms.values())


def flattened(
    group: Mapping[str, torch.Tensor], terms: Sequence[str], *, num_envs: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Concatenate terms (num_envs, ...) of a group to (num_envs, sum of sizes), float32; KeyError if one is missing."""
    parts = [group[name].reshape(num_envs, -1).to(torch.float32) for name in terms]
    # Without terms the vector has no numbers, and ``device`` decides its place.
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
