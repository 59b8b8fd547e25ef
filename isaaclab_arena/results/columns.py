"""The columns of all tables of a run: type, value, file and meaning. A new column is a line here.

``python -m tests.results.reference_page`` then writes the meanings into docs/reference/results.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import pandas as pd

from isaaclab_arena.config.options import UNKNOWN
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results import rows as evidence
from isaaclab_arena.results.statistics import standard_deviation
from isaaclab_arena.results.stopping import verdict_in_words
from isaaclab_arena.storage.atomic import json_line

Row = TypeVar("Row")

PREFIX = "sweep."
"""Prefix of the columns of swept keys in the table of jobs, because a job's name may not contain them."""


class Show(Flag):
    """Where a column is shown beside its file."""

    FILE = 0
    CONSOLE = auto()
    PAGE = auto()
    COPY = auto()  # in Markdown and LaTeX on the page
    TRACKER = auto()


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table whose rows stand for a `Row`."""

    name: str
    # The name of its nullable type in pandas, which it has even without a value: ``string``, ``Int64`` for counts,
    # ``Float64``, ``boolean``. ``object`` keeps any Python value, for tables that only people see.
    kind: Literal["string", "Int64", "Float64", "boolean", "object"]
    value: Callable[[Row], Any]  # its value in a row; None for an empty cell
    # Its meaning, for the reference page. A column without a meaning shares the line of the column before.
    doc: str = ""
    # ``results`` are equal from run to run and ``timing`` is not; ``parquet`` is a result that CSV files do not have.
    file: Literal["results", "timing", "parquet"] = "results"
    title: str = ""  # heading for people; its name if empty
    unit: str = ""  # ``%`` shows a share as such
    pattern: str = ""  # format of its numbers for people
    spread: str = ""  # the column of its standard deviation over episodes
    ends: str = ""  # the columns of its interval: ``success`` for ``success_low`` and ``success_high``
    show: Show = Show.FILE
    # Whether a table of these rows has the column; None for a column that every table has.
    when: Callable[[Sequence[Row]], bool] | None = None
    # Its cell in a row of values, for people, if a value in its pattern is not enough.
    cell: Callable[[Mapping[str, Any]], str] | None = None

    @property
    def heading(self) -> str:
        """Its heading in a terminal, with ``±sd`` if its cells have a spread."""
        return f"{self.title or self.name}{' ±sd' if self.spread else ''}"

    def text(self, row: Mapping[str, Any], *, spread: bool = True) -> str:
        """Return its cell in a row of values, for people: ``38.1 ±4.2``. Empty if the row does not have the column."""
        value, beside = row.get(self.name), row.get(self.spread) if spread else None
        if value is None:
            return "-" if self.name in row else ""
        if self.cell is not None:
            return plain_text(self.cell(row))
        if self.ends:
            low, high = row[f"{self.ends}_low"], row[f"{self.ends}_high"]
            return evidence.percent_text(value, low, high, pattern=self.pattern or ".1f")
        if self.unit == "%":
            return f"{100 * value:{self.pattern or '.0f'}}"
        text = plain_text(value) if isinstance(value, str) else f"{value:{self.pattern}}"
        return text if beside is None else f"{text} ±{beside:{self.pattern}}"


def table_of(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    *,
    of: Sequence[Any] = (),
    swept: Mapping[str, Any] = MappingProxyType({}),
) -> pd.DataFrame:
    """Return the table of rows, with the columns of `swept` keys. Optional columns exist by `of`, or else by rows."""
    kept = [each for each in columns if each.when is None or each.when(of or rows)]
    table = {each.name: pd.array([each.value(row) for row in rows], dtype=each.kind) for each in kept}
    return pd.DataFrame({**table, **swept}, columns=in_order([*table, *swept], columns))


def text_table(
    columns: Iterable[Column[Any]], rows: Iterable[Mapping[str, Any]], *, spread: bool = True
) -> pd.DataFrame:
    """Return rows of values as text under the headings of columns."""
    shown = [*columns]
    headings = [each.heading if spread else each.title or each.name for each in shown]
    return pd.DataFrame([[each.text(row, spread=spread) for each in shown] for row in rows], columns=headings)


def markdown_table(table: pd.DataFrame) -> str:
    """Return a table of text in Markdown; pandas would need another library for that."""
    escaped = str.maketrans({"\\": r"\\", "|": r"\|", "<": "&lt;", "\n": " "})
    rule = ["---", *["--:"] * (len(table.columns) - 1)]
    lines = [[cell.translate(escaped) for cell in line] for line in (table.columns, *table.to_numpy().tolist())]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def latex_table(table: pd.DataFrame) -> str:
    """Return a table of text in LaTeX for the package booktabs, with all special characters of its cells escaped."""
    text = table.to_latex(index=False, escape=True, column_format=f"l{'r' * (len(table.columns) - 1)}")
    return f"% \\usepackage{{booktabs}}\n{text}"


def in_order(names: Iterable[str], columns: Sequence[Column[Any]]) -> list[str]:
    """Return the order of a table's columns: those that every table has, those of swept keys, and the rest."""
    there = dict.fromkeys(names)
    rest = [each.name for each in columns if each.when is not None and each.name in there]
    return [*(each.name for each in columns if each.when is None), *(n for n in there if n.startswith(PREFIX)), *rest]


