"""The page of runs, ``report.html``: everything that it shows as data, and the file."""

import base64
import hashlib
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from isaaclab_arena.analysis.arms import (
    read_run,
)
from isaaclab_arena.config.expansion.suites import CONTROLS_KEY, ROBUSTNESS_KEY, is_changed
from isaaclab_arena.errors import ArenaError, StorageError, first_line
from isaaclab_arena.interfaces.episode import EVENTS
from isaaclab_arena.logs import plain_text
from isaaclab_arena.registry import imported
from isaaclab_arena.report import EMBEDDED_MB, answer
from isaaclab_arena.report import jobs as sections
from isaaclab_arena.results.columns import JOBS, SUITES, Show, latex_table, markdown_table, text_table
from isaaclab_arena.results.console import caveats, describe_missing
from isaaclab_arena.results.merge import Tables, read, records
from isaaclab_arena.results.rows import metric_in_words
from isaaclab_arena.storage.atomic import plain, read_whole, write_text
from isaaclab_arena.storage.contents import shown
from isaaclab_arena.storage.layout import VIEWPORT_VIDEO, poster_file
from isaaclab_arena.storage.ledger import RunPlan, read_verification, typed_command, videos_of_job

# The films of a run for its page: the list, the embedded ones, and their posters.

MOST_POSTERS = 2_000
"""Episodes whose poster goes into the page; at 6 kB each, more would make it too large to mail."""


@dataclass(frozen=True, kw_only=True)
class Film:
    """A film of an episode."""

    name: str  # id within the page
    job: int  # position of the job on the page
    episode_index: int
    camera: str
    path: Path
    size_bytes: int  # of the file
    poster: str | None = None  # WebP in base64; None without a poster
    embedded: bool = False  # its content is part of the page

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
        index, camera = said.episode_index, said.camera or VIEWPORT_VIDEO
        film_name = f"film-{job}-{index}-{quote(camera, safe='')}"
        # A running job may remove a film.
        with suppress(FileNotFoundError):
            size_bytes = path.stat().st_size
            film = Film(name=film_name, job=job, episode_index=index, camera=camera, path=path, size_bytes=size_bytes)
            found.append(film)
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
    jobs: Sequence[sections.JobOnPage], plans: Sequence[RunPlan], suites: Sequence[Mapping[str, Any]] = ()
) -> tuple[tuple[str, str], ...]:
    """Return the texts to copy with their names; suites precede their jobs."""
    of_jobs, of_suites = ([each for each in columns if Show.COPY in each.show] for columns in (JOBS, SUITES))
    rows = (job.row | {"name": job.name} for job in jobs)
    tables = {"": text_table(of_jobs, rows, spread=False)}
    if suites:
        rows = (suite["row"] | {"name": suite["name"]} for suite in suites)
        tables = {"Suites, ": text_table(of_suites, rows), **tables}
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

MOST_FINDINGS_SHOWN = 3
"""Sentences of the answer that are not folded."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a page. Parts that only its template reads are mappings."""

    title: str
    made_at: str  # UTC
    runs: tuple[Mapping[str, Any], ...]  # see `_run_on_page`
    jobs: tuple[sections.JobOnPage, ...]  # in order of the runs
    checkpoints: tuple[Mapping[str, Any], ...]  # the evaluated policies, identified by their content
    films: tuple[Film, ...]  # of the jobs' episodes
    traces: tuple[Mapping[str, Any], ...] = ()  # of filmed episodes; empty while a run is in progress
    suites: tuple[Mapping[str, Any], ...] = ()  # in order of the runs
    texts: tuple[tuple[str, str], ...] = ()  # to copy, each with its name
    curves: tuple[sections.Curve, ...] = ()  # success by a swept key
    matrix: sections.Matrix | None = None  # policies against tasks; None for a single policy or task
    findings: tuple[answer.Finding, ...] = ()  # the answer, the most telling sentence first
    compared: answer.JobsCompared = field(
        default_factory=answer.JobsCompared
    )  # jobs of one task side by side; empty as well
    robustness: tuple[Mapping[str, Any], ...] = ()  # cost of changed episodes, by run; empty while a run is in progress
    controls: tuple[Mapping[str, Any], ...] = ()  # rates without looking or listening, likewise
    error_texts: tuple[tuple[str, str, int], ...] = ()  # job, first line and number of errors
    reloads: bool = False  # a run is in progress, so the page reloads itself
    group_keys: tuple[str, ...] = ()  # keys with values that differ between jobs, for grouping


