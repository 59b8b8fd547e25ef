"""The findings of a watch in its directory: records, success by step and the best; their tables, picture and page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

import pandas as pd

from isaaclab_arena.analysis.picture import Dot, Mark, Picture, RateCurve, Words, png, rate_plot, svg
from isaaclab_arena.config.expansion.suites import STEP
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.jobs import Curve, PooledRate
from isaaclab_arena.report.writing import REPORT_FILE, templates
from isaaclab_arena.results import merge, rows, statistics
from isaaclab_arena.results.columns import markdown_table
from isaaclab_arena.storage.atomic import read_versioned, write_bytes, write_text
from isaaclab_arena.tracking.trackers import CheckpointMeasures

# The records of a watch: `watch/step_<n>/evaluated.json` of each checkpoint, and `best.json`.

SCHEMA_VERSION = 1
BEST_FILE, TRAINING_FILE = "best.json", "training.txt"


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The record of a checkpoint whose evaluation has begun."""

    step: int
    path: str  # as the checkpoint was found
    fingerprint: str  # of its complete files; see `Look`
    # Hash of the evaluated files and of those needed to load them; None before the end, or if they were gone by then.
    content: str | None = None
    is_done: bool = False  # whether every job has all its episodes
    tries: int = 0  # failed evaluations
    reason: str | None = None  # of the last failure
    schema_version: int = SCHEMA_VERSION


def read_records(directory: Path) -> dict[int, Evaluated]:
    """Return the records of a watch by step, in their order; `ConfigError` if one is damaged."""
    paths = directory.glob("watch/step_*/evaluated.json")
    found = (read_versioned(path, Evaluated, SCHEMA_VERSION) for path in paths)
    return {record.step: record for record in sorted(found, key=lambda record: record.step)}


# The success of each job at each step, and the score of each checkpoint over all jobs.


@dataclass(frozen=True, kw_only=True)
class Score:
    """The success of a checkpoint over all jobs of a watch with checkpoints."""

    step: int
    success_rate: float  # mean of the jobs' rates: each job has the same weight
    interval: statistics.Interval  # 95 % Wilson interval of all episodes together
    scored: int  # episodes with measured success, without errors
    distinct: int  # different start conditions of these
    # The mean of the jobs again. Earlier versions did not write it.
    reward_per_step: float = field(default=0.0, compare=False)

    @property
    def rate_in_words(self) -> str:
        """The rate and its interval."""
        return rows.percent_text(self.success_rate, self.interval.low, self.interval.high, unit=" %")

    @property
    def scored_in_words(self) -> str:
        """The number of episodes, and of their conditions if some repeat."""
        return f"{self.scored}{rows.of_conditions(self.distinct, self.scored)}"

    @property
    def in_words(self) -> str:
        """The rate and its interval, of how many episodes."""
        return f"{self.rate_in_words} of {self.scored} episodes{rows.of_conditions(self.distinct, self.scored)}"

    @property
    def values(self) -> dict[str, float]:
        """The columns for tracking services."""
        return {
            "success_rate": self.success_rate,
            "success_low": self.interval.low,
            "success_high": self.interval.high,
            "episodes": float(self.scored),
            "distinct_conditions": float(self.distinct),
        }


@dataclass(frozen=True, kw_only=True)
class Point(Score):
    """The success of a single job at one step."""

    job: str  # as the watch's job file names it
    successes: int
    episodes: statistics.ScoredEpisodes  # the scored episodes themselves, also those beyond a decision
    is_baseline: bool = False  # a job without checkpoints, equal at every step


def points_of(run: Path, step: int) -> list[Point]:
    """Return the success of each job of one checkpoint's run; jobs without measured success are left out."""
    merged = merge.read(run)
    points = []
    for line in merged.rows:
        if line["success_rate"] is None:
            continue
        name, is_baseline = str(line["name"]), line.get(merge.PREFIX + STEP) is None
        episodes = merge.scored_in(merged.episodes_of[name])
        points.append(
            Point(
                job=name if is_baseline else name.removesuffix(f"-{step}"),
                step=step,
                successes=line["successes"],
                scored=rows.scored_episodes(line),
                distinct=episodes.num_distinct,
                success_rate=line["success_rate"],
                reward_per_step=(line["mean_return"] or 0.0) / (line["mean_length"] or 1.0),
                interval=statistics.Interval(low=line["success_low"], high=line["success_high"]),
                episodes=episodes,
                is_baseline=is_baseline,
            )
        )
    return points


