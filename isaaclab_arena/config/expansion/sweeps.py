"""One job with a ``sweep`` becomes one job per combination of the swept values."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from isaaclab_arena.errors import Problem, did_you_mean
from isaaclab_arena.nested import set_at

MAX_JOBS = 100_000

_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][\w.]*)\}")
_UNSAFE = re.compile(r"[^\w.+-]+")


def sweep_problems(job: Mapping[str, Any], sweep: Mapping[str, Any], job_keys: frozenset[str]) -> list[Problem]:
    """Return the problems of a sweep (dotted keys with values) of a job without its ``sweep``."""
    problems = []
    name = job.get("name")
    sweepable = job_keys - {"name", "sweep"}
    for key, values in sweep.items():
        head = key.partition(".")[0]
        if head not in sweepable:
            message = f"'{head}' is no key that can be swept{did_you_mean(head, sweepable)}"
            problems.append(Problem(message, key=f"sweep.{key}"))
        elif not isinstance(values, list) or not values:
            problems.append(Problem("needs a list with at least one value", key=f"sweep.{key}"))
        elif not _reachable(job, key.split(".")):
            message = f"cannot be swept: what the job gives for '{head}' is no mapping"
            problems.append(Problem(message, key=f"sweep.{key}"))
    # Placeholders in the job's name must be swept keys.
    if sweep and isinstance(name, str):
        known = _placeholder_keys(sweep)
        problems.extend(
            Problem(f"'{{{placeholder}}}' is no swept key{did_you_mean(placeholder, known)}", key="name")
            for placeholder in _PLACEHOLDER.findall(name)
            if placeholder not in known
        )
    return problems


def num_combinations(sweep: Mapping[str, Sequence[Any]]) -> int:
    """Return the number of jobs that a sweep makes."""
    return math.prod(len(values) for values in sweep.values())


def expand(job: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield one job per combination, the last key changing fastest."""
    # Each name gets a suffix such as ``-seed0-cube``. If the name has a key in braces, ``lift-{seed}``, the value
    # replaces it.
    labels = {key: _labels(key, values) for key, values in sweep.items()}
    for choice in itertools.product(*(range(len(values)) for values in sweep.values())):
        expanded = deepcopy(dict(job))
        chosen = dict(zip(sweep, choice, strict=True))
        for key, position in chosen.items():
            set_at(expanded, key.split("."), deepcopy(sweep[key][position]))
        if isinstance(job.get("name"), str):
            expanded["name"] = _name(job["name"], {key: labels[key][position] for key, position in chosen.items()})
        yield expanded


def _name(template: str, labels: Mapping[str, str]) -> str:
    if not labels:
        return template
    keys = _placeholder_keys(labels)
    used = {keys[placeholder] for placeholder in _PLACEHOLDER.findall(template)}
    filled = _PLACEHOLDER.sub(lambda match: labels[keys[match[1]]], template)
    return filled + "".join(f"-{_suffix(key, label)}" for key, label in labels.items() if key not in used)


def _suffix(key: str, label: str) -> str:
    # A number means nothing without its key; 'cube' does.
    return label if label[:1].isalpha() and label not in {"true", "false", "none"} else _leaf(key) + label


def _placeholder_keys(sweep: Mapping[str, Any]) -> dict[str, str]:
    leaves = [_leaf(key) for key in sweep]
    short = {_leaf(key): key for key in sweep if leaves.count(_leaf(key)) == 1}
    return short | {key: key for key in sweep}


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]


def _labels(key: str, values: Sequence[Any]) -> list[str]:
    labels = [_label(key, value) for value in values]
    if all(labels) and len({label.casefold() for label in labels}) == len(labels):
        return labels
    return [str(position) for position in range(len(values))]


def _label(key: str, value: Any) -> str:
    if isinstance(value, dict | list):
        return ""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    # Of a dotted class path, the class distinguishes two policies.
    text = re.split(r"[.:]", str(value))[-1] if key == "policy_type" else str(value)
    return _UNSAFE.sub("_", text).strip("_.")


def _reachable(job: Mapping[str, Any], path: Sequence[str]) -> bool:
    inner: Any = job
    for part in path[:-1]:
        inner = inner.get(part)
        if inner is None:
            return True
        if not isinstance(inner, dict):
            return False
    return True
