"""What the rows of the tables stand for: the evidence of a job, of an episode, and of a suite, and their words."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.interfaces.episode import Metric, Outcome
from isaaclab_arena.results.statistics import (
    Interval,
    ScoredEpisodes,
    draws_of,
    interval_of_mean,
    mean_of_tasks,
    rate_bounds,
    rate_interval,
    together,
)
from isaaclab_arena.results.stopping import (
    Answer,
    alike_starts,
    condition_key,
    error_streak,
    needed_episodes,
    nothing_but_errors,
)
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.ledger import CommitLine, PlanEntry
from isaaclab_arena.storage.reports import (
    JobReport,
    JobResultStatus,
    JobStanding,
    Reproducible,
    ServerUsage,
    job_standing,
)

# The evidence of a job. A property is what several columns need; the columns are in `isaaclab_arena.results.columns`.


class FinishedEpisode(NamedTuple):
    """What an episode's row stands for. A tuple, because there may be very many."""

    job: PlanEntry
    line: CommitLine
    told: str  # initial conditions as JSON
    start: int | None  # see `alike_starts`
    beyond: bool  # beyond the decision that stopped the job


@dataclass(frozen=True, kw_only=True)
class JobEvidence:
    """The content of a job's files."""

    job: PlanEntry  # the planned job
    finished: Sequence[CommitLine]  # of finished episodes, by index, each once
    reports: Sequence[JobReport]  # by attempt and rank; usually one
    problems: Sequence[str] = ()  # defects of the files, one line each
    has_parts: bool = False  # episode files remain outside a dataset
    unequal: Sequence[int] = ()  # indices of episodes that were committed twice with different results
    retried: Sequence[int] = ()  # indices of episodes that replaced an error of an earlier attempt
    same_conditions: bool = True  # all attempts had the same versions and kind of machine
    # Attempts with episodes of the job whose versions and machine no file records.
    unknown_attempts: tuple[int, ...] = ()
    contents: Contents | None = None  # evaluated contents; None if no file records them
    times_rerun: int = 0  # times the episodes were set aside because the contents changed
    answers: Sequence[Answer] = ()  # answers to the questions about the job
    max_equal_errors: int = 0  # equal errors in a row before the job fails; 0 for no limit

    @cached_property
    def needed(self) -> int | None:
        """The number of episodes that the answers needed; None if the job has to finish all planned episodes."""
        return needed_episodes(self.job.name, self.answers)

    @cached_property
    def lines(self) -> Sequence[CommitLine]:
        """The episodes that count: if answers stopped the job, only those that they needed."""
        return [line for line in self.finished if self.counts(line.episode_index)]

    def counts(self, index: int) -> bool:
        """Whether a finished episode counts."""
        return self.needed is None or index < self.needed

    @cached_property
    def episodes(self) -> Sequence[FinishedEpisode]:
        """All finished episodes, also those beyond a decision."""
        starts = alike_starts(self.finished)
        return [
            FinishedEpisode(self.job, line, json_line(line.variations), start, not self.counts(line.episode_index))
            for line, start in zip(self.finished, starts, strict=True)
        ]

    @cached_property
    def counted(self) -> Sequence[FinishedEpisode]:
        """The episodes that count. Those beyond a decision do not make others alike."""
        return self.episodes if self.needed is None else replace(self, finished=self.lines).episodes

    @cached_property
    def _by_its_files(self) -> JobStanding:
        finished = {line.episode_index for line in self.lines}
        return job_standing(self.job, finished, self.reports, needed=self.needed, has_parts=self.has_parts)

    @cached_property
    def failure_by_errors(self) -> str | None:
        """The reason that a job fails through the errors of its episodes, None if it does not."""
        streak = error_streak(self.lines, self.max_equal_errors)
        if streak is not None or self._by_its_files.status is not JobResultStatus.COMPLETED:
            return streak
        return nothing_but_errors(self.lines)

    @cached_property
    def standing(self) -> JobStanding:
        """The state of the job: by its last attempt, the number of finished episodes, and their errors."""
        found = self._by_its_files
        return found if self.failure_by_errors is None else replace(found, status=JobResultStatus.FAILED)

    # Outcomes. Errors and episodes without a measured success are not scored.

    @cached_property
    def scored(self) -> ScoredEpisodes:
        """The episodes with a known success: no errors, and none without a measured success."""
        scored = [each for each in self.counted if is_scored(each.line)]
        world = self.job.config.environment, self.job.object
        return ScoredEpisodes(
            success=np.array([each.line.success for each in scored], float),
            conditions=[condition_key(*world, each.told, each.line.episode_seed, each.start) for each in scored],
        )

    @cached_property
    def outcomes(self) -> Counter[Outcome | None]:
        """The number of episodes by outcome."""
        return Counter(line.outcome for line in self.lines)

    @cached_property
    def measured(self) -> Sequence[CommitLine]:
        """The episodes that means are over: errors are left out, because their length says nothing about the policy."""
        return [line for line in self.lines if line.outcome is not Outcome.ERROR]

    @property
    def lengths(self) -> list[int]:
        """The control steps of the episodes that means are over."""
        return [line.episode_length for line in self.measured]

    @property
    def returns(self) -> list[float]:
        """The sums of rewards of the same episodes, as far as they are finite."""
        return [line.episode_return for line in self.measured if line.episode_return is not None]

    @property
    def unmeasured(self) -> int:
        """The number of episodes without an error that do not say whether they succeeded."""
        return len(self.measured) - len(self.scored)

    @property
    def missing(self) -> int | None:
        """The number of unfinished planned episodes, None if the plan is unknown."""
        unknown = self.standing.planned is None and self.standing.status is JobResultStatus.MISSING
        return None if unknown else len(self.standing.missing)

    @cached_property
    def interval(self) -> Interval | None:
        """The 95 % interval of the success rate: Wilson's, or for a job with questions the one valid at every look."""
        if not self.answers or self.scored.rate is None:
            return None if self.answers else self.scored.wilson()
        # The usual intervals assume that the first look is the last. This one is valid at every look, over the first
        # episode of each condition, as questions count. It uses fewer episodes than the rate, so it is widened to
        # contain the rate.
        _, first = np.unique(draws_of(self.scored.conditions), return_index=True)
        anytime = rate_interval(int(self.scored.success[first].sum()), len(first))
        return Interval(low=min(anytime.low, self.scored.rate), high=max(anytime.high, self.scored.rate))

    @cached_property
    def exact(self) -> Interval | None:
        """The interval of Clopper and Pearson, None for a job with questions."""
        return None if self.answers else self.scored.clopper_pearson()

    @cached_property
    def bounds(self) -> Interval | None:
        """The rate if all errors and missing episodes failed, and if all succeeded."""
        # A job without measured success has no rate to bound, however many episodes are missing.
        if self.unmeasured:
            return None
        unknown = self.outcomes[Outcome.ERROR] + len(self.standing.missing)
        return rate_bounds(self.scored.successes, len(self.scored), unknown)

    @cached_property
    def progress_and_score(self) -> tuple[float | None, float | None]:
        """The mean progress of the failures, and the success rate that includes it."""
        # Without events there is no score, not even for a job without failures.
        scored = [line for line in self.lines if is_scored(line)]
        failed = [line.events for line in scored if not line.success]
        told = [events.progress for events in failed if events is not None]
        if all(line.events is None for line in scored) or len(told) < len(failed):
            return None, None
        rate, came = 1 - len(failed) / len(scored), mean(told)
        return came, rate + (1 - rate) * (came or 0.0)

    @cached_property
    def saturated(self) -> float | None:
        """The share of action entries at or beyond their bounds."""
        return mean_over_steps((line.saturated_action_share, line.episode_length) for line in self.lines)

    # How the job went on its ranks, by their reports.

    @cached_property
    def latest(self) -> Sequence[JobReport]:
        """The reports of the last attempt that worked on the job, which says how it ended."""
        last = max((report.attempt for report in self.reports), default=0)
        return [report for report in self.reports if report.attempt == last]

    @property
    def failed(self) -> JobReport | None:
        """The first report of an error in the last attempt."""
        return next((report for report in self.latest if report.error), None)

    @property
    def cut(self) -> int | None:
        """The number of running episodes that a limit or an interruption ended, None without reports."""
        has_all = self.standing.planned is not None and not self.standing.missing
        return None if not self.reports else 0 if has_all else sum(report.cut_episodes for report in self.latest)

    @cached_property
    def promise(self) -> tuple[str | None, str | None]:
        """What a rerun reproduces, and the reason why it is no more than the plan."""
        # The reasons against a bitwise equal rerun that no single rank could see.
        attempts = ", ".join(map(str, self.unknown_attempts))
        drawn_with = {(said.get("MUJOCO_GL"), said.get("renderer")) for said in self.said("simulated_by") if said}
        reasons = {
            f"no file says with which versions and on which machine attempt {attempts} ran": bool(attempts),
            "starts of the program had other versions or another kind of machine": not self.same_conditions,
            "an episode was finished twice, with different results": any(map(self.counts, self.unequal)),
            "ranks asked the policy on batches of different sizes": len({*self.said("policy_batch")}) > 1,
            "ranks ran it on different processors": len({*self.said("processor")}) > 1,
            "ranks ran it on different kinds of device": len({*self.said("device_kind")}) > 1,
            "ranks drew its pictures with different kinds of OpenGL": len(drawn_with) > 1,
        }
        doubts = [reason for reason, holds in reasons.items() if holds]
        # A rank that failed before the job was built has no episodes, and does not weaken the promises of other
        # attempts.
        promises = {*self.said("reproducible")}
        if promises == {Reproducible.BITWISE} and not doubts:
            return str(Reproducible.BITWISE), None
        because = [*filter(None, self.said("plan_because")), *doubts]
        return (str(Reproducible.PLAN), next(iter(because), None)) if promises else (None, None)

    @property
    def metrics(self) -> list["MeasuredMetric"]:
        """The metrics that its environment and its policy declare."""
        declared = {metric.name: metric for report in self.reports for metric in report.metrics}
        return [MeasuredMetric(job=self, metric=metric) for metric in declared.values()]

    def said(self, name: str) -> list[Any]:
        """Return the values of a field in the reports, without None."""
        return [value for report in self.reports if (value := getattr(report, name)) is not None]

    def total(self, name: str) -> Any:
        """Return the sum of a number over the reports, None if none of them says it."""
        return sum(self.said(name)) if self.said(name) else None

    def start_up(self, name: str) -> float | None:
        """Return the sum of a phase of the start-up over the reports [s], None if it is unknown."""
        known = [value for each in self.said("start_up") if (value := getattr(each, name)) is not None]
        return sum(known) if known else None

    def elapsed_s(self, seconds: Callable[[JobReport], float]) -> float | None:
        """Return the time that passed [s]: ranks that share a job run in parallel, attempts one after the other."""
        if not self.reports:
            return None
        # By attempt and rank. The longest rank of each attempt counts.
        by_attempt: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        for report in self.reports:
            by_attempt[report.attempt][report.rank] += seconds(report)
        return sum(max(by_attempt[attempt].values()) for attempt in sorted(by_attempt))

    @property
    def env_steps_per_s(self) -> float | None:
        """The control steps per second, without the time of the build."""
        stepping_s = self.elapsed_s(lambda report: report.wall_s - report.build_s) or 0.0
        return self.total("env_steps") / stepping_s if stepping_s > 0 else None

    @cached_property
    def simulation(self) -> Mapping[str, str | None]:
        """What simulated the job, see `simulation`; empty unless its environment is of another package."""
        return simulation([self]) if is_of_another_package([self]) else {}

    # Late answers, and policy servers.

    @cached_property
    def server(self) -> ServerUsage | None:
        """The use of the policy servers by the job's queries, None without one."""
        return sum(used, ServerUsage()) if (used := self.said("policy_server")) else None

    def per_server(self, share: Callable[[ServerUsage], tuple[float, float]]) -> float | None:
        """Return a figure of the policy servers, from its numerator and denominator."""
        over, under = (0.0, 0.0) if self.server is None else share(self.server)
        return over / under if under > 0 else None

    def late(self, metric: str) -> float | None:
        """Return a figure of late answers, such as the share of stale actions. None for a job without latency."""
        if self.job.config.latency is None:
            return None
        pace = next(iter(self.said("query_pace")), None)
        if pace is None:
            # Means over episodes weight each control step equally.
            known = (line for line in self.lines if metric in line.metrics)
            return mean_over_steps((line.metrics[metric] or 0.0, line.episode_length) for line in known)
        # The simulation waits, so no action is stale, and the queries have a fixed pace.
        if metric == STALE_SHARE:
            return 0.0 if self.lines else None
        return pace.queries_per_s([line.episode_length for line in self.lines])

    def query_ms(self, percentile: float) -> float | None:
        """Return a percentile of the measured query times [ms], None for a job without latency."""
        times_s = [each for times in self.said("query_s") for each in times] if self.job.config.latency else []
        return float(1000 * np.percentile(times_s, percentile)) if times_s else None


