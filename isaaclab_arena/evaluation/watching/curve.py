"""The learning curve of a watch: success by step, its best point, its tables and its picture."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from isaaclab_arena.analysis.picture import Area, Dot, Line, Mark, Picture, Words, png, svg
from isaaclab_arena.config.expansion.sweeps import STEP
from isaaclab_arena.results.merge import PREFIX, merge_results, records, scored_by_job, stored_results
from isaaclab_arena.results.rows import of_conditions, scored_episodes
from isaaclab_arena.results.statistics import Interval, ScoredEpisodes, together
from isaaclab_arena.storage.atomic import write_bytes, write_text

# The success of a job at one step of a training.


@dataclass(frozen=True, kw_only=True)
class Point:
    """A job's success at one step; the interval is the 95 % Wilson interval."""

    job: str  # as the watch's job file names it
    step: int
    successes: int
    scored: int  # episodes with measured success, without errors
    success_rate: float
    success_low: float  # lower end of the interval
    success_high: float  # upper end
    episodes: ScoredEpisodes  # the scored episodes themselves
    is_baseline: bool = False  # a job without checkpoints, equal at every step


# Choose the best checkpoint of a watch.


@dataclass(frozen=True, kw_only=True)
class Score:
    """The success of a checkpoint over all jobs of a watch with checkpoints."""

    step: int
    success_rate: float  # mean of the jobs' rates: each job has the same weight
    interval: Interval  # 95 % Wilson interval of all episodes together
    scored: int  # episodes with measured success
    distinct: int  # different start conditions of these


def scores_of(points: Iterable[Point]) -> dict[int, Score]:
    """Map each step to the score of its checkpoint; baselines do not count."""
    by_step: dict[int, list[Point]] = {}
    for point in points:
        if not point.is_baseline:
            by_step.setdefault(point.step, []).append(point)
    scores = {}
    for step in sorted(by_step):
        own = by_step[step]
        episodes = together([point.episodes for point in own])
        interval = episodes.wilson()
        if interval is not None:
            rate = sum(point.success_rate for point in own) / len(own)
            scores[step] = Score(
                step=step,
                success_rate=rate,
                interval=interval,
                scored=len(episodes),
                distinct=episodes.num_distinct,
            )
    return scores


def best_of(scores: Mapping[int, Score]) -> Score | None:
    """Return the highest score, the earliest step of equal ones; None if there is none."""
    return max(scores.values(), key=lambda score: (score.success_rate, -score.step), default=None)


# Draw a learning curve: success by step, with the band of its intervals.

_WIDTH, _HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 20, 24, 64
_INK, _GRID = "#334155", "#e2e8f0"
_COLOURS = (("#0f766e", "#ccfbf1"), ("#c2410c", "#ffedd5"), ("#1d4ed8", "#dbeafe"), ("#7e22ce", "#f3e8ff"))
"""Line and band of one job after the other; they begin anew where there are more jobs."""


def curve_picture(points: Sequence[Point]) -> Picture:
    """Return the picture of a learning curve; at least one point, in the order of jobs and steps."""
    steps = [point.step for point in points]
    first, last = min(steps), max(steps)

    def place(step: int, rate: float) -> tuple[float, float]:
        along = (step - first) / (last - first) if last > first else 0.5
        return _LEFT + along * (_WIDTH - _LEFT - _RIGHT), _TOP + (1 - rate) * (_HEIGHT - _TOP - _BOTTOM)

    jobs = list(dict.fromkeys(point.job for point in points))
    marks: list[Mark] = list(_axes(first, last))
    of_jobs = [
        ([point for point in points if point.job == job], _COLOURS[i % len(_COLOURS)]) for i, job in enumerate(jobs)
    ]
    # All bands come first, so that no band hides a line.
    for own, (_, band) in of_jobs:
        low = [place(point.step, point.success_low) for point in own]
        high = [place(point.step, point.success_high) for point in own]
        marks.append(Area(points=[*low, *reversed(high)], colour=band))
    for own, (colour, _) in of_jobs:
        centres = [place(point.step, point.success_rate) for point in own]
        marks.append(Line(points=centres, colour=colour, width=2.0))
        # A single checkpoint has no band, so a line shows its interval.
        if len(own) == 1:
            ends = [place(own[0].step, rate) for rate in (own[0].success_low, own[0].success_high)]
            marks.append(Line(points=ends, colour=colour, width=1.5))
        marks += [Dot(centre=centre, radius=3.5, colour=colour) for centre in centres]

    # The legend is one line below the steps.
    left = float(_LEFT)
    for (_, (colour, _)), job in zip(of_jobs, jobs, strict=True):
        marks.append(Dot(centre=(left + 4, _HEIGHT - 18), radius=4.0, colour=colour))
        marks.append(Words(at=(left + 14, _HEIGHT - 14), text=job, colour=_INK, size=12.0))
        left += 30 + 7.0 * len(job)
    told = ", ".join(f"{point.job} at {point.step}: {100 * point.success_rate:.0f} %" for point in points[:20])
    return Picture(
        width=_WIDTH, height=_HEIGHT, marks=marks, description=f"Success by step with 95 % intervals. {told}"
    )


