"""Read a job file; the one place that knows OmegaConf, which resolves its interpolations."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.job_fields import check_defaults
from isaaclab_arena.config.job_list import Reading, TopLevel, checked_top_level
from isaaclab_arena.config.messages import shown
from isaaclab_arena.config.schema import TIME_LIMITS, JobConfig, JobDefaults, JobsFile
from isaaclab_arena.errors import ConfigError, first_line

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
        top = checked_top_level(document)
        jobs = Reading(top, defaults, _Interpolation(top)).jobs()
    except ConfigError as error:
        raise ConfigError([replace(problem, file=source) for problem in error.problems]) from error
    return JobsFile(path=source, jobs=jobs, config_hash=hash_jobs(jobs))


def hash_jobs(jobs: tuple[JobConfig, ...]) -> str:
    """Return 16 hexadecimal digits that are the same for the same jobs in the same order.

    How long jobs and episodes may take is left out: it decides whether there is a result, never what it is.
    """
    names = [field.name for field in fields(JobConfig) if field.name not in TIME_LIMITS]
    plain = [{name: getattr(job, name) for name in names} for job in jobs]
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]


class _Interpolation:
    """Resolves ``${...}`` with OmegaConf, which is slow: only strings that hold one are shown to it."""

    def __init__(self, top: TopLevel) -> None:
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
        self._root["job"] = None
        for path, text in _interpolated(source, ()):
            try:
                _set(resolved, path, self._value(source, path, text))
            except (OmegaConfBaseException, ValueError, KeyError, RecursionError) as error:
                problems.append((_dotted(path), f"{shown(text)} cannot be resolved: {first_line(error)}"))
        return resolved, problems

    def _value(self, tree: dict[str, Any], path: tuple[str | int, ...], text: str) -> Any:
        if "${jobs" in text and "jobs" not in self._root:
            self._root["jobs"] = _well_formed(self._jobs)[0]
        if "${" in _INDEPENDENT_REFERENCE.sub("", text):
            if self._root["job"] is None:
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


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))
