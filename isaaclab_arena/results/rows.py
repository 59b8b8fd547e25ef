"""The subjects of the tables' rows: a job, an episode, a metric and a suite, by the files of the ranks."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from isaaclab_arena.config.options import UNKNOWN
from isaaclab_arena.config.schema import MAX_COUNT, JobConfig, Question
from isaaclab_arena.interfaces.episode import Metric, Outcome
from isaaclab_arena.results import statistics, stopping
from isaaclab_arena.results.statistics import Interval, ScoredEpisodes
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena.storage.commits import CommitLine, CommitLog
from isaaclab_arena.storage.contents import Contents, one_hash
from isaaclab_arena.storage.ledger import JobReport, JobResultStatus, PlanEntry, Reproducible, job_standing

STALE_SHARE, QUERY_RATE = "latency.stale_share", "latency.queries_per_s"
"""Metrics of an episode with late answers."""


class EpisodeEvidence(NamedTuple):
    """The subject of an episode's row. A tuple, because there may be very many."""

    job: PlanEntry
    line: CommitLine
    told: str  # initial conditions as JSON
    start: int | None  # see `alike_starts`
    beyond: bool  # beyond the decision that stopped the job

    @property
    def key(self) -> str:
        """Its `condition_key`."""
        job = self.job
        return stopping.condition_key(job.config.environment, job.object, self.told, self.line.episode_seed, self.start)


