"""Convert joint values between the order of a simulation and the groups of a model."""

from collections.abc import Mapping, Sequence

import torch

from isaaclab_arena.errors import did_you_mean


def positions_of(joints: Sequence[str], order: Sequence[str]) -> tuple[int, ...]:
    """Return the position of each joint in an order.

    Args:
        joints: Names to look up.
        order: Names in the order of the simulation.

    Raises:
        KeyError: If a joint is missing, or is there twice; the message says so.
    """
    return tuple(_position(joint, order) for joint in joints)


def _position(joint: str, order: Sequence[str]) -> int:
    found = [position for position, name in enumerate(order) if name == joint]
    if not found:
        raise KeyError(f"there is no joint '{joint}'{did_you_mean(joint, order)}")
    if len(found) > 1:
        raise KeyError(f"'{joint}' stands at positions {' and '.join(map(str, found))}")
    return found[0]


def to_groups(values: torch.Tensor, positions: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """Return the values of each group, in the group's order.

    Args:
        values: In the order of the simulation. Shape: (..., num_joints).
        positions: Positions of each group's joints in that order.

    Returns:
        Shape of each: (..., size of the group).
    """
    indices = {group: torch.tensor(places).to(values.device, non_blocking=True) for group, places in positions.items()}
    return {group: values.index_select(-1, places) for group, places in indices.items()}


def from_groups(groups: Mapping[str, torch.Tensor], positions: Mapping[str, Sequence[int]]) -> torch.Tensor:
    """Return the values of all groups in the order of the simulation.

    Args:
        groups: Shape of each: (..., size of the group).
        positions: Positions of each group's joints; together they are every position from 0 exactly once.

    Returns:
        Shape: (..., num_joints).
    """
    joined = torch.cat([groups[group] for group in positions], dim=-1)
    places = [place for group in positions for place in positions[group]]
    ordered = torch.empty_like(joined)
    ordered[..., places] = joined
    return ordered
