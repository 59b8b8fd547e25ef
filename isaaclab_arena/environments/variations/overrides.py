"""A job's ``variations`` as those that are on, the axes of a robustness run, and changed starts."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.environment_builder import Sampler, SamplerType, Variation
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, number, point
from isaaclab_arena.nested import leaves

# Apply variations to the starts that a task draws, and compare two episodes apart from them.

SEEDS = {
    "action.noise": "action.noise_seed",
    "action.jolt": "action.jolt_seed",
    "observation.noise": "observation.noise_seed",
    "picture.noise": "picture.noise_seed",
    "picture.dropped": "picture.dropped_seed",
    "picture.occlusion": "picture.occlusion_seed",
    "instruction.words": "instruction.words_seed",
    "instruction.misspelt": "instruction.words_seed",
}
"""Variations that are strengths of something random, and the conditions with its seed."""
DRAWN_WITH = {**SEEDS, "table.texture": "table.pattern", "background.texture": "background.pattern"}
"""Variations with a draw of their own beside the value, and its name among the conditions."""


def with_moved_starts(conditions: Conditions, keys: Iterable[str]) -> dict[str, ConditionValue]:
    """Return conditions with the task's starts moved by the variations ``keys``, such as ``cube.shift``."""
    moved = dict(conditions)
    for key in keys:
        asset, _, name = key.partition(".")
        if name == "shift":
            x, y, z = point(moved[f"{asset}.position"])
            east, north = point(moved[key])
            moved[f"{asset}.position"] = (x + east, y + north, z)
        elif name == "turn":
            moved[f"{asset}.yaw"] = number(moved[f"{asset}.yaw"]) + number(moved[key])
        elif key == "robot.joint_shift":
            joints = zip(point(moved["robot.joint_position"]), point(moved[key]), strict=True)
            moved["robot.joint_position"] = tuple(start + shift for start, shift in joints)
        elif name == "size" and f"{asset}.position" in moved:
            # The height of its origin scales with it, so that it still stands.
            x, y, z = point(moved[f"{asset}.position"])
            moved[f"{asset}.position"] = (x, y, z * number(moved[key]))
    return moved


def differs_only_by(before: Conditions, now: Conditions, keys: Collection[str]) -> bool:
    """True if two episodes differ only by the variations ``keys`` and the draws that belong to them."""
    # Each variation has a new value, and every start is the old one plus its shift. All else is equal except the
    # variations' own draws: seeds, patterns, places of distractors.
    if any(key in before or key not in now for key in keys):
        return False
    try:
        expected = with_moved_starts({**before, **{key: now[key] for key in keys}}, keys)
    except (KeyError, TypeError, ValueError):
        # Recordings may hold any value; a start that cannot be shifted was not.
        return False
    drawn = {DRAWN_WITH.get(key) for key in keys}
    # JSON turns tuples into lists.
    expected, now = (
        {key: tuple(value) if isinstance(value, list | tuple) else value for key, value in each.items()}
        for each in (expected, now)
    )
    return all(
        expected.get(key) == now.get(key)
        or key in drawn
        or ("distractors.count" in keys and key.startswith("distractor_"))
        for key in expected.keys() | now.keys()
    )


# Read a job's ``variations``: Arena's spelling, flat or nested, checked to the last key.

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
    """Return the variations that a job enables, in catalogue order; ConfigError with every problem."""
    # ``overrides`` is flat, as ``{"cube.mass.enabled": true, "cube.mass.sampler_cfg.low": 0.05}``, nested, or both.
    problems: list[Problem] = []
    flat: dict[str, Any] = {}
    for path, value in leaves(overrides):
        key = ".".join(path)
        if key in flat:
            problems.append(Problem("is given twice, once flat and once nested", key=f"variations.{key}"))
        flat[key] = value

    # A path has a variation and a field, such as ``cube.mass`` and ``sampler_cfg.low``.
    asked: dict[str, dict[str, Any]] = {}
    known = {variation.key: variation for variation in catalogue}
    known_fields = ["enabled", *(f"sampler_cfg.{name}" for name in _SAMPLER_FIELDS)]
    for path, value in flat.items():
        asset, _, rest = path.partition(".")
        name, _, field = rest.partition(".")
        key, wrong = f"{asset}.{name}" if name else asset, ""
        if key not in known:
            wrong = f"this environment has no variation '{key}'{did_you_mean(key, known)}"
        elif not field:
            wrong = f"needs a field: '{path}.enabled' or '{path}.sampler_cfg.low'"
        elif field not in known_fields:
            wrong = f"a variation has no field '{field}'{did_you_mean(field, known_fields)}"
        else:
            asked.setdefault(key, {})[field] = value
        if wrong:
            problems.append(Problem(wrong, key=f"variations.{path}"))
    variations = [_overridden(known[key], fields, problems) for key, fields in asked.items()]
    enabled = {variation.key: variation for variation in variations if variation.enabled}
    if not problems:
        problems += _beyond(enabled)
    if problems:
        raise ConfigError(problems)
    return tuple(enabled[variation.key] for variation in catalogue if variation.key in enabled)


