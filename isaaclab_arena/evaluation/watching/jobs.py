"""The job file of one checkpoint from that of a watch, and episodes that chose no checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.config.expansion.sweeps import CHECKPOINTS_KEY, OPTIONS
from isaaclab_arena.config.loading import job_over_defaults, modernised
from isaaclab_arena.config.options import shown
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.condition_sets import ConditionFile, load_conditions
from isaaclab_arena.nested import set_at, value_at
from isaaclab_arena.seeding import MAX_SEED
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text

_CONDITIONS = "conditions"

# Make the job file of one checkpoint from the job file of a watch.


def jobs_of_checkpoint(
    document: Mapping[str, Any],
    checkpoint: Checkpoint,
    *,
    training: Path,
    pattern: str | None = None,
    seed_offset: int = 0,
    directory: Path = Path(),
) -> dict[str, Any]:
    """Return the watch's jobs for one checkpoint; a job with `checkpoints: null` stays as it is."""
    # `training`: directory of the training; `pattern`: glob below it, None for the usual names. Relative paths of saved
    # conditions start from `directory`. `ConfigError` if the document's jobs or options are malformed.
    listed = document.get("jobs")
    if not isinstance(listed, list) or not all(isinstance(job, dict) for job in listed):
        raise ConfigError(Problem(f"{shown(listed)} is no list of jobs", key="jobs"))
    defaults = _modern(document.get("defaults") or {})
    jobs = [_modern(job) for job in listed]
    for job in jobs:
        if CHECKPOINTS_KEY in job and job[CHECKPOINTS_KEY] is None:
            continue
        options = job.setdefault("policy_config_dict", {})
        named = {**options, **(defaults.get("policy_config_dict") or {})}
        usual = "pretrained" if checkpoint.path.name == "pretrained_model" else "model_path"
        usual = "checkpoint_path" if checkpoint.path.is_file() else usual
        options[next((name for name in OPTIONS if name in named), usual)] = str(training)
        job[CHECKPOINTS_KEY] = {"steps": [checkpoint.step], "pattern": pattern}
    made = {**deepcopy(dict(document)), "defaults": defaults, "jobs": jobs}

    def rooted(reference: Any) -> Any:
        # An interpolation must be absolute itself.
        is_path = isinstance(reference, str) and "${" not in reference
        return str(directory.absolute() / reference) if is_path else reference

    for block in (made, defaults, *jobs):
        _change(block, _CONDITIONS, rooted)
    if seed_offset:
        shift_seeds(made, seed_offset)
    return made


def _modern(block: Any) -> dict[str, Any]:
    if not isinstance(block, dict):
        raise ConfigError(Problem(f"{shown(block)} is not a mapping", key="defaults"))
    modern, problems = modernised(deepcopy(block))
    if problems:
        raise ConfigError(problems)
    if not isinstance(modern.get("policy_config_dict", {}), dict):
        raise ConfigError(Problem(f"{shown(modern['policy_config_dict'])} is no mapping", key="policy_config_dict"))
    return modern


def _change(block: dict[str, Any], key: str, changed: Callable[[Any], Any]) -> None:
    """Replace the value of a dotted key in a block of job keys, and the values in its sweep."""
    path = key.split(".")
    if value_at(block, path) is not None:
        set_at(block, path, changed(value_at(block, path)))
    swept = value_at(block, ("sweep", key))
    if isinstance(swept, list):
        block["sweep"][key] = [changed(value) for value in swept]


# Give a watch's jobs episodes that chose no checkpoint.

OTHER_SEED = 1_000_003
"""Added to the seeds of jobs that score the best checkpoint, so that other episodes score it than chose it."""


def shift_seeds(document: dict[str, Any], offset: int) -> None:
    """Add `offset` to every seed of a job file in place, including those of conditions and sweeps."""
    for block in (document, document["defaults"], *document["jobs"]):
        for key in ("seed", "arena_env_args.placement_seed"):
            _change(block, key, lambda seed: _shifted(seed, offset))
    # An explicit null counts as no seed: the job takes the default seed, which is `offset` if there is none.
    for job in document["jobs"]:
        if job.get("seed", offset) is None:
            del job["seed"]
    if document["defaults"].get("seed") is None:
        document["defaults"]["seed"] = offset


def with_shifted_seed(words: Sequence[str], offset: int) -> tuple[str, ...]:
    """Return command-line options with `offset` added to the seed of the initial conditions."""
    names = ("--placement_seed", "--placement-seed")
    shifted = []
    for before, word in zip(("", *words), words, strict=False):
        name, is_joined, value = ("", "", word) if before in names else word.partition("=")
        is_seed = value.isdecimal() and (before in names or name in names)
        shifted.append(f"{name}{is_joined}{_shifted(int(value), offset)}" if is_seed else word)
    return tuple(shifted)


def _shifted(seed: Any, offset: int) -> Any:
    """Return another seed; a value that is not a number yet, such as an interpolation, stays."""
    return (seed + offset) % (MAX_SEED + 1) if type(seed) is int else seed


def take_unused_conditions(document: Mapping[str, Any], directory: Path) -> None:
    """Let jobs with saved conditions use the next ones in their files, if there are enough."""
    # The jobs of the document are changed; their new conditions are written below `directory`.
    for number, job in enumerate(document["jobs"]):
        whole = job_over_defaults(document["defaults"], job)
        reference, played = whole.get(_CONDITIONS), whole.get("num_episodes")
        if not isinstance(reference, str) or type(played) is not int:
            continue
        sets = [
            replace(each, episodes=each.episodes[played : 2 * played])
            for each in load_conditions(reference, Path())
            if len(each.episodes) >= 2 * played
        ]
        if sets:
            file = directory / f"conditions_{number}.json"
            write_text(file, json_text(ConditionFile(sets=sets)), overwrite=True)
            job[_CONDITIONS] = str(file.absolute())
