"""Writes the page of runs: ``report.html``, complete or not at all."""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from isaaclab_arena.errors import StorageError
from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.groups import MOST_JOBS_IN_DETAIL
from isaaclab_arena.report.jobs import MEASURE, ON_PAGE, OUTCOMES, packed_numbers
from isaaclab_arena.report.page import MOST_JOBS_SHOWN, Page, ReportedRun, page_of
from isaaclab_arena.results.merge import read
from isaaclab_arena.results.rows import metric_in_words
from isaaclab_arena.storage.atomic import read_whole, write_text
from isaaclab_arena.storage.json_values import plain

REPORT_FILE = "report.html"
EMBEDDED_MB = 15.0
"""How much of films goes into a page by default [10^6 bytes]."""

_TEMPLATES = Path(__file__).parent / "template"
_TIME = re.compile(rb"<span>page of [^<]*</span>")
_ACTIVE = re.compile("[<>&\u2028\u2029]")


def write_report(
    directories: Sequence[Path], output: Path | None = None, *, embed_mb: float = EMBEDDED_MB, running: bool = False
) -> Path:
    """Write the page of runs (default: ``report.html`` in the first directory), and return its path."""
    runs = [ReportedRun(directory=directory, merged=read(directory)) for directory in directories]
    return write_page(runs, output, embed_mb=embed_mb, running=running)


def write_page(
    runs: Sequence[ReportedRun], output: Path | None = None, *, embed_mb: float = EMBEDDED_MB, running: bool = False
) -> Path:
    """Write the page of runs, and return its path; see `write_report`."""
    # `embed_mb` limits embedded films [10^6 bytes]; the others are linked. A page of a running run reloads itself. An
    # existing page that differs only in its time is kept.
    path = runs[0].directory / REPORT_FILE if output is None else output
    html = html_of(page_of(runs, embedded_bytes=round(embed_mb * 1e6), running=running), path.parent)
    try:
        existing = read_whole(path)
    except StorageError:
        existing = b""
    if _TIME.sub(b"", existing, count=1) != _TIME.sub(b"", html.encode(), count=1):
        write_text(path, html, overwrite=True)
    return path


def html_of(page: Page, page_directory: Path) -> str:
    """Return the page as HTML, with links to films relative to `page_directory`."""
    # The data of the page's script: episodes as columns, paired episodes, and films.
    content = {
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

    # The JSON is safe inside a script element: it cannot end the element or begin another.
    text = json.dumps(plain(content), ensure_ascii=False, separators=(",", ":"))
    data = Markup(_ACTIVE.sub(lambda match: f"\\u{ord(match[0]):04x}", text))  # noqa: S704  made harmless above
    return rendered("report.html.j2", page=page, data=data)


def rendered(template: str, **values: Any) -> str:
    """Render a template to HTML; texts in `values` are escaped."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.4g}%"
    environment.filters["plain"] = plain_text
    environment.globals |= {
        "own": _own_file,
        "columns": ON_PAGE,
        "words": metric_in_words,
        "limit": MOST_JOBS_SHOWN,
        "details": MOST_JOBS_IN_DETAIL,
        "measure": MEASURE,
    }
    return environment


@cache
def _own_file(name: str) -> Markup:
    """Return a file of the template that is included unchanged."""
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704  a file of this package