@dataclass(frozen=True, kw_only=True)
class MeasuredMetric:
    """A declared metric over the episodes of a job, without errors."""

    job: JobEvidence
    metric: Metric

    @cached_property
    def _lines(self) -> list[CommitLine]:
        return [line for line in self.job.measured if line.metrics.get(self.metric.name) is not None]

    @cached_property
    def values(self) -> np.ndarray:
        """The known values. Shape: (num_episodes,)."""
        return np.array([line.metrics[self.metric.name] for line in self._lines], float)

    @cached_property
    def interval(self) -> tuple[Interval, str] | None:
        """The interval of the mean and its method, see `interval_of_mean`."""
        measured = {line.episode_index for line in self._lines}
        world = self.job.job.config.environment, self.job.job.object
        told = [each for each in self.job.counted if each.line.episode_index in measured]
        keys = (condition_key(*world, each.told, each.line.episode_seed, each.start) for each in told)
        return interval_of_mean(self.values, draws_of(keys)) if "mean" in self.metric.summary else None

    def summary(self, name: str, function: Callable[[np.ndarray], Any]) -> float | None:
        """Return a summary of the values, None if the metric does not ask for it or without values."""
        is_asked = name in self.metric.summary and len(self.values) > (name == "sd")
        return float(function(self.values)) if is_asked else None


