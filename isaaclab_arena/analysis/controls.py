"""The share of a success rate that a policy reaches without looking or listening: control arms against their job."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from isaaclab_arena.analysis.arms import Arm, PairedDifference, ReadRun, paired_difference, read_run
from isaaclab_arena.analysis.robustness import match_varied
from isaaclab_arena.config.expansion.suites import BENIGN, CONTROL_LABEL, CONTROLS, CONTROLS_KEY
from isaaclab_arena.environments.variations.overrides import CONTROLLED
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results import statistics
from isaaclab_arena.results.columns import Column, Show, markdown_table, table_of, text_table
from isaaclab_arena.results.merge import csv_text, records
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.atomic import write_bytes

NAME = "controls"
RECORDED = "control_arms"
"""The run in a run's directory whose jobs play recordings of that run."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A control of a job or of a suite. Rates and shares are 0 to 1."""

    job: str  # of a suite the name of its entry in the job file
    tasks: int | None  # number of a suite's tasks, None for a job
    control: str  # ``benign`` for the job itself
    scored: Sequence[statistics.ScoredEpisodes]  # of each task
    cost: PairedDifference | None = None  # benign rate minus that of the control, over all pairs
    share: tuple[float, statistics.Interval] | None = None  # of the benign rate, see `statistics.paired_share`
    left_out: int = 0  # episodes without a pair: an error on either side, no counterpart, or another start

    @property
    def rate(self) -> float | None:
        """The mean of the tasks' rates, None if a task has no episode."""
        rates = [each.rate for each in self.scored]
        return None if not rates or None in rates else float(np.mean(np.array(rates, float)))

    @property
    def interval(self) -> statistics.Interval | None:
        """The interval of the rate."""
        return self.scored[0].wilson() if len(self.scored) == 1 else statistics.mean_of_tasks(self.scored)


def explained(run: ReadRun) -> tuple[Explained, ...]:
    """Return the controls of each suite and then of each job of a run, the benign arm first; empty if it has none."""
    arms, recorded = [*run.arms.values()], run.directory / RECORDED
    if (recorded / layout.RUN_PLAN_FILE).is_file():
        arms += read_run(recorded).arms.values()
    jobs: dict[str, dict[str, Arm]] = {}
    for arm in arms:
        if CONTROL_LABEL in (labels := arm.entry.config.labels):
            jobs.setdefault(labels[CONTROLS_KEY], {})[labels[CONTROL_LABEL]] = arm
    suites: dict[str, list[dict[str, Arm]]] = {}
    for own in jobs.values():
        if BENIGN in own and (member := own[BENIGN].entry.config.suite) is not None:
            suites.setdefault(member.name, []).append(own)
    return (
        *(each for name, own in suites.items() for each in _explained(name, own, num_tasks=len(own))),
        *(each for name, own in jobs.items() for each in _explained(name, [own], num_tasks=None)),
    )


def _explained(name: str, tasks: Sequence[dict[str, Arm]], *, num_tasks: int | None) -> Iterator[Explained]:
    """Yield the controls of a job, or of the tasks of a suite that all have them."""
    for control in (BENIGN, *CONTROLS):
        arms = [own[control] for own in tasks if control in own and BENIGN in own]
        if len(arms) < len(tasks) or not arms:
            continue
        alone = {"job": name, "tasks": num_tasks, "control": control, "scored": [arm.episodes.scored for arm in arms]}
        if control == BENIGN:
            yield Explained(**alone)
            continue
        key = CONTROLLED.get(control, ("",))[0]
        pairs = [
            match_varied(own[BENIGN], arm, lambda varied, key=key: varied == key)
            for own, arm in zip(tasks, arms, strict=True)
        ]
        # The conditions of the benign arm: those of the control have its variation too.
        began = [condition for each in pairs for condition in each.first.began.tolist()]
        cost = paired_difference(pairs, conditions=began)
        effect = 1.0 if cost is None else cost.design_effect
        yield Explained(
            **alone,
            cost=cost,
            share=statistics.paired_share([each.counts for each in pairs], design_effect=effect),
            left_out=sum(len(arm.episodes) - len(own) for arm, own in zip(arms, pairs, strict=True)),
        )


