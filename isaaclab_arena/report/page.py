"""Everything that a page shows, as data: its runs, its jobs, what went wrong, and what its script draws."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from isaaclab_arena.analysis.arms import ReadRun, read_run
from isaaclab_arena.config.expansion.robustness import KEY as ROBUSTNESS
from isaaclab_arena.errors import ArenaError, first_line
from isaaclab_arena.logs import plain_text
from isaaclab_arena.registry import imported
from isaaclab_arena.report.columns import packed_numbers
from isaaclab_arena.report.films import Film, chosen_films, films_of_job
from isaaclab_arena.report.groups import Curve, Matrix, SuiteOnPage, curves, matrix
from isaaclab_arena.report.jobs import MOST_CONDITION_VALUES, OUTCOMES, JobOnPage, job_on_page, reasons
from isaaclab_arena.report.pairs import PairOnPage, pairs_on_page
from isaaclab_arena.report.texts import texts
from isaaclab_arena.results.merge import MergedResults, records
from isaaclab_arena.results.summary import caveats, describe_missing
from isaaclab_arena.storage.contents import shown
from isaaclab_arena.storage.run.verification import read_verification

if TYPE_CHECKING:
    from isaaclab_arena.analysis.robustness import ShownRobustness

MOST_JOBS_SHOWN = 300
"""Jobs in the table of the page."""

_MOST_ERRORS = 5
_SHOWN_ROBUSTNESS = "isaaclab_arena.analysis.robustness:shown_robustness"
"""Imported where it is used: it takes torch and Pillow, and most pages have no use for it."""


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """A run of which a page tells.

    Attributes:
        directory: Its directory.
        merged: Its results.
    """

    directory: Path
    merged: MergedResults


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What was evaluated, by its content.

    Attributes:
        policy: The policy.
        path: The checkpoint, None for a policy without one.
        sha256: The hash of all that decides what the policy does, None where it is only this package.
        short: The first digits of the hash.
        jobs: The jobs that evaluated it.
    """

    policy: str
    path: str | None
    sha256: str | None
    short: str
    jobs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunOnPage:
    """A run on the page.

    Attributes:
        name: Name of its directory.
        directory: Its directory as it was named.
        facts: What, when and on what, as pairs of a heading and a text.
        complete: Whether nothing is missing.
        progress: ``412 of 900`` while it goes, None otherwise.
        notes: What whoever quotes a figure must know.
        missing: Which episodes are missing.
        problems: Files and lines that could not be read.
        verified: What ``isaaclab-arena verify`` found, None where nobody has looked.
        is_unsound: Whether it found that something is wrong, and the run has not changed since.
    """

    name: str
    directory: str
    facts: tuple[tuple[str, str], ...]
    complete: bool
    progress: str | None
    notes: tuple[str, ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]
    verified: str | None
    is_unsound: bool


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page.

    Attributes:
        title: What it is called.
        made_at: When it was made, in UTC.
        runs: The runs that it tells of.
        jobs: Their jobs, in order.
        suites: Their suites, in order.
        checkpoints: What was evaluated.
        films: Films of their episodes.
        texts: What can be copied, each with its name.
        curves: Success as a swept key grows.
        matrix: Policies against tasks, None where there is one of either.
        pairs: Jobs of one task side by side; none while a run goes on.
        robustness: What changed episodes cost, run by run; none while a run goes on.
        error_texts: What episodes that ended in an error said: the job, the first line, and how many.
        reloads: Whether a run goes on, and the page loads itself again.
    """

    title: str
    made_at: str
    runs: tuple[RunOnPage, ...]
    jobs: tuple[JobOnPage, ...]
    checkpoints: tuple[Checkpoint, ...]
    films: tuple[Film, ...]
    suites: tuple[SuiteOnPage, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    curves: tuple[Curve, ...] = ()
    matrix: Matrix | None = None
    pairs: tuple[PairOnPage, ...] = ()
    robustness: "tuple[ShownRobustness, ...]" = ()
    error_texts: tuple[tuple[str, str, int], ...] = ()
    reloads: bool = False

    @property
    def group_keys(self) -> tuple[str, ...]:
        """The keys whose values differ between jobs, by which they can be grouped."""
        values: dict[str, set[str | None]] = {}
        for name in dict.fromkeys(name for job in self.jobs for name in job.keys):
            values[name] = {job.keys.get(name) for job in self.jobs}
        return tuple(name for name, found in values.items() if len(found) > 1)


def page_of(
    runs: Sequence[ReportedRun], *, embedded_bytes: int, running: bool = False, now: datetime | None = None
) -> Page:
    """Return the page of runs.

    Args:
        runs: At least one.
        embedded_bytes: How much of films goes into the page.
        running: Whether the last run goes on.
        now: The time; that of the clock where None.
    """
    jobs, films, errors = _jobs(runs)
    suites = _suites(runs)
    read = () if running else tuple(read_run(run.directory, merged=run.merged) for run in runs)
    return Page(
        title=", ".join(map(_name, runs)),
        made_at=(now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        runs=tuple(_run_on_page(run, running=running and run is runs[-1]) for run in runs),
        jobs=tuple(jobs),
        suites=suites,
        checkpoints=checkpoints(jobs),
        films=tuple(
            chosen_films(
                films,
                dict(enumerate(job.failed for job in jobs)),
                budget_bytes=embedded_bytes,
                explaining=dict(enumerate(job.explaining for job in jobs)),
            )
        ),
        texts=texts(jobs[:MOST_JOBS_SHOWN], [run.merged.plan for run in runs], suites),
        curves=curves(jobs),
        matrix=matrix(jobs),
        pairs=_pairs(read, runs, jobs) if read else (),
        robustness=_robustness(read),
        error_texts=tuple(errors),
        reloads=running,
    )


def _jobs(runs: Sequence[ReportedRun]) -> tuple[list[JobOnPage], list[Film], list[tuple[str, str, int]]]:
    """Return the jobs of runs, the films of their episodes, and what errors said; see `Page`."""
    jobs: list[JobOnPage] = []
    films: list[Film] = []
    errors: list[tuple[str, str, int]] = []
    for number, run in enumerate(runs):
        of_job = {str(name): pd.DataFrame(part) for name, part in run.merged.episodes.groupby("job", sort=False)}
        for row in records(run.merged.jobs):
            own = films_of_job(run.directory, row["name"], job=len(jobs))
            episodes = of_job.get(row["name"], pd.DataFrame(run.merged.episodes.iloc[:0]))
            label, most = _label(row["name"], run, runs), _most_values(len(episodes), runs)
            job = job_on_page(row, episodes, run=number, label=label, most_values=most)
            jobs.append(replace(job, reasons=reasons(episodes, {film.episode_index for film in own})))
            films += own
            errors += [(job.name, text, count) for text, count in error_lines(episodes)]
    return jobs, films, errors


def _most_values(num_episodes: int, runs: Sequence[ReportedRun]) -> int:
    """Return how many values of conditions a job gets of those that the page may hold: its share by episodes."""
    return MOST_CONDITION_VALUES * num_episodes // max(1, sum(len(run.merged.episodes) for run in runs))


def _robustness(read: Sequence[ReadRun]) -> "tuple[ShownRobustness, ...]":
    asked = [run for run in read if any(ROBUSTNESS in job.config.labels for job in run.plan.jobs)]
    if not asked:
        return ()
    shown_robustness = imported(_SHOWN_ROBUSTNESS)
    return tuple(shown_robustness(run.arms().values()) for run in asked)


def _pairs(read: Sequence[ReadRun], runs: Sequence[ReportedRun], jobs: Sequence[JobOnPage]) -> tuple[PairOnPage, ...]:
    positions = {(job.run, job.row["name"]): number for number, job in enumerate(jobs)}
    return pairs_on_page(read, positions, [run.merged.answers for run in runs])


def _suites(runs: Sequence[ReportedRun]) -> tuple[SuiteOnPage, ...]:
    return tuple(
        SuiteOnPage(name=plain_text(_label(row["name"], run, runs)), row=row)
        for run in runs
        for row in records(run.merged.suites)
    )


def _label(name: str, run: ReportedRun, runs: Sequence[ReportedRun]) -> str:
    return name if len(runs) == 1 else f"{_name(run)}: {name}"


def error_lines(episodes: pd.DataFrame) -> list[tuple[str, int]]:
    """Return the first lines of what episodes that ended in an error said, the most frequent first, and how many."""
    said = (text.strip().partition("\n")[0] for text in episodes["error"] if isinstance(text, str))
    return [(plain_text(line), count) for line, count in Counter(said).most_common(_MOST_ERRORS)]


def checkpoints(jobs: Sequence[JobOnPage]) -> tuple[Checkpoint, ...]:
    """Return the policies with their content, each once."""
    found: dict[tuple[str, str | None, str | None], list[str]] = {}
    for job in jobs:
        key = (job.row["policy"], job.row["checkpoint"], job.row["policy_sha256"])
        found.setdefault(key, []).append(job.name)
    return tuple(
        Checkpoint(
            policy=plain_text(policy),
            path=None if path is None else plain_text(path),
            sha256=sha256,
            short="this package" if sha256 is None else shown(sha256),
            jobs=tuple(names),
        )
        for (policy, path, sha256), names in found.items()
    )


def script_data(page: Page, page_directory: Path) -> dict[str, Any]:
    """Return what the script of a page draws: episodes as columns, which of them are pairs, and where films are."""
    return {
        "reloads": page.reloads,
        "outcomes": OUTCOMES,
        "jobs": [{"name": job.name, "run": job.run, **job.episodes} for job in page.jobs],
        "pairs": [
            {
                "first": pair.first,
                "second": pair.second,
                "count": len(pair.episodes or ()),
                "episodes": None if pair.episodes is None else packed_numbers(np.array(pair.episodes, float)),
            }
            for pair in page.pairs
        ],
        "films": [
            {
                "job": film.job,
                "episode": film.episode_index,
                "camera": film.camera,
                "name": film.name,
                "poster": film.poster,
                "address": None if film.embedded else film.address(page_directory),
            }
            for film in page.films
        ],
    }


def progress_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many of the planned episodes have finished: ``412 of 900``."""
    done = sum(row["episodes"] or 0 for row in rows)
    planned = [row["planned"] for row in rows if row["status"] != "skipped"]
    return f"{done:,} episodes" if None in planned else f"{done:,} of {sum(planned):,}"


