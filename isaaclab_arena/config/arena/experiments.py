"""Isaac Lab Arena's experiment files, ``runs`` with what they share, as the job files that they amount to."""

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from isaaclab_arena.config.arena.flags import DATAGEN
from isaaclab_arena.config.documents import read_value
from isaaclab_arena.config.messages import shown
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.nested import leaves, value_at

_PASSED_ON = ("variables", "comparisons", "bars")
_TOP_KEYS = frozenset({"runs", "shared", *_PASSED_ON})
_OVERRIDE = re.compile(r"\+{0,2}((?:runs|shared)\.[^=\s]+)=(.*)", re.DOTALL)
_WHOLE_BLOCK = re.compile(r"\$\{shared\.([\w.-]+)\}")


@dataclass(frozen=True, kw_only=True)
class ExperimentAsJobs:
    """What an experiment amounts to.

    Attributes:
        document: A job file's document.
        shared: What ``${shared.…}`` names.
        is_experiment: Whether the file was one; otherwise the document is the file's.
    """

    document: Any
    shared: dict[str, Any] = field(default_factory=dict)
    is_experiment: bool = True

    def in_words_of_the_file(self, problem: Problem) -> Problem:
        """Return a problem of the document as one of the file."""
        if not self.is_experiment:
            return problem
        words = {"defaults.": "shared.", "jobs[": "runs["}
        return Problem(problem.message, problem.file, _begun_anew(problem.job, words), _begun_anew(problem.key, words))


def is_override(token: str) -> bool:
    """Whether a word of the command line sets a key of an experiment: ``runs.lift.rollout_limit.num_episodes=3``."""
    return _OVERRIDE.fullmatch(token) is not None


def as_jobs(document: Any, job_keys: frozenset[str], overrides: Sequence[str] = ()) -> ExperimentAsJobs:
    """Return an experiment as a job file; a job file is returned as it is.

    Keys of a run that ``shared`` holds lie under every run; its other keys are there for ``${shared.…}``.

    Args:
        document: What the file holds.
        job_keys: The keys that a job, and so a run, may have.
        overrides: Words of the command line such as ``runs.lift.num_rebuilds=2``.

    Raises:
        ConfigError: With every problem of the file's outer parts and of the overrides.
    """
    if isinstance(document, dict) and "datagen" in document:
        raise ConfigError(Problem(f"{DATAGEN}; leave it out", key="datagen"))
    if not isinstance(document, dict) or "runs" not in document:
        if overrides:
            message = "sets a key of an experiment, but the file has no 'runs'; change its jobs in the file"
            raise ConfigError(Problem(message, key=overrides[0]))
        return ExperimentAsJobs(document=document, is_experiment=False)
    unknown = [key for key in document if key not in _TOP_KEYS]
    problems = [Problem(f"unknown key{did_you_mean(key, _TOP_KEYS)}", key=key) for key in unknown]
    shared = deepcopy(document.get("shared") or {})
    if not isinstance(shared, dict):
        raise ConfigError([*problems, Problem(f"{shown(shared)} is not a mapping", key="shared")])
    runs, wrong = _named_runs(document["runs"])
    problems += wrong
    for token in overrides if not wrong else ():
        problem = _set_by(token, shared=shared, runs=runs)
        problems += [problem] if problem else []
    problems += _unused(shared, runs, job_keys)
    if problems:
        raise ConfigError(problems)
    jobs = {
        "jobs": [_job(name, block, shared) for name, block in runs.items()],
        "defaults": {key: value for key, value in shared.items() if key in job_keys},
    }
    jobs |= {key: document[key] for key in _PASSED_ON if key in document}
    return ExperimentAsJobs(document=jobs, shared=shared)


