"""Isaac Lab Arena's options of environments, in the options that environments have here. Pure functions."""

from collections.abc import Collection, Mapping
from typing import Any

from isaaclab_arena.errors import ConfigError, Problem

_SAME_AS = {"pick_up_object": "object", "destination_location": "destination"}
_REASONS = {
    "pick_up_object": "environment '{name}' has no object to choose; leave it out",
    "destination_location": "environment '{name}' has its own place to put things, no other to choose; leave it out",
    "hdr": "there are no background pictures here; leave it out, and vary light and cameras by 'variations'",
    "object_set": "a job has one object; make a job of each with sweep: {{arena_env_args.object: [...]}}",
}


def in_own_options(
    options: Mapping[str, Any], known: Collection[str], *, name: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return options of an environment under its own names; what it declares itself stays as it is.

    Args:
        options: ``arena_env_args`` without the keys that every environment has.
        known: The options that the environment declares.
        name: The environment's name, for messages.

    Returns:
        The options, and of those that were renamed their own name to the one in the file.

    Raises:
        ConfigError: With every option that the environment cannot be given.
    """
    own: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    problems = []
    for key, value in options.items():
        target = None if key in known else _target(key, value, known)
        if key in known or (target is None and key not in _REASONS):
            own[key] = value
        elif target is None:
            problems.append(Problem(_REASONS[key].format(name=name), key=key))
        elif target in options or target in renamed:
            problems.append(Problem(f"is also given as {target}; give one of them", key=key))
        else:
            own[target] = value[0] if key == "object_set" and isinstance(value, list) else value
            renamed[target] = key
    if problems:
        raise ConfigError(problems)
    return own, renamed


def _target(key: str, value: Any, known: Collection[str]) -> str | None:
    """Return the option that stands for one of Arena's, None where there is none."""
    is_single = isinstance(value, str) or (isinstance(value, list) and len(value) == 1)
    target = "object" if key == "object_set" and is_single else _SAME_AS.get(key)
    return target if target in known else None
