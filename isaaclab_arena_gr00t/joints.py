"""The joints of a model and of a simulation: files, groups, order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.specs import ArraySpec

# Describe a model's inputs and outputs, as far as an environment needs them.


class Modality(Protocol):
    """The part of ``gr00t.data.types.ModalityConfig`` that this package reads."""

    @property
    def delta_indices(self) -> Any:
        """Steps relative to now."""
        ...

    @property
    def modality_keys(self) -> Any:
        """Names of the entries, in order."""
        ...


@dataclass(frozen=True, kw_only=True)
class StatedModality:
    """One modality in a checkpoint's files or a server's answer; further values of a `Modality` are ignored."""

    delta_indices: Sequence[int]
    modality_keys: Sequence[str]


Dimensions = Mapping[str, Mapping[str, int]]
"""``state`` and ``action`` to the size of each key."""

PRESENT = (0,)
"""The steps of a model that uses the present step only."""

_LONGEST_HISTORY = 256
"""Largest number of remembered control steps; a model or a server that asks for more is wrong, or an attack."""


@dataclass(frozen=True, kw_only=True)
class ModelInterface:
    """The inputs and outputs of a model."""

    video_keys: tuple[str, ...]
    state_keys: tuple[str, ...]  # groups of the state
    action_keys: tuple[str, ...]  # groups of the action
    # Names of the instruction. A model with several uses the first, and may require all.
    language_keys: tuple[str, ...]
    horizon: int  # control steps that the model predicts
    dimensions: Dimensions | None = None  # None if the model does not state them
    video_steps: tuple[int, ...] = PRESENT  # 0 is the present step, -15 the one 15 steps before
    state_steps: tuple[int, ...] = PRESENT


def model_interface(modalities: Mapping[str, Modality], dimensions: Dimensions | None) -> ModelInterface:
    """Return a model's inputs and outputs; ConfigError for impossible steps, or no instruction or action."""
    keys = {name: tuple(modality.modality_keys) for name, modality in modalities.items()}
    steps = {name: tuple(modalities[name].delta_indices) if keys.get(name) else PRESENT for name in ("video", "state")}
    # Policies remember a limited number of past steps, and no future ones exist.
    problems = [
        Problem(
            f"the model wants '{name}' at the steps {str(list(wanted))[:100]}; the present one, 0, and up to "
            f"{_LONGEST_HISTORY} before it, -{_LONGEST_HISTORY}, are given"
        )
        for name, wanted in steps.items()
        if not 1 <= len(wanted) <= _LONGEST_HISTORY + 1 or min(wanted) < -_LONGEST_HISTORY or max(wanted) > 0
    ]
    languages = keys.get("language", ())
    if not languages:
        problems.append(Problem("the model takes no instruction"))
    if not keys.get("action"):
        problems.append(Problem("the model has no actions"))
    if problems:
        raise ConfigError(problems)
    return ModelInterface(
        video_keys=keys.get("video", ()),
        state_keys=keys.get("state", ()),
        action_keys=keys["action"],
        language_keys=languages,
        horizon=len(list(modalities["action"].delta_indices)),
        dimensions=dimensions,
        video_steps=steps["video"],
        state_steps=steps["state"],
    )


# Convert joint values between the order of a simulation and the groups of a model.


def positions_of(joints: Sequence[str], order: Sequence[str]) -> tuple[int, ...]:
    """Return the position of each joint in `order`; KeyError if a joint is missing or there twice."""
    positions: list[int] = []
    for joint in joints:
        found = [position for position, name in enumerate(order) if name == joint]
        if not found:
            raise KeyError(f"there is no joint '{joint}'{did_you_mean(joint, order)}")
        if len(found) > 1:
            raise KeyError(f"'{joint}' stands at positions {' and '.join(map(str, found))}")
        positions += found
    return tuple(positions)


