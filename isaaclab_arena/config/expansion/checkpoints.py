"""One job with ``checkpoints`` becomes one job per checkpoint of a training's directory."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from isaaclab_arena.checkpoints import Checkpoint, best_of_training, find_checkpoints, look_at
from isaaclab_arena.config.expansion.sweeps import MAX_JOBS
from isaaclab_arena.config.options import shown
from isaaclab_arena.errors import ConfigError, Problem

_LOG = logging.getLogger(__name__)

CHECKPOINTS_KEY = "checkpoints"
STEP = "checkpoint_step"
"""The name under which a job's step is swept, and so that of its column."""

OPTIONS = ("checkpoint_path", "model_path", "pretrained")
"""The options in which policies take a checkpoint: the first that a job gives names the training's directory."""

_ALL_STEPS, _LAST, _BEST = "all", "last", "best"
_WILDCARDS = "*?["
_MOST_SHOWN = 12


def expand_checkpoints(job: Mapping[str, Any], *, room: int) -> Iterator[tuple[dict[str, Any], dict[str, int | None]]]:
    """Yield one job per checkpoint, with its step; the job itself without ``checkpoints``. ConfigError."""
    # A checkpoint's job is named ``<name>-<step>``, and its option names the checkpoint instead of the directory.
    # ``room`` limits the number of jobs.
    # ConfigError: the option does not name a training's directory, or a checkpoint is missing or incomplete.
    plain = {key: value for key, value in job.items() if key != CHECKPOINTS_KEY}
    if job.get(CHECKPOINTS_KEY) is None:
        yield plain, {}
        return
    option, directory = _directory(plain)
    chosen = _chosen(job[CHECKPOINTS_KEY], directory, option)
    if len(chosen) > room:
        message = f"makes {len(chosen)} jobs, and a file may have {MAX_JOBS} in all"
        raise ConfigError(Problem(message, key=CHECKPOINTS_KEY))
    for path, step in chosen:
        own = deepcopy(plain)
        own["policy_config_dict"][option] = str(path)
        if isinstance(own.get("name"), str):
            own["name"] += f"-{_BEST if job[CHECKPOINTS_KEY] == _BEST else step}"
        yield own, {STEP: step}


def _directory(job: Mapping[str, Any]) -> tuple[str, Path]:
    options = job.get("policy_config_dict") or {}
    option = next((name for name in OPTIONS if isinstance(options, dict) and options.get(name) is not None), None)
    if option is None:
        message = f"needs the directory of the training as an option of the policy: {', '.join(OPTIONS)}"
        raise ConfigError(Problem(message, key=CHECKPOINTS_KEY))
    directory = Path(str(options[option]))
    if not directory.is_dir():
        message = f"'{directory}' is no directory, and '{CHECKPOINTS_KEY}' takes the checkpoints of one"
        raise ConfigError(Problem(message, key=f"policy_config_dict.{option}"))
    return option, directory


def _chosen(asked: Any, directory: Path, option: str) -> Sequence[tuple[Path, int | None]]:
    chosen: list[tuple[Path, int | None]]
    chosen = [_best(directory)] if asked == _BEST else [(each.path, each.step) for each in _found(asked, directory)]
    if not chosen:
        steps = _in_words(find_checkpoints(directory))
        message = f"there is none like {shown(asked)} in '{directory}'; its steps are {steps}"
        raise ConfigError(Problem(message, key=CHECKPOINTS_KEY))
    for path, _ in chosen:
        missing = look_at(path).missing
        if missing is not None:
            message = f"'{path}' cannot be loaded: {missing}; isaaclab-arena watch waits for checkpoints"
            raise ConfigError(
                Problem(message, key=f"policy_config_dict.{option}" if asked == _BEST else CHECKPOINTS_KEY)
            )
    return chosen


def _best(directory: Path) -> tuple[Path, int | None]:
    best = best_of_training(directory)
    if best is None:
        message = f"the training in '{directory}' names no best checkpoint: there is no model_best.pt, and no "
        message += "trainer_state.json with best_model_checkpoint; isaaclab-arena watch chooses the best of all"
        raise ConfigError(Problem(message, key=CHECKPOINTS_KEY))
    if best[1] is None:
        _LOG.warning("the step of '%s' is unknown, so its column is empty", best[0])
    return best


def _found(asked: Any, directory: Path) -> Sequence[Checkpoint]:
    wanted, pattern = asked, None
    if isinstance(asked, str) and any(sign in asked for sign in _WILDCARDS):
        wanted, pattern = _ALL_STEPS, asked
    elif isinstance(asked, dict):
        wanted, pattern = asked.get("steps", _ALL_STEPS), asked.get("pattern")
    found = find_checkpoints(directory, pattern)
    if wanted == _ALL_STEPS:
        return found
    if wanted == _LAST:
        return found[-1:]
    return _of_steps(wanted, found, directory)


def _of_steps(wanted: Any, found: Sequence[Checkpoint], directory: Path) -> Sequence[Checkpoint]:
    steps: list[Any] = wanted if isinstance(wanted, list) else [wanted]
    if not all(type(step) is int for step in steps) or not steps:
        kinds = f"{_ALL_STEPS}, {_BEST}, {_LAST}, a list of steps or a glob such as model_*00.pt"
        message = f"must be {kinds}, got {shown(wanted)}"
        raise ConfigError(Problem(message, key=CHECKPOINTS_KEY))
    by_step = {checkpoint.step: checkpoint for checkpoint in found}
    absent = [step for step in steps if step not in by_step]
    if absent:
        message = f"there is no checkpoint of step {absent[0]} in '{directory}'; its steps are {_in_words(found)}"
        raise ConfigError(Problem(message, key=CHECKPOINTS_KEY))
    return [by_step[step] for step in dict.fromkeys(steps)]


def _in_words(found: Sequence[Checkpoint]) -> str:
    steps = [str(checkpoint.step) for checkpoint in found]
    more = f" and {len(steps) - _MOST_SHOWN} more" if len(steps) > _MOST_SHOWN else ""
    return f"{', '.join(steps[:_MOST_SHOWN])}{more}" if steps else "none"