def _of_planned(row: Mapping[str, Any]) -> str:
    return f"{row['episodes']}" if row["planned"] in (None, row["episodes"]) else f"{row['episodes']}/{row['planned']}"


def _succeeded(row: Mapping[str, Any]) -> str:
    scored = row["scored"] if "scored" in row else evidence.scored_episodes(row)
    conditions = evidence.of_conditions(row.get("distinct_conditions"), scored)
    return f"{row['successes']}/{scored}{conditions}" if scored else "-"


def _any(holds: Callable[[Any], bool]) -> Callable[[Sequence[Any]], bool]:
    """Return the condition that `holds` is true of any row."""
    return lambda rows: any(map(holds, rows))


_SERVED = _any(lambda job: job.job.config.policy_server is not None)
_LATE = _any(lambda job: job.job.config.latency is not None)
_ASKED = _any(lambda job: bool(job.answers))
_TOLD = _any(lambda job: any(line.events for line in job.log.lines))
_REPEATED = _any(lambda row: row.scored.num_distinct < len(row.scored))
_SATURATED = _any(lambda row: row.saturated is not None)
_NAMED = _any(lambda suite: bool(suite.simulation))
_ELSEWHERE = _any(lambda suite: evidence.is_of_another_package(suite.jobs))

# A table is read line by line, so its columns are not wrapped like code. Their order is that of the files.
# fmt: off

