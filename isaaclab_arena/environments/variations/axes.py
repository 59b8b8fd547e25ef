"""The axes of a robustness run: what each of them changes of an episode, and how far at which level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isaaclab_arena.interfaces.variation import Variation

EDGE_LEVEL = 5
"""The level at which an axis reaches its edge; level k goes k fifths of the way there."""

ALL_AXES = "all"
BENIGN = "benign"
"""The name of the arm in which nothing is changed, which is level 0."""

LANGUAGE = "language"
"""The axis of other words for the task."""

_OBJECT = "object"
_NOT_OBJECTS = frozenset(
    {"light", "robot", "table", "background", "distractors", "action", "observation", "picture", "instruction"}
)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One kind of change.

    Attributes:
        name: What it is called in jobs and tables.
        asset: The asset whose variations it turns on; ``object`` stands for every thing of the task and every camera.
        names: Names of these variations. Only those with a nominal value are meant, from which levels go away.
        reach: How far the edge lies from the nominal value, as a multiple of the variation's own range.
        is_exact: Whether every episode of a level gets the same strength; otherwise it draws one up to it.
        libero_plus: The axis of LIBERO-plus that it belongs to, None where that has none.
        pictures_only: Whether nothing but pictures changes, so that a policy without cameras cannot notice.
        strength: What the strength is, with its unit.
    """

    name: str
    asset: str
    names: tuple[str, ...]
    reach: float
    strength: str
    is_exact: bool = False
    libero_plus: str | None = None
    pictures_only: bool = False

    def owns(self, key: str) -> bool:
        """Return whether a variation, such as ``cube.mass``, is one that this axis turns on.

        By its key alone the ``position`` of a camera cannot be told from that of a thing: only a camera's is among
        an episode's conditions because of the axis, and a thing's is there anyway.
        """
        asset, _, name = key.partition(".")
        return name in self.names and self._is_about(asset)

    def variations(self, catalogue: Sequence[Variation]) -> tuple[Variation, ...]:
        """Return what it turns on in an environment, nothing where the environment has nothing of the kind."""
        return tuple(
            variation
            for variation in catalogue
            if variation.name in self.names and variation.nominal and self._is_about(variation.asset)
        )

    def settings(self, catalogue: Sequence[Variation], level: int) -> dict[str, Any]:
        """Return a level as a job's ``variations`` spell it: ``cube.mass.sampler_cfg.low`` and so on.

        Args:
            catalogue: What may vary in the environment.
            level: From 1; beyond `EDGE_LEVEL` it goes further than what was found to be solvable.
        """
        found: dict[str, Any] = {}
        for variation in self.variations(catalogue):
            low, high = self._span(variation, level)
            found[f"{variation.key}.enabled"] = True
            found[f"{variation.key}.sampler_cfg.low"] = low
            found[f"{variation.key}.sampler_cfg.high"] = high
        return found

    def _is_about(self, asset: str) -> bool:
        return asset not in _NOT_OBJECTS if self.asset == _OBJECT else asset == self.asset

    def _span(self, variation: Variation, level: int) -> tuple[Any, Any]:
        share = self.reach * level / EDGE_LEVEL
        default = variation.sampler
        low, high = (
            [_rounded(middle + share * (end - middle)) for middle, end in zip(variation.nominal, ends, strict=True)]
            for ends in (default.low, default.high)
        )
        if variation.lowest and level <= EDGE_LEVEL:
            # One joint that is near its limit does not take the level from the others.
            low = [max(*each) for each in zip(low, variation.lowest, strict=True)]
            high = [min(*each) for each in zip(high, variation.highest, strict=True)]
        if variation.integer:
            low, high = (
                [_whole(end, middle) for end, middle in zip(ends, variation.nominal, strict=True)]
                for ends in (low, high)
            )
        if self.is_exact:
            # The end that is the farther one from where nothing changes.
            far = [
                max(ends, key=lambda end: abs(end - middle))
                for ends, middle in zip(zip(high, low, strict=True), variation.nominal, strict=True)
            ]
            low = high = far
        return (low[0], high[0]) if len(high) == 1 else (low, high)


AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis(
            name="object_position",
            asset=_OBJECT,
            names=("shift",),
            reach=2.5,
            strength="distance along x and y [m]",
            libero_plus="layout",
        ),
        Axis(
            name="object_yaw",
            asset=_OBJECT,
            names=("turn",),
            reach=15.7,
            strength="angle [rad]",
            libero_plus="layout",
        ),
        Axis(
            name="object_size",
            asset=_OBJECT,
            names=("size",),
            reach=1.5,
            strength="factor on lengths",
        ),
        Axis(name="object_mass", asset=_OBJECT, names=("mass",), reach=1.9, strength="mass [kg]"),
        Axis(name="object_friction", asset=_OBJECT, names=("friction",), reach=2.0, strength="coefficient"),
        Axis(
            name="object_color",
            asset=_OBJECT,
            names=("color",),
            reach=1.0,
            strength="red, green and blue",
            pictures_only=True,
        ),
        Axis(
            name="light",
            asset="light",
            names=("direction", "intensity", "color"),
            reach=1.0,
            strength="direction, and factors on intensity and colour",
            libero_plus="light",
            pictures_only=True,
        ),
        Axis(
            name="camera_pose",
            asset=_OBJECT,
            names=("position", "rotation"),
            reach=2.0,
            strength="distance along each axis [m] and angle about each axis [rad]",
            libero_plus="camera",
            pictures_only=True,
        ),
        Axis(
            name="robot_start",
            asset="robot",
            names=("joint_shift",),
            reach=20.0,
            strength="angle of each joint [rad]",
            libero_plus="robot start",
        ),
        Axis(name="table_height", asset="table", names=("height",), reach=5.0, strength="height [m]"),
        Axis(
            name="table_texture",
            asset="table",
            names=("texture",),
            reach=1.0,
            strength="parts of another pattern on the table, of 5",
            is_exact=True,
            libero_plus="background",
            pictures_only=True,
        ),
        Axis(
            name="background_texture",
            asset="background",
            names=("texture",),
            reach=1.0,
            strength="parts of another pattern on the floor around the table, of 5",
            is_exact=True,
            libero_plus="background",
            pictures_only=True,
        ),
        Axis(
            name="distractors",
            asset="distractors",
            names=("count",),
            reach=2.0,
            strength="number of objects",
            is_exact=True,
            libero_plus="layout",
        ),
        Axis(
            name="action_noise",
            asset="action",
            names=("noise",),
            reach=0.4,
            strength="standard deviation as a share of each action's range",
            is_exact=True,
            libero_plus="noise",
        ),
        Axis(
            name="sensor_noise",
            asset="observation",
            names=("noise",),
            reach=2.0,
            strength="standard deviation on each observed number, in its own unit",
            is_exact=True,
            libero_plus="noise",
        ),
        Axis(
            name="picture_noise",
            asset="picture",
            names=("noise",),
            reach=4.0,
            strength="standard deviation on each colour, of 255",
            is_exact=True,
            libero_plus="noise",
            pictures_only=True,
        ),
        Axis(
            name="picture_blur",
            asset="picture",
            names=("blur",),
            reach=3.0,
            strength="standard deviation [pixels]",
            is_exact=True,
            libero_plus="noise",
            pictures_only=True,
        ),
        Axis(
            name="picture_exposure",
            asset="picture",
            names=("exposure",),
            reach=2.0,
            strength="light on the sensor [stops]",
            libero_plus="light",
            pictures_only=True,
        ),
        Axis(
            name="picture_compression",
            asset="picture",
            names=("jpeg_quality",),
            reach=1.8,
            strength="quality of JPEG, of 100",
            is_exact=True,
            libero_plus="noise",
            pictures_only=True,
        ),
        Axis(
            name="delay",
            asset="observation",
            names=("delay",),
            reach=5 / 3,
            strength="age of observations [control steps]",
            is_exact=True,
            libero_plus="noise",
        ),
        Axis(
            name=LANGUAGE,
            asset="instruction",
            names=("paraphrase",),
            reach=1.0,
            strength="number of the paraphrase, from near the task's own words to far from them",
            is_exact=True,
            libero_plus="language",
        ),
    )
}
"""The axes by name, in the order of tables."""


def _whole(end: float, middle: float) -> int:
    """Return the nearest whole number that changes something."""
    return round(end) if round(end) != middle else round(middle) + (1 if end >= middle else -1)


def _rounded(value: float) -> float:
    return round(value, 6)
