"""The rows of the results: one per job, one per episode."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.clusters import ScoredEpisodes
from isaaclab_arena.results.columns import PICTURE_COLUMNS
from isaaclab_arena.results.conditions import alike_starts, condition_key
from isaaclab_arena.results.statistics import Interval, rate_bounds, standard_deviation
from isaaclab_arena.results.stopping.answers import Answer
from isaaclab_arena.results.stopping.anytime import rate_interval
from isaaclab_arena.results.stopping.equal_errors import error_streak, nothing_but_errors
from isaaclab_arena.results.stopping.wording import verdict_in_words
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.run.commits import CommitLine
from isaaclab_arena.storage.run.job_reports import JobReport, Reproducible, StartUp
from isaaclab_arena.storage.run.job_standing import JobResultStatus, JobStanding, job_standing
from isaaclab_arena.storage.run.run_plan import PlanEntry


@dataclass(frozen=True, kw_only=True)
class JobEvidence:
    """Everything that the disk says about a job.

    Attributes:
        job: What was planned.
        lines: The commit lines of its finished episodes, by index, each once.
        told: What each of them started from as its row of the table says it, by index; found out where it is missing.
        reports: How it went, by attempt and rank; normally one.
        has_parts: Whether episodes still have files of their own, which are to go into a dataset.
        unequal_episodes: Whether an episode was committed twice with different results.
        retried_episodes: How many episodes count in place of an error of an earlier attempt.
        same_conditions: Whether all attempts of the run had the same versions and kind of machine.
        unknown_attempts: Attempts that ran episodes of the job, with versions and on a machine that no file tells.
        contents: What its episodes were made with, None where nobody wrote it down.
        times_rerun: How often its episodes were set aside and ran anew, because it evaluated something else.
        answers: How far the questions are answered that are asked of the job.
        needed: How many episodes they needed; then ``lines`` are those, and no other episode is missing. None for a job
            that has to finish all that was planned.
        beyond: How many episodes have finished beyond those.
        max_equal_errors: How many episodes in a row may end in the same error before the job fails; 0 for any number.
    """

    job: PlanEntry
    lines: Sequence[CommitLine]
    reports: Sequence[JobReport]
    has_parts: bool = False
    told: Mapping[int, str] = field(default_factory=dict)
    unequal_episodes: bool = False
    retried_episodes: int = 0
    same_conditions: bool = True
    unknown_attempts: tuple[int, ...] = ()
    contents: Contents | None = None
    times_rerun: int = 0
    answers: Sequence[Answer] = ()
    needed: int | None = None
    beyond: int = 0
    max_equal_errors: int = 0

    @cached_property
    def _by_its_files(self) -> JobStanding:
        finished = {line.episode_index for line in self.lines}
        return job_standing(self.job, finished, self.reports, needed=self.needed, has_parts=self.has_parts)

    @cached_property
    def failure_by_errors(self) -> str | None:
        """Why the job fails although its ranks came to its end: too many of its episodes did not; else None."""
        streak = error_streak(self.lines, self.max_equal_errors)
        if streak is not None or self._by_its_files.status is not JobResultStatus.COMPLETED:
            return streak
        return nothing_but_errors(self.lines)

    @cached_property
    def standing(self) -> JobStanding:
        """Where the job stands, by its last attempt and by how many of its episodes have finished, and how."""
        found = self._by_its_files
        return found if self.failure_by_errors is None else replace(found, status=JobResultStatus.FAILED)

    def is_beyond(self, line: CommitLine) -> bool:
        """Whether an episode of the job is one that its questions did not need."""
        return self.needed is not None and line.episode_index >= self.needed

    @cached_property
    def scored(self) -> ScoredEpisodes:
        """The episodes that say whether they succeeded: no errors, and none whose success is not measured."""
        success, conditions = [], []
        for line, start in zip(self.lines, alike_starts(self.lines), strict=True):
            if is_scored(line):
                told = self.told.get(line.episode_index) or json_line(line.variations)
                success.append(line.success)
                world = self.job.config.environment, self.job.object
                conditions.append(condition_key(*world, told, line.episode_seed, start))
        return ScoredEpisodes(success=np.array(success, float), conditions=conditions)


def is_scored(line: CommitLine) -> bool:
    """Whether an episode says whether it succeeded: it is no error, and success is measured."""
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
    """Return an episode's row of the table: a value, or None, for each column.

    Args:
        job: Its job.
        line: What was committed of it.
        told: What it started from, as JSON, where that is known already.
    """
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
    """Return what an episode's row has besides in a run whose environments tell events."""
    if line.events is None:
        return {}
    return {
        "progress": line.events.progress,
        "decisive_event": line.events.decisive,
        "events": json_line(line.events.seen),
    }


def score_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return what a job's row has besides in such a run: how far its failures came, and the score that counts that.

    Nothing where the environment does not tell what happens, whatever the share of its successes.
    """
    scored = [line for line in evidence.lines if is_scored(line)]
    failed = [line.events for line in scored if not line.success]
    told = [events.progress for events in failed if events is not None]
    if all(line.events is None for line in scored) or len(told) < len(failed):
        return {}
    rate, came = 1 - len(failed) / len(scored), sum(told) / len(told) if told else None
    return {"failure_progress": came, "score": rate + (1 - rate) * (came or 0.0)}


def answer_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return what a job's row has besides in a run that asks something of its jobs."""
    answers = evidence.answers
    is_decided = bool(answers) and all(answer.verdict is not None for answer in answers)
    return {
        "decision": "; ".join(f"{each.question.name}: {verdict_in_words(each)}" for each in answers) or None,
        "decided_at": evidence.needed if is_decided else None,
        "interval_kind": "anytime" if answers else "wilson",
        "episodes_beyond": evidence.beyond,
    }


