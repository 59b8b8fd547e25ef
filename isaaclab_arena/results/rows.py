"""The rows of the results: one per job, one per episode, one per suite."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.columns import (
    ACTION_COLUMNS,
    BENCHMARK_COLUMNS,
    DISTINCT_COLUMNS,
    PICTURE_COLUMNS,
    SIMULATION_COLUMNS,
    SUITE_COLUMNS,
)
from isaaclab_arena.results.statistics import (
    Interval,
    ScoredEpisodes,
    draws_of,
    mean_of_tasks,
    rate_bounds,
    rate_interval,
    standard_deviation,
    together,
)
from isaaclab_arena.results.stopping import (
    Answer,
    alike_starts,
    condition_key,
    error_streak,
    nothing_but_errors,
    verdict_in_words,
)
from isaaclab_arena.storage.commits import (
    CommitLine,
    JobReport,
    JobResultStatus,
    JobStanding,
    Reproducible,
    ServerUsage,
    StartUp,
    job_standing,
)
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.run_plan import PlanEntry

# The rows of the results: one per job, one per episode.


@dataclass(frozen=True, kw_only=True)
class JobEvidence:
    """The content of a job's files."""

    job: PlanEntry  # the planned job
    lines: Sequence[CommitLine]  # of finished episodes, by index, each once
    reports: Sequence[JobReport]  # by attempt and rank; usually one
    has_parts: bool = False  # episode files remain outside a dataset
    # Initial conditions of an episode as JSON, by index; computed if missing.
    told: Mapping[int, str] = field(default_factory=dict)
    unequal_episodes: bool = False  # an episode was committed twice with different results
    retried_episodes: int = 0  # episodes that replaced an error of an earlier attempt
    same_conditions: bool = True  # all attempts had the same versions and kind of machine
    # Attempts with episodes of the job whose versions and machine no file records.
    unknown_attempts: tuple[int, ...] = ()
    contents: Contents | None = None  # evaluated contents; None if no file records them
    times_rerun: int = 0  # times the episodes were set aside because the contents changed
    answers: Sequence[Answer] = ()  # answers to the questions about the job
    # Episodes that the answers needed. Then `lines` are those alone, and no other episode is missing. None if the job
    # has to finish all planned episodes.
    needed: int | None = None
    beyond: int = 0  # finished episodes beyond `needed`
    max_equal_errors: int = 0  # equal errors in a row before the job fails; 0 for no limit

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

    @cached_property
    def scored(self) -> ScoredEpisodes:
        """The episodes with a known success: no errors, and none without a measured success."""
        success, conditions = [], []
        for line, start in zip(self.lines, alike_starts(self.lines), strict=True):
            if is_scored(line):
                told = self.told.get(line.episode_index) or json_line(line.variations)
                success.append(line.success)
                world = self.job.config.environment, self.job.object
                conditions.append(condition_key(*world, told, line.episode_seed, start))
        return ScoredEpisodes(success=np.array(success, float), conditions=conditions)


def is_scored(line: CommitLine) -> bool:
    """Whether an episode has a known success: it is not an error, and success is measured."""
    return line.success is not None and line.outcome is not Outcome.ERROR


def job_row(evidence: JobEvidence) -> dict[str, Any]:
    """Return a job's row of the table: a value, or None, for each column."""
    job = evidence.job
    # Means leave errors out, because their length says nothing about the policy.
    kept = [line for line in evidence.lines if line.outcome is not Outcome.ERROR]
    lengths = [line.episode_length for line in kept]
    returns = [line.episode_return for line in kept if line.episode_return is not None]
    return {
        "name": job.name,
        "environment": job.config.environment,
        "task": job.task,
        "embodiment": job.embodiment,
        "object": job.object,
        "policy": job.config.policy_type,
        "checkpoint": None if evidence.contents is None else evidence.contents.checkpoint,
        "policy_sha256": UNKNOWN if evidence.contents is None else evidence.contents.policy_sha256,
        "seed": job.config.seed,
        "status": str(evidence.standing.status),
        "planned": evidence.standing.planned,
        **_success(evidence),
        "mean_length": sum(lengths) / len(lengths) if lengths else None,
        "std_length": standard_deviation(lengths),
        "mean_return": sum(returns) / len(returns) if returns else None,
        "std_return": standard_deviation(returns),
        **_how_it_went(evidence),
    }


