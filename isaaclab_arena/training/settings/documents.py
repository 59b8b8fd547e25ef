"""Merge a task's file, a user's file and the command line into one checked configuration."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isaaclab_arena.config.documents import read_document, read_value
from isaaclab_arena.config.options import read_options
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.nested import overlaid
from isaaclab_arena.training.settings.config import (
    AgentConfig,
    CheckpointConfig,
    DistributedConfig,
    EvaluationConfig,
    TrainingConfig,
)
from isaaclab_arena.training.settings.other_trainers import nearest_task
from isaaclab_arena.training.settings.tasks import TASKS

_SECTIONS = {
    "agent": AgentConfig,
    "distributed": DistributedConfig,
    "evaluation": EvaluationConfig,
    "checkpoints": CheckpointConfig,
}
_CLASS_NAME = "class_name"
_OPTIONS_OF_CLASSES = ("actor", "critic", "algorithm")
_FREE = (
    *(("env",), ("variations",), ("evaluation", "env")),
    *(("agent", key) for key in (*_OPTIONS_OF_CLASSES, "obs_groups", "logger")),
)
"""Paths below which any key may stand: environments, variations and classes check their options themselves."""


def default_document() -> dict[str, Any]:
    """Return the default settings."""
    document = document_of(TrainingConfig(task="", environment=""))
    return {key: value for key, value in document.items() if key not in {"task", "environment"}}


def task_document(task: str) -> dict[str, Any]:
    """Return the settings in the file of a registered training task.

    Raises:
        ConfigError: If there is no such task.
    """
    foreign = None if task in TASKS else nearest_task(task)
    if foreign is not None:
        raise ConfigError(Problem(f"{foreign}; those here are {', '.join(TASKS.names())}", key="TASK"))
    found = TASKS.get(task)
    return file_document(Path(found)) if isinstance(found, Path | str) else dict(found)


def file_document(path: Path) -> dict[str, Any]:
    """Return the settings in a user's file.

    Raises:
        ConfigError: If it cannot be read, or holds no mapping.
    """
    document = read_document(path)
    if not isinstance(document, dict):
        raise ConfigError(Problem("must hold a mapping with the keys of a training run", file=str(path)))
    return document


def merged(*documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return documents laid over each other, the last one on top.

    Mappings are merged key by key. If a document names another class, its options replace those of the earlier class.
    An empty section has no effect.

    Raises:
        ConfigError: If a section is no mapping.
    """
    result: dict[str, Any] = {}
    for document in documents:
        said = {key: value for key, value in document.items() if not _is_empty(key, value)}
        result = overlaid(result, said, replaces=_is_another_class)
    return result


def _is_empty(key: str, value: Any) -> bool:
    if key in {*_SECTIONS, *(path[0] for path in _FREE)} and value is not None and not isinstance(value, Mapping):
        raise ConfigError(Problem(f"must be a mapping, got {value!r}", key=key))
    return key in _SECTIONS and value is None


def overrides_document(words: Sequence[str], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return command line words such as ``agent.learning_rate=3e-4`` as a document.

    Parts of a path may be left out if it stays unambiguous: ``agent.learning_rate`` is
    ``agent.algorithm.learning_rate``.

    Args:
        words: ``path=value``, the value as in YAML.
        base: The document that they change, which has the known paths.

    Raises:
        ConfigError: With every word that is not ``path=value``, or names an unknown path.
    """
    problems: list[Problem] = []
    document: dict[str, Any] = {}
    known = list(paths_of(base))
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path:
            problems.append(Problem(f"'{word}' is neither an option nor path=value, as agent.learning_rate=3e-4"))
            continue
        try:
            nested = _nested(_whole_path(path, known), read_value(text))
            # The words are applied together, in any order.
            document = overlaid(document, nested)
        except ConfigError as error:
            problems += [dataclasses.replace(problem, key=path) for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return document


def read_training(document: Mapping[str, Any], *, task: str, source: str) -> TrainingConfig:
    """Return the checked configuration of a document.

    Args:
        document: The merged document.
        task: Name of the task.
        source: Where it comes from, for messages.

    Raises:
        ConfigError: With every problem, each with its key.
    """
    problems: list[Problem] = []
    sections: dict[str, Any] = {}
    for key, section in _SECTIONS.items():
        try:
            sections[key] = read_options(section, document.get(key, {}), owner=f"'{key}'")
        except ConfigError as error:
            problems += [dataclasses.replace(each, key=f"{key}.{each.key}") for each in error.problems]
    for role in _OPTIONS_OF_CLASSES if "agent" in sections else ():
        if not isinstance(getattr(sections["agent"], role).get(_CLASS_NAME), str):
            problems.append(Problem("names no class", key=f"agent.{role}.{_CLASS_NAME}"))
    plain = {key: value for key, value in document.items() if key not in _SECTIONS}
    config: TrainingConfig | None = None
    try:
        config = read_options(TrainingConfig, {**plain, "task": task}, owner="a training run")
    except ConfigError as error:
        problems = [*error.problems, *problems]
    if problems or config is None:
        raise ConfigError([dataclasses.replace(each, file=source) for each in problems])
    return dataclasses.replace(config, **sections)


def document_of(config: TrainingConfig) -> dict[str, Any]:
    """Return a configuration as plain values, for files."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def paths_of(document: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key of a document, outer ones before inner ones."""
    for key, value in document.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from paths_of(value, (*path, key))


def _whole_path(text: str, known: list[tuple[str, ...]]) -> tuple[str, ...]:
    first, *others = text.split(".")
    path = (first, *others)
    if path in known or any(path[: len(free)] == free for free in _FREE):
        return path
    inside = [each for each in known if len(each) > len(path) and each[0] == first and each[-1] == path[-1]]
    if len(inside) == 1 and len(path) > 1:
        return inside[0]
    if len(inside) > 1 and len(path) > 1:
        raise ConfigError(f"means {' or '.join('.'.join(each) for each in inside)}; write one of them out")
    if first == "agent" and len(path) == 2:
        # This is an option of the algorithm that the file does not set.
        return ("agent", "algorithm", path[1])
    raise ConfigError(f"there is no such key{did_you_mean(text, ['.'.join(each) for each in known])}")


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return value


def _is_another_class(below: Mapping[str, Any], above: Mapping[str, Any]) -> bool:
    return _CLASS_NAME in above and above[_CLASS_NAME] != below.get(_CLASS_NAME)
