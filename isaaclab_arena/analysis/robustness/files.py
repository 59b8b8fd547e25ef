"""Write what changed episodes cost into the directory of a run: a table for programs, one for people, pictures."""

from collections.abc import Sequence
from pathlib import Path

from isaaclab_arena.analysis.comparison_files import markdown_table
from isaaclab_arena.analysis.replays.picture import png, svg
from isaaclab_arena.analysis.robustness.drops import Drop
from isaaclab_arena.analysis.robustness.slopes import slope_picture
from isaaclab_arena.analysis.robustness.table import csv_of, drops_table, sentences
from isaaclab_arena.storage.atomic import write_bytes, write_text

NAME = "robustness"


def write_robustness(directory: Path, found: Sequence[Drop]) -> tuple[Path, ...]:
    """Write ``robustness.csv``, ``robustness.md``, and per job ``robustness_<job>.svg`` and ``.png``.

    Args:
        directory: The run's directory.
        found: What each level of each axis costs; at least one.

    Returns:
        The files.

    Raises:
        StorageError: If one cannot be written.
    """
    said = "\n".join(f"- {sentence}" for sentence in sentences(found))
    texts = {
        directory / f"{NAME}.csv": csv_of(found),
        directory / f"{NAME}.md": f"{markdown_table(drops_table(found))}\n\n{said}\n",
    }
    pictures = {}
    for job in dict.fromkeys(each.job for each in found):
        picture = slope_picture([each for each in found if each.job == job])
        texts[directory / f"{NAME}_{job}.svg"] = svg(picture)
        pictures[directory / f"{NAME}_{job}.png"] = png(picture)
    for path, text in texts.items():
        write_text(path, text, overwrite=True)
    for path, content in pictures.items():
        write_bytes(path, content, overwrite=True)
    return (*texts, *pictures)