def scored_episodes(row: Mapping[str, Any]) -> int:
    """Return how many episodes the rate in a job's row is of."""
    if not row["success_rate"]:
        return (row["failures"] or 0) + (row["timeouts"] or 0)
    return round(row["successes"] / row["success_rate"])


def repeats_in_words(row: Mapping[str, Any]) -> str | None:
    """Return of how many conditions the rate of a job or a suite is, None where each scored episode has its own."""
    distinct = row.get("distinct_conditions")
    if distinct is None:
        return None
    scored = row["scored"] if "scored" in row else scored_episodes(row)
    if distinct == scored:
        return None
    different = "all of the same conditions" if distinct == 1 else f"{distinct} different conditions"
    return f"{scored} scored episodes, {different}: intervals are those of a sample of conditions"


def of_conditions(distinct: int | None, scored: int) -> str:
    """Return `` (4 different conditions)`` for a rate that has fewer of them than scored episodes, else nothing."""
    distinct = distinct or scored
    return "" if distinct == scored else f" ({distinct} different condition{'' if distinct == 1 else 's'})"


def distinct_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return the further cells of a job's row, if conditions of the run repeat."""
    return {"distinct_conditions": evidence.scored.num_distinct if len(evidence.scored) else None}


def action_cells(evidence: JobEvidence) -> dict[str, Any]:
    """Return the further cells of a job's row, if actions of the run have bounds."""
    told = ((line.saturated_action_share, line.episode_length) for line in evidence.lines)
    return {"saturated_action_share": saturated_share(told)}


def saturated_share(episodes: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the share of all action entries of some episodes that lay at or beyond their bounds.

    Args:
        episodes: The share in each of them, and its length; one that tells no share is left out.

    Returns:
        None if none tells it.
    """
    told = [(share, length) for share, length in episodes if share is not None]
    steps = sum(length for _, length in told)
    return sum(share * length for share, length in told) / steps if steps else None


def _success(evidence: JobEvidence) -> dict[str, Any]:
    """Count. Errors and episodes whose success is not measured are not scored."""
    outcomes, scored = Counter(line.outcome for line in evidence.lines), evidence.scored
    successes, errors = scored.successes, outcomes[Outcome.ERROR]
    unmeasured = len(evidence.lines) - errors - len(scored)
    missing = len(evidence.standing.missing)
    # The usual ones take for granted that the first look is the last.
    wilson = _anytime(scored) if evidence.answers else scored.wilson()
    exact = None if evidence.answers else scored.clopper_pearson()
    # A job that does not measure success has no rate to bound, however many of its episodes are missing.
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
    """Return the interval that holds at every look: of the first episode of each condition, as questions count them."""
    first, rate = scored.first_of_each(), scored.rate
    if rate is None:
        return None
    interval = rate_interval(first.successes, len(first))
    return Interval(low=min(interval.low, rate), high=max(interval.high, rate))


def _means(lines: Sequence[CommitLine]) -> dict[str, Any]:
    """Average over finished episodes, without errors: how long those took says nothing of the policy."""
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
    """Return the columns that the job's reports give, None where no rank lived to write one."""
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
    """Whether it is known how many episodes the job has, and all of them have finished."""
    return evidence.standing.planned is not None and not evidence.standing.missing


def _reproducible(evidence: JobEvidence) -> str | None:
    """Return what running the job again gives, None if no rank came as far as to know."""
    # A rank that failed before the job was built has no episodes, and takes nothing from those of other attempts.
    promises = {report.reproducible for report in evidence.reports} - {None}
    if not promises:
        return None
    bitwise = promises == {Reproducible.BITWISE} and not any(_doubts(evidence).values())
    return str(Reproducible.BITWISE if bitwise else Reproducible.PLAN)


def _plan_because(evidence: JobEvidence) -> str | None:
    """Return why running the job again does not give the same bits, None where it does or nobody has said why not."""
    if _reproducible(evidence) != Reproducible.PLAN:
        return None
    said = [report.plan_because for report in evidence.reports if report.plan_because]
    return next(iter([*said, *(doubt for doubt, holds in _doubts(evidence).items() if holds)]), None)


def _doubts(evidence: JobEvidence) -> dict[str, bool]:
    """Return what no single rank could see of the job, and whether it is so."""
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
    """Sum up how long the job took: ranks that share it work at the same time, attempts one after the other."""
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
    """Return how long a job ran once it was built [s]."""
    running_s: defaultdict[tuple[int, int], float] = defaultdict(float)
    for report in reports:
        running_s[report.attempt, report.rank] += report.wall_s - report.build_s
    return _longest_of_each_attempt(running_s)


def _start_up_seconds(reports: Sequence[JobReport]) -> dict[str, float | None]:
    """Sum up how long the job took to begin, None where no rank knows."""
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