def _run_on_page(run: ReportedRun, *, running: bool) -> RunOnPage:
    merged, plan = run.merged, run.merged.plan
    versions = {
        name: plan.versions[name] for name in ("isaaclab-arena-mujoco", "mujoco", "torch") if name in plan.versions
    }
    facts = {
        "started": plan.created_at.replace("T", " ")[:19] + " " + plan.created_at[23:].replace("+00:00", "UTC"),
        "job file": plan.source_file,
        "command": " ".join(plan.command_line),
        "machine": f"{plan.machine.cpu}, {plan.machine.cores} cores, {plan.machine.host}",
        "system": plan.machine.platform,
        "devices": f"{', '.join(dict.fromkeys(plan.devices))} ({_ranks(plan.world_size)})",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "git revision": plan.git_revision,
        "config hash": plan.config_hash,
        "run": plan.run_id,
    }
    verified, is_unsound = _verified(run)
    return RunOnPage(
        name=_name(run),
        directory=plain_text(run.directory),
        facts=tuple((name, plain_text(text)) for name, text in facts.items() if text),
        complete=merged.complete,
        progress=progress_text(records(merged.jobs)) if running else None,
        notes=tuple(map(plain_text, caveats(merged))),
        missing=() if running else tuple(plain_text(describe_missing(each)) for each in merged.missing),
        problems=tuple(map(plain_text, merged.problems)),
        verified=verified,
        is_unsound=is_unsound,
    )


def _verified(run: ReportedRun) -> tuple[str | None, bool]:
    """Return what a verification found, and whether that is something wrong that still holds."""
    try:
        found = read_verification(run.directory)
    except ArenaError as error:
        return plain_text(f"cannot be read: {first_line(error)}"), False
    if found is None:
        return None, False
    words = plain_text(f"{found.verified_at.replace('T', ' ')[:16]} UTC: {found.in_words()}")
    if found.sources != run.merged.sources:
        return f"{words}. The run has changed since.", False
    return f"{words}.", not found.is_sound


def _ranks(count: int) -> str:
    return "one rank" if count == 1 else f"{count} ranks"


def _name(run: ReportedRun) -> str:
    return plain_text(run.directory.absolute().name)