def to_groups(values: torch.Tensor, positions: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """Return each group's values, (..., size), from `values` (..., num_joints) in the order of the simulation."""
    indices = {group: torch.tensor(places).to(values.device, non_blocking=True) for group, places in positions.items()}
    return {group: values.index_select(-1, places) for group, places in indices.items()}


def from_groups(groups: Mapping[str, torch.Tensor], positions: Mapping[str, Sequence[int]]) -> torch.Tensor:
    """Return the values of all groups, (..., num_joints), in the order of the simulation; inverse of `to_groups`."""
    # Together the groups contain every position from 0 exactly once.
    joined = torch.cat([groups[group] for group in positions], dim=-1)
    places = [place for group in positions for place in positions[group]]
    ordered = torch.empty_like(joined)
    ordered[..., places] = joined
    return ordered


# Read Isaac Lab Arena's joint files: the joints of a model's groups, and the order of a simulation's joints.

JointGroups: TypeAlias = Mapping[str, tuple[str, ...]]
"""Name of a group of the model to the names of its joints, in the model's order."""


@dataclass(frozen=True, kw_only=True)
class PolicyJoints:
    """The joints of each group of a model's state and action."""

    state: JointGroups
    action: JointGroups


@dataclass(frozen=True, kw_only=True)
class JointFiles:
    """The content of a policy's joint files; None for a file that is not given."""

    policy: PolicyJoints | None = None
    state_order: tuple[str, ...] | None = None  # the environment's state joints
    action_order: tuple[str, ...] | None = None  # the environment's action joints


def read_joint_files(settings: object) -> JointFiles:
    """Read the joint files that a policy's YAML file names; ConfigError if one cannot be read."""
    policy, state, action = (
        getattr(settings, f"{kind}_joints_config_path", None) for kind in ("policy", "state", "action")
    )
    return JointFiles(
        policy=read_policy_joints(policy) if policy else None,
        state_order=read_joint_order(state) if state else None,
        action_order=read_joint_order(action) if action else None,
    )


def read_policy_joints(path: str | Path) -> PolicyJoints:
    """Read the joints of a model's groups; ConfigError, with file and key, for any other content."""
    document = _mapping(read_document(path), str(path), None)
    # Two forms: one mapping from group to joints, or one mapping each under ``state`` and ``action``.
    if set(document) == {"state", "action"} and all(isinstance(part, dict) for part in document.values()):
        state, action = (_groups(document[part], str(path), f"{part}.") for part in ("state", "action"))
        return PolicyJoints(state=state, action=action)
    groups = _groups(document, str(path), "")
    return PolicyJoints(state=groups, action=groups)


def read_joint_order(path: str | Path) -> tuple[str, ...]:
    """Read the order of a simulation's joints, a mapping from joint to position; ConfigError for anything else."""
    file = str(path)
    positions = _mapping(read_document(path), file, None)
    problems = [
        Problem(f"{position!r} is no position; positions count from 0", file=file, key=joint)
        for joint, position in positions.items()
        if isinstance(position, bool) or not isinstance(position, int)
    ]
    if problems:
        raise ConfigError(problems)
    # Each position from 0 must be there exactly once.
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
    problems: list[Problem] = []
    for group, joints in document.items():
        are_names = isinstance(joints, list) and joints and all(isinstance(joint, str) for joint in joints)
        if not are_names or len(set(joints)) != len(joints):
            message = "must be a list of joint names without repetition"
            problems.append(Problem(message, file=file, key=f"{prefix}{group}"))
    if problems:
        raise ConfigError(problems)
    return {group: tuple(joints) for group, joints in _mapping(document, file, prefix.rstrip(".") or None).items()}


# Map the numbers of an environment's state and action to the groups of a model.


def wired_state(
    observed: Mapping[str, ArraySpec], keys: Sequence[str], joint_terms: Sequence[str], files: JointFiles
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]], list[Problem]]:
    """Return the needed observations in order, each state key's indices in them side by side, and the problems."""
    # A key that the joint files do not name is the observation of that name.
    groups: JointGroups = files.policy.state if files.policy else {}
    needed = tuple(joint_terms) if any(key in groups for key in keys) else ()
    wanted = list(dict.fromkeys([*needed, *(key for key in keys if key not in groups)]))
    problems: list[Problem] = []
    for name in wanted:
        key = "state_names_sim" if name in needed else "policy_joints_config_path"
        if name not in observed:
            message = f"the environment observes no '{name}'{did_you_mean(name, observed)}"
            problems.append(Problem(message, key=key))
        elif len(observed[name].shape) != 1:
            message = f"'{name}' has shape {observed[name].shape}; only a list of numbers can be part of the state"
            problems.append(Problem(message, key=key))
    if problems:
        return (), {}, problems

    specs = [observed[name] for name in needed]
    order, problems = _agreed_order(specs, files.state_order if needed else None, key="state_joints_config_path")
    if problems:
        return (), {}, problems

    # The observations lie side by side, each from its start.
    starts: dict[str, int] = {}
    for name in wanted:
        starts[name] = sum(observed[earlier].shape[0] for earlier in starts)
    places: dict[str, tuple[int, ...]] = {}
    for key in keys:
        if key in groups:
            found, wrong = _places(groups[key], order, group=key, kind="state")
            places[key], problems = found, problems + wrong
        else:
            places[key] = tuple(range(starts[key], starts[key] + observed[key].shape[0]))
    return tuple(wanted), places, problems


