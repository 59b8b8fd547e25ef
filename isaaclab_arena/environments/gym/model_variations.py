"""Variations of the MuJoCo model inside an environment made elsewhere, by its own names of bodies and cameras."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from isaaclab_arena.environments.gym.worker.model_changes import GROUPS
from isaaclab_arena.interfaces.environment_builder import Sampler, Variation

Offered: TypeAlias = Iterable[tuple[str, str, Sequence[float]]]
"""Asset, name and unchanged value of each, see `model_changes.offered`."""

PICTURES_ONLY = frozenset({"color", "intensity", "position", "rotation"})
"""Names of the variations that only pictures show."""

# Of each name: unit, description, how far the default range goes below and above the unchanged value, and limits.
_KINDS = {
    "mass": ("", "factor on all masses and inertias", -0.25, 0.25, (1e-3, 1e3)),
    "gravity": ("", "factor on gravity", -0.25, 0.25, (0.0, 10.0)),
    "friction": ("", "factor on sliding friction in all contacts", -0.25, 0.25, (0.0, 10.0)),
    "intensity": ("", "factor on every light", -0.5, 0.5, (0.0, 5.0)),
    "color": ("", "factors on red, green and blue", -0.3, 0.0, (0.0, 5.0)),
    "position": ("m", "offset along the axes of its parent", -0.02, 0.02, (-1.0, 1.0)),
    "rotation": ("rad", "rotation vector about its own axes: right, up, backwards", -0.03, 0.03, (-math.pi, math.pi)),
    "joint_shift": ("rad", "added to the start of each driven hinge", -0.005, 0.005, (-math.pi, math.pi)),
}


def model_variations(offered: Offered) -> Iterator[Variation]:
    """Yield what an environment's model offers as variations."""
    for asset, name, nominal in offered:
        unit, words, below, above, (least, most) = _KINDS[name]
        low, high = (tuple(each + by for each in nominal) for by in (below, above))
        if name == "mass" and asset not in GROUPS:
            # A thing's mass is absolute, as that of our own tasks' objects. Some weigh a few grams.
            unit, words, low, high, least = "kg", "mass", (nominal[0] / 2,), (2 * nominal[0],), 1e-6
        yield Variation(
            asset=asset,
            name=name,
            unit=unit,
            description=words,
            sampler=Sampler(low=low, high=high),
            minimum=least,
            maximum=most,
            sizes=(len(nominal),),
            nominal=tuple(nominal),
        )
