"""Isaac Lab Arena's later keys of a job, in this project's own: a table of what stands for what."""

from collections.abc import Callable, Mapping
from typing import Any

from isaaclab_arena.config.arena.flags import is_other_physics
from isaaclab_arena.config.messages import shown
from isaaclab_arena.errors import Problem, did_you_mean

ARENA_JOB_KEYS = frozenset({"environment", "policy", "num_envs", "rollout_limit", "environment_builder"})
"""Keys of a job that `in_own_keys` takes away."""

_ROLLOUT_LIMIT = {"num_steps": "num_steps", "num_episodes": "num_episodes"}
_BUILDER = {
    "num_envs": "arena_env_args.num_envs",
    "env_spacing": "arena_env_args.env_spacing",
    "placement_seed": "arena_env_args.placement_seed",
    "seed": "seed",
    "language_instruction": "language_instruction",
}


_WITHOUT_EFFECT: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "device": (lambda _: False, ""),
    "disable_fabric": (lambda _: False, ""),
    "record_trajectories": (lambda _: False, ""),
    "solve_relations": (lambda value: value is not True, "tasks here always place their objects; leave it out"),
    "resolve_on_reset": (
        lambda value: value is not True,
        "every episode has a start of its own; to repeat starts, save them and give the file as 'conditions'",
    ),
    "mimic": (lambda value: value is True, "no demonstrations are generated from others here; leave it out"),
    "presets": (is_other_physics, "MuJoCo or MuJoCo-Warp simulates every environment; leave it out"),
    "recorded_variation_samples_path": (
        lambda value: value is not None,
        "what episodes start from is saved with --save_conditions here, and given as 'conditions'",
    ),
}
"""Keys of ``environment_builder`` that decide nothing here: which values cannot be had, and the way out."""

BUILDER_KEYS = frozenset({*_BUILDER, *_WITHOUT_EFFECT})
"""Every key that ``environment_builder`` may have."""


def in_own_keys(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return a block of job keys with `ARENA_JOB_KEYS` said in this project's keys, and what is wrong with them.

    Text that holds an interpolation stays where it is until that is resolved.

    Args:
        block: Keys of a job or of defaults, with ``arena_env_args`` and ``policy_config_dict`` as mappings.
    """
    if ARENA_JOB_KEYS.isdisjoint(block) or any(
        _is_interpolation(block.get(key)) for key in ("arena_env_args", "policy_config_dict")
    ):
        return dict(block), []
    moving = _Moving(block)
    moving.take("environment", lambda key, value: moving.move_typed(key, value, "arena_env_args.environment"))
    moving.take("policy", lambda key, value: moving.move_typed(key, value, "policy_type", "policy_config_dict"))
    moving.take("num_envs", lambda key, value: moving.put("arena_env_args.num_envs", value, key))
    moving.take("rollout_limit", lambda key, value: moving.move(key, value, _ROLLOUT_LIMIT))
    moving.take("environment_builder", lambda key, value: moving.move(key, value, _BUILDER, _WITHOUT_EFFECT))
    return moving.block, moving.problems


def _is_interpolation(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


class _Moving:
    """A block while its keys are moved.

    Attributes:
        block: The block as far as it is done.
        problems: What cannot be moved.
    """

    def __init__(self, block: Mapping[str, Any]) -> None:
        self.block = dict(block)
        self.problems: list[Problem] = []

    def take(self, key: str, move: Callable[[str, Any], None]) -> None:
        """Move one key away, if it is there and no interpolation stands for it."""
        value = self.block.get(key)
        if _is_interpolation(value):
            return
        self.block.pop(key, None)
        if value is not None:
            move(key, value)

    def put(self, path: str, value: Any, key: str) -> None:
        """Put a value where its own key is, unless something is there already."""
        outer, _, inner = path.rpartition(".")
        target = self.block
        if outer:
            found = self.block.get(outer)
            if found is not None and not isinstance(found, dict):
                return  # it is said that this is no mapping
            target = self.block[outer] = dict(found or {})
        if target.get(inner) is not None and target[inner] != value:
            self.problems.append(Problem(f"is also given as {path}; give one of them", key=key))
        else:
            target[inner] = value

    def move(
        self,
        key: str,
        value: Any,
        targets: Mapping[str, str],
        without_effect: Mapping[str, tuple[Callable[[Any], bool], str]] | None = None,
    ) -> None:
        """Move what a mapping holds, each of its keys to one of ours."""
        idle = without_effect or {}
        if not isinstance(value, Mapping):
            self.problems.append(Problem(f"{shown(value)} is not a mapping", key=key))
            return
        for name, item in value.items():
            if name in targets:
                if item is not None:
                    self.put(targets[name], item, f"{key}.{name}")
            elif name not in idle:
                message = f"unknown key{did_you_mean(name, {*targets, *idle})}"
                self.problems.append(Problem(message, key=f"{key}.{name}"))
            elif item is not None and idle[name][0](item):
                self.problems.append(Problem(idle[name][1], key=f"{key}.{name}"))

    def move_typed(self, key: str, value: Any, type_path: str, options_key: str | None = None) -> None:
        """Move a mapping with the key ``type``, which names what is wanted; the others are its options.

        Args:
            key: The mapping's key.
            value: The mapping.
            type_path: Where the name goes.
            options_key: Where the options go, by default beside the name.
        """
        if not isinstance(value, Mapping):
            message = f"{shown(value)} is not a mapping; its key 'type' names the {key}"
            self.problems.append(Problem(message, key=key))
            return
        options_key = options_key or type_path.partition(".")[0]
        for name, item in value.items():
            path = type_path if name == "type" else f"{options_key}.{name}"
            if path == type_path and name != "type":
                self.problems.append(Problem(f"is called {key}.type", key=f"{key}.{name}"))
            else:
                self.put(path, item, f"{key}.{name}")
