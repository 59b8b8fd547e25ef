"""Make the job file of one checkpoint from the job file of a watch."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.config.expansion.checkpoints import KEY, OPTIONS
from isaaclab_arena.config.expansion.robustness import KEY as ROBUSTNESS
from isaaclab_arena.config.loading import modernised
from isaaclab_arena.config.options import shown
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.watching.other_episodes import CONDITIONS, change, shift_seeds


def option_of(checkpoint: Checkpoint) -> str:
    """Return the option in which policies take a checkpoint of that kind, where no job says."""
    if checkpoint.path.is_file():
        return "checkpoint_path"
    return "pretrained" if checkpoint.path.name == "pretrained_model" else "model_path"


def robustness_problems(document: Mapping[str, Any]) -> list[Problem]:
    """Return why jobs that ask for their robustness are none for a watch; empty where none does.

    Args:
        document: The job file of the watch.
    """
    jobs = document.get("jobs")
    blocks = {"defaults": document.get("defaults"), **{f"jobs[{n}]": job for n, job in enumerate(jobs or ())}}
    return [
        Problem(
            "would let changed episodes choose the best checkpoint, and curves be of arms; "
            "watch without it, then run isaaclab-arena robustness with the best",
            key=f"{where}.{ROBUSTNESS}",
        )
        for where, block in blocks.items()
        if isinstance(block, dict) and block.get(ROBUSTNESS) is not None
    ]


def jobs_of_checkpoint(
    document: Mapping[str, Any],
    checkpoint: Checkpoint,
    *,
    training: Path,
    pattern: str | None = None,
    seed_offset: int = 0,
    directory: Path = Path(),
) -> dict[str, Any]:
    """Return the jobs of a watch for one checkpoint; a job that says ``checkpoints: null`` stays as it is.

    Args:
        document: The job file of the watch.
        checkpoint: The checkpoint, below the directory of its training.
        training: That directory.
        pattern: Glob by which the checkpoint was found, None for the usual names.
        seed_offset: What is added to every seed.
        directory: What relative paths of saved conditions start from.

    Raises:
        ConfigError: If the document lists no jobs, or a job's options are no mapping.
    """
    listed = document.get("jobs")
    if not isinstance(listed, list) or not all(isinstance(job, dict) for job in listed):
        raise ConfigError(Problem(f"{shown(listed)} is no list of jobs", key="jobs"))
    defaults = _modern(document.get("defaults") or {})
    jobs = [_modern(job) for job in listed]
    for job in jobs:
        if KEY in job and job[KEY] is None:
            continue
        options = job.setdefault("policy_config_dict", {})
        known = [name for name in OPTIONS if name in options or name in (defaults.get("policy_config_dict") or {})]
        options[known[0] if known else option_of(checkpoint)] = str(training)
        job[KEY] = {"steps": [checkpoint.step], "pattern": pattern}
    made = {**deepcopy(dict(document)), "defaults": defaults, "jobs": jobs}
    for block in (made, defaults, *jobs):
        change(block, CONDITIONS, lambda reference: _rooted(reference, directory))
    if seed_offset:
        shift_seeds(made, seed_offset)
    return made


def _rooted(reference: Any, directory: Path) -> Any:
    """Return where saved conditions lie, from wherever they are looked for; an interpolation says it itself."""
    is_path = isinstance(reference, str) and "${" not in reference
    return str(directory.absolute() / reference) if is_path else reference


def _modern(block: Any) -> dict[str, Any]:
    if not isinstance(block, dict):
        raise ConfigError(Problem(f"{shown(block)} is not a mapping", key="defaults"))
    modern, problems = modernised(deepcopy(block))
    if problems:
        raise ConfigError(problems)
    if not isinstance(modern.get("policy_config_dict", {}), dict):
        raise ConfigError(Problem(f"{shown(modern['policy_config_dict'])} is no mapping", key="policy_config_dict"))
    return modern
