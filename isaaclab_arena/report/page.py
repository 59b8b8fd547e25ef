"""Everything that a page shows, as data: runs, jobs, films, texts to paste, and what went wrong."""

import base64
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.analysis.comparison_files import TextTable, latex_table, markdown_table
from isaaclab_arena.config.expansion.suites import ROBUSTNESS_KEY
from isaaclab_arena.errors import ArenaError, StorageError, first_line
from isaaclab_arena.logs import plain_text
from isaaclab_arena.registry import imported
from isaaclab_arena.report.groups import Curve, Matrix, PairOnPage, SuiteOnPage, curves, matrix, pairs_on_page
from isaaclab_arena.report.jobs import MOST_CONDITION_VALUES, ON_PAGE, JobOnPage, job_on_page, reasons
from isaaclab_arena.results.console import caveats, describe_missing
from isaaclab_arena.results.freshness import read_verification
from isaaclab_arena.results.merge import Tables
from isaaclab_arena.results.rows import of_conditions, short_policy_name
from isaaclab_arena.storage.atomic import read_whole
from isaaclab_arena.storage.contents import shown
from isaaclab_arena.storage.layout import VIEWPORT_VIDEO, poster_file
from isaaclab_arena.storage.ledger import RunPlan, videos_of_job

if TYPE_CHECKING:
    from isaaclab_arena.analysis.robustness import ShownRobustness


# The films of a run for its page: the list, the embedded ones, and their posters.

MOST_POSTERS = 2_000
"""Episodes whose poster goes into the page; at 6 kB each, more would make it too large to mail."""


@dataclass(frozen=True, kw_only=True)
class Film:
    """A film of an episode."""

    job: int  # position of the job on the page
    episode_index: int
    camera: str
    path: Path
    size_bytes: int  # of the file
    poster: str | None = None  # WebP in base64; None without a poster
    embedded: bool = False  # its content is part of the page

    @property
    def name(self) -> str:
        """Id within the page."""
        return f"film-{self.job}-{self.episode_index}-{quote(self.camera, safe='')}"

    def content(self) -> str:
        """Return the file in base64, empty if it is no longer readable."""
        return _base64(self.path, most_bytes=2**30) or ""

    def address(self, page_directory: Path) -> str:
        """Return the link to the file from a page in `page_directory`."""
        return quote(Path(os.path.relpath(self.path.absolute(), page_directory.absolute())).as_posix())


def films_of_job(output_directory: Path, name: str, *, job: int) -> list[Film]:
    """Return the films of a job by episode and camera, the viewport first. `job` is its position on the page."""
    found = []
    for said, path in videos_of_job(output_directory, name):
        # A running job may remove a film.
        with suppress(FileNotFoundError):
            found.append(
                Film(
                    job=job,
                    episode_index=said.episode_index,
                    camera=said.camera or VIEWPORT_VIDEO,
                    path=path,
                    size_bytes=path.stat().st_size,
                )
            )
    return sorted(found, key=lambda film: (film.episode_index, film.camera != VIEWPORT_VIDEO, film.camera))


