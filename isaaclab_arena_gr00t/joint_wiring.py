"""Map the numbers of an environment's state and action to the groups of a model."""

from collections.abc import Mapping, Sequence

from isaaclab_arena.errors import Problem, did_you_mean
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena_gr00t.joint_files import JointFiles, JointGroups
from isaaclab_arena_gr00t.joints import positions_of


def wired_state(
    observed: Mapping[str, ArraySpec], keys: Sequence[str], joint_terms: Sequence[str], files: JointFiles
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]], list[Problem]]:
    """Return the positions of a model's state groups in an environment's observations.

    Args:
        observed: The observations by name.
        keys: The groups. A group that the joint files do not name is the observation of that name.
        joint_terms: Observations with the joints that the joint files name.
        files: The joint files.

    Returns:
        The observations in order, the indices of each group in them side by side, and the problems.
    """
    groups: JointGroups = files.policy.state if files.policy else {}
    needed = tuple(joint_terms) if any(key in groups for key in keys) else ()
    wanted = list(dict.fromkeys([*needed, *(key for key in keys if key not in groups)]))
    problems = [
        Problem(wrong, key="state_names_sim" if name in needed else "policy_joints_config_path")
        for name in wanted
        if (wrong := _wrong_term(name, observed)) is not None
    ]
    if problems:
        return (), {}, problems
    names = _names_of([observed[name] for name in needed])
    order, problems = _agreed_order(names, files.state_order if needed else None, key="state_joints_config_path")
    if problems:
        return (), {}, problems
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


def _wrong_term(name: str, observed: Mapping[str, ArraySpec]) -> str | None:
    if name not in observed:
        return f"the environment observes no '{name}'{did_you_mean(name, observed)}"
    shape = observed[name].shape
    return None if len(shape) == 1 else f"'{name}' has shape {shape}; only a list of numbers can be part of the state"


def wired_action(
    spec: ArraySpec, keys: Sequence[str], files: JointFiles
) -> tuple[dict[str, tuple[int, ...]], list[Problem]]:
    """Return the positions of a model's action groups in the action of an environment.

    Args:
        spec: The environment's action.
        keys: The groups. A single group may be missing in the joint files; it is then the whole action.
        files: The joint files.

    Returns:
        The indices of each group, together every index exactly once, and the problems.
    """
    groups: JointGroups = files.policy.action if files.policy else {}
    if len(keys) == 1 and keys[0] not in groups:
        return {keys[0]: tuple(range(spec.shape[0]))}, []
    order, problems = _agreed_order(_names_of([spec]), files.action_order, key="action_joints_config_path")
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
    return places, problems or _uneven(places, order)


def _uneven(places: Mapping[str, Sequence[int]], order: Sequence[str]) -> list[Problem]:
    """Return the problems of joints of the action that get no value, or two."""
    taken = [place for group in places.values() for place in group]
    return [
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


def _names_of(specs: Sequence[ArraySpec]) -> tuple[str | None, ...]:
    """Return one name per number, None for each number without a name."""
    names: list[str | None] = []
    for spec in specs:
        names.extend(spec.names if spec.names is not None else [None] * spec.shape[0])
    return tuple(names)


def _agreed_order(
    names: Sequence[str | None], given: Sequence[str] | None, *, key: str
) -> tuple[tuple[str, ...], list[Problem]]:
    """Return the joints in order, from the environment or the file; if both have one, they must agree."""
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