def wired_action(
    spec: ArraySpec, keys: Sequence[str], files: JointFiles
) -> tuple[dict[str, tuple[int, ...]], list[Problem]]:
    """Return each action key's indices, together every index exactly once, and the problems."""
    groups: JointGroups = files.policy.action if files.policy else {}
    # A single group that the joint files do not name is the whole action.
    if len(keys) == 1 and keys[0] not in groups:
        return {keys[0]: tuple(range(spec.shape[0]))}, []
    order, problems = _agreed_order([spec], files.action_order, key="action_joints_config_path")
    if problems:
        return {}, problems
    places: dict[str, tuple[int, ...]] = {}
    for key in keys:
        if key not in groups:
            message = f"does not say which joints the model's action '{key}' holds{did_you_mean(key, groups)}"
            problems.append(Problem(message, key="policy_joints_config_path"))
            continue
        places[key], wrong = _places(groups[key], order, group=key, kind="action")
        problems += wrong
    if problems:
        return places, problems

    # Every joint of the environment needs exactly one value.
    taken = [place for group in places.values() for place in group]
    return places, [
        Problem(
            f"{taken.count(place) or 'none'} of the model's actions is for '{joint}'; there must be exactly one",
            key="policy_joints_config_path",
        )
        for place, joint in enumerate(order)
        if taken.count(place) != 1
    ]


def _places(
    joints: Sequence[str], order: Sequence[str], *, group: str, kind: str
) -> tuple[tuple[int, ...], list[Problem]]:
    places: list[int] = []
    problems = []
    for joint in joints:
        try:
            places.extend(positions_of([joint], order))
        except KeyError as error:
            message = f"{kind} group '{group}': {error.args[0]}"
            problems.append(Problem(message, key="policy_joints_config_path"))
    return tuple(places), problems


def _agreed_order(
    specs: Sequence[ArraySpec], given: Sequence[str] | None, *, key: str
) -> tuple[tuple[str, ...], list[Problem]]:
    """Return the joints in order, from the environment or the file; if both have an order, they must agree."""
    # One name per number, None for a number without a name.
    names: list[str | None] = []
    for spec in specs:
        names.extend(spec.names if spec.names is not None else [None] * spec.shape[0])
    if given is None:
        if None in names:
            return (), [Problem("is missing; the environment does not name all its joints", key=key)]
        return tuple(name for name in names if name is not None), []
    if len(given) != len(names):
        return (), [Problem(f"lists {len(given)} joints, the environment has {len(names)}", key=key)]
    problems = [
        Problem(f"says that joint {place} is '{ours}', in the environment it is '{theirs}'", key=key)
        for place, (ours, theirs) in enumerate(zip(given, names, strict=True))
        if theirs is not None and ours != theirs
    ]
    return tuple(given), problems