def _beyond(on: Mapping[str, Variation]) -> list[Problem]:
    """Return a problem if a replaced start and its shift together leave the limits, though neither alone does."""
    problems = []
    for key, moved in on.items():
        start = on.get(key.replace(".shift", ".position").replace("robot.joint_shift", "robot.joint_position"))
        if start is None or start is moved or not start.lowest:
            continue
        (low, high), (down, up) = start.sampler.span, moved.sampler.span
        sums = [[a + b for a, b in zip(*ends, strict=False)] for ends in ((low, down), (high, up))]
        wrong = next(filter(None, map(start.wrong_with, sums)), None)
        if wrong is not None:
            problems.append(Problem(f"added to '{start.key}', {wrong}", key=f"variations.{key}"))
    return problems


def _overridden(variation: Variation, fields: Mapping[str, Any], problems: list[Problem]) -> Variation:
    path = f"variations.{variation.key}"
    enabled = fields.get("enabled")
    if "enabled" not in fields:
        problems.append(Problem("is neither on nor off; give true or false", key=f"{path}.enabled"))
    elif not isinstance(enabled, bool):
        problems.append(Problem(f"must be true or false, got {enabled!r}", key=f"{path}.enabled"))

    # The sampler's own problems are (field, message) pairs.
    given = {name.removeprefix("sampler_cfg."): value for name, value in fields.items() if name != "enabled"}
    found: list[tuple[str, str]] = []
    default, kind = variation.sampler, _type(given, variation.sampler, found)
    found.extend(
        (name, f"has no effect on a sampler of type '{kind}', which has {' and '.join(_FIELDS_OF[kind])}")
        for name in given
        if name != "type" and name not in _FIELDS_OF[kind]
    )
    if kind in _CHOOSING:
        sampler = _choosing(variation, kind, given, found)
    else:
        # A count that is drawn by Bernoulli is 0 or high, unless low is given.
        least = 0 if variation.integer and kind is SamplerType.BERNOULLI else default.low
        low = _numbers(variation, "low", given.get("low", least), found)
        high = _numbers(variation, "high", given.get("high", default.high), found)
        # A position can lack its height, which is then the task's.
        size = min(len(low), len(high))
        low, high = low[:size], high[:size]
        if kind is SamplerType.UNIFORM and not found and any(a > b for a, b in zip(low, high, strict=False)):
            shown = [f"{ends[0]:g}" if size == 1 else [round(end, 6) for end in ends] for ends in (low, high)]
            found.append(("low", f"{shown[0]} is above high, which is {shown[1]}"))
        sampler = Sampler(type=kind, low=low, high=high, p=_probability(given.get("p", 0.5), found))
    problems.extend(Problem(message, key=f"{path}.sampler_cfg.{name}") for name, message in found)
    return replace(variation, sampler=sampler, enabled=enabled is True)


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


