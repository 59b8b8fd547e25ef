"""Say in physical units what each level of each axis of change is, for pages and for captions of pictures."""

from collections.abc import Iterator, Sequence

from isaaclab_arena.environments.variations.catalogue import word_distance
from isaaclab_arena.environments.variations.overrides import AXES, EDGE_LEVEL, Axis, enabled_variations
from isaaclab_arena.interfaces.environment_builder import Variation

LEVELS = range(1, EDGE_LEVEL + 1)


def level_table(catalogue: Sequence[Variation]) -> Iterator[str]:
    """Yield the lines of a table: what every axis of a task does at every level.

    Args:
        catalogue: What may vary in the task.
    """
    yield f"| axis | what changes | {' | '.join(f'level {level}' for level in LEVELS)} |"
    yield f"| --- | --- |{' --- |' * len(LEVELS)}"
    for axis in AXES.values():
        lines: dict[str, list[str]] = {}
        for variation in axis.variations(catalogue):
            values = " | ".join(level_value(axis, catalogue, level, variation.key) for level in LEVELS)
            lines.setdefault(values, []).append(f"`{variation.key}`")
        for values, keys in lines.items():
            yield f"| `{axis.name}` | {', '.join(keys)} | {values} |"


def paraphrase_table(instruction: str, paraphrases: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table: what is told at each level of `language`, and how far that is from the task.

    Args:
        instruction: The task's own words.
        paraphrases: The others; empty for none.
    """
    if not paraphrases:
        return
    yield "| told | words that differ |"
    yield "| --- | --: |"
    for said in (instruction, *paraphrases):
        yield f"| {said} | {100 * word_distance(instruction, said):.0f} % |"


def level_value(axis: Axis, catalogue: Sequence[Variation], level: int, key: str) -> str:
    """Return what a level draws a variation from, with its unit: ``± 0.04 m``, ``0.88 to 1.12``, ``5 pixels``.

    Args:
        axis: The axis.
        catalogue: What may vary in the task.
        level: From 1.
        key: One of the axis's variations.
    """
    on = enabled_variations(catalogue, axis.settings(catalogue, level))
    (variation,) = (each for each in on if each.key == key)
    low, high, middle = variation.sampler.low, variation.sampler.high, variation.nominal
    unit = f" {variation.unit}" if variation.unit else ""
    if low == high:
        return f"{_shown(high)}{unit}"
    reach = [round(end - start, 6) for end, start in zip(high, middle, strict=True)]
    if reach == [round(start - end, 6) for end, start in zip(low, middle, strict=True)]:
        about = "" if not any(middle) else f"{_shown(middle)} "
        return f"{about}± {_shown(reach)}{unit}"
    return f"{_shown(low)} to {_shown(high)}{unit}"


def _shown(values: Sequence[float]) -> str:
    """Return numbers in few digits: one where all are the same."""
    if len({*values}) == 1:
        return f"{values[0]:g}"
    return f"({', '.join(f'{value:.3g}' for value in values)})"