JOBS: tuple[Column[evidence.JobEvidence], ...] = (
    Column("name", "string", lambda job: job.job.name,
           "the job's keys; `task` is its label of that name, or else the policies' "
           "instruction", title="job", show=Show.CONSOLE | Show.COPY),
    Column("environment", "string", lambda job: job.job.config.environment, show=Show.CONSOLE | Show.COPY),
    Column("task", "string", lambda job: job.job.task),
    Column("embodiment", "string", lambda job: job.job.embodiment),
    Column("object", "string", lambda job: job.job.object),
    Column("policy", "string", lambda job: job.job.config.policy_type, show=Show.CONSOLE | Show.COPY,
           cell=lambda row: evidence.short_policy_name(row["policy"])),
    Column("checkpoint", "string", lambda job: job.checkpoint,
           "file or directory of the policy's checkpoint; empty without one"),
    Column("policy_sha256", "string", lambda job: job.policy_sha256,
           "one hash for [everything that decides the policy's actions](../how_to/resuming.md#what-was-evaluated): "
           "equal hashes, equal policies. Empty for a policy that is only this package and its options; `unknown` "
           "behind a server that does not report it"),
    Column("seed", "Int64", lambda job: job.job.config.seed, "seed of the job"),
    Column("status", "string", lambda job: str(job.status),
           "`completed`, `failed`, `interrupted` (by a signal, or its rank died), `missing` (no files), `skipped` "
           "(by the job file)", show=Show.CONSOLE),
    Column("planned", "Int64", lambda job: job.planned,
           "episodes to run; empty for a job limited by steps"),
    Column("episodes", "Int64", lambda job: len(job.lines), "finished episodes, errors included", show=Show.CONSOLE,
           cell=_of_planned),
    Column("successes", "Int64", lambda job: job.scored.successes if job.scored or not job.measured else None,
           "scored episodes that succeeded; empty if success is not measured", title="succeeded", show=Show.COPY,
           cell=_succeeded),
    Column("success_rate", "Float64", lambda job: job.scored.rate, "`successes` over scored episodes",
           title="success % [95 %]", ends="success", show=Show.CONSOLE | Show.TRACKER | Show.COPY),
    Column("success_low", "Float64", lambda job: job.interval and job.interval.low, "its 95 % interval, Wilson",
           show=Show.TRACKER),
    Column("success_high", "Float64", lambda job: job.interval and job.interval.high, show=Show.TRACKER),
    Column("clopper_pearson_low", "Float64", lambda job: job.exact and job.exact.low, "its exact 95 % interval"),
    Column("clopper_pearson_high", "Float64", lambda job: job.exact and job.exact.high),
    Column("success_rate_lower_bound", "Float64", lambda job: job.bounds and job.bounds.low,
           "the rate if every error and every missing episode had failed, or had succeeded"),
    Column("success_rate_upper_bound", "Float64", lambda job: job.bounds and job.bounds.high),
    Column("mean_length", "Float64", lambda job: evidence.mean(job.lengths),
           "mean over finished episodes without errors, and the standard deviation (n - 1; empty for fewer than two), "
           "the table's `±sd`", title="length", pattern=".1f",
           spread="std_length", show=Show.CONSOLE | Show.PAGE | Show.TRACKER | Show.COPY),
    Column("std_length", "Float64", lambda job: standard_deviation(job.lengths)),
    Column("mean_return", "Float64", lambda job: evidence.mean(job.returns), title="return", pattern=".2f",
           spread="std_return", show=Show.CONSOLE | Show.PAGE | Show.TRACKER | Show.COPY),
    Column("std_return", "Float64", lambda job: standard_deviation(job.returns)),
    Column("failures", "Int64", lambda job: job.outcomes[Outcome.FAILURE], "episodes that ended so",
           show=Show.TRACKER),
    Column("timeouts", "Int64", lambda job: job.outcomes[Outcome.TIMEOUT], show=Show.TRACKER),
    Column("errors", "Int64", lambda job: job.outcomes[Outcome.ERROR],
           show=Show.CONSOLE | Show.TRACKER | Show.COPY),
    Column("retried", "Int64",
           lambda job: len({*job.log.retried_episodes} & {line.episode_index for line in job.lines}),
           "episodes that replaced an error, after `--resume --retry_errors`"),
    Column("rerun", "Int64", lambda job: job.times_rerun,
           "how often the job ran again with other contents, after `--resume --rerun`; earlier episodes do not count"),
    Column("missing", "Int64", lambda job: job.num_missing,
           "planned episodes that did not finish; empty if the plan is unknown", show=Show.CONSOLE),
    Column("cut", "Int64", lambda job: job.cut,
           "running episodes that a step limit or an interruption ended; counted nowhere else"),
    Column("reproducible", "string", lambda job: job.promise[0],
           "`bitwise`: the same job file gives the same bits again; `plan`: the same episodes and conditions; empty if "
           "the job was never built"),
    Column("plan_because", "string", lambda job: job.promise[1], "the reason for `plan`, in one line"),
    Column("policy_batch", "Int64", lambda job: max(job.said("policy_batch"), default=None),
           "env slots in one call of the policy, [padded](../concepts/batches.md#places-in-a-batch) for `bitwise`; "
           "empty if env slots never influence each other, or if unknown"),
    Column("error", "string", lambda job: job.failed.error if job.failed else job.failure_by_errors,
           "the cause of a failure: an exception, or the error [of its "
           "episodes](../how_to/resuming.md#episodes-that-ended-in-an-error)"),

    Column("attempts", "Int64", lambda job: len({*job.said("attempt")}) or None,
           "starts of the program that worked on it", "timing"),
    Column("rank", "string", lambda job: ", ".join(map(str, sorted({*job.said("rank")}))) or (
           None if job.job.rank is None else str(job.job.rank)), "where it ran", "timing", show=Show.CONSOLE),
    Column("device", "string", lambda job: ", ".join(sorted({*job.said("device")})) or None, file="timing"),
    Column("wall_s", "Float64", lambda job: job.elapsed_s(lambda report: report.wall_s),
           "seconds from start to end of the job; the sum of the next six for one rank in one attempt", "timing"),
    Column("build_s", "Float64", lambda job: job.total("build_s"),
           "its parts, summed over ranks and attempts; `build_s`: environment and policy, kernels included; "
           "`record_s`: the dataset too, which may be made while the next job runs", "timing"),
    Column("simulate_s", "Float64", lambda job: job.total("simulate_s"), file="timing"),
    Column("policy_s", "Float64", lambda job: job.total("policy_s"), file="timing"),
    Column("render_s", "Float64", lambda job: job.total("render_s"), file="timing"),
    Column("record_s", "Float64", lambda job: job.total("record_s"), file="timing"),
    Column("idle_s", "Float64", lambda job: job.total("idle_s"), file="timing"),
    Column("import_s", "Float64", lambda job: job.total("start_up.import_s"),
           "[start-up](#start-up): from the start of the process to that of the program, for the first job of each "
           "process; the next seven are parts of `wall_s`", "timing"),
    Column("compile_s", "Float64", lambda job: job.total("start_up.compile_s"),
           "Warp's kernels: compiled here, awaited from another process, loaded from the cache", "timing"),
    Column("kernel_wait_s", "Float64", lambda job: job.total("start_up.kernel_wait_s"), file="timing"),
    Column("kernel_load_s", "Float64", lambda job: job.total("start_up.kernel_load_s"), file="timing"),
    Column("build_environment_s", "Float64", lambda job: job.total("start_up.build_environment_s"),
           "the other seconds: environment, policy, first reset, first control step", "timing"),
    Column("build_policy_s", "Float64", lambda job: job.total("start_up.build_policy_s"), file="timing"),
    Column("first_reset_s", "Float64", lambda job: job.total("start_up.first_reset_s"), file="timing"),
    Column("first_step_s", "Float64", lambda job: job.total("start_up.first_step_s"), file="timing"),
    Column("env_steps", "Int64", lambda job: job.total("env_steps"),
           "control steps, summed over running env slots, with those of cut episodes", "timing"),
    Column("env_steps_per_s", "Float64", lambda job: (
           job.total("env_steps") / seconds
           if (seconds := job.elapsed_s(lambda report: report.wall_s - report.build_s)) and seconds > 0 else None),
           "control steps per second of wall time without `build_s`", "timing", title="steps/s",
           show=Show.CONSOLE,
           # In five characters: 950, 41.2k or 1.3M.
           cell=lambda row: (f"{rate:.0f}" if (rate := row["env_steps_per_s"]) < 9_999.5
                             else f"{rate / 1e3:.1f}k" if rate < 999_950 else f"{rate / 1e6:.1f}M")),
    Column("pictures_drawn", "Int64", lambda job: job.total("pictures_drawn"),
           "[pictures on demand](../how_to/cameras.md#pictures-on-demand): drawn for policies, and announced by a "
           "policy or a recording; one for each env slot and camera", "timing"),
    Column("pictures_looked_at", "Int64", lambda job: job.total("pictures_looked_at"), file="timing"),
    Column("traceback_file", "string", lambda job: job.failed and job.failed.traceback_file,
           "the whole traceback of a failed job", "timing"),

    Column("protocol", "string", lambda job: job.simulation.get("protocol"),
           "as in the table of [suites](#suites), for environments of other packages. Rows with equal cells played the "
           "same thing",
           when=evidence.is_of_another_package),
    Column("engine", "string", lambda job: job.simulation.get("engine"), when=evidence.is_of_another_package),
    Column("simulated_by", "string", lambda job: job.simulation.get("simulated_by"),
           when=evidence.is_of_another_package),
    Column("environment_sha256", "string", lambda job: evidence.environment_sha256([job]),
           when=evidence.is_of_another_package),
    Column("server_queries", "Int64", lambda job: job.total("policy_server.queries"),
           "queries of a [policy server](../how_to/distributed.md#one-policy-server-for-all-ranks), and their batch "
           "entries", "timing", when=_SERVED),
    Column("server_entries", "Int64", lambda job: job.total("policy_server.entries"), file="timing", when=_SERVED),
    Column("server_offered_per_s", "Float64", lambda job: job.total(
           "policy_server.seen_entries", per="policy_server.seen_s"),
           "entries per second that a server answered, for all ranks, from each rank's first answer to its last; with "
           "a server on each node, the mean over ranks", "timing", when=_SERVED),
    Column("server_batch_fill", "Float64", lambda job: job.total(
           "policy_server.entries", per="policy_server.call_entries"),
           "the batch fill of its calls (0 to 1), and the mean queueing time (ms)", "timing", when=_SERVED),
    Column("server_queue_ms", "Float64", lambda job: job.total(
           "policy_server.queue_s", per="policy_server.queries", scale=1000.0),
           file="timing", when=_SERVED),
    Column("server_busy_share", "Float64", lambda job: job.total(
           "policy_server.seen_busy_s", per="policy_server.seen_s"),
           "share of that time in which a server calculated (0 to 1)", "timing", when=_SERVED),
    Column("latency", "string", lambda job: job.job.config.latency and job.job.latency and str(job.job.latency),
           "the assumed [latency](../how_to/latency.md#what-the-results-say), and the actions meanwhile", when=_LATE),
    Column("meanwhile", "string", lambda job: job.job.config.latency and str(job.job.config.latency.meanwhile),
           when=_LATE),
    Column("stale_action_share", "Float64", lambda job: job.late(evidence.STALE_SHARE),
           "share of actions that answer an earlier observation, and queries per second of robot time",
           title="stale %", unit="%", when=_LATE, show=Show.CONSOLE),
    Column("queries_per_s", "Float64", lambda job: job.late(evidence.QUERY_RATE), title="queries/s", pattern=".2f",
           when=_LATE, show=Show.CONSOLE),
    Column("measured_latency_p50_ms", "Float64", lambda job: job.query_ms(50),
           "duration of queries on this machine, median and 95 % quantile", "timing", title="measured ms",
           when=_LATE, show=Show.CONSOLE,
           cell=lambda row: f"{row['measured_latency_p50_ms']:.0f}, {row['measured_latency_p95_ms']:.0f}"),
    Column("measured_latency_p95_ms", "Float64", lambda job: job.query_ms(95), file="timing", when=_LATE),
    Column("decision", "string", lambda job: "; ".join(
           f"{each.question.name}: {verdict_in_words(each)}" for each in job.answers) or None,
           "the answer to each [question](jobs.md#stopping-as-soon-as-the-answer-is-in) about the job: `new-vs-old: "
           "new is better than old`", when=_ASKED),
    Column("decided_at", "Int64", lambda job: job.needed if all(each.verdict for each in job.answers) else None,
           "episodes that the answers needed; all other columns are about those. Empty while a question is "
           "undecided", when=_ASKED),
    Column("interval_kind", "string", lambda job: "anytime" if job.answers else "wilson",
           "`anytime` for a job in a question: `success_low` and `success_high` hold at every look, without a "
           "Clopper-Pearson interval; `wilson` for all others", when=_ASKED),
    Column("episodes_beyond", "Int64", lambda job: len(job.log.lines) - len(job.lines),
           "episodes that had begun before the decision was known; depends on ranks and speed",
           "timing", when=_ASKED),
    Column("failure_progress", "Float64", lambda job: job.progress_and_score()[0],
           "in Parquet and JSON, for tasks with [events](events.md): mean progress of failures, and the success rate "
           "with that progress", "parquet", when=_TOLD),
    Column("score", "Float64", lambda job: job.progress_and_score()[1], file="parquet",
           when=_TOLD),
    Column("distinct_conditions", "Int64", lambda job: job.scored.num_distinct if len(job.scored) else None,
           "different conditions among the scored episodes, in a run that [repeats](#episodes-that-repeat-conditions) "
           "some", when=_REPEATED, show=Show.TRACKER),
    Column("saturated_action_share", "Float64", lambda job: job.saturated,
           "in a run with bounded actions: the [share of action entries at or beyond "
           "bounds](#actions-out-of-range)", when=_SATURATED),
)
"""The table of jobs. Its results are equal for any ranks, interruptions and moments, its timing is not. The columns of
swept keys stand before those that only some runs have."""

