"""``isaaclab-arena status``: how far a run, a watch or a training is, and what is wrong, from files, on any machine."""

import shlex
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro
from rich.console import Console
from rich.text import Text

from isaaclab_arena.checkpoints import BEST_RULE, best_of_training, find_checkpoints
from isaaclab_arena.cli.main import print_json
from isaaclab_arena.config.command_line import read_words
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.evaluation import heartbeat
from isaaclab_arena.evaluation import learning_curve as curve
from isaaclab_arena.evaluation.process import results_console
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.logs import plain_text
from isaaclab_arena.nested import value_at
from isaaclab_arena.report.writing import REPORT_FILE
from isaaclab_arena.results import merge
from isaaclab_arena.results.console import MAX_JOBS_SHOWN, describe_missing, drawn
from isaaclab_arena.results.rows import percent_text, scored_episodes
from isaaclab_arena.results.stopping import kind_of_error
from isaaclab_arena.storage import atomic, layout, ledger
from isaaclab_arena.training.config import PROGRESS, SETTINGS, TRAINING_OF_OTHERS

_MAX_NAMES, _MAX_RANKS_SHOWN = 8, 64
_PHASES = ("collection", "learning", "evaluation")
"""The parts of a training's time, as its measures name them."""
_NOTHING_YET = {ledger.JobResultStatus.MISSING, ledger.JobResultStatus.SKIPPED}


@dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """Show how far a run, a watch or a training is: its jobs, ranks, rates so far, time left, and what is wrong.

    Reads only files, during the run or afterwards, on its machine or another one that sees the directory. Exit code
    0 if nothing is wrong, 1 if something is.
    """

    directory: tyro.conf.Positional[Path]
    """Directory of a run (with a run.json), of a watch, or of a training."""
    json: bool = False
    """Print it as JSON."""


class RunState(StrEnum):
    """The state of a run, as its files show it."""

    STARTING = "starting"  # it is planned, and no rank has started
    RUNNING = "running"
    FINISHED = "finished"  # with all episodes of all jobs
    INTERRUPTED = "interrupted"  # without some of them


class JobState(StrEnum):
    """The state of a job, as the files of its run show it."""

    NOT_STARTED = "not started"
    RUNNING = "running"  # a rank is at it
    STARTED = "started"  # some of it is done, and no rank is at it now
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """A job: its state, and its success so far."""

    name: str
    state: JobState
    episodes: int  # that have ended, also with errors
    planned: int | None  # None if steps decide, or the number is not known yet
    successes: int
    scored: int  # episodes with measured success
    success_rate: float | None
    success_low: float | None  # of the 95 % interval
    success_high: float | None
    errors: int
    ranks: tuple[int, ...]  # at work on it now


