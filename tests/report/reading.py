"""Writes films and recordings for a page, and reads what it shows as a browser would: table cells and data."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.layout import episode_file_name, poster_file


class Reader(HTMLParser):
    """Collects the cells of the tables of jobs and of suites, the text of elements by id, and every tag."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: list[dict[str, str]] = []
        self.suites: list[dict[str, str]] = []
        self.texts: dict[str, str] = {}
        self.tags: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.texts["data"])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append(tag)
        if tag == "tr" and "data-job" in attributes:
            self.cells.append({})
        if tag == "tr" and "data-suite" in attributes:
            self.suites.append({})
        if tag not in {"meta", "link", "input", "line", "circle", "rect", "br", "img"}:
            self._open.append((tag, attributes))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for _, attributes in self._open:
            if (column := attributes.get("data-column")) is not None:
                self.cells[-1][column] = self.cells[-1].get(column, "") + data
            if (column := attributes.get("data-suite-column")) is not None:
                self.suites[-1][column] = self.suites[-1].get(column, "") + data
            if (name := attributes.get("id")) is not None:
                self.texts[name] = self.texts.get(name, "") + data


def unpacked_numbers(packed: dict[str, Any] | None, count: int) -> np.ndarray:
    """Numbers as the page's script reads them; NaN for no value."""
    if packed is None:
        return np.full(count, np.nan)
    width, scale = packed["bytes"], 10.0 ** packed["decimals"]
    if not packed["data"]:
        return np.full(count, packed["lowest"] / scale)
    above = np.frombuffer(base64.b64decode(packed["data"]), f"<u{width}").astype(float)
    return np.where(above == 2.0 ** (8 * width) - 1, np.nan, (above + packed["lowest"]) / scale)


def write_films(directory: Path, job: str, episodes: range, size: int = 300) -> None:
    """Write a film that holds nothing, and its poster, for each of a job's episodes."""
    for episode in episodes:
        path = directory / job / "videos" / f"viewport-env0-episode-{episode}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"v" * size)
        poster_file(path).write_bytes(b"p" * 30)


def write_recording(directory: Path, job: str, episode: int, arrays: dict[str, np.ndarray]) -> None:
    """Write the recording of a job's episode, whose control steps are 0.05 s apart."""
    path = directory / job / "episodes" / episode_file_name(episode)
    path.parent.mkdir(exist_ok=True)
    said = {"control_dt": 0.05}
    write_episode(path, RecordedEpisode(episode_index=episode, arrays=arrays, attributes=said, env_args={}))


def words_of(html: str) -> str:
    """Text of a page, without its tags."""
    return " ".join(re.sub(r"<[^>]+>", "", html).split())