SUITES: tuple[Column[evidence.SuiteEvidence], ...] = (
    Column("name", "string", lambda suite: suite.name, "the entry of the job file, with its swept values",
           title="suite", show=Show.CONSOLE | Show.COPY),
    Column("suite", "string", lambda suite: suite.config.suite and suite.config.suite.suite,
           "registered name of the suite", title="of", show=Show.CONSOLE | Show.COPY),
    Column("policy", "string", lambda suite: suite.config.policy_type,
           "as in the table of jobs; `unknown` if tasks had different contents", show=Show.COPY,
           cell=lambda row: evidence.short_policy_name(row["policy"])),
    Column("checkpoint", "string", lambda suite: suite.common("checkpoint")),
    Column("policy_sha256", "string", lambda suite: suite.common("policy_sha256", otherwise=UNKNOWN)),
    Column("seed", "Int64", lambda suite: suite.config.seed),
    Column("status", "string", lambda suite: suite.status,
           "status of all its jobs; if they differ, `failed` if one failed, else `interrupted`", show=Show.CONSOLE),
    Column("tasks", "Int64", lambda suite: len(suite.jobs), "number of tasks", show=Show.CONSOLE | Show.COPY),
    Column("planned", "Int64", lambda suite: suite.total(lambda job: job.planned),
           "sums over its tasks; `scored` episodes have a known success"),
    Column("episodes", "Int64", lambda suite: suite.total(lambda job: len(job.lines)), show=Show.CONSOLE,
           cell=_of_planned),
    Column("scored", "Int64", lambda suite: len(suite.scored)),
    Column("successes", "Int64", lambda suite: suite.scored.successes if len(suite.scored) else None,
           title="succeeded", show=Show.COPY, cell=_succeeded),
    Column("mean_rate", "Float64", lambda suite: suite.mean_rate,
           "mean of the tasks' rates, all with the same weight; empty until each task has a rate",
           title="mean of tasks % [95 %]", ends="mean", show=Show.CONSOLE | Show.COPY),
    Column("mean_low", "Float64", lambda suite: suite.interval and suite.interval.low,
           "its 95 % interval, [see below](#intervals)"),
    Column("mean_high", "Float64", lambda suite: suite.interval and suite.interval.high),
    Column("mean_lower_bound", "Float64", lambda suite: suite.bounds and suite.bounds.low,
           "the mean if every error and every missing episode had failed, or had succeeded"),
    Column("mean_upper_bound", "Float64", lambda suite: suite.bounds and suite.bounds.high),
    Column("pooled_rate", "Float64", lambda suite: suite.scored.rate,
           "rate over all episodes of all tasks, with its Wilson interval", title="all episodes % [95 %]",
           ends="pooled", show=Show.CONSOLE | Show.COPY),
    Column("pooled_low", "Float64", lambda suite: suite.pooled and suite.pooled.low),
    Column("pooled_high", "Float64", lambda suite: suite.pooled and suite.pooled.high),
    Column("errors", "Int64", lambda suite: suite.total(lambda job: job.outcomes[Outcome.ERROR]),
           "sums over its tasks", show=Show.CONSOLE | Show.COPY),
    Column("missing", "Int64", lambda suite: suite.total(lambda job: job.num_missing), show=Show.CONSOLE),
    Column("cut", "Int64", lambda suite: suite.total(lambda job: job.cut)),
    Column("reproducible", "string", lambda suite: suite.reproducible, "`bitwise` if all tasks are, else `plan`"),
    Column("protocol", "string", lambda suite: suite.simulation.get("protocol"),
           "[protocol](../how_to/libero.md) and physics engine of its tasks, `mujoco 3.3.2`; all of them if tasks "
           "differ", when=_NAMED),
    Column("engine", "string", lambda suite: suite.simulation.get("engine"), when=_NAMED),
    Column("simulated_by", "string", lambda suite: suite.simulation.get("simulated_by"),
           "JSON: versions and revisions of packages, renderer; a list of all if tasks differ, with `null` for tasks "
           "that did not report",
           when=_NAMED),
    Column("environment_sha256", "string", lambda suite: evidence.environment_sha256(suite.jobs),
           "for environments of other packages, one hash for [everything that decides their "
           "behaviour](../how_to/resuming.md#what-was-evaluated): code, assets, tasks, initial states, versions; "
           "`unknown` if a part is", when=_ELSEWHERE),
    Column("distinct_conditions", "Int64", lambda suite: suite.scored.num_distinct,
           "as in the table of jobs", when=_REPEATED),
    Column("saturated_action_share", "Float64", lambda suite: suite.saturated, when=_SATURATED),
)