@dataclass(frozen=True, kw_only=True)
class RankProgress:
    """A rank, by the last status that it wrote; None for what only a status knows."""

    rank: int
    state: str
    doing: str
    host: str | None
    job: str | None
    episodes: int
    errors: int
    steps_per_s: float | None
    updated_at: str | None  # by the clock of its machine
    silent_s: float  # since then, by the clock of this machine


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The state of a run at one moment."""

    directory: str
    state: RunState
    attempt: int  # starts of the program on this run, 0 before the first
    started_at: str  # of the last one
    elapsed_s: float | None  # from its start to the last sign of a rank
    time_left_s: float | None
    fraction_done: float  # 0 to 1
    episodes: int
    planned: int | None
    jobs: tuple[JobProgress, ...]
    ranks: tuple[RankProgress, ...]
    wrong: tuple[str, ...]  # one line each
    way_out: str | None  # the command to type


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """The state of a training at one moment; None for what its files do not say."""

    directory: str
    state: RunState | None
    iteration: int  # the last one that is done
    max_iterations: int | None
    steps_per_s: float | None  # of the last iteration
    time_left_s: float | None  # with its evaluations
    silent_s: float | None  # since its last measures
    last_checkpoint: str | None
    best_checkpoint: str | None
    way_out: str | None  # the command to type


def main(argv: Sequence[str]) -> int:
    """Show the status and return 0, or 1 if something is wrong; ConfigError if the directory is of no run."""
    options = read_words(StatusOptions, argv, program="isaaclab-arena status")
    directory, console = options.directory, results_console()
    records, watched = curve.read_records(directory), directory / "watch" / curve.TRAINING_FILE
    is_watch = bool(records) or watched.is_file()
    training = training_status(Path(atomic.read_whole(watched).decode()) if watched.is_file() else directory)
    run = None if is_watch or training is not None else directory
    if is_watch:
        # The run of a watch that is under way is that of the checkpoint which is not done.
        left = [directory / f"step_{step}" for step, record in records.items() if not record.is_done]
        run = next((each for each in reversed(left) if (each / layout.RUN_PLAN_FILE).is_file()), None)
    status = None if run is None else run_status(run)
    if options.json:
        whole = {"steps": [*records.values()], "run": status, "training": training}
        print_json(whole if is_watch else training or status)
    else:
        if is_watch:
            show_watch(directory, records, console)
        if status is not None:
            show_run(status, console)
        if training is not None:
            show_training(training, console)
    has_failed = any(record.tries and not record.is_done for record in records.values())
    is_interrupted = not is_watch and training is not None and training.way_out is not None
    return int(has_failed or is_interrupted or bool(status and status.wrong))


def run_status(directory: Path) -> RunStatus:
    """Return the status of a run from its files; ConfigError if the directory is not that of a run."""
    plan = ledger.read_run_plan(directory)
    attempts = ledger.read_attempts(directory, plan.run_id)[0]
    last = attempts[-1] if attempts else None
    reports: tuple[heartbeat.RankReport, ...] = ()
    if last is not None:
        reports = heartbeat.reports_from_files(directory, world_size=last.world_size, run_id=last.run_id)
    # After the ranks: what a rank has finished before its end is then in the tables.
    tables = merge.read(directory, episode_columns=("job", "outcome", "error", "termination"))
    state = RunState.INTERRUPTED
    if any(each.fate is heartbeat.RankFate.WORKING for each in reports):
        state = RunState.RUNNING
    elif tables.complete:
        state = RunState.FINISHED
    elif not any(each.status for each in reports) and {row["status"] for row in tables.rows} <= _NOTHING_YET:
        state = RunState.STARTING

    # The job file's order; the ranks at work on a job stand beside it.
    at_work = defaultdict[str, list[int]](list)
    for each in reports:
        if each.fate is heartbeat.RankFate.WORKING and each.status is not None and each.status.current_job is not None:
            at_work[each.status.current_job].append(each.rank)
    jobs = tuple(_job_progress(row, tuple(at_work[row["name"]])) for row in tables.rows)

    # Times are compared within the clocks that wrote them: a run's nodes, which a reader elsewhere may not agree with.
    started_at, written = plan.created_at if last is None else last.started_at, []
    for each in reports:
        written += [each.status.updated_at] if each.status is not None and each.status.updated_at else []
    elapsed_s = _seconds(started_at, max(written)) if written else None
    episodes = sum(job.episodes for job in jobs)
    lengths = [job.planned for job in jobs if job.state is not JobState.SKIPPED]
    planned = None if None in lengths else sum(length or 0 for length in lengths)
    share = 1.0 if tables.complete else min(episodes / planned, 1.0) if planned else heartbeat.fraction_done(reports)
    left_s = heartbeat.time_left_s(reports, elapsed_s) if elapsed_s and state is RunState.RUNNING else None
    wrong = [*_wrong_with_ranks(directory, reports, state), *_wrong_with_jobs(tables, jobs, state), *tables.problems]
    resume = f"isaaclab-arena resume {shlex.quote(str(directory))}"
    return RunStatus(
        directory=str(directory),
        state=state,
        attempt=last.number if last is not None else 0,
        started_at=started_at,
        elapsed_s=elapsed_s,
        time_left_s=left_s,
        fraction_done=share,
        episodes=episodes,
        planned=planned,
        jobs=jobs,
        ranks=tuple(map(_rank_progress, reports)),
        wrong=tuple(wrong),
        way_out=resume if state is RunState.INTERRUPTED else None,
    )


def _job_progress(row: Mapping[str, Any], ranks: tuple[int, ...]) -> JobProgress:
    """Return the progress of a job from its row in the table of jobs and the ranks at work on it."""
    status = ledger.JobResultStatus(row["status"])
    state = {
        ledger.JobResultStatus.COMPLETED: JobState.COMPLETED,
        ledger.JobResultStatus.FAILED: JobState.FAILED,
        ledger.JobResultStatus.SKIPPED: JobState.SKIPPED,
        ledger.JobResultStatus.MISSING: JobState.NOT_STARTED,
    }.get(status, JobState.STARTED)
    if ranks and status is not ledger.JobResultStatus.COMPLETED:
        state = JobState.RUNNING
    return JobProgress(
        name=row["name"],
        state=state,
        episodes=row["episodes"] or 0,
        planned=row["planned"],
        successes=row["successes"] or 0,
        scored=scored_episodes(row),
        success_rate=row["success_rate"],
        success_low=row["success_low"],
        success_high=row["success_high"],
        errors=row["errors"] or 0,
        ranks=ranks,
    )


def _rank_progress(report: heartbeat.RankReport) -> RankProgress:
    status = report.status
    return RankProgress(
        rank=report.rank,
        state="not started" if status is None else str(report.fate),
        doing="has not started" if status is None else heartbeat.doing_in_words(report),
        host=status and status.host,
        job=status and status.current_job,
        episodes=status.episodes_done if status else 0,
        errors=status.errors if status else 0,
        steps_per_s=status.steps_per_s if status and report.alive else None,
        updated_at=status and status.updated_at,
        silent_s=round(report.silent_s, 1),
    )


def _wrong_with_ranks(directory: Path, reports: Sequence[heartbeat.RankReport], state: RunState) -> Iterator[str]:
    """Yield the ranks that died, failed, have not begun, or are silent for longer than expected, one line each."""
    for each in reports:
        status = each.status
        if status is None:
            if state is RunState.RUNNING:
                yield f"rank {each.rank} has not started: it waits for its node, or could not start"
            continue
        where = f"rank {each.rank} on {status.host}"
        since = f"its last sign was at {status.updated_at[11:19]} UTC; {directory / 'logs' / f'rank{each.rank}.log'}"
        if each.fate in (heartbeat.RankFate.DEAD, heartbeat.RankFate.FAILED):
            yield f"{where}: {heartbeat.doing_in_words(each)}; {since} says more"
        elif each.fate is heartbeat.RankFate.WORKING and each.silent_s > heartbeat.UNUSUAL_SILENCE_S:
            yield f"{where} has been silent for {heartbeat.clock_text(each.silent_s)}; {since} may say why"
    if state is RunState.STARTING:
        yield "no rank has started: they wait for resources, or the program has ended"


def _wrong_with_jobs(tables: merge.Tables, jobs: Sequence[JobProgress], state: RunState) -> Iterator[str]:
    """Yield the jobs that failed, errors by their reason, and what a run that stopped has left, one line each."""
    for row in tables.rows:
        if ledger.JobResultStatus(row["status"]) is ledger.JobResultStatus.FAILED:
            trace = f" (traceback in {row['traceback_file']})" if row["traceback_file"] else ""
            yield f"job '{row['name']}' failed on rank {row['rank']}: {row['error'] or 'no report'}{trace}"

    # The same error in many episodes is one line, with the first of its texts.
    of_kind: dict[tuple[str, str], tuple[str, int]] = {}
    ended = pd.DataFrame(tables.episodes[(tables.episodes["outcome"] == Outcome.ERROR).fillna(value=False)])
    for job, error, termination in ended[["job", "error", "termination"]].to_numpy(object, na_value=None):
        text = str(error or termination)
        kind = str(job), kind_of_error(text)
        first, number = of_kind.get(kind, (text, 0))
        of_kind[kind] = first, number + 1
    for (job, _), (first, number) in sorted(of_kind.items(), key=lambda item: -item[1][1]):
        episodes = "1 episode" if number == 1 else f"{number} episodes"
        yield f"job '{job}': {episodes} ended in an error: {first.partition(chr(10))[0]}"

    if state is RunState.INTERRUPTED:
        for missing in tables.missing:
            if missing.status is ledger.JobResultStatus.INTERRUPTED:
                yield describe_missing(missing)
        if left := [job.name for job in jobs if job.state is JobState.NOT_STARTED]:
            shown = ", ".join(left[:_MAX_NAMES]) + (f" and {len(left) - _MAX_NAMES} more" if left[_MAX_NAMES:] else "")
            yield f"{'1 job was' if len(left) == 1 else f'{len(left)} jobs were'} not started: {shown}"


def training_status(directory: Path) -> TrainingStatus | None:
    """Return the status of a training of this package from its files, None if the directory is not that of one."""
    settings, of_others, progress = directory / SETTINGS, directory / TRAINING_OF_OTHERS, directory / PROGRESS
    if not settings.is_file() and not of_others.is_file():
        return None
    document = read_document(settings if settings.is_file() else of_others)
    asked = [value_at(document, path) for path in (("agent", "max_iterations"), ("max_steps",))]
    total = next((number for number in asked if type(number) is int), None)
    # The last line may be half-written.
    table, silent_s = pd.DataFrame(columns=["step", "measure", "value"]), None
    if progress.is_file() and progress.stat().st_size:
        table = pd.read_csv(progress, on_bad_lines="skip")
        table = table.assign(**{name: pd.to_numeric(table[name], errors="coerce") for name in ("step", "value")})
        silent_s = max(time.time() - progress.stat().st_mtime, 0.0)
    table = table.dropna()
    found, best = find_checkpoints(directory), best_of_training(directory)
    iteration = max([int(step) for step in table["step"].unique()] + [each.step for each in found], default=0)
    measured = {str(name): own["value"].to_numpy(float) for name, own in table.groupby("measure")}
    rates = measured.get("Perf/total_fps", ())
    spent_s = sum(float(measured.get(f"Perf/{name}_time", np.zeros(1)).sum()) for name in _PHASES)

    # Trainings of other packages hold no lock while they are at work.
    state, resume = None, f"isaaclab-arena resume {shlex.quote(str(directory))}"
    if ledger.is_in_use(directory):
        state = RunState.RUNNING
    elif total is not None and iteration >= total:
        state = RunState.FINISHED
    elif settings.is_file():
        state = RunState.INTERRUPTED
    is_known = state is RunState.RUNNING and total is not None and len(rates) > 0
    return TrainingStatus(
        directory=str(directory),
        state=state,
        iteration=iteration,
        max_iterations=total,
        steps_per_s=float(rates[-1]) if len(rates) else None,
        time_left_s=spent_s / len(rates) * (total - iteration) if is_known and total else None,
        silent_s=silent_s,
        last_checkpoint=str(found[-1].path) if found else None,
        best_checkpoint=None if best is None else str(best[0]),
        way_out=resume if state is RunState.INTERRUPTED else None,
    )


def _seconds(since: str, until: str) -> float | None:
    """Return the time between two moments in ISO 8601 [s], None if one is malformed."""
    try:
        return max((datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds(), 0.0)
    except (TypeError, ValueError):
        return None


# For people: a sentence, a table of jobs, one of ranks, what is wrong, and the next step.


def show_run(status: RunStatus, console: Console) -> None:
    """Print the status of a run."""
    planned = "" if status.planned is None else f" of {status.planned:,}"
    parts = [f"{status.state}, {status.fraction_done:.0%}, {status.episodes:,}{planned} episodes"]
    if status.elapsed_s is not None:
        parts.append(f"{heartbeat.clock_text(status.elapsed_s)} elapsed")
    if status.time_left_s is not None:
        parts.append(f"about {heartbeat.clock_text(status.time_left_s)} left")
    start = f", attempt {status.attempt}" if status.attempt > 1 else ""
    parts.append(f"began {status.started_at[:19].replace('T', ' ')} UTC{start}")
    console.print(Text(plain_text(f"{status.directory}: {', '.join(parts)}"), style="bold"), soft_wrap=True)

    # Of very many jobs those that are not simply done or to come are shown first.
    jobs = list(status.jobs)
    if len(jobs) > MAX_JOBS_SHOWN:
        jobs.sort(key=lambda job: job.state in (JobState.COMPLETED, JobState.NOT_STARTED, JobState.SKIPPED))
    lines = [
        (
            job.name,
            str(job.state),
            f"{job.episodes}" if job.planned in (None, job.episodes) else f"{job.episodes}/{job.planned}",
            "-"
            if job.success_rate is None or job.success_low is None or job.success_high is None
            else percent_text(job.success_rate, job.success_low, job.success_high),
            str(job.errors),
            ", ".join(map(str, job.ranks)) or "-",
        )
        for job in jobs[:MAX_JOBS_SHOWN]
    ]
    headings = ["job", "state", "episodes", "success % [95 %]", "errors", "active ranks"]
    console.print(drawn(pd.DataFrame(lines, columns=headings), names=("job", "state")))
    if len(jobs) > MAX_JOBS_SHOWN:
        console.print(Text(f"... and {len(jobs) - MAX_JOBS_SHOWN:,} jobs more; --json has all"))
    if status.state is RunState.RUNNING:
        ranks = [
            (
                str(each.rank),
                each.host or "-",
                each.doing,
                str(each.episodes),
                str(each.errors),
                "-" if each.steps_per_s is None else f"{each.steps_per_s:,.0f}",
                "-" if each.updated_at is None else f"{heartbeat.clock_text(each.silent_s)} ago",
            )
            for each in status.ranks[:_MAX_RANKS_SHOWN]
        ]
        headings = ["rank", "host", "doing", "episodes", "errors", "steps/s", "last seen"]
        console.print(drawn(pd.DataFrame(ranks, columns=headings), names=("host", "doing")))
        if status.ranks[_MAX_RANKS_SHOWN:]:
            console.print(Text(f"... and {len(status.ranks) - _MAX_RANKS_SHOWN:,} ranks more; --json has all"))
    for line in status.wrong:
        console.print(Text(plain_text(f"problem: {line}"), style="red"), soft_wrap=True)
    if status.way_out is not None:
        console.print(Text(plain_text(f"continue with: {status.way_out}"), style="bold"), soft_wrap=True)


def show_training(status: TrainingStatus, console: Console) -> None:
    """Print the status of a training."""
    total = "" if status.max_iterations is None else f" of {status.max_iterations:,}"
    parts = [*([] if status.state is None else [str(status.state)]), f"iteration {status.iteration:,}{total}"]
    if status.steps_per_s is not None:
        parts.append(f"{status.steps_per_s:,.0f} steps/s")
    if status.time_left_s is not None:
        parts.append(f"about {heartbeat.clock_text(status.time_left_s)} left")
    if status.silent_s is not None:
        parts.append(f"last seen {heartbeat.clock_text(status.silent_s)} ago")
    lines = [f"{status.directory}: {', '.join(parts)}"]
    lines += [f"last checkpoint: {status.last_checkpoint or 'none yet'}"]
    lines += [f"best checkpoint: {status.best_checkpoint} ({BEST_RULE})"] if status.best_checkpoint else []
    lines += [f"continue with: {status.way_out}"] if status.way_out else []
    for line in lines:
        console.print(Text(plain_text(line), style="bold" if line is lines[0] else ""), soft_wrap=True)


def show_watch(directory: Path, records: Mapping[int, curve.Evaluated], console: Console) -> None:
    """Print the state of a watch, its checkpoints with their success, and the best one."""
    scores = curve.scores_of(curve.points_of_watch(directory))
    state, done = "ended", sum(record.is_done for record in records.values())
    if ledger.is_in_use(directory / "watch"):
        state = "watching" if records else "waiting for checkpoints"
    head = f"{directory}: {state}, {done} checkpoint{'' if done == 1 else 's'} evaluated"
    console.print(Text(plain_text(head), style="bold"), soft_wrap=True)
    if (best := curve.best_of(scores)) is not None:
        told = f"the best is step {best.step} ({BEST_RULE}): {best.in_words}; page: {directory / REPORT_FILE}"
        console.print(Text(plain_text(told)), soft_wrap=True)
    if not records:
        return
    lines = [
        (
            str(step),
            "done" if record.is_done else f"failed, tried {record.tries} times" if record.tries else "started",
            scores[step].rate_in_words if step in scores else "-",
            scores[step].scored_in_words if step in scores else "-",
            record.reason or "-",
        )
        for step, record in records.items()
    ]
    console.print(
        drawn(
            pd.DataFrame(lines, columns=["step", "state", "success [95 %]", "episodes", "reason"]),
            names=("state", "reason"),
        )
    )
