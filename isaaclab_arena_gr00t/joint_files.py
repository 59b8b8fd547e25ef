"""Read Isaac Lab Arena's joint files: the joints of a model's groups, and the order of a simulation's joints."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.errors import ConfigError, Problem

JointGroups: TypeAlias = Mapping[str, tuple[str, ...]]
"""Name of a group of the model to the names of its joints, in the model's order."""


@dataclass(frozen=True, kw_only=True)
class PolicyJoints:
    """The joints of a model's groups.

    Attributes:
        state: Groups of the state.
        action: Groups of the action.
    """

    state: JointGroups
    action: JointGroups


@dataclass(frozen=True, kw_only=True)
class JointFiles:
    """The content of a policy's joint files; None for a missing file.

    Attributes:
        policy: What the model's groups hold.
        state_order: The environment's state joints in order.
        action_order: The environment's action joints in order.
    """

    policy: PolicyJoints | None = None
    state_order: tuple[str, ...] | None = None
    action_order: tuple[str, ...] | None = None


def read_joint_files(settings: object) -> JointFiles:
    """Read the joint files that a policy's YAML file names.

    Args:
        settings: The settings of the file, with any of the keys ``policy_joints_config_path`` (see
            `read_policy_joints`), ``state_joints_config_path`` and ``action_joints_config_path`` (see
            `read_joint_order`).

    Raises:
        ConfigError: If one cannot be read.
    """
    policy, state, action = (
        getattr(settings, f"{kind}_joints_config_path", None) for kind in ("policy", "state", "action")
    )
    return JointFiles(
        policy=read_policy_joints(policy) if policy else None,
        state_order=read_joint_order(state) if state else None,
        action_order=read_joint_order(action) if action else None,
    )


def read_policy_joints(path: str | Path) -> PolicyJoints:
    """Read the joints of a model's groups: group to joints, or such mappings under ``state`` and ``action``.

    Raises:
        ConfigError: If the file says anything else; file and key are named.
    """
    document = _mapping(read_document(path), str(path), None)
    if set(document) == {"state", "action"} and all(isinstance(part, dict) for part in document.values()):
        state, action = (_groups(document[part], str(path), f"{part}.") for part in ("state", "action"))
        return PolicyJoints(state=state, action=action)
    groups = _groups(document, str(path), "")
    return PolicyJoints(state=groups, action=groups)


def read_joint_order(path: str | Path) -> tuple[str, ...]:
    """Read the order of a simulation's joints: joint to position, counting from 0.

    Raises:
        ConfigError: If the file says anything else; file and key are named.
    """
    file = str(path)
    positions = _mapping(read_document(path), file, None)
    problems = [
        Problem(f"{position!r} is no position; positions count from 0", file=file, key=joint)
        for joint, position in positions.items()
        if isinstance(position, bool) or not isinstance(position, int)
    ]
    if problems:
        raise ConfigError(problems)
    ordered = sorted(positions, key=positions.__getitem__)
    for due, joint in enumerate(ordered):
        if positions[joint] != due:
            message = (
                f"has position {positions[joint]}, where {due} is the next; each of 0 to {len(ordered) - 1} is due"
            )
            raise ConfigError(Problem(message, file=file, key=joint))
    return tuple(ordered)


def _mapping(value: Any, file: str, key: str | None) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ConfigError(Problem("must be a mapping with at least one entry", file=file, key=key))
    return value


def _groups(document: dict[str, Any], file: str, prefix: str) -> JointGroups:
    problems = [
        Problem("must be a list of joint names without repetition", file=file, key=f"{prefix}{group}")
        for group, joints in document.items()
        if not _are_names(joints)
    ]
    if problems:
        raise ConfigError(problems)
    return {group: tuple(joints) for group, joints in _mapping(document, file, prefix.rstrip(".") or None).items()}


def _are_names(joints: Any) -> bool:
    if not isinstance(joints, list) or not joints or not all(isinstance(joint, str) for joint in joints):
        return False
    return len(set(joints)) == len(joints)
