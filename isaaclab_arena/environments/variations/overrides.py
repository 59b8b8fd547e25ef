"""From a job's ``variations`` to those that are on: Arena's spelling, flat or nested, checked to the last key."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from isaaclab_arena.environments.variations.starts import JOINT_SHIFT, ROBOT_START, SHIFT
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.variation import Sampler, SamplerType, Variation
from isaaclab_arena.nested import leaves

_SAMPLER_FIELDS = ("type", "low", "high", "choices", "probabilities", "p")
_CHOOSING = (SamplerType.CHOICE, SamplerType.CATEGORICAL, SamplerType.SEQUENTIAL_CHOICE)
_FIELDS_OF = {
    SamplerType.UNIFORM: ("low", "high"),
    SamplerType.BERNOULLI: ("low", "high", "p"),
    SamplerType.CHOICE: ("choices",),
    SamplerType.SEQUENTIAL_CHOICE: ("choices",),
    SamplerType.CATEGORICAL: ("choices", "probabilities"),
}


def enabled_variations(catalogue: Sequence[Variation], overrides: Mapping[str, Any]) -> tuple[Variation, ...]:
    """Return the variations that a job turns on, with its ranges, in the order of the catalogue.

    Args:
        catalogue: What the environment offers.
        overrides: The job's ``variations``: ``{"cube.mass.enabled": true, "cube.mass.sampler_cfg.low": 0.05}``, or
            the same nested, or both.

    Raises:
        ConfigError: With every problem; keys begin with ``variations.``.
    """
    problems: list[Problem] = []
    flat = _flat(overrides, problems)
    asked: dict[str, dict[str, Any]] = {}
    known = {variation.key: variation for variation in catalogue}
    for path, value in flat.items():
        key, field = _split(path)
        reason = _unknown(path, key, field, known)
        if reason is None:
            asked.setdefault(key, {})[field] = value
        else:
            problems.append(Problem(reason, key=f"variations.{path}"))
    enabled = [_overridden(known[key], fields, problems) for key, fields in asked.items()]
    problems += [] if problems else _beyond({variation.key: variation for variation in enabled if variation.enabled})
    if problems:
        raise ConfigError(problems)
    wanted = {variation.key: variation for variation in enabled if variation.enabled}
    return tuple(wanted[variation.key] for variation in catalogue if variation.key in wanted)


def _beyond(on: Mapping[str, Variation]) -> list[Problem]:
    """Return where a start that is replaced and moved besides leads beyond what can be, though neither alone does."""
    problems = []
    for key, moved in on.items():
        start = on.get(key.replace(f".{SHIFT}", ".position").replace(JOINT_SHIFT, ROBOT_START))
        if start is None or start is moved or not start.lowest:
            continue
        (low, high), (down, up) = start.sampler.span, moved.sampler.span
        sums = [[a + b for a, b in zip(*ends, strict=False)] for ends in ((low, down), (high, up))]
        wrong = next(filter(None, map(start.wrong_with, sums)), None)
        if wrong is not None:
            problems.append(Problem(f"added to '{start.key}', {wrong}", key=f"variations.{key}"))
    return problems


def _flat(tree: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for path, value in leaves(tree):
        key = ".".join(path)
        if key in flat:
            problems.append(Problem("is given twice, once flat and once nested", key=f"variations.{key}"))
        flat[key] = value
    return flat


def _split(path: str) -> tuple[str, str]:
    """Return variation and field: ``cube.mass`` and ``sampler_cfg.low``."""
    asset, _, rest = path.partition(".")
    name, _, field = rest.partition(".")
    return f"{asset}.{name}" if name else asset, field


def _unknown(path: str, key: str, field: str, known: Mapping[str, Variation]) -> str | None:
    if key not in known:
        return f"this environment has no variation '{key}'{did_you_mean(key, known)}"
    fields = ["enabled", *(f"sampler_cfg.{name}" for name in _SAMPLER_FIELDS)]
    if field in fields:
        return None
    if not field:
        return f"needs a field: '{path}.enabled' or '{path}.sampler_cfg.low'"
    return f"a variation has no field '{field}'{did_you_mean(field, fields)}"


def _overridden(variation: Variation, fields: Mapping[str, Any], problems: list[Problem]) -> Variation:
    path = f"variations.{variation.key}"
    enabled = fields.get("enabled")
    if "enabled" not in fields:
        problems.append(Problem("is neither on nor off; give true or false", key=f"{path}.enabled"))
    elif not isinstance(enabled, bool):
        problems.append(Problem(f"must be true or false, got {enabled!r}", key=f"{path}.enabled"))
    given = {name.removeprefix("sampler_cfg."): value for name, value in fields.items() if name != "enabled"}
    found: list[tuple[str, str]] = []
    sampler = _sampler(variation, given, found)
    problems.extend(Problem(message, key=f"{path}.sampler_cfg.{name}") for name, message in found)
    return replace(variation, sampler=sampler, enabled=enabled is True)


def _sampler(variation: Variation, given: Mapping[str, Any], found: list[tuple[str, str]]) -> Sampler:
    default = variation.sampler
    kind = _type(given, default, found)
    found.extend(
        (name, f"means nothing to a sampler of type '{kind}', which has {' and '.join(_FIELDS_OF[kind])}")
        for name in given
        if name != "type" and name not in _FIELDS_OF[kind]
    )
    if kind in _CHOOSING:
        choices = _choices(variation, given, found)
        return Sampler(type=kind, choices=choices, probabilities=_probabilities(kind, given, len(choices), found))
    if variation.integer and kind is SamplerType.BERNOULLI:
        low = _numbers(variation, "low", given.get("low", 0), found)
    else:
        low = _numbers(variation, "low", given.get("low", default.low), found)
    high = _numbers(variation, "high", given.get("high", default.high), found)
    low, high = _same_size(low, high)
    if kind is SamplerType.UNIFORM and not found and any(a > b for a, b in zip(low, high, strict=False)):
        found.append(("low", f"{_shown(low)} is above high, which is {_shown(high)}"))
    return Sampler(type=kind, low=low, high=high, p=_probability(given.get("p", 0.5), found))


def _type(given: Mapping[str, Any], default: Sampler, found: list[tuple[str, str]]) -> SamplerType:
    named = given.get("type")
    if named is None:
        if "choices" in given:
            return SamplerType.CATEGORICAL if "probabilities" in given else SamplerType.CHOICE
        return SamplerType.BERNOULLI if "p" in given else default.type
    known = [str(kind) for kind in SamplerType]
    if named not in known:
        found.append(("type", f"no sampler called {named!r}{did_you_mean(str(named), known)}"))
        return default.type
    if default.choices and named not in [str(kind) for kind in _CHOOSING] and isinstance(default.choices[0], str):
        found.append(("type", "texts can only be chosen"))
        return default.type
    return SamplerType(named)


def _choices(
    variation: Variation, given: Mapping[str, Any], found: list[tuple[str, str]]
) -> tuple[tuple[float, ...] | str, ...]:
    default = variation.sampler.choices
    values = given.get("choices", default)
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        found.append(("choices", "needs a list with at least one value"))
        return default
    texts = [choice for choice in default if isinstance(choice, str)]
    if texts:
        found.extend(
            ("choices", f"{value!r} is no choice{did_you_mean(str(value), texts)}")
            for value in values
            if value not in texts
        )
        return tuple(str(value) for value in values)
    return tuple(_numbers(variation, "choices", value, found) for value in values)


def _numbers(variation: Variation, name: str, value: Any, found: list[tuple[str, str]]) -> tuple[float, ...]:
    """Return the components of a value; a single number stands for all of them."""
    parts = list(value) if isinstance(value, list | tuple) else [value] * variation.sizes[-1]
    if any(isinstance(part, bool) or not isinstance(part, int | float) for part in parts):
        wrong = "is no number"
    else:
        wrong = variation.wrong_with(parts)
    if wrong is not None:
        found.append((name, f"{wrong}, got {value!r}"))
        return (0.0,) * variation.sizes[-1]
    return tuple(float(part) for part in parts)


def _same_size(low: tuple[float, ...], high: tuple[float, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # A position may be given without its height, which then stays the task's.
    size = min(len(low), len(high))
    return low[:size], high[:size]


def _probability(value: Any, found: list[tuple[str, str]]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        found.append(("p", f"must be a probability, 0 to 1, got {value!r}"))
        return 0.5
    return float(value)


def _probabilities(
    kind: SamplerType, given: Mapping[str, Any], number: int, found: list[tuple[str, str]]
) -> tuple[float, ...]:
    if kind is not SamplerType.CATEGORICAL:
        return ()
    values = given.get("probabilities")
    if not isinstance(values, list) or len(values) != number:
        found.append(("probabilities", f"needs a list of {number} numbers, one for each choice, got {values!r}"))
        return ()
    shares = tuple(_probability(value, found) for value in values)
    if not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
        found.append(("probabilities", f"must sum to 1, got {sum(shares):g}"))
    return shares


def _shown(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(values) == 1 else str([round(value, 6) for value in values])