def points_of_watch(directory: Path) -> list[Point]:
    """Return the success of each job of every evaluated checkpoint, in the order of their steps."""
    done = [step for step, record in read_records(directory).items() if record.is_done]
    return [point for step in done for point in points_of(directory / f"step_{step}", step)]


def scores_of(points: Iterable[Point]) -> dict[int, Score]:
    """Map each step to the score of its checkpoint; baselines do not count."""
    scores, compared = {}, sorted((each for each in points if not each.is_baseline), key=lambda each: each.step)
    for step, of_step in groupby(compared, key=lambda each: each.step):
        own = [*of_step]
        episodes = statistics.together([point.episodes for point in own])
        if (interval := episodes.wilson()) is not None:
            scores[step] = Score(
                step=step,
                success_rate=sum(point.success_rate for point in own) / len(own),
                reward_per_step=sum(point.reward_per_step for point in own) / len(own),
                interval=interval,
                scored=len(episodes),
                distinct=episodes.num_distinct,
            )
    return scores


def best_of(scores: Mapping[int, Score]) -> Score | None:
    """Return the best score by `BEST_RULE`, None if there is none."""
    return max(scores.values(), key=lambda each: (each.success_rate, each.reward_per_step, -each.step), default=None)


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best checkpoint of a watch and its scores."""

    # In the episodes that chose it: the maximum over many checkpoints is biased upwards.
    chosen: Score
    fresh: Score  # in other episodes
    # Fresh episodes with start conditions that chose it: those of a file or of a benchmark's fixed list.
    alike: int = 0
    schema_version: int = SCHEMA_VERSION

    @property
    def in_words(self) -> str:
        """The episodes of the fresh score, in words."""
        if self.alike == 0:
            return "in other episodes"
        if self.alike >= self.fresh.scored:
            return "once more, from the same initial conditions"
        return f"in other episodes, {self.alike} of them from the same initial conditions"


def best_of_watch(directory: Path, chosen: Score | None) -> Best | None:
    """Return both scores of the best checkpoint, None if `chosen` was not scored again yet."""
    path = directory / BEST_FILE
    found = read_versioned(path, Best, SCHEMA_VERSION) if path.is_file() else None
    # The file may hold the scores of an earlier best checkpoint.
    return found if found is not None and found.chosen == chosen else None


def checkpoint_measures(directory: Path, points: Sequence[Point]) -> list[CheckpointMeasures]:
    """Return the points for tracking services: a series for each job, and one for the best once it is scored again."""
    measures = [CheckpointMeasures(series=each.job, step=each.step, values=each.values) for each in points]
    best = best_of_watch(directory, best_of(scores_of(points)))
    if best is not None:
        series, jobs = "best", {point.job for point in points}
        while series in jobs:
            series += "_"
        again = "again" if best.alike else "fresh"
        values = best.chosen.values | {f"{again}_{name}": value for name, value in best.fresh.values.items()}
        measures.append(CheckpointMeasures(series=series, step=best.chosen.step, values=values))
    return measures


# Draw the learning curve, success by step with the band of its intervals, and write it with its tables.

_WIDTH, _HEIGHT = 720, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 20, 24, 64
_COLOURS = (("#0f766e", "#ccfbf1"), ("#c2410c", "#ffedd5"), ("#1d4ed8", "#dbeafe"), ("#7e22ce", "#f3e8ff"))
"""Line and band of one job after the other; they begin anew where there are more jobs."""


def write_curve(directory: Path, points: Sequence[Point]) -> Path:
    """Write `curve.csv`, `curve.md`, `curve.svg` and `curve.png` of at least one point; return the table's path."""
    ordered = sorted(points, key=lambda point: (point.job, point.step))
    repeats = ["distinct_conditions"] * any(point.distinct < len(point.episodes) for point in ordered)
    names = ["job", "step", "successes", "scored", "success_rate", "success_low", "success_high", *repeats]
    lines, cells = [], []
    for point in ordered:
        rate, low, high = ends = point.success_rate, point.interval.low, point.interval.high
        lines.append((point.job, point.step, point.successes, point.scored, *ends, *(point.distinct for _ in repeats)))
        interval = f"{100 * low:.1f} to {100 * high:.1f} %"
        cells.append((point.job, str(point.step), f"{100 * rate:.1f} %", interval, point.scored_in_words))
    shown = pd.DataFrame(cells, columns=["job", "step", "success", "95 % interval", "episodes"])
    write_text(directory / "curve.md", f"{markdown_table(shown)}\n", overwrite=True)
    write_text(table := directory / "curve.csv", merge.csv_text(pd.DataFrame(lines, columns=names)), overwrite=True)

    # The legend is one line below the steps.
    first, last = min(point.step for point in ordered), max(point.step for point in ordered)
    curves, legend, left = list[RateCurve](), list[Mark](), float(_LEFT)
    for number, job in enumerate(dict.fromkeys(point.job for point in ordered)):
        colour, band = _COLOURS[number % len(_COLOURS)]
        own = [
            ((each.step - first) / (last - first) if last > first else 0.5,
             each.success_rate, each.interval.low, each.interval.high)
            for each in ordered if each.job == job
        ]  # fmt: skip
        curves.append(RateCurve(points=own, colour=colour, band=band))
        legend.append(Dot(centre=(left + 4, _HEIGHT - 18), radius=4.0, colour=colour))
        legend.append(Words(at=(left + 14, _HEIGHT - 14), text=job, size=12.0))
        left += 30 + 7.0 * len(job)
    width, height, below = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM, _HEIGHT - _BOTTOM + 20
    marks: list[Mark] = [
        *rate_plot(curves, left=_LEFT, top=_TOP, width=width, height=height, percents=range(0, 101, 25), size=12.0),
        Words(at=(_LEFT, below), text=f"{first:,}", size=12.0),
        Words(at=(_WIDTH - _RIGHT, below), text=f"{last:,}", size=12.0, anchor="end"),
        Words(at=(_WIDTH / 2, below), text="step of the checkpoint", size=12.0, anchor="middle"),
        *legend,
    ]
    told = ", ".join(f"{point.job} at {point.step}: {100 * point.success_rate:.0f} %" for point in ordered[:20])
    told = f"Success by step with 95 % intervals. {told}"
    picture = Picture(width=_WIDTH, height=_HEIGHT, marks=marks, description=told)
    write_text(directory / "curve.svg", svg(picture), overwrite=True)
    write_bytes(directory / "curve.png", png(picture), overwrite=True)
    return table