def _choosing(
    variation: Variation, kind: SamplerType, given: Mapping[str, Any], found: list[tuple[str, str]]
) -> Sampler:
    """Return a sampler of choices, with probabilities if it is categorical."""
    choices = variation.sampler.choices
    values = given.get("choices", choices)
    texts = [choice for choice in choices if isinstance(choice, str)]
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        found.append(("choices", "needs a list with at least one value"))
    elif texts:
        found.extend(
            ("choices", f"{value!r} is no choice{did_you_mean(str(value), texts)}")
            for value in values
            if value not in texts
        )
        choices = tuple(str(value) for value in values)
    else:
        choices = tuple(_numbers(variation, "choices", value, found) for value in values)
    if kind is not SamplerType.CATEGORICAL:
        return Sampler(type=kind, choices=choices)

    shares, values = (), given.get("probabilities")
    if not isinstance(values, list) or len(values) != len(choices):
        message = f"needs a list of {len(choices)} numbers, one for each choice, got {values!r}"
        found.append(("probabilities", message))
    else:
        shares = tuple(_probability(value, found) for value in values)
        if not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
            found.append(("probabilities", f"must sum to 1, got {sum(shares):g}"))
    return Sampler(type=kind, choices=choices, probabilities=shares)


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


def _probability(value: Any, found: list[tuple[str, str]]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        found.append(("p", f"must be a probability, 0 to 1, got {value!r}"))
        return 0.5
    return float(value)


# Define the axes of a robustness run: the variation of each, and its strength at each level.

EDGE_LEVEL = 5  # the level at which an axis reaches its edge; level k goes k fifths of the way there
ALL_AXES = "all"
LANGUAGE = "language"  # the axis of other words for the task
_OBJECT = "object"


@dataclass(frozen=True)
class Axis:
    """One kind of change."""

    name: str  # in jobs and tables
    asset: str  # asset of its variations; `object`: every thing of the task and every camera
    names: tuple[str, ...]  # of its variations; only those with a nominal value count, from which levels depart
    reach: float  # distance of the edge from the nominal value, in multiples of the variation's range
    strength: str  # description of the strength, with its unit
    libero_plus: str | None = None  # the axis of LIBERO-plus that covers it, None without one
    is_exact: bool = False  # True: every episode of a level has the same strength; False: up to it
    pictures_only: bool = False  # True: only pictures change, so a policy without cameras is unaffected

    def owns(self, key: str) -> bool:
        """True if this axis turns on a variation, such as ``cube.mass``."""
        asset, _, name = key.partition(".")
        # A key alone does not tell the position of a camera from that of a thing. In an episode's conditions, only a
        # camera's is there because of the axis.
        is_about = asset not in _NOT_OBJECTS if self.asset == _OBJECT else asset == self.asset
        return name in self.names and is_about

    def variations(self, catalogue: Sequence[Variation]) -> tuple[Variation, ...]:
        """Return its variations in an environment, none if the environment has no such asset."""
        return tuple(
            variation
            for variation in catalogue
            if variation.name in self.names and variation.nominal
            if (variation.asset not in _NOT_OBJECTS if self.asset == _OBJECT else variation.asset == self.asset)
        )

    def settings(self, catalogue: Sequence[Variation], level: int) -> dict[str, Any]:
        """Return a level (from 1) as a job's ``variations``; beyond `EDGE_LEVEL` the task may be unsolvable."""
        found: dict[str, Any] = {}
        share = self.reach * level / EDGE_LEVEL
        for variation in self.variations(catalogue):
            default, nominal = variation.sampler, variation.nominal
            low, high = (
                [round(middle + share * (end - middle), 6) for middle, end in zip(nominal, ends, strict=True)]
                for ends in (default.low, default.high)
            )
            if variation.lowest and level <= EDGE_LEVEL:
                # A joint near its limit does not shorten the range of the others.
                low = [max(*each) for each in zip(low, variation.lowest, strict=True)]
                high = [min(*each) for each in zip(high, variation.highest, strict=True)]
            if variation.integer:
                # The nearest whole numbers that differ from the nominal ones.
                low, high = (
                    [
                        round(end) if round(end) != middle else round(middle) + (1 if end >= middle else -1)
                        for end, middle in zip(ends, nominal, strict=True)
                    ]
                    for ends in (low, high)
                )
            if self.is_exact:
                # The end farther from the nominal value.
                low = high = [
                    max(ends, key=lambda end, middle=middle: abs(end - middle))
                    for ends, middle in zip(zip(high, low, strict=True), nominal, strict=True)
                ]
            found[f"{variation.key}.enabled"] = True
            found[f"{variation.key}.sampler_cfg.low"] = low[0] if len(high) == 1 else low
            found[f"{variation.key}.sampler_cfg.high"] = high[0] if len(high) == 1 else high
        return found


_exact = partial(Axis, is_exact=True)
_pictures = partial(Axis, pictures_only=True)
_exact_pictures = partial(_exact, pictures_only=True)
AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("object_position", _OBJECT, ("shift",), 2.5, "distance along x and y [m]", "layout"),
        Axis("object_yaw", _OBJECT, ("turn",), 15.7, "angle [rad]", "layout"),
        Axis("object_size", _OBJECT, ("size",), 1.5, "factor on lengths"),
        Axis("object_mass", _OBJECT, ("mass",), 1.9, "mass [kg]"),
        Axis("object_friction", _OBJECT, ("friction",), 2.0, "coefficient"),
        _pictures("object_color", _OBJECT, ("color",), 1.0, "red, green and blue"),
        _pictures("light", "light", ("direction", "intensity", "color"), 1.0,
                  "direction, and factors on intensity and colour", "light"),
        _pictures("camera_pose", _OBJECT, ("position", "rotation"), 2.0,
                  "distance along each axis [m] and angle about each axis [rad]", "camera"),
        Axis("robot_start", "robot", ("joint_shift",), 20.0, "angle of each joint [rad]", "robot start"),
        Axis("table_height", "table", ("height",), 5.0, "height [m]"),
        _exact_pictures("table_texture", "table", ("texture",), 1.0,
                        "parts of another pattern on the table, of 5", "background"),
        _exact_pictures("background_texture", "background", ("texture",), 1.0,
                        "parts of another pattern on the floor around the table, of 5", "background"),
        _exact("distractors", "distractors", ("count",), 2.0, "number of objects", "layout"),
        _exact("action_noise", "action", ("noise",), 0.4,
               "standard deviation as a share of each action's range", "noise"),
        _exact("action_jolt", "action", ("jolt",), 1.0,
               "push for 5 control steps, as a share of each action's range"),
        _exact("sensor_noise", "observation", ("noise",), 2.0,
               "standard deviation on each observed number, in its own unit", "noise"),
        _exact_pictures("picture_noise", "picture", ("noise",), 4.0,
                        "standard deviation on each colour, of 255", "noise"),
        _exact_pictures("picture_blur", "picture", ("blur",), 3.0, "standard deviation [pixels]", "noise"),
        _pictures("picture_exposure", "picture", ("exposure",), 2.0, "light on the sensor [stops]", "light"),
        _exact_pictures("picture_compression", "picture", ("jpeg_quality",), 1.8, "quality of JPEG, of 100", "noise"),
        _pictures("picture_contrast", "picture", ("contrast",), 1.6, "factor on the distance from grey", "light"),
        _pictures("picture_framing", "picture", ("offset", "tilt"), 2.0,
                  "shift along each side, as a share of it, and angle [rad]", "camera"),
        _exact_pictures("picture_occlusion", "picture", ("occlusion",), 2.0, "covered share of each picture", "noise"),
        _exact_pictures("picture_drops", "picture", ("dropped",), 2.0, "share of pictures that do not arrive", "noise"),
        _exact("delay", "observation", ("delay",), 5 / 3, "age of observations [control steps]", "noise"),
        _exact(LANGUAGE, "instruction", ("paraphrase",), 1.0,
               "number of the paraphrase, from near the task's own words to far from them", "language"),
        _exact("missing_words", "instruction", ("words",), 0.5, "share of the words that arrive", "language"),
        _exact("misspelt_words", "instruction", ("misspelt",), 1.0, "share of misspelt words", "language"),
    )
}  # fmt: skip
"""The axes by name, in the order of tables."""

CONTROLLED: Mapping[str, tuple[str, float]] = {
    "blind": ("picture.brightness", 0.0),
    "no_instruction": ("instruction.words", 0.0),
    "shuffled_cameras": ("picture.exchanged", 1.0),
}
"""The controls that are a variation, each with its key and its value in every episode."""

_NOT_OBJECTS = {"world", *(axis.asset for axis in AXES.values())} - {_OBJECT}
