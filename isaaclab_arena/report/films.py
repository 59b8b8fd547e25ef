"""The films of a run for its page: which there are, which go into the page, and the pictures that stand for them."""

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.atomic import read_whole
from isaaclab_arena.storage.layout import VIEWPORT_VIDEO, poster_file
from isaaclab_arena.storage.videos import videos_of_job

MOST_POSTERS = 2_000
"""Episodes whose poster goes into the page; at 6 kB each, more would make it too large to mail."""

_POSTER_LIMIT_BYTES = 20_000
_FILM_LIMIT_BYTES = 2**30


@dataclass(frozen=True, kw_only=True)
class Film:
    """A film of an episode.

    Attributes:
        job: Position of the job on the page.
        episode_index: The episode.
        camera: What it shows.
        path: The file.
        size_bytes: Its size.
        poster: A small picture of it as WebP in base64, None where there is none.
        embedded: Whether its content goes into the page.
    """

    job: int
    episode_index: int
    camera: str
    path: Path
    size_bytes: int
    poster: str | None = None
    embedded: bool = False

    @property
    def name(self) -> str:
        """Names it within the page."""
        return f"film-{self.job}-{self.episode_index}-{quote(self.camera, safe='')}"

    def content(self) -> str:
        """Return the file in base64; nothing where it cannot be read any more."""
        return _base64(self.path, most_bytes=_FILM_LIMIT_BYTES) or ""

    def address(self, page_directory: Path) -> str:
        """Return where a page in a directory finds the file."""
        return quote(Path(os.path.relpath(self.path.absolute(), page_directory.absolute())).as_posix())


def films_of_job(output_directory: Path, name: str, *, job: int) -> list[Film]:
    """Return the films of a job by episode and camera, the viewport first.

    Args:
        output_directory: The run's directory.
        name: The job's name.
        job: Position of the job on the page.
    """
    found = []
    for said, path in videos_of_job(output_directory, name):
        # A run that is still going may take away a film.
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
    """Return the films with their posters, and marked which go into the page.

    One film of each job comes first, then those that show a reason, then the others; among them those of episodes that
    did not succeed.

    Args:
        films: All of them.
        failed: The episodes that did not succeed, by position of the job.
        budget_bytes: What the contents of films may take in the page, as base64.
        explaining: The episodes that show why others failed too, by position of the job.
    """
    explaining = explaining or {}

    def has_failed(film: Film) -> bool:
        return film.episode_index in failed.get(film.job, frozenset())

    ordered = sorted(films, key=lambda film: not has_failed(film))
    first_of_jobs = {film.job: film for film in reversed(ordered)}
    firsts = {film.name for film in first_of_jobs.values()}
    ordered.sort(key=lambda film: (film.name not in firsts, film.episode_index not in explaining.get(film.job, ())))
    embedded = _within(ordered, budget_bytes)
    with_poster = {film.name for film in ordered[:MOST_POSTERS]}
    return [
        replace(
            film,
            embedded=film.name in embedded,
            poster=_base64(poster_file(film.path), most_bytes=_POSTER_LIMIT_BYTES)
            if film.name in with_poster
            else None,
        )
        for film in films
    ]


def _within(films: Iterable[Film], budget_bytes: int) -> frozenset[str]:
    """Return the names of the films whose contents fit, in this order; one that is too large leaves room for others."""
    names, left = set(), budget_bytes
    for film in films:
        needed = 4 * -(-film.size_bytes // 3)
        if needed <= left:
            names.add(film.name)
            left -= needed
    return frozenset(names)


def _base64(path: Path, *, most_bytes: int) -> str | None:
    try:
        return base64.b64encode(read_whole(path, max_bytes=most_bytes)).decode("ascii")
    except StorageError:
        return None
