"""The cost of changed episodes: each arm against its benign arm, as tables, sentences and pictures."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from isaaclab_arena.analysis.arms import Arm, MatchedEpisodes, PairedDifference, match, paired_difference
from isaaclab_arena.analysis.picture import Mark, Picture, RateCurve, Words, png, rate_plot, svg
from isaaclab_arena.config.expansion.suites import AXIS_LABEL, BENIGN, LEVEL_LABEL, ROBUSTNESS_KEY
from isaaclab_arena.environments.variations.overrides import ALL_AXES, AXES, differs_only_by
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results import statistics
from isaaclab_arena.results.columns import Column, Show, markdown_table, table_of, text_table
from isaaclab_arena.results.merge import csv_text, records
from isaaclab_arena.results.stopping import PairCounts
from isaaclab_arena.storage.atomic import write_bytes

# Compare each changed arm of a job with its benign arm, episode by episode.


@dataclass(frozen=True, kw_only=True)
class Drop:
    """The cost of a level of an axis. Rates and drops are 0 to 1."""

    job: str  # as in the job file
    axis: str  # ``benign`` for the reference arm
    level: int  # 0 for the benign arm
    libero_plus: str | None  # corresponding axis of LIBERO-plus; None without one
    scored: statistics.ScoredEpisodes  # of the arm itself
    counts: PairCounts | None = None  # outcomes of pairs, benign episode first; None for the benign arm
    cost: PairedDifference | None = None  # benign rate minus changed rate over the pairs; None without pairs
    holm_p: float | None = None  # the p-value of the cost, adjusted for all axes of the job at this level
    # Episodes without a pair: an error on either side, no counterpart, or other differences than the axis makes.
    left_out: int = 0

    @property
    def drop(self) -> float:
        """The loss of success over the pairs, 0 without pairs."""
        return self.cost.difference if self.cost else 0.0


def drops(arms: Iterable[Arm]) -> tuple[Drop, ...]:
    """Return the cost of each level of each axis by job, benign arm first; empty if no job has arms."""
    jobs: dict[str, list[Arm]] = {}
    for arm in arms:
        if ROBUSTNESS_KEY in arm.entry.config.labels:
            jobs.setdefault(arm.entry.config.labels[ROBUSTNESS_KEY], []).append(arm)
    found: list[Drop] = []
    for job, own in jobs.items():
        benign = next((arm for arm in own if arm.entry.config.labels[AXIS_LABEL] == BENIGN), None)
        costs = [_drop(job, arm, None if arm is benign else benign) for arm in own]
        # The axes of one level are one family.
        adjusted: dict[tuple[str, int], float] = {}
        for level in {each.level for each in costs}:
            tested = [(each.axis, each.cost.mid_p) for each in costs if each.level == level and each.cost is not None]
            p_values = statistics.holm([mid_p for _, mid_p in tested])
            adjusted |= {(axis, level): value for (axis, _), value in zip(tested, p_values, strict=True)}
        found += [replace(each, holm_p=adjusted.get((each.axis, each.level))) for each in costs]
    return tuple(found)


def match_varied(benign: Arm, arm: Arm, may_vary: Callable[[str], bool]) -> MatchedEpisodes:
    """Pair the episodes of a job without error with those of an arm that differs by some variations alone."""
    # The variations that only the arm turns on must be among those that may vary, and a pair may differ only in the
    # conditions that these change.
    suffix = ".enabled"
    before, now = (
        {key.removesuffix(suffix) for key, value in each.entry.variations.items() if key.endswith(suffix) and value}
        for each in (benign, arm)
    )
    keys = frozenset(now - before)
    is_meant = all(map(may_vary, keys))
    return match(
        benign, arm, alike=lambda was, now: is_meant and differs_only_by(json.loads(was), json.loads(now), keys)
    ).without_errors()


def _drop(job: str, arm: Arm, benign: Arm | None) -> Drop:
    """Return the cost of an arm against the benign arm, or its success alone without one."""
    labels = arm.entry.config.labels
    axis = labels[AXIS_LABEL]
    alone = Drop(
        job=job,
        axis=axis,
        level=int(labels[LEVEL_LABEL]),
        libero_plus=AXES[axis].libero_plus if axis in AXES else None,
        scored=arm.episodes.scored,
    )
    if benign is None:
        return alone

    axes = [own for name, own in AXES.items() if axis in (name, ALL_AXES)]
    pairs = match_varied(benign, arm, lambda key: any(own.owns(key) for own in axes))
    return replace(
        alone,
        counts=pairs.counts,
        cost=paired_difference([pairs], conditions=pairs.first.began.tolist()),
        left_out=len(arm.episodes) - len(pairs),
    )


# The costs of changed episodes as a table and in sentences.

# fmt: off
DROPS: tuple[Column[Drop], ...] = (
    Column("job", "string", lambda each: each.job, show=Show.CONSOLE),
    Column("axis", "string", lambda each: each.axis, show=Show.CONSOLE),
    Column("level", "Int64", lambda each: each.level, show=Show.CONSOLE),
    Column("libero_plus", "string", lambda each: each.libero_plus, title="LIBERO-plus", show=Show.CONSOLE),
    Column("episodes", "Int64", lambda each: len(each.scored), show=Show.CONSOLE),
    Column("successes", "Int64", lambda each: each.scored.successes),
    Column("success_rate", "Float64", lambda each: each.scored.rate, title="success % [95 %]", ends="success",
           show=Show.CONSOLE),
    Column("success_low", "Float64", lambda each: (found := each.scored.wilson()) and found.low),
    Column("success_high", "Float64", lambda each: (found := each.scored.wilson()) and found.high),
    Column("pairs", "Float64", lambda each: each.counts and each.counts.total, pattern=".0f", show=Show.CONSOLE),
    Column("both", "Float64", lambda each: each.counts and each.counts.both),
    Column("only_benign", "Float64", lambda each: each.counts and each.counts.only_first, title="only benign",
           pattern=".0f", show=Show.CONSOLE),
    Column("only_changed", "Float64", lambda each: each.counts and each.counts.only_second, title="only changed",
           pattern=".0f", show=Show.CONSOLE),
    Column("neither", "Float64", lambda each: each.counts and each.counts.neither),
    Column("drop", "Float64", lambda each: each.cost and each.cost.difference, title="drop [95 %]", ends="drop",
           pattern="+.1f", show=Show.CONSOLE),
    Column("drop_low", "Float64", lambda each: each.cost and each.cost.interval.low),
    Column("drop_high", "Float64", lambda each: each.cost and each.cost.interval.high),
    Column("mid_p", "Float64", lambda each: each.cost and each.cost.mid_p, title="mid-p", pattern=".3g",
           show=Show.CONSOLE),
    Column("holm_p", "Float64", lambda each: each.holm_p, title="Holm", pattern=".3g", show=Show.CONSOLE),
    Column("left_out", "Int64", lambda each: each.left_out),
    Column("distinct_conditions", "Int64", lambda each: each.scored.num_distinct,
           when=lambda found: any(each.scored.num_distinct < len(each.scored) for each in found)),
)
"""The table of costs, one line per job, axis and level. Rates and drops are 0 to 1."""
# fmt: on


def drops_table(found: Sequence[Drop]) -> pd.DataFrame:
    """Return the costs as text."""
    return text_table((each for each in DROPS if Show.CONSOLE in each.show), records(table_of(DROPS, found)))


def sentences(found: Sequence[Drop]) -> Iterator[str]:
    """Yield the findings of the table by job, and its limits."""
    for job in dict.fromkeys(each.job for each in found):
        own = [each for each in found if each.job == job]
        last = max((each.level for each in own), default=0)
        # Findings are about the last level. The arm with all axes is tested with the others, but is not an axis.
        edge = [each for each in own if each.level == last and each.axis not in (BENIGN, ALL_AXES)]
        hurt = sorted(
            (each for each in edge if each.holm_p is not None and each.holm_p <= 0.05 and each.drop > 0),
            key=lambda each: -each.drop,
        )
        if edge:
            # The arm with all axes counts as a test.
            tests = sum(each.level == last and each.holm_p is not None for each in own)
            told = ", ".join(f"{each.axis} ({100 * each.drop:.0f} points)" for each in hurt)
            yield (
                f"{job}: at level {last} success drops along {told or 'no axis'} (5 % after Holm's correction for "
                f"{tests} tests)"
            )
        blind = [each.axis for each in edge if each.axis in AXES and AXES[each.axis].pictures_only]
        if blind:
            yield f"{job}: only pictures change along {', '.join(blind)}"
        left_out = sum(each.left_out for each in own)
        if left_out:
            yield f"{job}: {left_out} episodes have no pair and count in their own rate alone"
        for each in own:
            number, distinct = len(each.scored), each.scored.num_distinct
            if distinct < number:
                yield f"{job}: {each.axis} {each.level}: {number} episodes, {distinct} different conditions"
        if not any(each.axis == BENIGN for each in own):
            yield f"{job}: the run has no benign arm, so nothing can be compared"


# Plot success over level, one small plot per axis, all on the same scale.

_COLUMNS = 5
_WIDTH, _HEIGHT = 150, 130
_LEFT, _TOP, _GAP_X, _GAP_Y = 48, 40, 18, 44
_LINE, _BAND = "#0f766e", "#ccfbf1"


def slope_pictures(found: Sequence[Drop]) -> dict[str, Picture]:
    """Return the picture of each job."""
    jobs = dict.fromkeys(each.job for each in found)
    return {job: slope_picture([each for each in found if each.job == job]) for job in jobs}


def slope_picture(found: Sequence[Drop]) -> Picture:
    """Return the picture of one job from its arms, including the benign one."""
    start = [each for each in found if each.axis == BENIGN]
    axes = list(dict.fromkeys(each.axis for each in found if each.axis != BENIGN))
    last = max((each.level for each in found), default=1) or 1
    marks: list[Mark] = [Words(at=(_LEFT, 20), text=f"{found[0].job}: success by level, with 95 % intervals")]
    height = _HEIGHT - 24
    for position, axis in enumerate(axes):
        line, column = divmod(position, _COLUMNS)
        left, top = _LEFT + column * (_WIDTH + _GAP_X), _TOP + line * (_HEIGHT + _GAP_Y)
        points = sorted([*start, *(each for each in found if each.axis == axis)], key=lambda each: each.level)
        drawn = [
            (each.level / last, each.scored.rate, interval.low, interval.high)
            for each in points
            if each.scored.rate is not None and (interval := each.scored.wilson()) is not None
        ]
        marks.append(Words(at=(left, top + 10), text=axis, size=12.0))
        marks += rate_plot(
            [RateCurve(points=drawn, colour=_LINE, band=_BAND)] if drawn else [],
            left=left,
            top=top + 20,
            width=_WIDTH,
            height=height,
            percents=(0, 50, 100),
            size=10.0 if column == 0 else None,
        )
        for level in (0, last):
            at = (left + _WIDTH * level / last, top + 20 + height + 14)
            marks.append(Words(at=at, text=str(level), size=10.0, anchor="middle"))
    lines = -(-len(axes) // _COLUMNS)
    told = "; ".join(
        f"{each.axis} {each.level}: {100 * each.scored.rate:.0f} %" for each in found if each.scored.rate is not None
    )
    return Picture(
        width=_LEFT + min(len(axes), _COLUMNS) * (_WIDTH + _GAP_X) + 4,
        height=_TOP + lines * (_HEIGHT + _GAP_Y),
        marks=marks,
        description=f"Success by level of each axis. {told}",
    )


# Write the costs of changed episodes into a run's directory: a table for programs, one for users, and pictures.

NAME = "robustness"


def write_robustness(directory: Path, found: Sequence[Drop]) -> tuple[Path, ...]:
    """Write ``robustness.csv``, ``.md``, and ``robustness_<job>.svg`` and ``.png`` per job; return the paths."""
    said = "\n".join(f"- {sentence}" for sentence in sentences(found))
    contents = {
        f"{NAME}.csv": csv_text(table_of(DROPS, found)).encode(),
        f"{NAME}.md": f"{markdown_table(drops_table(found))}\n\n{said}\n".encode(),
    }
    for job, picture in slope_pictures(found).items():
        contents |= {f"{NAME}_{job}.svg": svg(picture).encode(), f"{NAME}_{job}.png": png(picture)}
    for name, content in contents.items():
        write_bytes(directory / name, content, overwrite=True)
    return tuple(directory / name for name in contents)


# The costs of changed episodes for a page: pictures, one table and sentences.


def shown_robustness(arms: Iterable[Arm]) -> dict[str, Any]:
    """Return a run's part of the page: an SVG per job, the table, and the sentences."""
    found = drops(arms)
    return {
        "pictures": [svg(picture) for picture in slope_pictures(found).values()],
        "table": drops_table(found),
        "sentences": [plain_text(sentence) for sentence in sentences(found)],
    }