def episode_row(job: PlanEntry, line: CommitLine, told: str | None = None) -> dict[str, Any]:
    """Return an episode's row of the table. `told` is its conditions as JSON, if known already."""
    return {
        "job": job.name,
        "episode_index": line.episode_index,
        "environment": job.config.environment,
        "object": job.object,
        "policy": job.config.policy_type,
        "seed": line.seed,
        "episode_seed": line.episode_seed,
        "outcome": None if line.outcome is None else str(line.outcome),
        "success": line.success,
        "length": line.episode_length,
        "return": line.episode_return,
        "termination": line.termination,
        "error": line.error,
        "language_instruction": line.language_instruction,
        "conditions": told or json_line(line.variations),
        "metrics": json_line(line.metrics),
        "checksum": line.checksum,
        "dataset_file": line.dataset_file,
        "env_id": line.env_id,
        "episode_in_env": line.episode_in_env,
        "attempt": line.attempt,
        "rank": line.rank,
        "timestamp": line.timestamp,
        "wall_s": line.wall_s,
    }


def score_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return the mean progress of a job's failures, and the score that includes it."""
    # Without events there is no score, not even for a job without failures.
    scored = [line for line in evidence.lines if is_scored(line)]
    failed = [line.events for line in scored if not line.success]
    told = [events.progress for events in failed if events is not None]
    if all(line.events is None for line in scored) or len(told) < len(failed):
        return {}
    rate, came = 1 - len(failed) / len(scored), sum(told) / len(told) if told else None
    return {"failure_progress": came, "score": rate + (1 - rate) * (came or 0.0)}


def answer_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return the cells of a job's row on its questions, for runs with questions."""
    answers = evidence.answers
    is_decided = bool(answers) and all(answer.verdict is not None for answer in answers)
    return {
        "decision": "; ".join(
            f"{each.question.name}: {verdict_in_words(each.question, each.verdict)}" for each in answers
        )
        or None,
        "decided_at": evidence.needed if is_decided else None,
        "interval_kind": "anytime" if answers else "wilson",
        "episodes_beyond": evidence.beyond,
    }


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


def distinct_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return the number of distinct conditions, for runs with repeated conditions."""
    return {"distinct_conditions": evidence.scored.num_distinct if len(evidence.scored) else None}


def mean_over_steps(episodes: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the mean of a share or rate over all steps, from the (value, length) of each episode. None if unknown."""
    known = [(value, length) for value, length in episodes if value is not None]
    steps = sum(length for _, length in known)
    return sum(value * length for value, length in known) / steps if steps else None


def _success(evidence: JobEvidence) -> dict[str, Any]:
    """Count outcomes. Errors and episodes without a measured success are not scored."""
    outcomes, scored = Counter(line.outcome for line in evidence.lines), evidence.scored
    successes, errors = scored.successes, outcomes[Outcome.ERROR]
    unmeasured = len(evidence.lines) - errors - len(scored)
    missing = len(evidence.standing.missing)
    interval = exact = None
    if not evidence.answers:
        interval, exact = scored.wilson(), scored.clopper_pearson()
    elif scored.rate is not None:
        # The usual intervals assume that the first look is the last. This one is valid at every look, over the first
        # episode of each condition, as questions count. It uses fewer episodes than the rate, so it is widened to
        # contain the rate.
        _, first = np.unique(draws_of(scored.conditions), return_index=True)
        anytime = rate_interval(int(scored.success[first].sum()), len(first))
        interval = Interval(low=min(anytime.low, scored.rate), high=max(anytime.high, scored.rate))
    # A job without measured success has no rate to bound, however many episodes are missing.
    bounds = None if unmeasured else rate_bounds(successes, len(scored), errors + missing)
    unknown_plan = evidence.standing.planned is None and evidence.standing.status is JobResultStatus.MISSING
    return {
        "episodes": len(evidence.lines),
        "successes": None if unmeasured and not scored else successes,
        "success_rate": scored.rate,
        "success_low": interval.low if interval else None,
        "success_high": interval.high if interval else None,
        "clopper_pearson_low": exact.low if exact else None,
        "clopper_pearson_high": exact.high if exact else None,
        "success_rate_lower_bound": bounds.low if bounds else None,
        "success_rate_upper_bound": bounds.high if bounds else None,
        "failures": outcomes[Outcome.FAILURE],
        "timeouts": outcomes[Outcome.TIMEOUT],
        "errors": errors,
        "retried": evidence.retried_episodes,
        "rerun": evidence.times_rerun,
        "missing": None if unknown_plan else missing,
    }