EPISODES: tuple[Column[evidence.EpisodeEvidence], ...] = (
    Column("job", "string", lambda each: each.job.name, "identity of the episode"),
    Column("episode_index", "Int64", lambda each: each.line.episode_index),
    Column("environment", "string", lambda each: each.job.config.environment,
           "its job; `episode_seed` stands for its conditions"),
    Column("object", "string", lambda each: each.job.object),
    Column("policy", "string", lambda each: each.job.config.policy_type),
    Column("seed", "Int64", lambda each: each.line.seed),
    Column("episode_seed", "Int64", lambda each: each.line.episode_seed),
    Column("outcome", "string", lambda each: each.line.outcome and str(each.line.outcome), "its end"),
    Column("success", "boolean", lambda each: each.line.success),
    Column("length", "Int64", lambda each: each.line.length),
    Column("return", "Float64", lambda each: each.line.episode_return),
    Column("termination", "string", lambda each: each.line.termination),
    Column("error", "string", lambda each: each.line.error),
    Column("language_instruction", "string", lambda each: each.line.language_instruction, "the policy's instruction"),
    Column("conditions", "string", lambda each: each.told, "JSON: the start of the episode, and other scalars"),
    Column("metrics", "string", lambda each: json_line(each.line.metrics)),
    Column("checksum", "Int64", lambda each: each.line.checksum, "CRC-32 of its recorded arrays"),

    Column("attempt", "Int64", lambda each: each.line.attempt, "where it ran", "timing"),
    Column("rank", "Int64", lambda each: each.line.rank, file="timing"),
    Column("env_id", "Int64", lambda each: each.line.env_id, file="timing"),
    Column("episode_in_env", "Int64", lambda each: each.line.episode_in_env, file="timing"),
    Column("timestamp", "string", lambda each: each.line.timestamp, "time of its end, and its duration", "timing"),
    Column("wall_s", "Float64", lambda each: each.line.wall_s, file="timing"),
    Column("dataset_file", "string", lambda each: each.line.dataset_file, "its recording, in the job's directory",
           "timing"),

    Column("beyond_decision", "boolean", lambda each: each.beyond,
           "whether it lies beyond the [decision](jobs.md#stopping-as-soon-as-the-answer-is-in) that stopped its job",
           when=_ASKED),
    Column("progress", "Float64", lambda each: each.line.events and each.line.events.progress,
           "in Parquet, for tasks with [events](events.md): progress, the event that decided, and all events as "
           "JSON", "parquet", when=_TOLD),
    Column("decisive_event", "string", lambda each: each.line.events and each.line.events.decisive,
           file="parquet", when=_TOLD),
    Column("events", "string", lambda each: each.line.events and json_line(each.line.events.seen),
           file="parquet", when=_TOLD),
    Column("start", "Int64", lambda each: each.start,
           "equal for episodes that [began and went alike](#episodes-that-repeat-conditions) under other "
           "seeds", when=_any(lambda job: any(each.start is not None for each in job.episodes))),
    Column("saturated_action_share", "Float64", lambda each: each.line.saturated_action_share,
           "for bounded actions: the [share of action entries at or beyond bounds](#actions-out-of-range)",
           when=_any(lambda job: any(line.saturated_action_share is not None for line in job.log.lines))),
)
"""The table of episodes, whose optional columns exist by the jobs of the run; conditions and metrics are JSON."""

