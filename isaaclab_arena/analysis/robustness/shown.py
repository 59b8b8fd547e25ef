"""What changed episodes cost, as a page shows it: pictures, one table and sentences."""

from collections.abc import Iterable
from dataclasses import dataclass

from isaaclab_arena.analysis.arms import Arm
from isaaclab_arena.analysis.comparison_table import TextTable
from isaaclab_arena.analysis.replays.picture import svg
from isaaclab_arena.analysis.robustness.drops import drops
from isaaclab_arena.analysis.robustness.slopes import slope_picture
from isaaclab_arena.analysis.robustness.table import drops_table, sentences
from isaaclab_arena.logs import plain_text


@dataclass(frozen=True, kw_only=True)
class ShownRobustness:
    """What changed episodes cost the jobs of a run.

    Attributes:
        pictures: Per job its picture, as SVG.
        table: One line per job, axis and level.
        sentences: What the table says.
    """

    pictures: tuple[str, ...]
    table: TextTable
    sentences: tuple[str, ...]


def shown_robustness(arms: Iterable[Arm]) -> ShownRobustness:
    """Return what is shown of a run.

    Args:
        arms: Its jobs.
    """
    found = drops(arms)
    jobs = dict.fromkeys(each.job for each in found)
    return ShownRobustness(
        pictures=tuple(svg(slope_picture([each for each in found if each.job == job])) for job in jobs),
        table=drops_table(found),
        sentences=tuple(map(plain_text, sentences(found))),
    )