STALE_SHARE, QUERY_RATE = "latency.stale_share", "latency.queries_per_s"
"""Metrics of an episode with late answers."""


def is_scored(line: CommitLine) -> bool:
    """Whether an episode has a known success: it is not an error, and success is measured."""
    return line.success is not None and line.outcome is not Outcome.ERROR


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, None without values."""
    return sum(values) / len(values) if values else None


def mean_over_steps(episodes: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the mean of a share or rate over all steps, from the (value, length) of each episode. None if unknown."""
    known = [(value, length) for value, length in episodes if value is not None]
    steps = sum(length for _, length in known)
    return sum(value * length for value, length in known) / steps if steps else None


# Rows in words.


def scored_episodes(row: Mapping[str, Any]) -> int:
    """Return the number of episodes behind the rate in a job's row."""
    if not row["success_rate"]:
        return (row["failures"] or 0) + (row["timeouts"] or 0)
    return round(row["successes"] / row["success_rate"])


def repeats_in_words(row: Mapping[str, Any]) -> str | None:
    """Return a note on the number of conditions behind a rate. None if each scored episode has its own."""
    distinct = row.get("distinct_conditions")
    if distinct is None:
        return None
    scored = row["scored"] if "scored" in row else scored_episodes(row)
    if distinct == scored:
        return None
    different = "all of the same conditions" if distinct == 1 else f"{distinct} different conditions"
    return f"{scored} scored episodes, {different}: intervals are those of a sample of conditions"


