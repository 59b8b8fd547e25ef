"""Jobs together: suites, success as a swept key grows, over checkpoints of a training, and policies against tasks."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.jobs import JobOnPage, percent_text
from isaaclab_arena.results.clusters import together
from isaaclab_arena.results.rows import of_conditions
from isaaclab_arena.results.statistics import Interval
from isaaclab_arena.results.suites import simulation_in_words
from isaaclab_arena.results.swept import PREFIX

MOST_JOBS_IN_DETAIL = 100
"""Jobs with charts of their own."""

MOST_CURVES = 24
_MOST_CELLS = 40
_STEP = re.compile(r"(\d{1,15})(?:\.\w+)?/?$")
_NO_STRENGTH = frozenset({"seed", "placement_seed"})


@dataclass(frozen=True, kw_only=True)
class SuiteOnPage:
    """A suite of tasks.

    Attributes:
        name: What it is called on the page.
        row: Its row of the table of suites.
    """

    name: str
    row: Mapping[str, Any]

    @property
    def mean(self) -> str:
        """The mean of its tasks with its interval; a dash while a task has no rate."""
        return percent_text(*(self.row[f"mean_{part}"] for part in ("rate", "low", "high")))

    @property
    def pooled(self) -> str:
        """The rate over all of its episodes with its interval; a dash where there is none."""
        return percent_text(*(self.row[f"pooled_{part}"] for part in ("rate", "low", "high")))

    @property
    def sentence(self) -> str:
        """One sentence to quote: what was evaluated, both rates, and what does not count."""
        row = self.row
        policy = row["policy"].replace(":", ".").rpartition(".")[2]
        said = "success not measured"
        if row["successes"] is not None:
            repeats = of_conditions(row.get("distinct_conditions"), row["scored"])
            counted = f"{row['successes']} of {row['scored']} episodes{repeats}"
            said = f"mean of tasks {self.mean}; {counted}, {self.pooled}"
        left_out = [f"{row['errors']} error{'' if row['errors'] == 1 else 's'}"] if row["errors"] else []
        left_out += [f"{row['missing']} missing"] if row["missing"] else []
        played = ", ".join(filter(None, (f"{row['tasks']} tasks", policy, simulation_in_words(row))))
        what = plain_text(f"{self.name} ({row['suite']}, {played})")
        return f"{what}: {'; '.join([said, *left_out])}"


@dataclass(frozen=True, kw_only=True)
class PooledRate:
    """Jobs whose episodes are counted together.

    Attributes:
        label: What they have in common.
        x: Where it lies on the axis, 0 to 1.
        successes: Scored episodes that succeeded.
        scored: Scored episodes.
        distinct: How many different conditions were drawn for them.
        rate: Their share.
        interval: Its Wilson interval.
        jobs: How many jobs they are.
        address: Where the page, or another one beside it, tells of them; None where they are several.
    """

    label: str
    x: float
    successes: int
    scored: int
    distinct: int
    rate: float
    interval: Interval
    jobs: int
    address: str | None = None

    @property
    def repeats(self) -> str:
        """How many different conditions they have, nothing where each has its own."""
        return of_conditions(self.distinct, self.scored)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Success as a swept key grows.

    Attributes:
        key: The key.
        of: What else the jobs have in common.
        over_checkpoints: Whether the key is a checkpoint, so that this is a learning curve.
        points: One per value, in their order.
    """

    key: str
    of: str
    over_checkpoints: bool
    points: tuple[PooledRate, ...]

    @property
    def line(self) -> str:
        """The points of the rates, in a square of 100 by 100 whose upper edge is 100 %, as SVG writes points."""
        return _svg_points((point.x, point.rate) for point in self.points)

    @property
    def band(self) -> str:
        """The outline of the intervals, in the same square."""
        lower = [(point.x, point.interval.low) for point in self.points]
        upper = [(point.x, point.interval.high) for point in self.points]
        return _svg_points([*lower, *reversed(upper)])


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Policies against tasks.

    Attributes:
        tasks: The columns.
        lines: Each policy with its cell per task, None where it was not evaluated on that.
    """

    tasks: tuple[str, ...]
    lines: tuple[tuple[str, tuple[PooledRate | None, ...]], ...]


def curves(jobs: Sequence[JobOnPage]) -> tuple[Curve, ...]:
    """Return success by each swept key that is a number or the checkpoint of a training, for jobs alike otherwise."""
    keys = dict.fromkeys(name.removeprefix(PREFIX) for job in jobs for name in job.row if name.startswith(PREFIX))
    found = [curve for key in keys if key not in _NO_STRENGTH for curve in _curves_of(key, jobs)]
    return tuple(found[:MOST_CURVES])


def matrix(jobs: Sequence[JobOnPage]) -> Matrix | None:
    """Return policies against tasks; None for one policy or one task, and for too many."""
    cells: dict[tuple[str, str], list[JobOnPage]] = {}
    for job in jobs:
        if job.row["success_rate"] is not None:
            cells.setdefault((_policy(job), _task(job)), []).append(job)
    policies = list(dict.fromkeys(policy for policy, _ in cells))
    tasks = tuple(dict.fromkeys(task for _, task in cells))
    if not (2 <= len(policies) <= _MOST_CELLS and 2 <= len(tasks) <= _MOST_CELLS):
        return None
    return Matrix(
        tasks=tasks,
        lines=tuple(
            (policy, tuple(_pooled(cells.get((policy, task), ()), label=task) for task in tasks)) for policy in policies
        ),
    )


def _curves_of(key: str, jobs: Sequence[JobOnPage]) -> Iterator[Curve]:
    named_checkpoint = any(word in key.rpartition(".")[2] for word in ("checkpoint", "model"))
    series: dict[tuple[int, str], dict[float, list[JobOnPage]]] = {}
    addresses = {id(job): f"#job-{number}" for number, job in enumerate(jobs[:MOST_JOBS_IN_DETAIL])}
    for job in jobs:
        value = _strength(job.row.get(PREFIX + key), named_checkpoint=named_checkpoint)
        if value is not None and job.row["success_rate"] is not None:
            series.setdefault((job.run, _rest(job.row, key)), {}).setdefault(value, []).append(job)
    for (_, rest), by_value in series.items():
        values = sorted(by_value)
        if len(values) < 2:
            continue
        width = values[-1] - values[0]
        points = (
            _pooled(
                by_value[value],
                label=f"{value:.0f}" if named_checkpoint else f"{value:g}",
                x=(value - values[0]) / width,
                address=addresses.get(id(by_value[value][0])) if len(by_value[value]) == 1 else None,
            )
            for value in values
        )
        kept = tuple(point for point in points if point is not None)
        yield Curve(key=plain_text(key), of=rest, over_checkpoints=named_checkpoint, points=kept)


def _strength(value: Any, *, named_checkpoint: bool) -> float | None:
    if isinstance(value, str) and named_checkpoint and (step := _STEP.search(value)) is not None:
        return float(step[1])
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _rest(row: Mapping[str, Any], key: str) -> str:
    """Return what a job is besides a key and its seed: jobs that are alike in it belong to one curve."""
    told = [
        row["environment"],
        row["object"],
        row["embodiment"],
        str(row["policy"]).replace(":", ".").rpartition(".")[2],
    ]
    own = {PREFIX + key, *(PREFIX + name for name in _NO_STRENGTH)}
    for name, value in row.items():
        if name.startswith(PREFIX) and name not in own and value is not None and value not in told:
            told.append(f"{name.rpartition('.')[2]} {value}")
    return plain_text(", ".join(str(each) for each in told if each))


def _pooled(jobs: Sequence[JobOnPage], *, label: str, x: float = 0.0, address: str | None = None) -> PooledRate | None:
    scored = together([job.scored for job in jobs])
    interval = scored.wilson()
    if interval is None:
        return None
    return PooledRate(
        label=plain_text(label),
        x=x,
        successes=scored.successes,
        scored=len(scored),
        distinct=scored.num_distinct,
        rate=scored.successes / len(scored),
        interval=interval,
        jobs=len(jobs),
        address=address,
    )


def _svg_points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{100 * x:.2f},{100 * (1 - rate):.2f}" for x, rate in points)


def _policy(job: JobOnPage) -> str:
    name = job.keys["policy"].replace(":", ".").rpartition(".")[2]
    checkpoint = job.keys.get("checkpoint", "").rstrip("/").rpartition("/")[2]
    return f"{name}, {checkpoint}" if checkpoint else name


def _task(job: JobOnPage) -> str:
    return ", ".join(job.keys[name] for name in ("environment", "object", "embodiment") if name in job.keys)