def _how_it_went(evidence: JobEvidence) -> dict[str, Any]:
    """Return the columns from the job's reports, only rank and error without reports."""
    reports, by_errors = evidence.reports, evidence.failure_by_errors
    if not reports:
        return {"rank": None if evidence.job.rank is None else str(evidence.job.rank), "error": by_errors}
    # The last attempt that worked on the job says how it ended.
    last = max(report.attempt for report in reports)
    latest = [report for report in reports if report.attempt == last]
    first_error = next((report for report in latest if report.error), None)
    has_all = evidence.standing.planned is not None and not evidence.standing.missing

    # The reasons against a bitwise equal rerun that no single rank could see.
    unknown = ", ".join(map(str, evidence.unknown_attempts))
    batches = {report.policy_batch for report in reports if report.policy_batch is not None}
    processors = {report.processor for report in reports} - {None}
    devices = {report.device_kind for report in reports} - {None}
    drawn_with = {(said.get("MUJOCO_GL"), said.get("renderer")) for report in reports if (said := report.simulated_by)}
    reasons = {
        f"no file says with which versions and on which machine attempt {unknown} ran": bool(unknown),
        "starts of the program had other versions or another kind of machine": not evidence.same_conditions,
        "an episode was finished twice, with different results": evidence.unequal_episodes,
        "ranks asked the policy on batches of different sizes": len(batches) > 1,
        "ranks ran it on different processors": len(processors) > 1,
        "ranks ran it on different kinds of device": len(devices) > 1,
        "ranks drew its pictures with different kinds of OpenGL": len(drawn_with) > 1,
    }
    doubts = [reason for reason, holds in reasons.items() if holds]

    # A rank that failed before the job was built has no episodes, and does not weaken the promises of other attempts.
    promises = {report.reproducible for report in reports} - {None}
    reproducible = because = None
    if promises == {Reproducible.BITWISE} and not doubts:
        reproducible = str(Reproducible.BITWISE)
    elif promises:
        reproducible = str(Reproducible.PLAN)
        because = next(iter([*(report.plan_because for report in reports if report.plan_because), *doubts]), None)
    return {
        "cut": 0 if has_all else sum(report.cut_episodes for report in latest),
        "reproducible": reproducible,
        "plan_because": because,
        "policy_batch": max(batches, default=None),
        "error": first_error.error if first_error else by_errors,
        "traceback_file": first_error.traceback_file if first_error else None,
        "attempts": len({report.attempt for report in reports}),
        "rank": ", ".join(map(str, sorted({report.rank for report in reports}))),
        "device": ", ".join(sorted({report.device for report in reports})),
        **_seconds(reports),
    }