METRICS: tuple[Column[evidence.MeasuredMetric], ...] = (
    Column("job", "string", lambda each: each.job, "the job, and the declared metric"),
    Column("metric", "string", lambda each: each.metric.name),
    Column("unit", "string", lambda each: each.metric.unit or None,
           "its unit, and the direction of progress: `higher`, `lower` or empty"),
    Column("better", "string", lambda each: each.metric.better),
    Column("episodes", "Int64", lambda each: len(each.values),
           "episodes that have it, without errors and those beyond a decision"),
    Column("mean", "Float64", lambda each: each.summary("mean", np.mean),
           "mean, 95 % interval and its method: `t` is Student's; `bootstrap`, from 100 episodes on, is the BCa "
           "bootstrap in the limit of many resamples. Episodes that [repeat "
           "conditions](#episodes-that-repeat-conditions) count as one"),
    Column("low", "Float64", lambda each: each.interval and each.interval[0].low),
    Column("high", "Float64", lambda each: each.interval and each.interval[0].high),
    Column("method", "string", lambda each: each.interval and each.interval[1]),
    Column("sd", "Float64", lambda each: each.summary("sd", lambda values: values.std(ddof=1)),
           "standard deviation over episodes; empty for fewer than two"),
    Column("min", "Float64", lambda each: each.summary("min", np.min), "over the episodes, if a metric asks for them",
           when=_any(lambda each: "min" in each.metric.summary)),
    Column("median", "Float64", lambda each: each.summary("median", np.median),
           when=_any(lambda each: "median" in each.metric.summary)),
    Column("max", "Float64", lambda each: each.summary("max", np.max),
           when=_any(lambda each: "max" in each.metric.summary)),
)
"""The table of metrics: a row for each job and each metric that its environment, task or policy declares."""

GROUPS: tuple[Column[evidence.PooledJobs], ...] = (
    Column("jobs", "Int64", lambda group: group.jobs),
    Column("episodes", "Int64", lambda group: group.episodes),
    Column("scored", "Int64", lambda group: len(group.scored)),
    Column("successes", "Int64", lambda group: group.scored.successes if len(group.scored) else None),
    Column("success_rate", "Float64", lambda group: group.scored.rate, title="success % [95 %]", ends="success"),
    Column("success_low", "Float64", lambda group: (found := group.scored.wilson()) and found.low),
    Column("success_high", "Float64", lambda group: (found := group.scored.wilson()) and found.high),
    Column("mean_length", "Float64", lambda group: evidence.mean(group.lengths), title="length", pattern=".1f",
           spread="std_length"),
    Column("std_length", "Float64", lambda group: standard_deviation(group.lengths)),
    Column("errors", "Int64", lambda group: group.errors),
    Column("distinct_conditions", "Int64", lambda group: group.scored.num_distinct, title="conditions", when=_REPEATED),
    Column("saturated_action_share", "Float64", lambda group: group.saturated, when=_SATURATED),
)
"""The table of jobs that are pooled by their keys, one column of which stands before these for each key."""