def of_conditions(distinct: int | None, scored: int) -> str:
    """Return `` (4 different conditions)`` if a rate has fewer conditions than scored episodes, else nothing."""
    distinct = distinct or scored
    return "" if distinct == scored else f" ({distinct} different condition{'' if distinct == 1 else 's'})"


def percent_text(rate: float | None, low: float, high: float, *, unit: str = "", sign: str = "") -> str:
    """Return a rate with the ends of its interval as ``91.5 [86.8, 94.6]``, a dash without one."""
    return "-" if rate is None else f"{100 * rate:{sign}.1f}{unit} [{100 * low:{sign}.1f}, {100 * high:{sign}.1f}]"


def metric_in_words(row: Mapping[str, Any]) -> str:
    """Return a row of the table of metrics as text: ``0.312 ±0.05 [0.3, 0.33] m``, a dash without a mean."""
    mean, spread, low = row["mean"], row["sd"], row["low"]
    said = "-" if mean is None else f"{mean:.4g}"
    said += "" if spread is None else f" ±{spread:.3g}"
    said += "" if low is None else f" [{low:.4g}, {row['high']:.4g}]"
    return said if mean is None or row["unit"] is None else f"{said} {row['unit']}"


def short_policy_name(policy_type: str) -> str:
    """Return a policy's name without its module: ``MyPolicy`` for ``my.package:MyPolicy``."""
    return policy_type.replace(":", ".").rpartition(".")[2]