# Write the page of a watch: success of every checkpoint, linked to its run, and both scores of the best.


def write_watch_page(directory: Path, points: Sequence[Point], output: Path | None = None) -> Path:
    """Write the page of a watch over an earlier one; `ConfigError` if no checkpoint was evaluated."""
    if not points:
        raise ConfigError(Problem("no checkpoint of this watch has been evaluated yet", file=str(directory)))
    path = output or directory / REPORT_FILE
    has_links = path.resolve().parent == directory.resolve()

    def address(run: Path) -> str | None:
        # Links to the runs' pages are relative, so only a page in the directory of the watch has them.
        return f"{run.name}/{REPORT_FILE}" if has_links and (run / REPORT_FILE).is_file() else None

    steps, curves = sorted({point.step for point in points}), []
    width = steps[-1] - steps[0]
    for job in dict.fromkeys(point.job for point in points):
        # The numbers of the tables: a question about a job ends it early, and has an interval of its own.
        rates = tuple(
            PooledRate(
                label=str(point.step),
                x=(point.step - steps[0]) / width if width else 0.5,
                successes=point.successes,
                scored=point.scored,
                distinct=point.distinct,
                rate=point.success_rate,
                interval=point.interval,
                repeats=rows.of_conditions(point.distinct, point.scored),
                address=address(directory / f"step_{point.step}"),
            )
            for point in sorted(points, key=lambda point: point.step)
            if point.job == job
        )
        curves.append(Curve(key="step", of=plain_text(job), over_checkpoints=True, points=rates))

    # The best has a second score once it was scored again.
    chosen = best_of(scores_of(points))
    best, scores = best_of_watch(directory, chosen), []
    if chosen is not None:
        scores.append(("in the episodes that it was chosen by", chosen, address(directory / f"step_{chosen.step}")))
    if best is not None:
        scores.append((best.in_words, best.fresh, address(directory / f"best_step_{best.chosen.step}")))
    page = {
        "title": f"{curves[0].of if len(curves) == 1 else f'{len(curves)} jobs'} by checkpoint",
        "directory": plain_text(directory.absolute().name),
        "made_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "curves": curves,
        "best": None if chosen is None else str(chosen.step),
        "scores": scores,
        "is_fresh": best is not None and best.alike == 0,
        "num_checkpoints": len(steps),
        "num_episodes": sum(point.scored for point in points),
        "unfinished": [
            plain_text(f"Step {record.step} was not evaluated: {record.reason}")
            for record in read_records(directory).values()
            if not record.is_done and record.reason
        ],
    }
    write_text(path, templates().get_template("watch.html.j2").render(page=page), overwrite=True)
    return path