def _axes(first: int, last: int) -> list[Mark]:
    marks: list[Mark] = []
    for percent in (0, 25, 50, 75, 100):
        y = _TOP + (1 - percent / 100) * (_HEIGHT - _TOP - _BOTTOM)
        marks.append(Line(points=[(_LEFT, y), (_WIDTH - _RIGHT, y)], colour=_GRID))
        marks.append(Words(at=(_LEFT - 8, y + 4), text=f"{percent} %", colour=_INK, size=12.0, anchor="end"))
    below = _HEIGHT - _BOTTOM + 20
    marks.append(Words(at=(_LEFT, below), text=f"{first:,}", colour=_INK, size=12.0))
    marks.append(Words(at=(_WIDTH - _RIGHT, below), text=f"{last:,}", colour=_INK, size=12.0, anchor="end"))
    marks.append(Words(at=(_WIDTH / 2, below), text="step of the checkpoint", colour=_INK, size=12.0, anchor="middle"))
    return marks


# Build the learning curve of a watch: success by step, with intervals, as tables and a picture.


def points_of(run_directory: Path, step: int) -> list[Point]:
    """Return the success of each job of one checkpoint's run; jobs without measured success are left out."""
    merged = stored_results(run_directory) or merge_results(run_directory)
    scored = scored_by_job(merged)
    points = []
    for line in records(merged.jobs):
        if line["success_rate"] is None:
            continue
        name, is_baseline = str(line["name"]), line.get(PREFIX + STEP) is None
        points.append(
            Point(
                job=name if is_baseline else name.removesuffix(f"-{step}"),
                step=step,
                successes=line["successes"],
                scored=scored_episodes(line),
                success_rate=line["success_rate"],
                success_low=line["success_low"],
                success_high=line["success_high"],
                episodes=scored[name],
                is_baseline=is_baseline,
            )
        )
    return points


def write_curve(directory: Path, points: Sequence[Point]) -> Path:
    """Write `curve.csv`, `curve.md`, `curve.svg` and `curve.png`, and return the path of the table."""
    ordered = sorted(points, key=lambda point: (point.job, point.step))
    table = directory / "curve.csv"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [field.name for field in fields(Point) if field.name not in ("episodes", "is_baseline")]
    repeats = not all(point.episodes.are_distinct for point in ordered)
    writer.writerow([*columns, *(["distinct_conditions"] if repeats else [])])
    for point in ordered:
        more = [point.episodes.num_distinct] if repeats else []
        writer.writerow([*(getattr(point, column) for column in columns), *more])
    write_text(table, text.getvalue(), overwrite=True)

    lines = ["| job | step | success | 95 % interval | episodes |", "| --- | ---: | ---: | --- | ---: |"]
    for point in ordered:
        interval = f"{100 * point.success_low:.1f} to {100 * point.success_high:.1f} %"
        rate = f"{100 * point.success_rate:.1f} %"
        scored = f"{point.scored}{of_conditions(point.episodes.num_distinct, point.scored)}"
        lines.append(f"| {point.job} | {point.step} | {rate} | {interval} | {scored} |")
    write_text(directory / "curve.md", "\n".join(lines) + "\n", overwrite=True)

    if ordered:
        picture = curve_picture(ordered)
        write_text(directory / "curve.svg", svg(picture), overwrite=True)
        write_bytes(directory / "curve.png", png(picture), overwrite=True)
    return table
