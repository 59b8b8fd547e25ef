"""Translate command lines and task names of mjlab, Isaac Lab and rsl_rl's examples into this trainer's."""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem

_NAMED_ELSEWHERE = {
    "torchrunx_log_dir": "launcher_log_dir",
    "checkpoint": "load_checkpoint",
    "agent.load_run": "load_run",
    "agent.load_checkpoint": "load_checkpoint",
    "agent.run_name": "run_name",
    "env.scene.num_envs": "num_envs",
}
"""Options of theirs that are options here under another name."""

_FLAGS: Mapping[str, str | None] = {
    "resume": "--resume=",
    "agent.resume": "--resume=",
    "video": "evaluation.video_episodes=1",
    "enable_nan_guard": "agent.check_for_nan=true",
    # No window is opened here, and nothing is uploaded.
    "headless": None,
    "agent.upload_model": None,
}
"""Options of theirs that may have no value or ``True`` or ``False``, with their meaning here, None for no effect."""

_EXPERIMENT = frozenset({"experiment_name", "agent.experiment_name"})
_LOGGER = frozenset({"logger", "agent.logger"})
_PROJECT = frozenset({"agent.wandb_project", "agent.neptune_project", "log_project_name"})
_FILMED_WHOLE = (
    "evaluations are filmed, each episode whole; --video films one of each, evaluation.interval=<iterations>"
)
_NOTHING_IS_FETCHED = "nothing is fetched from W&B; fetch the file, and name it with --load_checkpoint"
_NO_SIMULATOR = "is an option of Isaac Sim's launcher, and there is none here; leave it out"
_ONE_DEVICE = "simulation and learning share a device; use --device, or --gpu_ids for one rank per GPU"
_REFUSED = {
    "video_length": _FILMED_WHOLE,
    "video_interval": _FILMED_WHOLE,
    "registry_name": f"{_NOTHING_IS_FETCHED}; a motion is env.motion_file=<file>",
    "wandb_run_path": _NOTHING_IS_FETCHED,
    "wandb_checkpoint_name": _NOTHING_IS_FETCHED,
    "agent.wandb_tags": "W&B reads them from the environment variable WANDB_TAGS",
    "agent.class_name": "there is one runner; the algorithm's class is agent.algorithm.class_name=PPO",
    "agent.device": _ONE_DEVICE,
    "rl_device": _ONE_DEVICE,
    "sim_device": _ONE_DEVICE,
    "env.seed": "environment and agent share one seed; use --seed",
    "agent": "the task's own file says what learns; lay one of yours over it with --config",
    "horovod": "ranks are started with --gpu_ids or torchrun",
    "ray_proc_id": "ranks are started with --gpu_ids or torchrun",
    **dict.fromkeys(
        (
            "livestream",
            "enable_cameras",
            "xr",
            "experience",
            "kit_args",
            "rendering_mode",
            "disable_fabric",
            "export_io_descriptors",
            "anim_recording_enabled",
            "anim_recording_start_time",
            "anim_recording_stop_time",
            "visualizer",
            "viz",
            "verbose",
            "info",
        ),
        _NO_SIMULATOR,
    ),
}
_PARTS_OF_THEIR_ENVIRONMENTS = frozenset(
    {
        *("scene", "sim", "viewer", "observations", "actions", "events", "rewards", "terminations", "commands"),
        *("curriculum", "metrics", "recorders", "decimation", "episode_length_s", "is_finite_horizon", "auto_reset"),
        *("scale_rewards_by_dt", "rerender_on_reset", "wait_for_textures", "xr", "teleop_devices"),
    }
)
_SIMILAR: Sequence[tuple[frozenset[str], str]] = (
    (frozenset({"cartpole", "pendulum"}), "cartpole"),
    (frozenset({"tracking", "mimic", "amp", "motion", "dance"}), "track_motion"),
    (frozenset({"reach"}), "reach"),
    (frozenset({"push", "lift", "cube", "stack", "pick", "place"}), "push_cube"),
    (frozenset({"humanoid", "g1", "h1", "digit", "cassie", "t1"}), "walk_humanoid"),
    (frozenset({"velocity", "locomotion", "ant", "a1", "go1", "go2", "b2", "spot", "anymal"}), "velocity_go1"),
)
"""Words in the names of their tasks, with the most similar task here; the first match counts."""

_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})


@dataclass
class _Translation:
    """A command line in this trainer's words, as far as it has been read.

    Attributes:
        arguments: The translated arguments.
        problems: Options without a meaning here.
        logger: The log writer that was named.
        project: The log writer's project.
    """

    arguments: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    logger: str | None = None
    project: str | None = None


