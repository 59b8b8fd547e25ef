"""Comparisons and leaderboards as tables of text, and as JSON, CSV, Markdown and LaTeX."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd

from isaaclab_arena.analysis import comparison
from isaaclab_arena.analysis.arms import Arm, ReadRun, differences_of_tasks, match, paired_difference
from isaaclab_arena.results.columns import Column, latex_table, markdown_table, table_of, text_table
from isaaclab_arena.results.merge import csv_text, harmless_text, records
from isaaclab_arena.results.statistics import Interval, holm, mean_of_tasks, together
from isaaclab_arena.storage.atomic import json_text, write_text
from isaaclab_arena.storage.contents import one_hash

# A comparison as tables: one line per task, one per measure, and sentences for the rest.

_MOST_EPISODES = 5


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else f"{value:.1e}"


# fmt: off
TASKS: tuple[Column[comparison.JobComparison], ...] = (
    Column("candidate_run", "string", lambda each: str(each.first.directory)),
    Column("baseline_run", "string", lambda each: str(each.second.directory)),
    Column("candidate_job", "string", lambda each: each.first.entry.name),
    Column("baseline_job", "string", lambda each: each.second.entry.name),
    Column("pairs", "Int64", lambda each: each.counts.total, cell=lambda row: (
           f"{row['pairs']}" if row.get("distinct_conditions") in (None, row["pairs"]) else
           f"{row['pairs']} ({row['distinct_conditions']} distinct)")),
    Column("both", "Int64", lambda each: each.counts.both),
    Column("only_first", "Int64", lambda each: each.counts.only_first, title="only candidate"),
    Column("only_second", "Int64", lambda each: each.counts.only_second, title="only baseline"),
    Column("neither", "Int64", lambda each: each.counts.neither),
    Column("pairs_with_error", "Int64", lambda each: each.num_errors),
    Column("candidate_rate", "Float64", lambda each: each.rates[0], title="candidate %", unit="%", pattern=".1f"),
    Column("baseline_rate", "Float64", lambda each: each.rates[1], title="baseline %", unit="%", pattern=".1f"),
    Column("difference", "Float64", lambda each: each.difference, ends="difference", pattern="+.1f"),
    Column("difference_low", "Float64", lambda each: each.interval.low),
    Column("difference_high", "Float64", lambda each: each.interval.high),
    Column("mid_p", "Float64", lambda each: each.mid_p, title="mid-p", cell=lambda row: _p(row["mid_p"])),
    Column("exact_p", "Float64", lambda each: each.exact_p),
    Column("adjusted_p", "Float64", lambda each: each.adjusted_p, title="Holm", cell=lambda row: _p(row["adjusted_p"])),
    Column("verdict", "string", lambda each: str(each.verdict)),
    Column("distinct_conditions", "Int64", lambda each: each.distinct, when=lambda tasks: any(map(_repeats, tasks))),
)
"""The tasks of a comparison. In the CSV file, the measures stand before the columns that only some comparisons have."""
# fmt: on

_IN_WORDS = ("task", "pairs", "candidate_rate", "baseline_rate", "both", "only_first", "only_second", "neither",
             "difference", "mid_p", "adjusted_p", "verdict")  # fmt: skip


def rates_table(report: comparison.ComparisonReport) -> pd.DataFrame:
    """Return the success rates of each task as text, and below them all tasks together."""
    rows = [
        {**row, "task": _name(each)}
        for row, each in zip(records(table_of(TASKS, report.tasks)), report.tasks, strict=True)
    ]
    if (pooled := report.together) is not None:
        counts, (first, second) = pooled.counts, pooled.counts.successes
        rates = {"candidate_rate": first / counts.total, "baseline_rate": second / counts.total}
        whole = {"task": "all pairs together", "pairs": counts.total, **_repeats(pooled), **vars(counts), **rates}
        mean, of_mean = {"task": "mean of the tasks", "difference": pooled.mean_of_tasks}, pooled.mean_of_tasks_interval
        whole |= {"difference": pooled.difference, "mid_p": pooled.mid_p}
        for row, interval in ((whole, pooled.interval), (mean, of_mean)):
            rows.append({**row, "difference_low": interval.low, "difference_high": interval.high})
    percent = f"{100 * (1 - report.question.alpha):g} %"
    shown = {each.name: each for each in TASKS} | {"task": Column[Any]("task", "string", str)}
    shown["difference"] = replace(shown["difference"], title=f"difference [{percent}]")
    return text_table([shown[name] for name in _IN_WORDS], rows)


def measures_table(report: comparison.ComparisonReport) -> pd.DataFrame:
    """Return the differences of lengths, returns and progress as text, for each task that has them."""
    rows = []
    for each in report.tasks:
        for name, measure in measures(each).items():
            rows.append((_name(each), name, str(measure.num_pairs), f"{measure.first_mean:.4g}",
                         f"{measure.second_mean:.4g}", measure.in_words, f"{measure.p_value:.3g}"))  # fmt: skip
    headings = ["task", "measure", "pairs", "candidate", "baseline", "difference [95 %]", "signed-rank p"]
    return pd.DataFrame(rows, columns=headings)


def events_table(report: comparison.ComparisonReport) -> pd.DataFrame:
    """Return the events of candidate and baseline as text, for each task that reports them."""
    rows = [
        (_name(each), event.event, str(event.num_pairs), str(event.first), str(event.second), str(event.only_first),
         str(event.only_second), _p(event.mid_p), _p(event.adjusted_p))
        for each in report.tasks
        for event in each.events
    ]  # fmt: skip
    headings = ["task", "event", "pairs", "candidate", "baseline", "only candidate", "only baseline", "mid-p", "Holm"]
    return pd.DataFrame(rows, columns=headings)


def tables(report: comparison.ComparisonReport) -> list[pd.DataFrame]:
    """Return the tables that have a line, as text."""
    return [table for table in (rates_table(report), measures_table(report), events_table(report)) if len(table)]


def measures(each: comparison.JobComparison) -> Mapping[str, comparison.MeanDifference]:
    """Return the measures beside success, by name."""
    found = {"length": each.length, "length where both succeed": each.time_to_success, "return": each.episode_return}
    # A metric replaces neither a measure nor, in the CSV file, the difference of the rates.
    taken = {*found, "difference"}
    found |= {f"metric {name}" if name in taken else name: measure for name, measure in each.metrics.items()}
    return {name: measure for name, measure in found.items() if measure is not None}


def sentences(report: comparison.ComparisonReport) -> Iterator[str]:
    """Yield the findings beside the tables: power, episodes with different outcomes, and omissions."""
    if report.choice is not None:
        yield f"{report.choice.sentence}; all figures here are over the latter"
    # Each task: power, pairs without an answer, and telling events.
    for each in report.tasks:
        # The difference that these pairs detect, and the number of pairs that the question needs.
        counts = each.counts
        power = "are too few to find any difference in four of five tries"
        if each.detectable is not None:
            power = f"find a difference of {100 * each.detectable:.1f} points in four of five tries"
        question = "settle the margin" if report.question.margin is not None else "find the difference seen here"
        if counts.only_first + counts.only_second == 0:
            needed = "no pair differs"
        elif each.pairs_needed is not None:
            needed = f"{each.pairs_needed} would {question}"
        elif counts.only_first != counts.only_second or report.question.margin is not None:
            needed = f"it takes more than 5,000 to {question}"
        else:
            needed = "as many differ to either side"
        yield f"{_name(each)}: {counts.total} pairs {power}; {needed}"
        yield from _about_pairs(each, report.question)
        if telling := [event for event in each.events if event.adjusted_p <= report.question.alpha]:
            listed = [f"{event.event} ({event.first} against {event.second})" for event in telling]
            yield f"{_name(each)}: events that tell candidate and baseline apart: {_listed(listed)}"
    # All tasks together: repeated conditions, and the limits of p-values and intervals.
    if report.together is not None and report.together.distinct < report.together.counts.total:
        yield (
            f"together: {report.together.counts.total} pairs have {report.together.distinct} different conditions and "
            "count as a sample of these"
        )
    if len(report.tasks) > 1:
        yield f"p-values are adjusted by Holm's method for the family: {report.family}"
        if alike := [_name(each) for each in report.tasks if each.counts.total in vars(each.counts).values()]:
            yield (
                f"every pair has the same outcomes in {_listed(alike)}: a bootstrap takes that for certain, so the "
                "interval of the mean of the tasks is too narrow"
            )
    yield from report.notes
    for refusal in report.refused:
        yield f"not compared: {refusal.first} and {refusal.second}: {refusal.reason}"


def _about_pairs(each: comparison.JobComparison, question: comparison.Question) -> Iterator[str]:
    """Yield what differs beside success, pairs that repeat conditions, differ or have errors, and those without one."""
    name, matched = _name(each), each.matched
    beside = comparison.beside_success(each.length, each.episode_return, question)
    if beside and each.verdict is comparison.Verdict.UNDECIDED:
        yield f"{name}: {beside}"
    if each.distinct < each.counts.total:
        pairs = f"{each.counts.total} pairs have {each.distinct} different conditions"
        yield f"{name}: {pairs} and count as a sample of these"
    for who, episodes in discordant_episodes(each).items():
        if episodes:
            yield f"{name}: only the {who} succeeds in {_listed([str(index) for index in episodes])}"
            for index in episodes[:_MOST_EPISODES]:
                films = [*each.first.videos.get(index, ()), *each.second.videos.get(index, ())]
                if films:
                    yield f"    episode {index}: {', '.join(map(str, films))}"
    # An error may hide either outcome, so its effect is given as bounds.
    if each.num_errors:
        low, high = 100 * each.bounds.low, 100 * each.bounds.high
        yield (
            f"{name}: {each.num_errors} pairs with an error are left out; however they had ended, the difference would "
            f"be {low:+.1f} to {high:+.1f}"
        )
    if matched.unequal:
        shown = [f"{each.episode_index} ({', '.join(each.names)})" for each in matched.unequal]
        yield f"{name}: no pairs, because their conditions differ: episodes {_listed(shown)}"
    for who, number in (("candidate", matched.only_first), ("baseline", matched.only_second)):
        if number:
            yield f"{name}: {number} episodes of the {who} have no counterpart"


def discordant_episodes(each: comparison.JobComparison) -> dict[str, list[int]]:
    """Return the episodes in which only the candidate succeeds, and those in which only the baseline does."""
    pairs = each.matched.without_errors()
    first, second = pairs.first.success > 0, pairs.second.success > 0
    index = pairs.first.index
    return {"candidate": index[first & ~second].tolist(), "baseline": index[~first & second].tolist()}


def _listed(items: Sequence[str]) -> str:
    more = len(items) - _MOST_EPISODES
    return ", ".join(items[:_MOST_EPISODES]) + (f" and {more} more" if more > 0 else "")


def _name(each: comparison.JobComparison) -> str:
    first, second = each.first.entry.name, each.second.entry.name
    return first if first == second else f"{first} / {second}"


# A comparison as files: JSON with every figure, CSV, Markdown and LaTeX with the tables.

SCHEMA_VERSION = 1
NAME = "comparison"


def write_comparison(directory: Path, report: comparison.ComparisonReport) -> tuple[Path, ...]:
    """Write ``comparison.json``, ``.csv``, ``.md`` and ``.tex`` over earlier ones, and return their paths."""
    table = table_of(TASKS, report.tasks)
    # The differences of the tasks' measures; a spreadsheet may open the file.
    means: list[dict[str, float | None]] = []
    for each in report.tasks:
        means.append({})
        for name, measure in measures(each).items():
            column, ends = harmless_text(name.replace(" ", "_")), measure.interval
            means[-1] |= {f"{column}_difference": measure.mean, f"{column}_low": ends and ends.low}
            means[-1][f"{column}_high"] = ends and ends.high
    at = [each.name for each in TASKS].index("distinct_conditions")
    table = pd.concat([table.iloc[:, :at], pd.DataFrame(means), table.iloc[:, at:]], axis="columns")
    texts = {
        "json": json_text(document(report)),
        "csv": csv_text(table),
        "md": markdown(report),
        "tex": latex_table(rates_table(report)),
    }
    paths = []
    for ending, text in texts.items():
        paths.append(directory / f"{NAME}.{ending}")
        write_text(paths[-1], text, overwrite=True)
    return tuple(paths)


def document(report: comparison.ComparisonReport) -> dict[str, Any]:
    """Return the whole comparison as a JSON document."""
    plain = ("counts", "num_errors", "rates", "intervals", "difference", "interval", "bounds", "mid_p", "exact_p",
             "adjusted_p", "verdict", "detectable", "pairs_needed")  # fmt: skip
    tasks = []
    for each in report.tasks:
        sides = {
            side: {
                "run": str(arm.directory),
                "job": arm.entry.name,
                "policy": arm.entry.config.policy_type,
                "checkpoint": None if arm.contents is None else arm.contents.checkpoint,
                "policy_sha256": None if arm.contents is None else one_hash(arm.contents.policy),
                "episodes": len(arm.episodes),
            }
            for side, arm in (("candidate", each.first), ("baseline", each.second))
        }
        discordant = discordant_episodes(each)
        videos = {
            index: [str(path) for arm in (each.first, each.second) for path in arm.videos.get(index, ())]
            for both in discordant.values()
            for index in both
        }
        tasks.append(
            {
                **sides,
                **{name: getattr(each, name) for name in plain},
                **_repeats(each),
                "measures": measures(each),
                **({"events": each.events} if each.events else {}),
                "discordant_episodes": discordant,
                "videos": {str(index): paths for index, paths in videos.items() if paths},
                "unequal_conditions": each.matched.unequal,
                "without_counterpart": {"candidate": each.matched.only_first, "baseline": each.matched.only_second},
            }
        )
    pooled = None
    if report.together is not None:
        named = ("counts", "difference", "interval", "mid_p", "mean_of_tasks", "mean_of_tasks_interval")
        pooled = {name: getattr(report.together, name) for name in named} | _repeats(report.together)
    return {
        "schema_version": SCHEMA_VERSION,
        "question": report.question,
        "verdict": report.verdict,
        "family": report.family,
        "choice": report.choice,
        "tasks": tasks,
        "together": pooled,
        "refused": report.refused,
        "notes": report.notes,
    }


def markdown(report: comparison.ComparisonReport) -> str:
    """Return tables and sentences in Markdown, also for ``--github-summary``."""
    said = "\n".join(f"- {sentence.strip()}" for sentence in sentences(report))
    return "\n\n".join([f"**{report.verdict}**", *map(markdown_table, tables(report)), said]) + "\n"


def _repeats(each: comparison.JobComparison | comparison.Together) -> dict[str, int]:
    """Return the number of distinct conditions, if some repeat."""
    return {"distinct_conditions": each.distinct} if each.distinct < each.counts.total else {}


# Order several policies by success, and name those that cannot be told apart.


@dataclass(frozen=True, kw_only=True)
class Place:
    """One line of a leaderboard."""

    name: str  # run, or job if all are of one run
    rank: int  # from 1, by the mean of the tasks' rates; equal means share a rank
    mean_rate: float  # mean of the tasks' success rates with equal weights
    mean_interval: Interval  # stratified by task; see `mean_of_tasks`
    successes: int  # over all episodes
    episodes: int  # scored episodes
    interval: Interval  # Wilson interval of the rate over all episodes
    like: tuple[str, ...]  # policies without a significant difference
    distinct_conditions: int  # distinct draws of the episodes' conditions


@dataclass(frozen=True, kw_only=True)
class Leaderboard:
    """Policies in order."""

    tasks: tuple[str, ...]  # common jobs, common tasks of the suites, or the single task of a run's jobs
    places: tuple[Place, ...]  # one per policy, the best first
    num_comparisons: int  # compared pairs of policies, their p-values adjusted as one family
    # Best policy by half of the episodes, scored on the other half. It may differ from the first place. None if there
    # are too few episodes.
    winner: comparison.Choice | None


def leaderboard(runs: Sequence[ReadRun], question: comparison.Question) -> Leaderboard:
    """Order runs by their common jobs or suite tasks; order a single run's suites, or else its jobs of one task."""
    entries = _entries_of(runs)
    first = next(iter(entries.values()))
    for arms in entries.values():
        for task, arm in arms.items():
            if differences := differences_of_tasks(first[task], arm):
                raise comparison.NotComparableError(
                    f"{first[task].label} and {arm.label} are not the same task: {', '.join(differences)}"
                )
            if arm.num_missing:
                raise comparison.NotComparableError(
                    f"{arm.label} has {arm.num_missing} episodes to go: {arm.way_to_finish}"
                )
            if not arm.measures_success:
                raise comparison.NotComparableError(f"{arm.label} does not measure success")

    # Every pair of policies is compared over all tasks; `question.alpha` is the level of the whole family.
    pairs, p_values = list(combinations(entries, 2)), []
    for one, other in pairs:
        compared = paired_difference([match(entries[one][task], entries[other][task]) for task in first])
        if compared is None:
            names = " and ".join(next(iter(entries[name].values())).label for name in (one, other))
            raise comparison.NotComparableError(f"{names} have no two episodes that started from the same conditions")
        p_values.append(compared.mid_p)
    like: dict[str, list[str]] = {name: [] for name in entries}
    for (one, other), p_value in zip(pairs, holm(p_values), strict=True):
        if p_value > question.alpha:
            like[one].append(other)
            like[other].append(one)

    # The best mean of the tasks comes first.
    scored = {name: [arm.episodes.scored for arm in arms.values()] for name, arms in entries.items()}
    means = {name: comparison.mean_rate(tasks) for name, tasks in scored.items()}
    places = []
    for name in sorted(entries, key=lambda name: -means[name]):
        everything, mean_interval = together(scored[name]), mean_of_tasks(scored[name])
        interval = everything.wilson()
        if interval is None or mean_interval is None:
            raise ValueError("no episode tells a success from a failure")
        places.append(
            Place(
                name=name,
                rank=1 + sum(mean > means[name] for mean in means.values()),
                mean_rate=means[name],
                mean_interval=mean_interval,
                successes=everything.successes,
                episodes=len(everything),
                interval=interval,
                like=tuple(like[name]),
                distinct_conditions=everything.num_distinct,
            )
        )
    return Leaderboard(
        tasks=tuple(first),
        places=tuple(places),
        num_comparisons=len(pairs),
        winner=comparison.choose_best({name: list(arms.values()) for name, arms in entries.items()}),
    )


