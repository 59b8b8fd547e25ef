"""What variations do to the starts that a task draws, and whether two episodes are the same apart from that."""

from collections.abc import Collection, Iterable, Mapping

from isaaclab_arena.environments.mdp.conditions import number, point
from isaaclab_arena.interfaces.episode import ConditionValue

SHIFT, TURN, JOINT_SHIFT = "shift", "turn", "robot.joint_shift"
ROBOT_START = "robot.joint_position"
_SIZE = "size"
_DRAWN = {
    "action.noise": ("action.noise_seed",),
    "observation.noise": ("observation.noise_seed",),
    "picture.noise": ("picture.noise_seed",),
    "table.texture": ("table.pattern",),
    "background.texture": ("background.pattern",),
}
_COUNT, _DISTRACTOR = "distractors.count", "distractor_"


def with_moved_starts(conditions: Mapping[str, ConditionValue], keys: Iterable[str]) -> dict[str, ConditionValue]:
    """Return conditions with the starts that variations of their places and sizes make of those of the task.

    Args:
        conditions: What the task drew, with the values of the variations.
        keys: The variations, such as ``cube.shift``; those that move nothing are no matter.
    """
    moved = dict(conditions)
    for key in keys:
        asset, _, name = key.partition(".")
        if name == SHIFT:
            x, y, z = point(moved[f"{asset}.position"])
            east, north = point(moved[key])
            moved[f"{asset}.position"] = (x + east, y + north, z)
        elif name == TURN:
            moved[f"{asset}.yaw"] = number(moved[f"{asset}.yaw"]) + number(moved[key])
        elif key == JOINT_SHIFT:
            joints = zip(point(moved[ROBOT_START]), point(moved[key]), strict=True)
            moved[ROBOT_START] = tuple(start + shift for start, shift in joints)
        elif name == _SIZE and f"{asset}.position" in moved:
            # So that it still stands: its origin's height grows with it.
            x, y, z = point(moved[f"{asset}.position"])
            moved[f"{asset}.position"] = (x, y, z * number(moved[key]))
    return moved


def differs_only_by(
    before: Mapping[str, ConditionValue], now: Mapping[str, ConditionValue], keys: Collection[str]
) -> bool:
    """Return whether an episode is another one with variations turned on, and the same in everything else.

    That is so where each of them has a value that was not there before, every start is what it was and what the
    variations add to it, and nothing else differs but what they draw besides: seeds, patterns, places of distractors.

    Args:
        before: The conditions without them.
        now: The conditions with them.
        keys: The variations, such as ``cube.shift``.
    """
    if any(key in before or key not in now for key in keys):
        return False
    try:
        expected = with_moved_starts({**before, **{key: now[key] for key in keys}}, keys)
    except (KeyError, TypeError, ValueError):
        # Recordings may hold anything; what cannot have been moved was not.
        return False
    drawn = {each for key in keys for each in _DRAWN.get(key, ())}
    return all(
        _plain(expected.get(key)) == _plain(now.get(key))
        or key in drawn
        or (_COUNT in keys and key.startswith(_DISTRACTOR))
        for key in expected.keys() | now.keys()
    )


def _plain(value: ConditionValue | None) -> object:
    """Return a value with its numbers in a tuple, which JSON has made a list."""
    return tuple(value) if isinstance(value, list | tuple) else value