def own_command_line(arguments: Sequence[str]) -> list[str]:
    """Return a command line with other trainers' options translated into this one's; unknown words stay unchanged.

    mjlab's ``--agent.max-iterations 2`` becomes ``agent.max_iterations=2``, Isaac Lab's ``--task NAME`` becomes the
    task's name, and so on. Hyphens and underscores mean the same, and so do ``--name value`` and ``--name=value``.

    Args:
        arguments: What was typed after the program's name.

    Raises:
        ConfigError: With every option of theirs that has no meaning here, and the alternative.
    """
    translation = _Translation()
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        name, equals, value = argument.partition("=")
        own = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--"):
            _add_word(translation, argument)
        elif not _is_theirs(own, value if equals else next(iter(waiting), "")):
            translation.arguments.append(argument)
        elif (reason := _refusal(own)) is not None:
            translation.problems.append(Problem(reason, key=name))
        else:
            _add_option(translation, own, value if equals else _value_behind(name, own, waiting), typed=name)
    _add_logger(translation)
    if translation.problems:
        raise ConfigError(translation.problems)
    return translation.arguments


def option_names() -> frozenset[str]:
    """Return the names of other trainers' options that are accepted, without their dashes."""
    return frozenset({*_NAMED_ELSEWHERE, *_FLAGS, *_EXPERIMENT, *_LOGGER, *_PROJECT, "task"})


def nearest_task(name: str) -> str | None:
    """Return a hint for the name of a task of mjlab or Isaac Lab, None if the name is not one of theirs.

    Args:
        name: ``Mjlab-Velocity-Flat-Unitree-Go1``, ``Isaac-Reach-Franka-v0``.
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    owner = {"mjlab": "mjlab", "isaac": "Isaac Lab"}.get(words[0])
    if owner is None:
        return None
    similar = next((task for known, task in _SIMILAR if not known.isdisjoint(words)), None)
    if similar is None:
        return f"'{name}' is a task of {owner}, and none here is like it"
    if similar == "cartpole" and "swingup" in words:
        similar = "cartpole env.start=hanging"
    return f"'{name}' is a task of {owner}; the nearest here is {similar}, with a robot and rewards of its own"


def _is_theirs(own: str, value: str) -> bool:
    if own == "resume":
        # Our option takes a directory, and theirs a boolean; a value that could be either is a directory.
        return value.lower() in {"true", "false"} and not Path(value).is_dir()
    return own.startswith(("agent.", "env.")) or own in option_names() or own in _REFUSED


def _refusal(own: str) -> str | None:
    """Return why an option of theirs, or a path of their settings, has no meaning here; None if it has one."""
    if own in _REFUSED:
        return _REFUSED[own]
    first, _, others = own.partition(".")
    if first != "env" or own in _NAMED_ELSEWHERE or others.partition(".")[0] not in _PARTS_OF_THEIR_ENVIRONMENTS:
        return None
    return "is a part of mjlab's and Isaac Lab's environments; those here have options of their own, env.<option>=..."


def _value_behind(name: str, own: str, waiting: list[str]) -> str:
    """Return the value of an option and remove it from the remaining words."""
    follows = next(iter(waiting), "--")
    if own in _FLAGS:
        return waiting.pop(0) if follows.lower() in _TRUE | _FALSE else "true"
    if follows.startswith("--"):
        raise ConfigError(Problem("needs a value", key=name))
    return waiting.pop(0)


def _add_word(translation: _Translation, word: str) -> None:
    """Add a task's name, or a word ``path=value``, which Isaac Lab's users write too."""
    path, equals, value = word.partition("=")
    refusal = _refusal(path) if equals and path.startswith("env.") else None
    if refusal is not None:
        translation.problems.append(Problem(refusal, key=path))
    elif equals and path == "env.scene.num_envs":
        translation.arguments.append(f"num_envs={value}")
    else:
        translation.arguments.append(word)


def _add_option(translation: _Translation, own: str, value: str, *, typed: str) -> None:
    arguments = translation.arguments
    if own in _FLAGS:
        does = _FLAGS[own]
        arguments += [does] if _truth(typed, value) and does is not None else []
    elif own in _LOGGER:
        translation.logger = _as_yaml(value)
    elif own in _PROJECT:
        translation.project = value
    elif own in _NAMED_ELSEWHERE:
        arguments.append(f"--{_NAMED_ELSEWHERE[own]}={value}")
    elif own in _EXPERIMENT:
        # The name is quoted, because it may look like a number.
        arguments.append(f"agent.experiment_name={json.dumps(value)}")
    elif own == "task":
        arguments.append(value)
    else:
        arguments.append(f"{own}={_as_yaml(value)}")


def _add_logger(translation: _Translation) -> None:
    logger, project = translation.logger, translation.project
    if project is not None and logger not in {"wandb", "neptune"}:
        message = f"names the project '{project}' of a log writer; add --logger wandb"
        translation.problems.append(Problem(message, key="--log_project_name"))
    elif project is not None:
        described = json.dumps({"class_name": logger, "project_name": project})
        translation.arguments.append(f"agent.logger={described}")
    elif logger is not None:
        translation.arguments.append(f"agent.logger={logger}")


def _truth(typed: str, value: str) -> bool:
    if value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ConfigError(Problem(f"is True or False, got '{value}'", key=typed))


def _as_yaml(value: str) -> str:
    """Return a value as YAML; mjlab also accepts Python's notation: ``(256, 128)``, ``None``."""
    try:
        found = ast.literal_eval(value)
        return json.dumps(found) if isinstance(found, tuple | list | dict | bool | None) else value
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return value