def page_of(
    runs: Mapping[Path, Tables], *, embedded_bytes: int, running: bool = False, now: datetime | None = None
) -> Page:
    """Return the page of runs by directory, at least one. `embedded_bytes` limits embedded films; `now` None is now."""
    names = [plain_text(directory.absolute().name) for directory in runs]
    jobs: list[sections.JobOnPage] = []
    films: list[Film] = []
    errors: list[tuple[str, str, int]] = []
    suites: list[Mapping[str, Any]] = []
    stopped: list[answer.Finding] = []
    num_episodes = max(1, sum(len(merged.episodes) for merged in runs.values()))
    for number, (directory, merged) in enumerate(runs.items()):
        # On a page of several runs, names of jobs and suites begin with that of their run.
        prefix = "" if len(runs) == 1 else f"{names[number]}: "
        if (found := answer.of_stopped_run(merged, directory, prefix=prefix)) is not None:
            stopped.append(found)
        changed = {entry.name for entry in merged.plan.jobs if is_changed(entry.config.labels)}
        own_suites = {
            each.config.suite.name for each in merged.plan.jobs if each.config.suite and each.name not in changed
        }
        suites += [
            sections.suite_on_page(row, f"{prefix}{row['name']}") | {"is_changed": row["name"] not in own_suites}
            for row in records(merged.suites)
        ]
        metric_rows = records(merged.metrics)
        for row in merged.rows:
            own = films_of_job(directory, row["name"], job=len(jobs))
            episodes = merged.episodes_of[row["name"]]
            # The condition values that a page may hold are shared in proportion to the jobs' episodes.
            most = sections.MOST_CONDITION_VALUES * len(episodes) // num_episodes
            job = sections.job_on_page(
                row,
                episodes,
                run=number,
                label=f"{prefix}{row['name']}",
                most_values=most,
                filmed={film.episode_index for film in own},
                metrics=[each for each in metric_rows if each["job"] == row["name"]],
            )
            job = replace(job, is_changed=row["name"] in changed)
            jobs.append(job)
            films += own
            # The most frequent first lines of errors.
            said = (text.strip().partition("\n")[0] for text in episodes["error"] if isinstance(text, str))
            errors += [(job.name, plain_text(line), count) for line, count in Counter(said).most_common(5)]

    # Compare jobs, unless the last run is in progress (`running`): comparisons read far more than the tables.
    compared = answer.JobsCompared()
    robustness: tuple[Mapping[str, Any], ...] = ()
    controls: tuple[Mapping[str, Any], ...] = ()
    # A single job may have controls, which play its recording afterwards.
    has_controls = any(CONTROLS_KEY in job.config.labels for merged in runs.values() for job in merged.plan.jobs)
    if not running and (len(jobs) > 1 or has_controls):
        read_runs = [read_run(directory, merged=merged) for directory, merged in runs.items()]
        positions = {(job.run, job.row["name"]): number for number, job in enumerate(jobs)}
        # Changed arms have their own sections, and are compared here only if the run asked for it.
        asked = {name for merged in runs.values() for each in merged.answers for name in each.question.jobs}
        asked |= {job.row["name"] for job in jobs if not job.is_changed}
        judged = [
            replace(run, arms={name: arm for name, arm in run.arms.items() if name in asked} or run.arms)
            for run in read_runs
        ]
        compared = answer.compared_jobs(judged, positions, [merged.answers for merged in runs.values()])
        varied, controlled = (
            [run for run in read_runs if any(key in job.config.labels for job in run.plan.jobs)]
            for key in (ROBUSTNESS_KEY, CONTROLS_KEY)
        )
        # Imported where it is used: it takes torch and Pillow, and most pages have no use for it.
        where = "isaaclab_arena.analysis.robustness:shown_robustness"
        robustness = tuple(imported(where)(run.arms.values()) for run in varied)
        controls = tuple(imported("isaaclab_arena.analysis.controls:shown_controls")(run) for run in controlled)
    # Films that have room, and the traces of their episodes.
    explaining = dict(enumerate(frozenset(at for reason in job.reasons for at in reason.filmed) for job in jobs))
    failed = dict(enumerate(job.failed for job in jobs))
    films = chosen_films(films, failed, budget_bytes=embedded_bytes, explaining=explaining)
    traces: Sequence[Mapping[str, Any]] = ()
    if films and not running:
        # Imported where it is used: it takes h5py and Pillow.
        of_films = imported("isaaclab_arena.report.traces:traces_of_films")
        # The episodes that show a reason come first, and then the others of embedded films.
        ordered = sorted(films, key=lambda film: (film.episode_index not in explaining[film.job], not film.embedded))
        filmed = dict.fromkeys((film.job, film.episode_index) for film in ordered)
        traces = of_films(runs, [(job.run, job.row["name"]) for job in jobs], list(filmed))
    answers = [each for merged in runs.values() for each in merged.answers]
    # The evaluated policies by content, each once.
    evaluated: dict[tuple[str, str | None, str | None], list[str]] = {}
    for job in jobs:
        evaluated.setdefault((job.row["policy"], job.row["checkpoint"], job.row["policy_sha256"]), []).append(job.name)
    keys = dict.fromkeys(key for job in jobs for key in job.keys)
    return Page(
        title=sections.title_of(jobs),
        made_at=(now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
        runs=tuple(
            _run_on_page(name, directory, merged, running=running and number == len(runs) - 1)
            for number, (name, (directory, merged)) in enumerate(zip(names, runs.items(), strict=True))
        ),
        jobs=tuple(jobs),
        suites=tuple(suites),
        checkpoints=tuple(
            {
                "policy": plain_text(policy),
                "path": None if path is None else plain_text(path),  # None for a policy without a checkpoint
                "sha256": sha256,  # of everything that decides its actions; None if that is only this package
                "short": "this package" if sha256 is None else shown(sha256),
                "jobs": own,  # the jobs that evaluated it
            }
            for (policy, path, sha256), own in evaluated.items()
        ),
        films=tuple(films),
        traces=tuple(traces),
        texts=texts(jobs[:MOST_JOBS_SHOWN], [merged.plan for merged in runs.values()], suites),
        curves=sections.curves(jobs),
        matrix=sections.matrix(jobs),
        findings=tuple(
            answer.findings_so_far(answers) if running else answer.findings(compared, jobs, suites, answers, stopped)
        ),
        compared=compared,
        robustness=robustness,
        controls=controls,
        error_texts=tuple(errors),
        reloads=running,
        group_keys=tuple(key for key in keys if len({job.keys.get(key) for job in jobs}) > 1),
    )


def _run_on_page(name: str, directory: Path, merged: Tables, *, running: bool) -> dict[str, Any]:
    """Return a run's part of the page."""
    plan = merged.plan
    # Only versions that matter to most readers are shown; the plan holds all of them.
    versions = {
        name: plan.versions[name] for name in ("isaaclab-arena-mujoco", "mujoco", "torch") if name in plan.versions
    }
    ranks = "one rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    facts = {
        "started": plan.created_at.replace("T", " ")[:19] + " " + plan.created_at[23:].replace("+00:00", "UTC"),
        "job file": plan.source_file,
        "command": typed_command(plan) or shlex.join(plan.command_line),
        "machine": f"{plan.machine.cpu}, {plan.machine.cores} cores, {plan.machine.host}",
        "system": plan.machine.platform,
        "devices": f"{', '.join(dict.fromkeys(plan.devices))} ({ranks})",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "git revision": plan.git_revision,
        "config hash": plan.config_hash,
        "run": plan.run_id,
    }
    # The result of ``isaaclab-arena verify``. It is unsound if it found a defect and the run has not changed since.
    verified, is_unsound = None, False
    try:
        found = read_verification(directory)
    except ArenaError as error:
        found, verified = None, plain_text(f"cannot be read: {first_line(error)}")
    if found is not None:
        words = plain_text(f"{found.verified_at.replace('T', ' ')[:16]} UTC: {found.in_words()}")
        is_current = found.sources == merged.sources
        verified = f"{words}." if is_current else f"{words}. The run has changed since."
        is_unsound = is_current and not found.is_sound

    return {
        "name": name,
        "directory": plain_text(directory),  # as the user gave it
        "facts": [(name, plain_text(text)) for name, text in facts.items() if text],
        "complete": merged.complete,  # no episode is missing
        "progress": answer.episodes_so_far(merged.rows) if running else None,  # None unless it is running
        "notes": [plain_text(line) for line in caveats(merged)],  # for a reader who quotes a figure
        "missing": [] if running else [plain_text(describe_missing(each)) for each in merged.missing],
        "problems": [plain_text(line) for line in merged.problems],  # unreadable files and lines
        "verified": verified,  # None if never verified
        "is_unsound": is_unsound,
    }