@dataclass(frozen=True, kw_only=True)
class JobEvidence:
    """A job by its files, and the figures from them."""

    job: PlanEntry  # the planned job
    log: CommitLog  # its finished episodes
    reports: Sequence[JobReport]  # by attempt and rank; usually one
    problems: Sequence[str] = ()  # defects of the files, one line each
    has_parts: bool = False  # episode files remain outside a dataset
    same_conditions: bool = True  # all attempts had the same versions and kind of machine
    # Attempts with episodes of the job whose versions and machine no file records.
    unknown_attempts: tuple[int, ...] = ()
    contents: Contents | None = None  # evaluated contents; None if no file records them
    times_rerun: int = 0  # times the episodes were set aside because the contents changed
    answers: Sequence[stopping.Answer] = ()  # answers to the questions about the job
    max_equal_errors: int = 0  # equal errors in a row before the job fails; 0 for no limit

    # Worked out of these. If answers stopped the job, only the episodes that they needed count.
    needed: int | None = field(init=False)  # number of these episodes; None if the job has to finish all planned ones
    lines: Sequence[CommitLine] = field(init=False)  # the episodes that count
    measured: Sequence[CommitLine] = field(init=False)  # those without errors, whose length is not the policy's
    lengths: Sequence[int] = field(init=False)  # control steps of the measured ones
    returns: Sequence[float] = field(init=False)  # sums of rewards of the measured ones, as far as they are finite
    outcomes: Counter[Outcome | None] = field(init=False)
    episodes: Sequence[EpisodeEvidence] = field(init=False)  # all finished ones, also those beyond a decision
    counted: Sequence[EpisodeEvidence] = field(init=False)  # those that count; no other makes them alike
    scored: ScoredEpisodes = field(init=False)  # those with a known success: no errors, and success is measured
    interval: Interval | None = field(init=False)  # 95 %: Wilson's, or if a question may stop the job the anytime one
    exact: Interval | None = field(init=False)  # of Clopper and Pearson; None for a job with questions
    bounds: Interval | None = field(init=False)  # the rate if errors and missing episodes failed, and if they succeeded
    failure_by_errors: str | None = field(init=False)  # the reason that the job fails through its episodes' errors
    status: JobResultStatus = field(init=False)
    planned: int | None = field(init=False)  # number of episodes; None if steps decide, or no rank has reported it
    missing: tuple[int, ...] = field(init=False)  # indices of unfinished planned episodes, as far as they are needed
    cut: int | None = field(init=False)  # running episodes that a limit or an interruption ended; None without reports
    failed: JobReport | None = field(init=False)  # the first report of an error in the last attempt
    promise: tuple[str | None, str | None] = field(init=False)  # of a rerun, and the reason if it is only the plan
    checkpoint: str | None = field(init=False)
    policy_sha256: str | None = field(init=False)
    saturated: float | None = field(init=False)  # share of action entries at or beyond their bounds
    simulation: Mapping[str, str | None] = field(init=False)  # see `simulation`; empty for environments of this package

    def __post_init__(self) -> None:
        job, needed = self.job, stopping.needed_episodes(self.job.name, self.answers)
        lines = [line for line in self.log.lines if needed is None or line.episode_index < needed]
        measured = [line for line in lines if line.outcome is not Outcome.ERROR]
        outcomes = Counter(line.outcome for line in lines)
        episodes, counted = (
            [
                EpisodeEvidence(job, line, json_line(line.conditions), start, needed is not None and at >= needed)
                for line, start, at in zip(
                    own, stopping.alike_starts(own), (line.episode_index for line in own), strict=True
                )
            ]
            for own in (self.log.lines, lines if needed is not None else ())
        )
        counted = episodes if needed is None else counted
        # Scored: no errors, and success is measured.
        known = [each for each in counted if each.line.success is not None and each.line.outcome is not Outcome.ERROR]
        success = np.array([each.line.success for each in known], float)
        scored = ScoredEpisodes(success=success, conditions=[each.key for each in known])

        # The status: by the last attempt, the number of finished episodes, and their errors.
        indices = {line.episode_index for line in lines}
        status, planned, missing = job_standing(job, indices, self.reports, needed=needed, has_parts=self.has_parts)
        reason = stopping.error_streak(lines, self.max_equal_errors)
        if reason is None and status is JobResultStatus.COMPLETED:
            reason = stopping.nothing_but_errors(lines)
        status = status if reason is None else JobResultStatus.FAILED
        last = max((report.attempt for report in self.reports), default=0)
        latest = [report for report in self.reports if report.attempt == last]
        has_all = planned is not None and not missing
        cut = 0 if has_all else sum(report.cut_episodes for report in latest)

        # The promise of a rerun: the reasons against bitwise equality that no single rank could see.
        attempts = ", ".join(map(str, self.unknown_attempts))
        drawn_with = {(said.get("MUJOCO_GL"), said.get("renderer")) for said in self.said("simulated_by") if said}
        reasons = {
            f"the versions and the machine of attempt {attempts} are unknown": bool(attempts),
            "attempts had different versions or kinds of machine": not self.same_conditions,
            "an episode was finished twice, with different results": not indices.isdisjoint(self.log.unequal_episodes),
            "ranks used different batch sizes": len({*self.said("policy_batch")}) > 1,
            "ranks ran it on different processors": len({*self.said("processor")}) > 1,
            "ranks ran it on different kinds of device": len({*self.said("device_kind")}) > 1,
            "ranks drew its pictures with different kinds of OpenGL": len(drawn_with) > 1,
        }
        doubts = [reason for reason, holds in reasons.items() if holds]
        # A rank that failed before the job was built has no episodes, and does not weaken the others' promises.
        promises = {*self.said("reproducible")}
        because = [*filter(None, self.said("plan_because")), *doubts]
        promise = (str(Reproducible.PLAN), next(iter(because), None)) if promises else (None, None)
        if promises == {Reproducible.BITWISE} and not doubts:
            promise = str(Reproducible.BITWISE), None

        # The usual intervals assume that the first look is the last. The one of a job with questions is valid at every
        # look, over the first episode of each condition, as questions count. It uses fewer episodes than the rate, so
        # it is widened to contain the rate.
        interval = exact = None
        if not self.answers:
            interval, counts = scored.wilson(), (scored.successes, len(scored))
            exact = statistics.clopper_pearson_interval(*counts, design_effect=scored.design_effect)
        elif scored.rate is not None:
            _, first = np.unique(statistics.draws_of(scored.conditions), return_index=True)
            counts = stopping.RateCounts(successes=int(scored.success[first].sum()), trials=len(first))
            anytime = stopping.anytime_interval(counts)
            interval = Interval(low=min(anytime.low, scored.rate), high=max(anytime.high, scored.rate))
        # A job without measured success has no rate to bound, however many episodes are missing.
        unscored, bounds = outcomes[Outcome.ERROR] + len(missing), None
        if len(measured) == len(known) and (total := len(known) + unscored):
            bounds = Interval(low=scored.successes / total, high=(scored.successes + unscored) / total)
        vars(self).update(
            needed=needed, lines=lines, measured=measured, outcomes=outcomes, episodes=episodes, counted=counted,
            lengths=[line.length for line in measured],
            returns=[line.episode_return for line in measured if line.episode_return is not None],
            scored=scored, interval=interval, exact=exact, bounds=bounds, failure_by_errors=reason,
            status=status, planned=planned, missing=missing,
            cut=cut if self.reports else None,
            failed=next((report for report in latest if report.error), None),
            promise=promise,
            checkpoint=self.contents and self.contents.checkpoint,
            policy_sha256=UNKNOWN if self.contents is None else one_hash(self.contents.policy),
            saturated=mean_over_steps((line.saturated_action_share, line.length) for line in lines),
            simulation=simulation([self]) if is_of_another_package([self]) else {},
        )  # fmt: skip

    @property
    def num_missing(self) -> int | None:
        """The number of missing episodes, None if the plan is unknown."""
        return None if self.planned is None and self.status is JobResultStatus.MISSING else len(self.missing)

    # Sums over the reports of the ranks.

    def said(self, name: str) -> list[Any]:
        """Return the values of a field in the reports, without None; `policy_server.queries` is one of a field."""
        outer, _, inner = name.partition(".")
        values = [value for report in self.reports if (value := getattr(report, outer)) is not None]
        return [value for each in values if (value := getattr(each, inner)) is not None] if inner else values

    def total(self, name: str, *, per: str = "", scale: float = 1.0) -> Any:
        """Return the sum of a field over the reports, or its ratio to another sum. None if it is unknown."""
        found = sum(values) if (values := self.said(name)) else None
        if not per or found is None:
            return found
        return scale * found / under if (under := self.total(per)) else None

    def elapsed_s(self, seconds: Callable[[JobReport], float]) -> float | None:
        """Return the time that passed [s]: ranks that share a job run in parallel, attempts one after the other."""
        # By attempt and rank. The longest rank of each attempt counts.
        by_attempt: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        for report in self.reports:
            by_attempt[report.attempt][report.rank] += seconds(report)
        return sum(max(by_attempt[attempt].values()) for attempt in sorted(by_attempt)) if by_attempt else None

    def late(self, metric: str) -> float | None:
        """Return a figure of late answers, such as the share of stale actions. None for a job without latency."""
        if self.job.config.latency is None:
            return None
        pace = next(iter(self.said("query_pace")), None)
        if pace is None:
            # Means over episodes weight each control step equally.
            known = (line for line in self.lines if metric in line.metrics)
            return mean_over_steps((line.metrics[metric] or 0.0, line.length) for line in known)
        # The simulation waits, so no action is stale, and the queries have a fixed pace.
        if metric == STALE_SHARE:
            return 0.0 if self.lines else None
        lengths = [line.length for line in self.lines]
        queries = sum(-(-length // pace.steps) for length in lengths)
        return queries / (sum(lengths) * pace.control_dt) if sum(lengths) else None

    def query_ms(self, percentile: float) -> float | None:
        """Return a percentile of the measured query times [ms], None for a job without latency."""
        times_s = [each for times in self.said("query_s") for each in times] if self.job.config.latency else []
        return float(1000 * np.percentile(times_s, percentile)) if times_s else None

    def progress_and_score(self) -> tuple[float | None, float | None]:
        """Return the mean progress of the failures, and the success rate that includes it."""
        # Without events there is no score, not even for a job without failures.
        scored = [line for line in self.lines if line.success is not None and line.outcome is not Outcome.ERROR]
        failed = [line.events for line in scored if not line.success]
        told = [events.progress for events in failed if events is not None]
        if all(line.events is None for line in scored) or len(told) < len(failed):
            return None, None
        rate, came = 1 - len(failed) / len(scored), mean(told)
        return came, rate + (1 - rate) * (came or 0.0)


@dataclass(frozen=True, kw_only=True)
class MeasuredMetric:
    """A declared metric over the episodes of a job, without errors."""

    job: str
    metric: Metric
    values: np.ndarray  # the known ones. Shape: (num_episodes,)
    interval: tuple[Interval, str] | None  # of the mean, and its method; see `interval_of_mean`

    def summary(self, name: str, function: Callable[[np.ndarray], Any]) -> float | None:
        """Return a summary of the values, None if the metric does not ask for it or without values."""
        is_asked = name in self.metric.summary and len(self.values) > (name == "sd")
        return float(function(self.values)) if is_asked else None


def metrics_of(job: JobEvidence) -> list[MeasuredMetric]:
    """Return the metrics that a job's environment and policy declare."""
    declared = {metric.name: metric for report in job.reports for metric in report.metrics}
    found = []
    for metric in declared.values():
        told = [
            each
            for each in job.counted
            if each.line.outcome is not Outcome.ERROR and each.line.metrics.get(metric.name) is not None
        ]
        values = np.array([each.line.metrics[metric.name] for each in told], float)
        draws = statistics.draws_of(each.key for each in told)
        interval = statistics.interval_of_mean(values, draws) if "mean" in metric.summary else None
        found.append(MeasuredMetric(job=job.job.name, metric=metric, values=values, interval=interval))
    return found


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, None without values."""
    return sum(values) / len(values) if values else None


def mean_over_steps(episodes: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the mean of a share or rate over all steps, from the (value, length) of each episode. None if unknown."""
    known = [(value, length) for value, length in episodes if value is not None]
    steps = sum(length for _, length in known)
    return sum(value * length for value, length in known) / steps if steps else None


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
    different = "1 condition" if distinct == 1 else f"{distinct} different conditions"
    return f"{scored} scored episodes of {different}: intervals count conditions, not episodes"


def of_conditions(distinct: int | None, scored: int) -> str:
    """Return `` (4 different conditions)`` if a rate has fewer conditions than scored episodes, else nothing."""
    distinct = distinct or scored
    return "" if distinct == scored else f" ({distinct} different condition{'' if distinct == 1 else 's'})"


def percent_text(rate: float | None, low: float, high: float, *, unit: str = "", pattern: str = ".1f") -> str:
    """Return a rate with the ends of its interval as ``91.5 [86.8, 94.6]``, a dash without one."""
    return "-" if rate is None else f"{100 * rate:{pattern}}{unit} [{100 * low:{pattern}}, {100 * high:{pattern}}]"


def metric_in_words(row: Mapping[str, Any]) -> str:
    """Return a row of the table of metrics as text: ``0.312 ±0.05 [0.3, 0.33] m``, a dash without a mean."""
    mean, spread, low = row["mean"], row["sd"], row["low"]
    said = "-" if mean is None else f"{mean:.4g}"
    said += "" if spread is None else f" ±{spread:.3g}"
    said += "" if low is None else f" [{low:.4g}, {row['high']:.4g}]"
    return said if mean is None or row["unit"] is None else f"{said} {row['unit']}"


def short_policy_name(policy_type: str) -> str:
    """Return a policy's name for people: ``MyPolicy`` of ``my.package:MyPolicy``, ``act (mine.py)`` of ``mine:act``."""
    module, _, name = policy_type.replace(":", ".").rpartition(".")
    file = module.rpartition(".")[2]
    # Functions, whose names begin with a small letter, are often called alike.
    return f"{name} ({file}.py)" if file.isidentifier() and file != "__main__" and not name[:1].isupper() else name


def simulation_in_words(row: Mapping[str, Any]) -> str:
    """Return the protocol and engine of a suite in words, empty if its row has neither."""
    protocol, engine = row.get("protocol"), row.get("engine")
    words = [f"by protocol {protocol}"] if protocol else []
    return " ".join([*words, *([f"on {engine}"] if engine else [])])


# Beside the policy, the factors behind a benchmark's numbers are listed for suites and for single jobs alike.


def is_of_another_package(jobs: Iterable[JobEvidence]) -> bool:
    """Whether an environment of these jobs is of another package."""
    # Environments of this package run on its own versions, which the plan has. Others name their interpreter's.
    return any("python" in said for job in jobs for said in job.said("simulated_by"))


def simulation(jobs: Sequence[JobEvidence]) -> Mapping[str, str | None]:
    """Return protocol, engine, and the rest of the simulator's description, as JSON; empty if nothing names them."""
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
    hashes = {UNKNOWN if job.contents is None else one_hash(job.contents.environment) for job in jobs} - {None}
    if UNKNOWN in hashes:
        return UNKNOWN
    ordered = sorted(each for each in hashes if each is not None)
    return hashlib.sha256("\n".join(ordered).encode()).hexdigest() if len(ordered) > 1 else next(iter(ordered), None)


@dataclass(frozen=True, kw_only=True)
class SuiteEvidence:
    """A suite of the plan: its tasks, each a job, and the figures over them."""

    name: str
    jobs: Sequence[JobEvidence]
    config: JobConfig = field(init=False)  # of the first task, for the settings that all tasks share
    status: str = field(init=False)  # of all jobs; where they differ, failed if one failed, else interrupted
    reproducible: str | None = field(init=False)  # the weakest guarantee of the tasks; None while a task has none
    scored: ScoredEpisodes = field(init=False)  # of all tasks
    mean_rate: float | None = field(init=False)  # of the tasks; None before each has a rate, for others would weigh in
    interval: Interval | None = field(init=False)  # of that mean; the anytime one if a question may stop the suite
    pooled: Interval | None = field(init=False)  # of the rate over all episodes, likewise
    bounds: Interval | None = field(init=False)  # of that mean, see `JobEvidence`
    saturated: float | None = field(init=False)  # share of action entries at or beyond their bounds
    simulation: Mapping[str, str | None] = field(init=False)

    def __post_init__(self) -> None:
        jobs, scored = self.jobs, statistics.together([job.scored for job in self.jobs])
        statuses = {job.status for job in jobs}
        differing = JobResultStatus.FAILED if JobResultStatus.FAILED in statuses else JobResultStatus.INTERRUPTED
        promises = {job.promise[0] for job in jobs}
        rates = [job.scored.rate for job in jobs]
        bounds = [(job.bounds.low, job.bounds.high) for job in jobs if job.bounds is not None]
        low, high = (sum(ends) / len(jobs) for ends in zip(*bounds, strict=True)) if bounds else (0.0, 1.0)
        lines = (line for job in jobs for line in job.lines)
        rate = None if None in rates else mean([rate for rate in rates if rate is not None])
        interval, pooled = statistics.mean_of_tasks([job.scored for job in jobs]), scored.wilson()
        if any(job.answers for job in jobs):
            # The evidence is that of a question about the suite, and is widened as that of a job.
            tasks = {job.job.name: {line.episode_index: line for line in job.lines} for job in jobs}
            asked = Question(name="", jobs=tuple(tasks), arms=(self.name,), max_episodes=MAX_COUNT, half_width=0.0)
            asked = replace(asked, are_apart=any(each.question.are_apart for job in jobs for each in job.answers))
            counts = stopping.Answering(asked, num_questions=1).look(tasks).counts
            if interval is not None and pooled is not None and not isinstance(counts, stopping.PairCounts):
                # All tasks have as many episodes, so all episodes together have the rate of their mean.
                anytime, known = stopping.anytime_interval(counts), (rate or 0.0, scored.rate or 0.0)
                interval = pooled = Interval(low=min(anytime.low, *known), high=max(anytime.high, *known))
        vars(self).update(
            config=jobs[0].job.config,
            status=str(statuses.pop() if len(statuses) == 1 else differing),
            reproducible=None if None in promises else max(promises, key=str, default=None),
            scored=scored,
            pooled=pooled,
            mean_rate=rate,
            interval=interval,
            bounds=Interval(low=low, high=high) if len(bounds) == len(jobs) else None,
            saturated=mean_over_steps((line.saturated_action_share, line.length) for line in lines),
            simulation=simulation(jobs),
        )

    def common(self, name: str, *, otherwise: str | None = None) -> str | None:
        """Return the value of a field that all tasks share, or `otherwise`."""
        values = {getattr(job, name) for job in self.jobs}
        return values.pop() if len(values) == 1 else otherwise

    def total(self, value: Callable[[JobEvidence], int | None]) -> int | None:
        """Return the sum over the tasks, None if a task's value is unknown."""
        known = [each for each in map(value, self.jobs) if each is not None]
        return sum(known) if len(known) == len(self.jobs) else None


@dataclass(frozen=True, kw_only=True)
class PooledJobs:
    """Jobs whose episodes are counted together."""

    jobs: int  # number of jobs
    episodes: int  # finished episodes
    errors: int
    lengths: Sequence[int]  # control steps of the episodes without an error
    scored: ScoredEpisodes
    saturated: float | None  # share of action entries at or beyond their bounds
