"""From a job file to its jobs: defaults, sweeps, interpolation and checks, with every problem at once."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.job_blocks import job_over_defaults, modernised, overlaid
from isaaclab_arena.config.job_fields import JOB_KEYS, check_defaults, read_job
from isaaclab_arena.config.messages import shown
from isaaclab_arena.config.names import clashes, name_problem
from isaaclab_arena.config.schema import JobConfig, JobDefaults, JobsFile
from isaaclab_arena.config.sweeps import MAX_JOBS, expand, num_combinations, sweep_problems
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean

_TOP_KEYS = frozenset({"jobs", "defaults", "sweep", "variables"})
_DEFAULT_KEYS = JOB_KEYS - {"name", "sweep"}
_INDEPENDENT_REFERENCE = re.compile(r"\$\{(?!job\b)[A-Za-z_][\w.\[\]]*\}")


def load_jobs_file(path: str | Path, defaults: JobDefaults | None = None) -> JobsFile:
    """Read a job file, JSON or YAML.

    Args:
        path: The file; docs/jobs.md describes what it holds.
        defaults: What the command line gives to jobs that do not say it themselves.

    Raises:
        ConfigError: With every problem of the file, each with its job and key.
    """
    return read_jobs(read_document(path), source=str(path), defaults=defaults)


def read_jobs(document: Any, *, source: str, defaults: JobDefaults | None = None) -> JobsFile:
    """Read what a job file holds, or what a command line amounts to; see `load_jobs_file`.

    Args:
        document: Mapping with the key ``jobs``.
        source: Where it comes from, for messages.
        defaults: What the command line gives to jobs that do not say it themselves.
    """
    defaults = defaults or JobDefaults()
    problems = check_defaults(defaults)
    if problems:
        raise ConfigError(problems)
    try:
        jobs = _Reading(_checked_top_level(document), defaults).jobs()
    except ConfigError as error:
        raise ConfigError([replace(problem, file=source) for problem in error.problems]) from error
    return JobsFile(path=source, jobs=jobs, config_hash=hash_jobs(jobs))


def hash_jobs(jobs: tuple[JobConfig, ...]) -> str:
    """Return 16 hexadecimal digits that are the same for the same jobs in the same order."""
    names = [field.name for field in fields(JobConfig)]
    plain = [{name: getattr(job, name) for name in names} for job in jobs]
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class _TopLevel:
    jobs: list[Any]
    defaults: dict[str, Any]
    sweep: dict[str, Any]
    variables: dict[str, Any]


def _checked_top_level(document: Any) -> _TopLevel:
    if not isinstance(document, dict):
        raise ConfigError(Problem(f"the top level is {shown(document)}, not a mapping with the key 'jobs'"))
    problems = [
        Problem(f"unknown key{did_you_mean(key, _TOP_KEYS)}", key=key) for key in document if key not in _TOP_KEYS
    ]
    jobs = document.get("jobs")
    if "jobs" not in document:
        problems.append(Problem("is missing; it lists the jobs", key="jobs"))
    elif not isinstance(jobs, list):
        problems.append(Problem(f"{shown(jobs)} is not a list", key="jobs"))
    elif not jobs:
        problems.append(Problem("lists no job", key="jobs"))
    blocks = {key: document.get(key) or {} for key in ("defaults", "sweep", "variables")}
    for key, block in blocks.items():
        if not isinstance(block, dict):
            problems.append(Problem(f"{shown(block)} is not a mapping", key=key))
    if problems or not isinstance(jobs, list):
        raise ConfigError(problems)
    return _TopLevel(jobs=jobs, **blocks)


class _Reading:
    """One reading of a job file: collects jobs, and problems instead of stopping at the first."""

    def __init__(self, top: _TopLevel, command_line: JobDefaults) -> None:
        self._top = top
        self._command_line = command_line
        self._interpolation = _Interpolation(top)
        self._problems = {Problem(message, key=key): None for key, message in self._interpolation.problems}
        self._defaults = self._read_defaults()

    def jobs(self) -> tuple[JobConfig, ...]:
        jobs: list[JobConfig] = []
        names: list[Any] = []
        for position, block in enumerate(self._top.jobs):
            if not isinstance(block, dict):
                self._add(Problem(f"{shown(block)} is not a mapping", job=f"jobs[{position}]"))
                continue
            label = _label(block.get("name"), f"jobs[{position}]")
            for expanded in self._expanded(block, label, room=MAX_JOBS - len(names)):
                names.append(expanded.get("name"))
                own_label = _label(expanded.get("name"), label)
                job, found = read_job(expanded, index=len(jobs), label=own_label, defaults=self._command_line)
                for problem in found:
                    self._add(self._blame(problem, block))
                if job is not None:
                    jobs.append(job)
        for name, earlier in clashes(name for name in names if _label(name, "")):
            taken = "by an earlier job" if name == earlier else f"by '{earlier}' where file systems ignore case"
            self._add(Problem(f"is taken {taken}", job=name, key="name"))
        if self._problems:
            raise ConfigError(tuple(self._problems))
        return tuple(jobs)

    def _add(self, problem: Problem) -> None:
        self._problems[problem] = None

    def _read_defaults(self) -> dict[str, Any]:
        unknown = [key for key in self._top.defaults if key not in _DEFAULT_KEYS]
        for key in unknown:
            reason = f"unknown key{did_you_mean(key, _DEFAULT_KEYS)}"
            if key == "sweep":
                reason = "belongs to the top level of the file or to a job"
            self._add(Problem(reason, key=f"defaults.{key}"))
        known = {key: value for key, value in self._top.defaults.items() if key not in unknown}
        block, problems = modernised(known)
        for key, message in problems:
            self._add(Problem(message, key=f"defaults.{key}"))
        return block

    def _expanded(self, block: dict[str, Any], label: str, *, room: int) -> Iterator[dict[str, Any]]:
        own, problems = modernised({key: value for key, value in block.items() if key != "sweep"})
        template = job_over_defaults(self._defaults, own)
        sweep = self._sweep(block, label)
        problems += sweep_problems(template, sweep, JOB_KEYS)
        if not problems and num_combinations(sweep) > room:
            problems.append(("sweep", f"makes {num_combinations(sweep)} jobs; a file may have {MAX_JOBS} in all"))
        for key, message in problems:
            self._add(Problem(message, job=label, key=key))
        if problems:
            return
        for expanded in expand(template, sweep):
            resolved = self._resolved(expanded, label, block)
            if resolved is not None:
                modern, problems = modernised(resolved)
                for key, message in problems:
                    self._add(Problem(message, job=label, key=key))
                if not problems:
                    yield modern

    def _sweep(self, block: dict[str, Any], label: str) -> dict[str, Any]:
        own = block.get("sweep", {})
        if own is None:
            return {}
        if not isinstance(own, dict):
            self._add(Problem(f"{shown(own)} is not a mapping", job=label, key="sweep"))
            return {}
        resolved, problems = self._interpolation.resolve(overlaid(self._top.sweep, own))
        for key, message in problems:
            self._add(Problem(message, job=label, key=f"sweep.{key}"))
        return {} if problems else resolved

    def _resolved(self, tree: dict[str, Any], label: str, block: dict[str, Any]) -> dict[str, Any] | None:
        resolved, problems = self._interpolation.resolve(tree)
        for key, message in problems:
            self._add(self._blame(Problem(message, job=label, key=key), block))
        return None if problems else resolved

    def _blame(self, problem: Problem, block: dict[str, Any]) -> Problem:
        # What is wrong in the defaults is said once, not for each of a thousand jobs.
        path = (problem.key or "").split(".")
        inherited = _has(self._defaults, path) and not _has(modernised(block)[0], path)
        return replace(problem, job=None, key=f"defaults.{problem.key}") if inherited else problem


class _Interpolation:
    """Resolves ``${...}`` with OmegaConf, which is slow: only strings that hold one are shown to it."""

    def __init__(self, top: _TopLevel) -> None:
        self.problems: list[tuple[str, str]] = []
        shared = {}
        for key, block in (("variables", top.variables), ("defaults", top.defaults)):
            shared[key], found = _well_formed(block)
            self.problems += [(f"{key}.{inner}", message) for inner, message in found]
        self._root = OmegaConf.create(shared)
        self._jobs = top.jobs
        self._independent: dict[str, Any] = {}

    def resolve(self, tree: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        """Return the tree with its interpolations resolved, and what cannot be, as pairs of key and message."""
        if next(_interpolated(tree, ()), None) is None:
            return tree, []
        resolved, problems = _well_formed(tree)
        source = _copied(resolved)
        for path, text in _interpolated(source, ()):
            try:
                _set(resolved, path, self._value(source, path, text))
            except (OmegaConfBaseException, ValueError, KeyError, RecursionError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                problems.append((_dotted(path), f"{shown(text)} cannot be resolved: {reason}"))
        return resolved, problems

    def _value(self, tree: dict[str, Any], path: tuple[str | int, ...], text: str) -> Any:
        if "${jobs" in text and "jobs" not in self._root:
            self._root["jobs"] = _well_formed(self._jobs)[0]
        if "${" in _INDEPENDENT_REFERENCE.sub("", text):
            self._root["job"] = tree
            parent: Any = self._root["job"]
            for part in path[:-1]:
                parent = parent[part]
            return _plain(parent[path[-1]])
        if text not in self._independent:
            self._root["value"] = text
            self._independent[text] = _plain(self._root["value"])
        return _copied(self._independent[text])


def _well_formed(tree: Any) -> tuple[Any, list[tuple[str, str]]]:
    """Return a copy without the strings that break OmegaConf's grammar, and where they were."""
    copied = _copied(tree)
    problems = []
    for path, text in _interpolated(tree, ()):
        if not _is_well_formed(text):
            problems.append((_dotted(path), f"{shown(text)} is no well-formed interpolation"))
            _set(copied, path, None)
    return copied, problems


@lru_cache(maxsize=10_000)
def _is_well_formed(text: str) -> bool:
    try:
        OmegaConf.create({"value": text})
    except GrammarParseError:
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, DictConfig | ListConfig):
        return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
    return value


def _interpolated(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        if "${" in value:
            yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _interpolated(item, (*path, key))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _interpolated(item, (*path, position))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _set(tree: Any, path: tuple[str | int, ...], value: Any) -> None:
    for part in path[:-1]:
        tree = tree[part]
    tree[path[-1]] = value


def _has(block: Any, path: list[str]) -> bool:
    for part in path:
        if not isinstance(block, Mapping) or part not in block:
            return False
        block = block[part]
    return True


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))


def _label(name: object, otherwise: str) -> str:
    return name if isinstance(name, str) and name_problem(name) is None else otherwise
