"""The axes in docs/how_to/robustness.md are the program's."""

from dataclasses import replace

from isaaclab_arena.environments import Sampler
from isaaclab_arena.environments.variations.overrides import AXES, EDGE_LEVEL, Axis, enabled_variations
from isaaclab_arena.evaluation.planning import described
from tests.end_to_end.launching import ROOT
from tests.environments.variations.varying import catalogue_of

DOCUMENT = (ROOT / "docs" / "how_to" / "robustness.md").read_text()
CATALOGUE = catalogue_of("lift_object")


def ranges(axis: Axis, level: int) -> str:
    """Range of a level, or the refusal of a task that lacks the axis."""
    on = enabled_variations(CATALOGUE, axis.settings(CATALOGUE, level))
    shown = (f"{variation.name} {described(_brief(variation.sampler))}{_unit(variation.unit)}" for variation in on)
    return "; ".join(dict.fromkeys(shown)) or "-"


def _brief(sampler: Sampler) -> Sampler:
    """Return a sampler of one number where all numbers have the same range."""
    if len({*zip(sampler.low, sampler.high, strict=True)}) > 1:
        return sampler
    return replace(sampler, low=sampler.low[:1], high=sampler.high[:1])


def _unit(unit: str) -> str:
    return f" {unit}" if unit else ""


def rows() -> str:
    """Return the rows of the document's table."""
    return "\n".join(
        f"| `{axis.name}` | {axis.libero_plus or '-'} | {'yes' if axis.pictures_only else 'no'} "
        f"| {ranges(axis, 1)} | {ranges(axis, EDGE_LEVEL)} |"
        for axis in AXES.values()
    )


def test_the_documented_axes_are_the_programs():
    assert rows() in DOCUMENT, f"paste this into docs/how_to/robustness.md:\n{rows()}"