def _entries_of(runs: Sequence[ReadRun]) -> dict[str, dict[str, Arm]]:
    """Return each policy's jobs by task, for the tasks that all policies have."""
    if len(runs) == 1:
        # A run with suites alone orders these; otherwise each of its jobs is a policy.
        arms, suites = runs[0].arms, runs[0].suites()
        if sum(map(len, suites.values())) < len(arms):
            return {name: {"": arm} for name, arm in arms.items()}
        if found := _in_common(suites):
            return found
        raise comparison.NotComparableError(f"{runs[0].directory}: its suites have no task that all of them have")

    # Several runs are ordered by their jobs of the same name, or else by the only suite of each.
    if found := _in_common({str(run.directory): run.arms for run in runs}):
        return found
    suites_of = {str(run.directory): list(run.suites().values()) for run in runs}
    if all(len(own) == 1 for own in suites_of.values()):
        found = _in_common({name: own[0] for name, own in suites_of.items()})
    if not found:
        raise comparison.NotComparableError("the runs have no job that all of them have, and no suite")
    return found


def _in_common(entries: Mapping[str, Mapping[str, Arm]]) -> dict[str, dict[str, Arm]]:
    """Restrict each entry to the tasks that all of them have; empty if there are none."""
    tasks = [task for task in next(iter(entries.values()), {}) if all(task in own for own in entries.values())]
    return {name: {task: own[task] for task in tasks} for name, own in entries.items()} if tasks else {}