def chosen_films(
    films: Sequence[Film],
    failed: Mapping[int, frozenset[int]],
    *,
    budget_bytes: int,
    explaining: Mapping[int, frozenset[int]] | None = None,
) -> list[Film]:
    """Return the films with posters, and mark those to embed within `budget_bytes` of base64."""
    # Order: one film per job, then films that show a reason, then the others; failed episodes first within each.
    # `failed` and `explaining` map the position of a job to its episodes.
    explaining = explaining or {}
    ordered = sorted(films, key=lambda film: film.episode_index not in failed.get(film.job, ()))
    first_of_jobs = {film.job: film for film in reversed(ordered)}
    firsts = {film.name for film in first_of_jobs.values()}
    ordered.sort(key=lambda film: (film.name not in firsts, film.episode_index not in explaining.get(film.job, ())))

    # A film that is too large leaves room for later ones.
    embedded, left = set(), budget_bytes
    for film in ordered:
        needed = 4 * -(-film.size_bytes // 3)
        if needed <= left:
            embedded.add(film.name)
            left -= needed
    with_poster = {film.name for film in ordered[:MOST_POSTERS]}
    return [
        replace(
            film,
            embedded=film.name in embedded,
            poster=_base64(poster_file(film.path), most_bytes=20_000) if film.name in with_poster else None,
        )
        for film in films
    ]


def _base64(path: Path, *, most_bytes: int) -> str | None:
    try:
        return base64.b64encode(read_whole(path, max_bytes=most_bytes)).decode("ascii")
    except StorageError:
        return None


# The table of jobs as text to paste: Markdown, LaTeX, and a BibTeX entry of the run.

PROGRAM = "Isaac Lab Arena on MuJoCo"
AUTHORS = "The authors of Isaac Lab Arena on MuJoCo"


def texts(
    jobs: Sequence[JobOnPage], plans: Sequence[RunPlan], suites: Sequence[SuiteOnPage] = ()
) -> tuple[tuple[str, str], ...]:
    """Return the texts to copy with their names; suites precede their jobs."""
    headings = (
        "job",
        "environment",
        "policy",
        "succeeded",
        "success % [95 %]",
        *(each.title or each.name for each in ON_PAGE),
        "errors",
    )
    rows = []
    for job in jobs:
        row, policy = job.row, short_policy_name(job.keys.get("policy", ""))
        repeats = of_conditions(row.get("distinct_conditions"), job.num_scored)
        succeeded = "-" if row["success_rate"] is None else f"{row['successes']}/{job.num_scored}{repeats}"
        cells = (each.text(row, spread=False) for each in ON_PAGE)
        rows.append((job.name, job.keys.get("environment", ""), policy, succeeded, job.rate.replace(" %", ""), *cells,
                     str(row["errors"])))  # fmt: skip
    tables = {"": TextTable(headings=headings, rows=tuple(rows))}

    if suites:
        headings = ("suite", "of", "policy", "tasks", "episodes", "mean of tasks % [95 %]", "all episodes % [95 %]",
                    "errors")  # fmt: skip
        rows = []
        for suite in suites:
            row, policy = suite.row, short_policy_name(plain_text(suite.row["policy"]))
            episodes = f"{row['episodes']}{of_conditions(row.get('distinct_conditions'), row['scored'])}"
            mean, pooled = suite.mean.replace(" %", ""), suite.pooled.replace(" %", "")
            rows.append((suite.name, plain_text(row["suite"]), policy, str(row["tasks"]), episodes, mean, pooled,
                         str(row["errors"])))  # fmt: skip
        tables = {"Suites, ": TextTable(headings=headings, rows=tuple(rows)), **tables}

    copied = []
    for what, table in tables.items():
        copied += [(f"{what}Markdown", markdown_table(table) + "\n"), (f"{what}LaTeX", latex_table(table))]

    # One line per run cites it and this program.
    entries = []
    for plan in plans:
        version = plan.versions.get("isaaclab-arena-mujoco", "unknown")
        note = f"run {plan.run_id}, config hash {plan.config_hash}"
        entries.append(
            f"@software{{isaaclab_arena_mujoco_{plan.run_id[:8]}, title = {{{PROGRAM}}}, author = {{{{{AUTHORS}}}}}, "
            f"version = {{{version}}}, year = {{{plan.created_at[:4]}}}, note = {{{note}}}}}"
        )
    return (*copied, ("BibTeX", "\n".join(entries)))


# The whole content of a page as data: its runs, its jobs and errors.

MOST_JOBS_SHOWN = 300
"""Jobs in the table of the page."""


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """A run on a page."""

    directory: Path
    merged: Tables


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The evaluated policy, identified by its content."""

    policy: str
    path: str | None  # None for a policy without a checkpoint
    sha256: str | None  # hash of everything that decides its actions; None if that is only this package
    short: str  # first digits of the hash
    jobs: tuple[str, ...]  # jobs that evaluated it


@dataclass(frozen=True, kw_only=True)
class RunOnPage:
    """A run on the page."""

    name: str  # name of the directory
    directory: str  # as the user gave it
    facts: tuple[tuple[str, str], ...]  # headings and texts: task, time, machine
    complete: bool  # no episode is missing
    progress: str | None  # ``412 of 900`` while it runs; None otherwise
    notes: tuple[str, ...]  # caveats for a reader who quotes a figure
    missing: tuple[str, ...]  # missing episodes
    problems: tuple[str, ...]  # unreadable files and lines
    verified: str | None  # result of ``isaaclab-arena verify``; None if never verified
    is_unsound: bool  # the verification found a defect, and the run has not changed since


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a page."""

    title: str
    made_at: str  # UTC
    runs: tuple[RunOnPage, ...]
    jobs: tuple[JobOnPage, ...]  # in order of the runs
    checkpoints: tuple[Checkpoint, ...]
    films: tuple[Film, ...]  # of the jobs' episodes
    suites: tuple[SuiteOnPage, ...] = ()  # in order of the runs
    texts: tuple[tuple[str, str], ...] = ()  # to copy, each with its name
    curves: tuple[Curve, ...] = ()  # success by a swept key
    matrix: Matrix | None = None  # policies against tasks; None for a single policy or task
    pairs: tuple[PairOnPage, ...] = ()  # jobs of one task side by side; empty while a run is in progress
    robustness: "tuple[ShownRobustness, ...]" = ()  # cost of changed episodes, by run; empty while a run is in progress
    error_texts: tuple[tuple[str, str, int], ...] = ()  # job, first line and number of errors
    reloads: bool = False  # a run is in progress, so the page reloads itself

    @property
    def group_keys(self) -> tuple[str, ...]:
        """The keys with values that differ between jobs, for grouping."""
        values: dict[str, set[str | None]] = {}
        for name in dict.fromkeys(name for job in self.jobs for name in job.keys):
            values[name] = {job.keys.get(name) for job in self.jobs}
        return tuple(name for name, found in values.items() if len(found) > 1)


def page_of(
    runs: Sequence[ReportedRun], *, embedded_bytes: int, running: bool = False, now: datetime | None = None
) -> Page:
    """Return the page of at least one run. `embedded_bytes` limits embedded films; `now` None is the current time."""
    # On a page of several runs, names of jobs and suites begin with that of their run.
    prefixes = ["" if len(runs) == 1 else f"{_name(run)}: " for run in runs]
    jobs, films, errors = _jobs(runs, prefixes)
    suites = tuple(
        SuiteOnPage(name=plain_text(f"{prefix}{row['name']}"), row=row)
        for run, prefix in zip(runs, prefixes, strict=True)
        for row in run.merged.suite_rows
    )
    # While the last run is in progress (`running`), comparisons are left out: they read far more than the tables.
    read = () if running else tuple(read_run(run.directory, merged=run.merged) for run in runs)
    on_page = tuple(_run_on_page(run, running=running and run is runs[-1]) for run in runs)
    chosen = chosen_films(
        films,
        dict(enumerate(job.failed for job in jobs)),
        budget_bytes=embedded_bytes,
        # The films that show the reasons of failures.
        explaining={
            number: frozenset(index for reason in job.reasons for index in reason.filmed)
            for number, job in enumerate(jobs)
        },
    )
    pairs: tuple[PairOnPage, ...] = ()
    if read:
        positions = {(job.run, job.row["name"]): number for number, job in enumerate(jobs)}
        pairs = pairs_on_page(read, positions, [run.merged.answers for run in runs])
    robustness: tuple[ShownRobustness, ...] = ()
    if asked := [run for run in read if any(ROBUSTNESS_KEY in job.config.labels for job in run.plan.jobs)]:
        # Imported where it is used: it takes torch and Pillow, and most pages have no use for it.
        shown_robustness = imported("isaaclab_arena.analysis.robustness:shown_robustness")
        robustness = tuple(shown_robustness(run.arms().values()) for run in asked)
    return Page(
        title=", ".join(map(_name, runs)),
        made_at=(now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        runs=on_page,
        jobs=tuple(jobs),
        suites=suites,
        checkpoints=checkpoints(jobs),
        films=tuple(chosen),
        texts=texts(jobs[:MOST_JOBS_SHOWN], [run.merged.plan for run in runs], suites),
        curves=curves(jobs),
        matrix=matrix(jobs),
        pairs=pairs,
        robustness=robustness,
        error_texts=tuple(errors),
        reloads=running,
    )


def _jobs(
    runs: Sequence[ReportedRun], prefixes: Sequence[str]
) -> tuple[list[JobOnPage], list[Film], list[tuple[str, str, int]]]:
    """Return the jobs of runs, the films of their episodes, and the error texts; see `Page`."""
    jobs: list[JobOnPage] = []
    films: list[Film] = []
    errors: list[tuple[str, str, int]] = []
    num_episodes = max(1, sum(len(run.merged.episodes) for run in runs))
    for number, (run, prefix) in enumerate(zip(runs, prefixes, strict=True)):
        for row in run.merged.rows:
            own = films_of_job(run.directory, row["name"], job=len(jobs))
            episodes = run.merged.episodes_of[row["name"]]
            # The condition values that a page may hold are shared in proportion to the jobs' episodes.
            most = MOST_CONDITION_VALUES * len(episodes) // num_episodes
            job = job_on_page(row, episodes, run=number, label=f"{prefix}{row['name']}", most_values=most)
            metrics = tuple(each for each in run.merged.metric_rows if each["job"] == row["name"])
            explained = reasons(episodes, {film.episode_index for film in own})
            jobs.append(replace(job, reasons=explained, metrics=metrics))
            films += own
            # The most frequent first lines of errors.
            said = (text.strip().partition("\n")[0] for text in episodes["error"] if isinstance(text, str))
            errors += [(job.name, plain_text(line), count) for line, count in Counter(said).most_common(5)]
    return jobs, films, errors


def checkpoints(jobs: Sequence[JobOnPage]) -> tuple[Checkpoint, ...]:
    """Return the evaluated policies by content, each once."""
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


def _run_on_page(run: ReportedRun, *, running: bool) -> RunOnPage:
    """Return a run's part of the page."""
    merged, plan = run.merged, run.merged.plan
    # Only versions that matter to most readers are shown; the plan holds all of them.
    versions = {
        name: plan.versions[name] for name in ("isaaclab-arena-mujoco", "mujoco", "torch") if name in plan.versions
    }
    ranks = "one rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    facts = {
        "started": plan.created_at.replace("T", " ")[:19] + " " + plan.created_at[23:].replace("+00:00", "UTC"),
        "job file": plan.source_file,
        "command": " ".join(plan.command_line),
        "machine": f"{plan.machine.cpu}, {plan.machine.cores} cores, {plan.machine.host}",
        "system": plan.machine.platform,
        "devices": f"{', '.join(dict.fromkeys(plan.devices))} ({ranks})",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "git revision": plan.git_revision,
        "config hash": plan.config_hash,
        "run": plan.run_id,
    }
    # The result of a verification, and whether it found a defect that still holds.
    verified, is_unsound = None, False
    try:
        found = read_verification(run.directory)
    except ArenaError as error:
        found, verified = None, plain_text(f"cannot be read: {first_line(error)}")
    if found is not None:
        words = plain_text(f"{found.verified_at.replace('T', ' ')[:16]} UTC: {found.in_words()}")
        is_current = found.sources == merged.sources
        verified = f"{words}." if is_current else f"{words}. The run has changed since."
        is_unsound = is_current and not found.is_sound

    # The number of finished episodes among the planned ones: ``412 of 900``.
    progress = None
    if running:
        done = sum(row["episodes"] or 0 for row in merged.rows)
        planned = [row["planned"] for row in merged.rows if row["status"] != "skipped"]
        progress = f"{done:,} episodes" if None in planned else f"{done:,} of {sum(planned):,}"
    return RunOnPage(
        name=_name(run),
        directory=plain_text(run.directory),
        facts=tuple((name, plain_text(text)) for name, text in facts.items() if text),
        complete=merged.complete,
        progress=progress,
        notes=tuple(map(plain_text, caveats(merged))),
        missing=() if running else tuple(plain_text(describe_missing(each)) for each in merged.missing),
        problems=tuple(map(plain_text, merged.problems)),
        verified=verified,
        is_unsound=is_unsound,
    )


def _name(run: ReportedRun) -> str:
    return plain_text(run.directory.absolute().name)