def simulation_in_words(row: Mapping[str, Any]) -> str:
    """Return the protocol and engine of a suite in words, empty if its row has neither."""
    protocol, engine = row.get("protocol"), row.get("engine")
    words = [f"by protocol {protocol}"] if protocol else []
    return " ".join([*words, *([f"on {engine}"] if engine else [])])


# The simulation of jobs, and suites of them.
#
# Beside the policy, the factors behind a benchmark's numbers are listed for suites and for single jobs alike.


def is_of_another_package(jobs: Iterable[JobEvidence]) -> bool:
    """Whether an environment of these jobs is of another package."""
    # Environments of this package run on its own versions, which the plan has. Others name their interpreter's.
    return any("python" in said for job in jobs for said in job.said("simulated_by"))


def simulation(jobs: Sequence[JobEvidence]) -> Mapping[str, str | None]:
    """Return protocol, engine, and the rest of what simulated jobs, as JSON; empty if nothing names them."""
    # If jobs, ranks or attempts differ in a factor, all of its values are listed.
    reported = [said for job in jobs for said in job.said("simulated_by")]
    names = sorted({name for each in reported for name in each} - {"environment"})
    found = {name: sorted({each.get(name) for each in reported}, key=str) for name in names}
    named = ("protocol", "engine")
    if not is_of_another_package(jobs) and not any(name in found for name in named):
        return {}
    rest = {name: values[0] if len(values) == 1 else values for name, values in found.items() if name not in named}
    told = {name: " | ".join(each or "nothing" for each in found[name]) for name in named if name in found}
    return {**told, "simulated_by": json_line(rest)}


def environment_sha256(jobs: Sequence[JobEvidence]) -> str | None:
    """Return one hash of the environments of jobs, a single one unchanged; None for those of this package."""
    if not is_of_another_package(jobs):
        return None
    hashes = {UNKNOWN if job.contents is None else job.contents.environment_sha256 for job in jobs} - {None}
    if UNKNOWN in hashes:
        return UNKNOWN
    ordered = sorted(each for each in hashes if each is not None)
    return hashlib.sha256("\n".join(ordered).encode()).hexdigest() if len(ordered) > 1 else next(iter(ordered), None)


