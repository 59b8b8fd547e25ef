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

    def is_beyond(self, line: CommitLine) -> bool:
        """Whether an episode is one that the job's questions did not need."""
        return self.needed is not None and line.episode_index >= self.needed

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
        **_means(evidence.lines),
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


def event_cells(line: CommitLine) -> dict[str, Any]:
    """Return the event cells of an episode's row, empty without events."""
    if line.events is None:
        return {}
    return {
        "progress": line.events.progress,
        "decisive_event": line.events.decisive,
        "events": json_line(line.events.seen),
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


def action_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return the share of saturated actions, for runs with action bounds."""
    told = ((line.saturated_action_share, line.episode_length) for line in evidence.lines)
    return {"saturated_action_share": saturated_share(told)}


def saturated_share(episodes: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the share of action entries at or beyond their bounds, over (share, length) pairs. None if unknown."""
    told = [(share, length) for share, length in episodes if share is not None]
    steps = sum(length for _, length in told)
    return sum(share * length for share, length in told) / steps if steps else None


def _success(evidence: JobEvidence) -> dict[str, Any]:
    """Count outcomes. Errors and episodes without a measured success are not scored."""
    outcomes, scored = Counter(line.outcome for line in evidence.lines), evidence.scored
    successes, errors = scored.successes, outcomes[Outcome.ERROR]
    unmeasured = len(evidence.lines) - errors - len(scored)
    missing = len(evidence.standing.missing)
    # The usual intervals assume that the first look is the last.
    wilson = _anytime(scored) if evidence.answers else scored.wilson()
    exact = None if evidence.answers else scored.clopper_pearson()
    # A job without measured success has no rate to bound, however many episodes are missing.
    bounds = None if unmeasured else rate_bounds(successes, len(scored), errors + missing)
    unknown_plan = evidence.standing.planned is None and evidence.standing.status is JobResultStatus.MISSING
    return {
        "episodes": len(evidence.lines),
        "successes": None if unmeasured and not scored else successes,
        "success_rate": scored.rate,
        "success_low": wilson.low if wilson else None,
        "success_high": wilson.high if wilson else None,
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


def _anytime(scored: ScoredEpisodes) -> Interval | None:
    """Return the interval that is valid at every look, over the first episode of each condition, as questions count."""
    first, rate = scored.first_of_each(), scored.rate
    if rate is None:
        return None
    interval = rate_interval(first.successes, len(first))
    # The interval uses fewer episodes than the rate, so it is widened to contain the rate.
    return Interval(low=min(interval.low, rate), high=max(interval.high, rate))


def _means(lines: Sequence[CommitLine]) -> dict[str, Any]:
    """Average over finished episodes. Errors are left out, because their length says nothing about the policy."""
    kept = [line for line in lines if line.outcome is not Outcome.ERROR]
    lengths = [line.episode_length for line in kept]
    returns = [line.episode_return for line in kept if line.episode_return is not None]
    return {
        "mean_length": sum(lengths) / len(lengths) if lengths else None,
        "std_length": standard_deviation(lengths),
        "mean_return": sum(returns) / len(returns) if returns else None,
        "std_return": standard_deviation(returns),
    }


def _how_it_went(evidence: JobEvidence) -> dict[str, Any]:
    """Return the columns from the job's reports, only rank and error without reports."""
    reports, latest = evidence.reports, _latest(evidence)
    by_errors = evidence.failure_by_errors
    if not reports:
        return {"rank": None if evidence.job.rank is None else str(evidence.job.rank), "error": by_errors}
    first_error = next((report for report in latest if report.error), None)
    return {
        "cut": 0 if _all_finished(evidence) else sum(report.cut_episodes for report in latest),
        "reproducible": _reproducible(evidence),
        "plan_because": _plan_because(evidence),
        "policy_batch": max(_policy_batches(evidence), default=None),
        "error": first_error.error if first_error else by_errors,
        "traceback_file": first_error.traceback_file if first_error else None,
        "attempts": len({report.attempt for report in reports}),
        "rank": ", ".join(map(str, sorted({report.rank for report in reports}))),
        "device": ", ".join(sorted({report.device for report in reports})),
        **_seconds(reports),
    }


def _all_finished(evidence: JobEvidence) -> bool:
    """Whether the job's number of episodes is known and all of them have finished."""
    return evidence.standing.planned is not None and not evidence.standing.missing


def _reproducible(evidence: JobEvidence) -> str | None:
    """Return the guarantee for a rerun of the job (`Reproducible`), None if no rank has reported one."""
    # A rank that failed before the job was built has no episodes, and does not weaken those of other attempts.
    promises = {report.reproducible for report in evidence.reports} - {None}
    if not promises:
        return None
    bitwise = promises == {Reproducible.BITWISE} and not any(_doubts(evidence).values())
    return str(Reproducible.BITWISE if bitwise else Reproducible.PLAN)


def _plan_because(evidence: JobEvidence) -> str | None:
    """Return the reason that a rerun need not give the same bits, None if it does or the reason is unknown."""
    if _reproducible(evidence) != Reproducible.PLAN:
        return None
    said = [report.plan_because for report in evidence.reports if report.plan_because]
    return next(iter([*said, *(doubt for doubt, holds in _doubts(evidence).items() if holds)]), None)


def _doubts(evidence: JobEvidence) -> dict[str, bool]:
    """Map each doubt that no single rank could see to whether it holds."""
    processors = {report.processor for report in evidence.reports} - {None}
    devices = {report.device_kind for report in evidence.reports} - {None}
    drawn_with = {
        (said.get("MUJOCO_GL"), said.get("renderer")) for report in evidence.reports if (said := report.simulated_by)
    }
    unknown = ", ".join(map(str, evidence.unknown_attempts))
    return {
        f"no file says with which versions and on which machine attempt {unknown} ran": bool(unknown),
        "starts of the program had other versions or another kind of machine": not evidence.same_conditions,
        "an episode was finished twice, with different results": evidence.unequal_episodes,
        "ranks asked the policy on batches of different sizes": len(_policy_batches(evidence)) > 1,
        "ranks ran it on different processors": len(processors) > 1,
        "ranks ran it on different kinds of device": len(devices) > 1,
        "ranks drew its pictures with different kinds of OpenGL": len(drawn_with) > 1,
    }


def _policy_batches(evidence: JobEvidence) -> list[int]:
    return sorted({report.policy_batch for report in evidence.reports if report.policy_batch is not None})


def _seconds(reports: Sequence[JobReport]) -> dict[str, Any]:
    """Sum the times of a job: ranks that share it run in parallel, attempts one after the other."""
    wall_s: defaultdict[tuple[int, int], float] = defaultdict(float)
    for report in reports:
        wall_s[report.attempt, report.rank] += report.wall_s
    env_steps, stepping_s = sum(report.env_steps for report in reports), _running_s(reports)
    names = ("build_s", "simulate_s", "policy_s", "render_s", "record_s", "idle_s")
    return {
        "wall_s": _longest_of_each_attempt(wall_s),
        **{name: sum(getattr(report, name) for report in reports) for name in names},
        **_start_up_seconds(reports),
        "env_steps": env_steps,
        "env_steps_per_s": env_steps / stepping_s if stepping_s > 0 else None,
        **{name: _sum_of_known(getattr(each, name) for each in reports) for name in PICTURE_COLUMNS},
    }


def _running_s(reports: Sequence[JobReport]) -> float:
    """Return the run time of a job after its build [s]."""
    running_s: defaultdict[tuple[int, int], float] = defaultdict(float)
    for report in reports:
        running_s[report.attempt, report.rank] += report.wall_s - report.build_s
    return _longest_of_each_attempt(running_s)


def _start_up_seconds(reports: Sequence[JobReport]) -> dict[str, float | None]:
    """Sum the start-up times of a job, None if no rank knows them."""
    known = [report.start_up for report in reports if report.start_up is not None]
    return {each.name: _sum_of_known(getattr(start_up, each.name) for start_up in known) for each in fields(StartUp)}


def _sum_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _longest_of_each_attempt(seconds: Mapping[tuple[int, int], float]) -> float:
    attempts = {attempt for attempt, _ in seconds}
    return sum(max(value for (each, _), value in seconds.items() if each == attempt) for attempt in sorted(attempts))


def _latest(evidence: JobEvidence) -> list[JobReport]:
    """Return the reports of the last attempt that worked on the job."""
    last = max((report.attempt for report in evidence.reports), default=0)
    return [report for report in evidence.reports if report.attempt == last]


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
    config, delays = evidence.job.config.latency, evidence.job.latency
    if config is None:
        return {}
    # Means over episodes weight each control step equally. Measured query times are separate columns.
    times_s = [each for report in evidence.reports for each in report.query_s or ()]
    p50, p95 = (float(1000 * each) for each in np.percentile(times_s, (50, 95))) if times_s else (None, None)
    return {
        "latency": None if delays is None else str(delays),
        "meanwhile": str(config.meanwhile),
        **_asked(evidence),
        "measured_latency_p50_ms": p50,
        "measured_latency_p95_ms": p95,
    }


def _asked(evidence: JobEvidence) -> dict[str, float | None]:
    """Return the share of stale actions and the query rate. If the simulation waits, the rate is the query pace."""
    pace = next((report.query_pace for report in evidence.reports if report.query_pace is not None), None)
    lengths = [line.episode_length for line in evidence.lines]
    if pace is not None:
        return {"stale_action_share": 0.0 if lengths else None, "queries_per_s": pace.queries_per_s(lengths)}
    return {
        "stale_action_share": _mean_over_steps(evidence.lines, "latency.stale_share"),
        "queries_per_s": _mean_over_steps(evidence.lines, "latency.queries_per_s"),
    }


def _mean_over_steps(lines: Sequence[CommitLine], metric: str) -> float | None:
    measured = [(line.metrics[metric] or 0.0, line.episode_length) for line in lines if metric in line.metrics]
    steps = sum(length for _, length in measured)
    return sum(value * length for value, length in measured) / steps if steps else None


# One row per suite: the mean of its tasks' rates with equal weights, and all episodes together.
#
# Beside the policy, the factors behind a benchmark's numbers are listed for suites and for single jobs alike.


def suite_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return column to type of the table of suites."""
    simulation: dict[str, str] = {}
    if any("environment_sha256" in row for row in rows):
        simulation = BENCHMARK_COLUMNS
    elif any(row["protocol"] is not None or row["engine"] is not None for row in rows):
        simulation = SIMULATION_COLUMNS
    repeats = any(row["distinct_conditions"] < row["scored"] for row in rows)
    actions = ACTION_COLUMNS if any(row["saturated_action_share"] is not None for row in rows) else {}
    return SUITE_COLUMNS | simulation | (DISTINCT_COLUMNS if repeats else {}) | actions


def suite_rows(evidence: Sequence[JobEvidence]) -> list[dict[str, Any]]:
    """Return one row per suite of the plan, in its order; jobs outside suites are left out."""
    members: dict[str, list[JobEvidence]] = {}
    for each in evidence:
        if each.job.config.suite is not None:
            members.setdefault(each.job.config.suite.name, []).append(each)
    return [_row(name, jobs) for name, jobs in members.items()]


def benchmark_cells(jobs: Sequence[JobEvidence]) -> dict[str, str | None]:
    """Return the factors behind the jobs' numbers beside their policy, empty for environments of this package."""
    if not any(map(_is_of_another_package, _told(jobs))):
        return {}
    # If jobs, ranks or attempts differ in a factor, all of its values are listed.
    hashes = [UNKNOWN if job.contents is None else job.contents.environment_sha256 for job in jobs]
    return {**_simulation(jobs), "environment_sha256": _together({each for each in hashes if each is not None})}


def simulation_in_words(row: Mapping[str, Any]) -> str:
    """Return the protocol and engine of a suite in words, empty if its row has neither."""
    protocol, engine = row.get("protocol"), row.get("engine")
    words = [f"by protocol {protocol}"] if protocol else []
    return " ".join([*words, *([f"on {engine}"] if engine else [])])


def _row(name: str, jobs: Sequence[JobEvidence]) -> dict[str, Any]:
    rows = [job_row(job) for job in jobs]
    first = jobs[0].job.config
    return {
        "name": name,
        "suite": None if first.suite is None else first.suite.suite,
        "policy": first.policy_type,
        "checkpoint": _common(rows, "checkpoint", otherwise=None),
        "policy_sha256": _common(rows, "policy_sha256", otherwise=UNKNOWN),
        "seed": first.seed,
        "status": str(_status({JobResultStatus(row["status"]) for row in rows})),
        "tasks": len(rows),
        **{key: _sum(rows, key) for key in ("planned", "episodes", "errors", "missing", "cut")},
        **_rates([job.scored for job in jobs]),
        **_bounds(rows),
        "reproducible": _weakest_promise(rows),
        **(benchmark_cells(jobs) or _simulation(jobs)),
        "saturated_action_share": saturated_share(
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


def _bounds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the tasks' mean rate if all errors and missing episodes failed, and if all succeeded."""
    bounds: dict[str, float | None] = {}
    for side in ("lower", "upper"):
        total = _sum(rows, f"success_rate_{side}_bound")
        bounds[f"mean_{side}_bound"] = None if total is None else total / len(rows)
    return bounds


def _simulation(jobs: Sequence[JobEvidence]) -> dict[str, str | None]:
    """Return the factors behind the numbers beside the policy: `SIMULATION_COLUMNS`."""
    told = _told(jobs)
    names = sorted({name for each in told for name in each} - {"environment"})
    found = {name: sorted({each.get(name) for each in told}, key=str) for name in names}
    named = {
        name: " | ".join(each or "nothing" for each in found[name]) if name in found else None
        for name in ("protocol", "engine")
    }
    if not any(map(_is_of_another_package, told)) and named == {"protocol": None, "engine": None}:
        return {**named, "simulated_by": None}
    rest = {name: values[0] if len(values) == 1 else values for name, values in found.items() if name not in named}
    return {**named, "simulated_by": json_line(rest)}


def _together(hashes: set[str]) -> str | None:
    """Combine the hashes of all tasks into one; a single hash stays unchanged."""
    if len(hashes) < 2 or UNKNOWN in hashes:
        return UNKNOWN if UNKNOWN in hashes else next(iter(hashes), None)
    return hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()


def _told(jobs: Sequence[JobEvidence]) -> list[Mapping[str, str]]:
    return [report.simulated_by for job in jobs for report in job.reports if report.simulated_by is not None]


def _is_of_another_package(told: Mapping[str, str]) -> bool:
    # Environments of this package run on its own versions, which the plan has. Others name their interpreter's.
    return "python" in told


def _status(statuses: set[JobResultStatus]) -> JobResultStatus:
    if len(statuses) == 1:
        return next(iter(statuses))
    return JobResultStatus.FAILED if JobResultStatus.FAILED in statuses else JobResultStatus.INTERRUPTED


def _weakest_promise(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the weakest guarantee of the tasks, None while a task has none."""
    promises = {row.get("reproducible") for row in rows}
    if None in promises:
        return None
    return str(Reproducible.PLAN if Reproducible.PLAN in promises else Reproducible.BITWISE)


def _common(rows: Sequence[Mapping[str, Any]], key: str, *, otherwise: str | None) -> Any:
    values = {row[key] for row in rows}
    return values.pop() if len(values) == 1 else otherwise


def _sum(rows: Sequence[Mapping[str, Any]], key: str) -> Any:
    """Return the sum over the tasks, None if a task's value is unknown."""
    known = [row[key] for row in rows if row.get(key) is not None]
    return sum(known) if len(known) == len(rows) else None