# fmt: off
EXPLAINED: tuple[Column[Explained], ...] = (
    Column("job", "string", lambda each: each.job, title="suite or job", show=Show.CONSOLE),
    Column("tasks", "Int64", lambda each: each.tasks, show=Show.CONSOLE),
    Column("control", "string", lambda each: each.control, show=Show.CONSOLE),
    Column("episodes", "Int64", lambda each: sum(map(len, each.scored)), show=Show.CONSOLE),
    Column("successes", "Int64", lambda each: sum(own.successes for own in each.scored)),
    Column("success_rate", "Float64", lambda each: each.rate, title="success % [95 %]", ends="success",
           show=Show.CONSOLE),
    Column("success_low", "Float64", lambda each: (found := each.interval) and found.low),
    Column("success_high", "Float64", lambda each: (found := each.interval) and found.high),
    Column("pairs", "Float64", lambda each: each.cost and each.cost.counts.total, pattern=".0f", show=Show.CONSOLE),
    Column("explained", "Float64", lambda each: each.share and each.share[0], title="explained % [95 %]",
           ends="explained", show=Show.CONSOLE),
    Column("explained_low", "Float64", lambda each: each.share and each.share[1].low),
    Column("explained_high", "Float64", lambda each: each.share and each.share[1].high),
    Column("mid_p", "Float64", lambda each: each.cost and each.cost.mid_p, title="mid-p", pattern=".3g",
           show=Show.CONSOLE),
    Column("left_out", "Int64", lambda each: each.left_out),
)
"""The table of controls, one line per suite or job and control. Rates and shares are 0 to 1."""
# fmt: on


def explained_table(found: Sequence[Explained]) -> pd.DataFrame:
    """Return the controls as text."""
    return text_table((each for each in EXPLAINED if Show.CONSOLE in each.show), records(table_of(EXPLAINED, found)))


def sentences(found: Sequence[Explained]) -> Iterator[str]:
    """Yield for each suite, and each job of none, what explains most of its rate; and the limits of the table."""
    for job in dict.fromkeys(each.job for each in found):
        own = [each for each in found if each.job == job]
        shares = [(*each.share, each.control) for each in own if each.share is not None]
        if shares:
            share, ends, control = max(shares, key=lambda each: each[0])
            span = f"{100 * share:.0f} % [{100 * ends.low:.0f}, {100 * ends.high:.0f}]"
            yield f"{job}: {control} reaches {span} of the benign rate, the most of {len(shares)} controls"
        elif any(each.cost for each in own):
            yield f"{job}: the benign rate is 0, so there is nothing to explain"
        if left_out := sum(each.left_out for each in own):
            yield f"{job}: {left_out} episodes have no pair and count in their own rate alone"


def write_controls(directory: Path, found: Sequence[Explained]) -> tuple[Path, ...]:
    """Write ``controls.csv`` and ``controls.md``; return their paths."""
    said = "\n".join(f"- {sentence}" for sentence in sentences(found))
    contents = {
        f"{NAME}.csv": csv_text(table_of(EXPLAINED, found)).encode(),
        f"{NAME}.md": f"{markdown_table(explained_table(found))}\n\n{said}\n".encode(),
    }
    for name, content in contents.items():
        write_bytes(directory / name, content, overwrite=True)
    return tuple(directory / name for name in contents)


def shown_controls(run: ReadRun) -> dict[str, Any]:
    """Return a run's part of the page: the table and the sentences."""
    found = explained(run)
    return {"table": explained_table(found), "sentences": [plain_text(each) for each in sentences(found)]}