# The page as a file, complete or not at all.

REPORT_FILE = "report.html"

_TEMPLATES = Path(__file__).parent / "template"
_TIME = re.compile(rb"<span>written [^<]*</span>")
_ACTIVE = re.compile("[<>&\u2028\u2029]")


def write_report(
    runs: Sequence[Path] | Mapping[Path, Tables],
    output: Path | None = None,
    *,
    embed_mb: float = EMBEDDED_MB,
    running: bool = False,
) -> Path:
    """Write the page of runs, and return its path; by default ``report.html`` in the first directory."""
    # ``embed_mb`` [10^6 bytes] limits the embedded films; the others are linked. If the last run is in progress
    # (``running``), its page reloads itself.
    tables = runs if isinstance(runs, Mapping) else {directory: read(directory) for directory in runs}
    path = next(iter(tables)) / REPORT_FILE if output is None else output
    html = html_of(page_of(tables, embedded_bytes=round(embed_mb * 1e6), running=running), path.parent)
    try:
        existing = read_whole(path)
    except StorageError:
        existing = b""
    # An existing page that differs only in its time is kept.
    if _TIME.sub(b"", existing, count=1) != _TIME.sub(b"", html.encode(), count=1):
        write_text(path, html, overwrite=True)
    return path


def html_of(page: Page, page_directory: Path) -> str:
    """Return the page as HTML, with links to films relative to `page_directory`."""
    # The data of the page's script: episodes as columns, paired episodes, and films.
    content = {
        "reloads": page.reloads,
        "outcomes": sections.OUTCOMES,
        "jobs": [{"name": job.name, "run": job.run, **job.episodes} for job in page.jobs],
        "pairs": [
            {
                "first": pair.first,
                "second": pair.second,
                "count": len(pair.episodes or ()),
                "episodes": None if pair.episodes is None else sections.packed_numbers(np.array(pair.episodes, float)),
            }
            for pair in page.compared.pairs
        ],
        "traces": page.traces,
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

    # The JSON is safe inside a script element: it cannot end the element or begin another.
    text = json.dumps(plain(content), ensure_ascii=False, separators=(",", ":"))
    data = Markup(_ACTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", text))  # noqa: S704  made harmless above
    return templates().get_template("report.html.j2").render(page=page, data=data)


@cache
def templates() -> Environment:
    """Return the templates of pages, which escape texts."""
    loader = FileSystemLoader(_TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    script = loader.get_source(environment, "report.js")[0]
    environment.filters["percent"] = lambda share: f"{100 * share:.4g}%"
    environment.filters["plain"] = plain_text
    environment.globals |= {
        # A file of this package, which is included unchanged.
        "own": lambda name: Markup(loader.get_source(environment, name)[0]),  # noqa: S704
        # The page's policy lets only this script run.
        "script_hash": f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        "columns": sections.ON_PAGE,
        "words": metric_in_words,
        "meanings": {name.replace("_", " "): meaning for name, meaning in EVENTS.items()},
        "limit": MOST_JOBS_SHOWN,
        "shown_findings": MOST_FINDINGS_SHOWN,
        "details": sections.MOST_JOBS_IN_DETAIL,
        "measure": sections.MEASURE,
    }
    return environment