def _named_runs(runs: Any) -> tuple[dict[str, dict[str, Any]], list[Problem]]:
    """Return the runs by name, and what keeps them from having one each."""
    if isinstance(runs, list):
        blocks = [(run.get("name") if isinstance(run, dict) else None, run) for run in runs]
    elif isinstance(runs, dict):
        blocks = [*runs.items()]
    else:
        return {}, [Problem(f"{shown(runs)} is neither a list nor a mapping", key="runs")]
    named: dict[str, dict[str, Any]] = {}
    problems = [] if blocks else [Problem("names no run", key="runs")]
    for position, (name, block) in enumerate(blocks):
        label = f"runs[{position}]" if isinstance(runs, list) else f"runs.{name}"
        if block is not None and not isinstance(block, dict):
            problems.append(Problem(f"{shown(block)} is not a mapping", key=label))
        elif not isinstance(name, str):
            problems.append(
                Problem("is missing" if name is None else f"{shown(name)} is not a text", key=f"{label}.name")
            )
        elif name in named:
            problems.append(Problem(f"'{name}' is taken by an earlier run", key=f"{label}.name"))
        elif isinstance(runs, dict) and "name" in (block or {}):
            problems.append(Problem("a run of a mapping is named by its key; leave it out", key=f"{label}.name"))
        else:
            named[name] = {key: deepcopy(value) for key, value in (block or {}).items() if key != "name"}
    return named, problems


def _set_by(token: str, *, shared: dict[str, Any], runs: dict[str, dict[str, Any]]) -> Problem | None:
    """Set what one word of the command line says; return what is wrong with it."""
    match = _OVERRIDE.fullmatch(token)
    if match is None:
        return Problem("is no override such as runs.NAME.num_rebuilds=2", key=token)
    path, text = match.groups()
    outer, _, inner = path.partition(".")
    parts = inner.split(".")
    if not all(parts):
        return Problem("has an empty part", key=path)
    if outer == "runs":
        name = _longest_key(runs, parts)
        if name is None:
            return Problem(f"no run called '{parts[0]}'{did_you_mean(parts[0], runs)}", key=path)
        rest = parts[name.count(".") + 1 :]
        if rest in ([], ["name"]):
            return Problem("a run's name and the run as a whole are the file's; set a key of it", key=path)
        target, parts = runs[name], rest
    else:
        target = shared
    try:
        _set(target, parts, read_value(text))
    except ConfigError as error:
        return Problem(str(error), key=path)
    return None


def _set(mapping: dict[str, Any], parts: Sequence[str], value: Any) -> None:
    """Set a key by its path; a key of the file may itself hold dots, as those of variations do.

    Raises:
        ConfigError: If the path leads through something that is no mapping.
    """
    key = _longest_key(mapping, parts) or parts[0]
    rest = parts[key.count(".") + 1 :]
    if not rest:
        mapping[key] = value
        return
    if mapping.get(key) is None:
        mapping[key] = {}
    if not isinstance(mapping[key], dict):
        raise ConfigError(f"cannot be set: '{key}' is {shown(mapping[key])}, which is no mapping")
    _set(mapping[key], rest, value)


def _longest_key(mapping: Mapping[str, Any], parts: Sequence[str]) -> str | None:
    candidates = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((key for key in candidates if key in mapping), None)


def _unused(shared: Mapping[str, Any], runs: Mapping[str, Any], job_keys: frozenset[str]) -> list[Problem]:
    """Return what is shared and neither a key of a run nor named by one: a slip of the pen, most likely."""
    named = {key for key in shared if key not in job_keys and not _mentions((shared, runs), f"${{shared.{key}")}
    return [Problem(f"unknown key{did_you_mean(key, job_keys)}", key=f"shared.{key}") for key in shared if key in named]


def _mentions(value: Any, text: str) -> bool:
    return any(isinstance(leaf, str) and text in leaf for _, leaf in leaves(value, into_lists=True))


def _job(name: str, block: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, **{key: _whole_block(value, shared) for key, value in block.items()}}


def _whole_block(value: Any, shared: Mapping[str, Any]) -> Any:
    """Return the mapping that ``${shared.policy}`` and the like name, other values as they are."""
    match = _WHOLE_BLOCK.fullmatch(value) if isinstance(value, str) else None
    found = value_at(shared, match[1].split(".")) if match else None
    return deepcopy(found) if isinstance(found, Mapping) else value


def _begun_anew(text: str | None, words: Mapping[str, str]) -> str | None:
    for old, new in words.items():
        if text is not None and text.startswith(old):
            return new + text.removeprefix(old)
    return text