@dataclass(frozen=True, kw_only=True)
class SuiteEvidence:
    """A suite of the plan: its tasks, each a job."""

    name: str
    jobs: Sequence[JobEvidence]

    @property
    def config(self) -> JobConfig:
        """The configuration of the first task, for what all tasks share."""
        return self.jobs[0].job.config

    @property
    def status(self) -> str:
        """The status of all jobs; where they differ, failed if one failed, else interrupted."""
        statuses = {job.standing.status for job in self.jobs}
        differing = JobResultStatus.FAILED if JobResultStatus.FAILED in statuses else JobResultStatus.INTERRUPTED
        return str(statuses.pop() if len(statuses) == 1 else differing)

    @property
    def reproducible(self) -> str | None:
        """The weakest guarantee of the tasks; None while a task has none."""
        promises = {job.promise[0] for job in self.jobs}
        return None if None in promises else max(promises, key=str, default=None)

    def common(self, value: Callable[[JobEvidence], str | None], *, otherwise: str | None = None) -> str | None:
        """Return the value that all tasks share, or `otherwise`."""
        values = {*map(value, self.jobs)}
        return values.pop() if len(values) == 1 else otherwise

    def total(self, value: Callable[[JobEvidence], int | None]) -> int | None:
        """Return the sum over the tasks, None if a task's value is unknown."""
        values = [*map(value, self.jobs)]
        known = [each for each in values if each is not None]
        return sum(known) if len(known) == len(values) else None

    @cached_property
    def scored(self) -> ScoredEpisodes:
        """The scored episodes of all tasks."""
        return together([job.scored for job in self.jobs])

    @cached_property
    def pooled(self) -> Interval | None:
        """The interval of the rate over all episodes."""
        return self.scored.wilson()

    @property
    def mean_rate(self) -> float | None:
        """The mean of the tasks' rates. None before each has a rate: it would be a mean of other tasks."""
        rates = [job.scored.rate for job in self.jobs]
        return None if None in rates else mean([rate for rate in rates if rate is not None])

    @cached_property
    def interval(self) -> Interval | None:
        """The interval of the mean."""
        return mean_of_tasks([job.scored for job in self.jobs])

    @cached_property
    def bounds(self) -> Interval | None:
        """The tasks' mean rate if all errors and missing episodes failed, and if all succeeded."""
        known = [job.bounds for job in self.jobs if job.bounds is not None]
        if len(known) < len(self.jobs):
            return None
        lows, highs = zip(*((each.low, each.high) for each in known), strict=True)
        return Interval(low=sum(lows) / len(known), high=sum(highs) / len(known))

    @cached_property
    def simulation(self) -> Mapping[str, str | None]:
        """What simulated the tasks, see `simulation`."""
        return simulation(self.jobs)

    @cached_property
    def saturated(self) -> float | None:
        """The share of action entries at or beyond their bounds."""
        lines = (line for job in self.jobs for line in job.lines)
        return mean_over_steps((line.saturated_action_share, line.episode_length) for line in lines)


@dataclass(frozen=True, kw_only=True)
class PooledJobs:
    """Jobs whose episodes are counted together."""

    jobs: int  # number of jobs
    episodes: int  # finished episodes
    errors: int
    lengths: Sequence[int]  # control steps of the episodes without an error
    scored: ScoredEpisodes
    saturated: float | None  # share of action entries at or beyond their bounds


def suites_of(jobs: Iterable[JobEvidence]) -> list[SuiteEvidence]:
    """Return the suites of the plan, in its order. Jobs outside suites are left out."""
    members: defaultdict[str, list[JobEvidence]] = defaultdict(list)
    for each in jobs:
        if each.job.config.suite is not None:
            members[each.job.config.suite.name].append(each)
    return [SuiteEvidence(name=name, jobs=own) for name, own in members.items()]