def _seconds(reports: Sequence[JobReport]) -> dict[str, Any]:
    """Sum the times of a job: ranks that share it run in parallel, attempts one after the other."""
    # By attempt and rank. The longest rank of each attempt counts.
    wall_s: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    running_s: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for report in reports:
        wall_s[report.attempt][report.rank] += report.wall_s
        running_s[report.attempt][report.rank] += report.wall_s - report.build_s
    stepping_s = sum(max(running_s[attempt].values()) for attempt in sorted(running_s))

    def sum_of_known(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    env_steps = sum(report.env_steps for report in reports)
    start_ups = [report.start_up for report in reports if report.start_up is not None]
    names = ("build_s", "simulate_s", "policy_s", "render_s", "record_s", "idle_s")
    return {
        "wall_s": sum(max(wall_s[attempt].values()) for attempt in sorted(wall_s)),
        **{name: sum(getattr(report, name) for report in reports) for name in names},
        **{each.name: sum_of_known(getattr(one, each.name) for one in start_ups) for each in fields(StartUp)},
        "env_steps": env_steps,
        "env_steps_per_s": env_steps / stepping_s if stepping_s > 0 else None,
        **{name: sum_of_known(getattr(each, name) for each in reports) for name in PICTURE_COLUMNS},
    }


# Further cells of a job's row in runs with latency, or with a policy server.


def server_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return the job's queries of a policy server and the load of its servers, for runs with one."""
    reports = [report for report in evidence.reports if report.policy_server is not None]
    if not reports:
        return {}
    used = sum((report.policy_server or ServerUsage() for report in reports), ServerUsage())
    return {
        "server_queries": used.queries,
        "server_entries": used.entries,
        "server_offered_per_s": used.seen_entries / used.seen_s if used.seen_s > 0 else None,
        "server_batch_fill": used.entries / used.call_entries if used.call_entries > 0 else None,
        "server_queue_ms": 1000.0 * used.queue_s / used.queries if used.queries else None,
        "server_busy_share": used.seen_busy_s / used.seen_s if used.seen_s > 0 else None,
    }


def latency_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return the assumed and the measured latency of a job, for runs with latency."""
    config, delays, lines = evidence.job.config.latency, evidence.job.latency, evidence.lines
    if config is None:
        return {}
    pace = next((report.query_pace for report in evidence.reports if report.query_pace is not None), None)
    if pace is not None:
        # The simulation waits, so no action is stale, and the queries have a fixed pace.
        stale_share, queries_per_s = 0.0 if lines else None, pace.queries_per_s([each.episode_length for each in lines])
    else:
        # Means over episodes weight each control step equally.
        stale_share, queries_per_s = (
            mean_over_steps((line.metrics[name] or 0.0, line.episode_length) for line in lines if name in line.metrics)
            for name in ("latency.stale_share", "latency.queries_per_s")
        )
    times_s = [each for report in evidence.reports for each in report.query_s or ()]
    p50, p95 = (float(1000 * each) for each in np.percentile(times_s, (50, 95))) if times_s else (None, None)
    return {
        "latency": None if delays is None else str(delays),
        "meanwhile": str(config.meanwhile),
        "stale_action_share": stale_share,
        "queries_per_s": queries_per_s,
        "measured_latency_p50_ms": p50,
        "measured_latency_p95_ms": p95,
    }


# One row per suite: the mean of its tasks' rates with equal weights, and all episodes together.
#
# Beside the policy, the factors behind a benchmark's numbers are listed for suites and for single jobs alike.


def suite_rows(evidence: Sequence[JobEvidence]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return one row per suite of the plan, in its order, and column to type of their table."""
    # Jobs outside suites are left out.
    members: dict[str, list[JobEvidence]] = {}
    for each in evidence:
        if each.job.config.suite is not None:
            members.setdefault(each.job.config.suite.name, []).append(each)
    rows = [_row(name, jobs) for name, jobs in members.items()]

    # Optional columns exist if some suite has a value for them.
    simulation: dict[str, str] = {}
    if any("environment_sha256" in row for row in rows):
        simulation = BENCHMARK_COLUMNS
    elif any(row["protocol"] is not None or row["engine"] is not None for row in rows):
        simulation = SIMULATION_COLUMNS
    repeats = any(row["distinct_conditions"] < row["scored"] for row in rows)
    actions = ACTION_COLUMNS if any(row["saturated_action_share"] is not None for row in rows) else {}
    return rows, SUITE_COLUMNS | simulation | (DISTINCT_COLUMNS if repeats else {}) | actions


def simulation_cells(jobs: Sequence[JobEvidence]) -> dict[str, str | None]:
    """Return `SIMULATION_COLUMNS` of jobs, or `BENCHMARK_COLUMNS` if an environment is of another package."""
    reported = [report.simulated_by for job in jobs for report in job.reports if report.simulated_by is not None]
    # Environments of this package run on its own versions, which the plan has. Others name their interpreter's.
    is_of_another_package = any("python" in each for each in reported)
    # If jobs, ranks or attempts differ in a factor, all of its values are listed.
    names = sorted({name for each in reported for name in each} - {"environment"})
    found = {name: sorted({each.get(name) for each in reported}, key=str) for name in names}
    named = {
        name: " | ".join(each or "nothing" for each in found[name]) if name in found else None
        for name in ("protocol", "engine")
    }
    if not is_of_another_package and named == {"protocol": None, "engine": None}:
        return {**named, "simulated_by": None}
    rest = {name: values[0] if len(values) == 1 else values for name, values in found.items() if name not in named}
    simulation = {**named, "simulated_by": json_line(rest)}
    if not is_of_another_package:
        return simulation
    # The hashes of all tasks become one; a single hash stays unchanged.
    hashes = {UNKNOWN if job.contents is None else job.contents.environment_sha256 for job in jobs} - {None}
    combined: str | None = UNKNOWN
    if UNKNOWN not in hashes:
        ordered = sorted(each for each in hashes if each is not None)
        combined = next(iter(ordered), None)
        if len(ordered) > 1:
            combined = hashlib.sha256("\n".join(ordered).encode()).hexdigest()
    return {**simulation, "environment_sha256": combined}


def short_policy_name(policy_type: str) -> str:
    """Return a policy's name without its module: ``MyPolicy`` for ``my.package:MyPolicy``."""
    return policy_type.replace(":", ".").rpartition(".")[2]


def simulation_in_words(row: Mapping[str, Any]) -> str:
    """Return the protocol and engine of a suite in words, empty if its row has neither."""
    protocol, engine = row.get("protocol"), row.get("engine")
    words = [f"by protocol {protocol}"] if protocol else []
    return " ".join([*words, *([f"on {engine}"] if engine else [])])


def _row(name: str, jobs: Sequence[JobEvidence]) -> dict[str, Any]:
    """Return a suite's row of the table from its jobs."""
    rows = [job_row(job) for job in jobs]
    first = jobs[0].job.config
    statuses = {JobResultStatus(row["status"]) for row in rows}
    status = JobResultStatus.FAILED if JobResultStatus.FAILED in statuses else JobResultStatus.INTERRUPTED
    # The weakest guarantee of the tasks is that of the suite; there is none while a task has none.
    promises, reproducible = {row.get("reproducible") for row in rows}, None
    if None not in promises:
        reproducible = str(Reproducible.PLAN if Reproducible.PLAN in promises else Reproducible.BITWISE)

    def common(key: str, *, otherwise: str | None) -> Any:
        values = {row[key] for row in rows}
        return values.pop() if len(values) == 1 else otherwise

    def total(key: str) -> Any:
        """Return the sum over the tasks, None if a task's value is unknown."""
        known = [row[key] for row in rows if row.get(key) is not None]
        return sum(known) if len(known) == len(rows) else None

    # The tasks' mean rate if all errors and missing episodes failed, and if all succeeded.
    lower, upper = total("success_rate_lower_bound"), total("success_rate_upper_bound")
    return {
        "name": name,
        "suite": None if first.suite is None else first.suite.suite,
        "policy": first.policy_type,
        "checkpoint": common("checkpoint", otherwise=None),
        "policy_sha256": common("policy_sha256", otherwise=UNKNOWN),
        "seed": first.seed,
        "status": str(statuses.pop() if len(statuses) == 1 else status),
        "tasks": len(rows),
        **{key: total(key) for key in ("planned", "episodes", "errors", "missing", "cut")},
        **_rates([job.scored for job in jobs]),
        "mean_lower_bound": None if lower is None else lower / len(rows),
        "mean_upper_bound": None if upper is None else upper / len(rows),
        "reproducible": reproducible,
        **simulation_cells(jobs),
        "saturated_action_share": mean_over_steps(
            (line.saturated_action_share, line.episode_length) for job in jobs for line in job.lines
        ),
    }


def _rates(tasks: Sequence[ScoredEpisodes]) -> dict[str, Any]:
    """Return both rates. There is no mean of the tasks before each has a rate: it would be a mean of other tasks."""
    everything, interval = together(tasks), mean_of_tasks(tasks)
    pooled = everything.wilson()
    known = [task.rate for task in tasks if task.rate is not None]
    return {
        "scored": len(everything),
        "successes": everything.successes if len(everything) else None,
        "mean_rate": sum(known) / len(known) if len(known) == len(tasks) else None,
        "mean_low": interval.low if interval else None,
        "mean_high": interval.high if interval else None,
        "pooled_rate": everything.rate,
        "pooled_low": pooled.low if pooled else None,
        "pooled_high": pooled.high if pooled else None,
        "distinct_conditions": everything.num_distinct,
    }
