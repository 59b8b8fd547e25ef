"""Lay out the pages of the site: docs/, the generated pages, and what their links name elsewhere in the project."""

import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from documentation import api, command_line

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# This directory of the site has the files of the project that pages of docs/ link to.
OUTSIDE = "project"
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?(\))")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".xml": "xml", ".toml": "toml"}


def generated() -> dict[str, Callable[[], str]]:
    """Return what writes each page that is not a file of docs/, by its path in the site."""
    of_api = {path: partial(str, text) for path, text in api.pages().items()}
    return {command_line.PAGE: command_line.page, **of_api}


def stage(target: Path) -> None:
    """Write every page and picture of the site as mkdocs reads them.

    Args:
        target: Directory, which is made.
    """
    shutil.copytree(DOCS, target)
    for name, write in generated().items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(f"---\nsearch:\n  boost: 0.3\n---\n\n{write()}", encoding="utf-8")
    waiting = list(DOCS.rglob("*.md"))
    done: set[Path] = set()
    while waiting:
        source = waiting.pop()
        text = source.read_text(encoding="utf-8")
        place = target / place_of(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        # Pages that are not of docs/ are found, but after those that are.
        front = "" if source.is_relative_to(DOCS) else "---\nsearch:\n  boost: 0.05\n---\n\n"
        place.write_text(front + with_links_of_the_site(text, source), encoding="utf-8")
        for linked in linked_outside(text, source):
            if linked not in done:
                done.add(linked)
                waiting += _bring(linked, target)


def place_of(source: Path) -> Path:
    """Return where a file of the project stands in the site."""
    if source.is_relative_to(DOCS):
        return source.relative_to(DOCS)
    place = Path(OUTSIDE) / source.relative_to(ROOT)
    if source.suffix in {".md", ".jpg", ".png", ".svg"}:
        # mkdocs would show a README as the index of its directory, under another name.
        return place.with_name("read_me.md") if place.name == "README.md" else place
    return place.with_name(f"{place.name}.md")


def linked_outside(text: str, source: Path) -> Iterator[Path]:
    """Yield the files and directories outside docs/ that a page links to."""
    for match in _LINK.finditer(text):
        path = _target(match[2], source)
        if path.exists() and not path.is_relative_to(DOCS):
            yield path


def with_links_of_the_site(text: str, source: Path) -> str:
    """Return a page with its links as they have to be in the site."""

    def link(match: re.Match[str]) -> str:
        path = _target(match[2], source)
        if not path.exists() or (path.is_relative_to(DOCS) and source.is_relative_to(DOCS)):
            return match[0]
        start = place_of(source).parent.as_posix()
        return f"{match[1]}{posixpath.relpath(place_of(path).as_posix(), start)}{match[3] or ''}{match[4]}"

    return _LINK.sub(link, text)


def _target(link: str, source: Path) -> Path:
    return Path(os.path.normpath(source.parent / link))


def _bring(source: Path, target: Path) -> list[Path]:
    """Write a file or a directory of the project as a page, and return it if it has links of its own."""
    if source.suffix == ".md":
        return [source]
    place = target / place_of(source)
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix in {".jpg", ".png", ".svg"}:
        shutil.copyfile(source, place)
        return []
    name = source.relative_to(ROOT).as_posix()
    if source.is_dir():
        shown = "\n".join(f"- {path.name}" for path in sorted(source.iterdir()) if not path.name.startswith(("_", ".")))
    else:
        body = source.read_text(encoding="utf-8")
        shown = f"````{_LANGUAGES.get(source.suffix, 'text')}\n{body}\n````"
    place.write_text(f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n{shown}\n", encoding="utf-8")
    return []
