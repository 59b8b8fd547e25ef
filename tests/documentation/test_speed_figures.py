"""A figure of speed in a document says when it was measured and by which command, there or on the page it leads to."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.launching import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_NUMBER = r"\d[\d.,]*"
_UNIT = r"(?:ms|s|seconds|minutes|hours)\b"
SPEED = re.compile(
    rf"{_NUMBER} times (?:as fast|as slow|faster|slower|the wall time|the CPU time|gloo|mjlab)"
    rf"|{_NUMBER}[^.|;]{{0,60}}(?<!half )(?<!after )\b(?:per|a) (?:CPU )?second\b"
    rf"|(?:per|steps a) (?:CPU )?second\b[^.;]{{0,60}}\| \[?{_NUMBER}"
    rf"|\b(?:takes?|took|costs?|adds?|loads?)\b[^.;|]{{0,40}}?\b{_NUMBER} (?:to {_NUMBER} )?{_UNIT}"
    rf"|{_NUMBER} {_UNIT} of (?:CPU|processor) time"
)
_RESULT = re.compile(r"benchmarks/results/(\w+\.md)")
_DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
_COMMAND = re.compile(r"`?(?:python -m [\w.]+|make [a-z-]+|isaaclab-arena [a-z]+)|benchmarks/[\w/]+\.py")
_FENCE = re.compile(r"^ *(`{3,}).*?^ *\1", re.MULTILINE | re.DOTALL)
# What reads like a figure of speed and is none: time that is simulated, and limits.
NO_FIGURES = (
    "a trot's stride takes 0.4 s",
    "two steps take 0.8 s",
    "The motion that is included takes 6 s",
    "at 20 control steps per second",
    "that move 20 times per second",
    "twice a second",
    "took a second or more",
    "may use 60 s of processor time",
)
# Results that no clock has part in.
WITHOUT_DATE = {"makespan.md", "scale.md", "slot_occupancy.md"}


def passages(text: str) -> Iterator[tuple[str, str]]:
    """Yield each paragraph, list item or line of a table, and what stands around it: the paragraph before a table."""
    before = ""
    for paragraph in _FENCE.sub("", text).split("\n\n"):
        is_table = paragraph.lstrip().startswith("|")
        parts = paragraph.splitlines() if is_table else re.split(r"^(?=[-*] )", paragraph, flags=re.MULTILINE)
        for part in parts:
            yield (
                " ".join(part.split()),
                " ".join((before + paragraph.partition("\n")[0] if is_table else part).split()),
            )
        before = "" if is_table else paragraph


def figures(page: Path) -> list[tuple[str, str]]:
    """Return the passages with figures of speed, each with what stands around it."""
    found = []
    for part, around in passages(page.read_text(encoding="utf-8")):
        plain = part
        for phrase in NO_FIGURES:
            plain = plain.replace(phrase, "")
        if SPEED.search(plain):
            found.append((part, f"{around} {part}"))
    return found


FOUND = [pytest.param(*figure, id=f"{page.name}: {figure[0][:50]}") for page in PAGES for figure in figures(page)]


@pytest.mark.parametrize(("part", "around"), FOUND)
def test_a_figure_of_speed_says_when_and_how_it_was_measured(part, around):
    assert _RESULT.search(around) or (_DATE.search(around) and _COMMAND.search(around)), part


@pytest.mark.parametrize("name", sorted({name for page in PAGES for name in _RESULT.findall(page.read_text())}))
def test_the_page_of_a_result_has_its_date_and_its_command(name):
    text = (RESULTS / name).read_text()
    assert _COMMAND.search(text)
    assert _DATE.search(text) or name in WITHOUT_DATE or "success" in text


def test_figures_are_found():
    """So that a page in another form does not pass for one without figures."""
    assert len(FOUND) >= 8
    text = (
        "Of ants, 8 take 3 ms.\n\nIt is 3.5 times as fast.\n\n| a | b |\n| x | 12 steps per second |\n\nIt costs 2 s."
    )
    assert len([part for part, _ in passages(text) if SPEED.search(part)]) == 4
