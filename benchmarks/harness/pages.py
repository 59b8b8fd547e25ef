"""Options that benchmarks share, and the page of results that a benchmark writes."""

import dataclasses
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tyro

from benchmarks import RESULTS
from benchmarks.harness.machine import machine_line

AnyOptions = TypeVar("AnyOptions")

WITHOUT_INFLUENCE = {"in_command": False}
"""Metadata of options that say where things go, and have no part in the figures."""


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Options of every benchmark that writes a page."""

    # Where the page goes; by default into `benchmarks/results`.
    output: Path | None = dataclasses.field(default=None, metadata=WITHOUT_INFLUENCE)


def run(main: Callable[[AnyOptions], int | None], options_class: type[AnyOptions]) -> None:
    """Read the command line into options, run a program and exit with the code that it returns."""
    sys.exit(main(tyro.cli(options_class)))


def command_line(options: Any) -> str:
    """Return the command that runs a benchmark, with its options but defaults and those `WITHOUT_INFLUENCE`."""
    spec = sys.modules[type(options).__module__].__spec__
    assert spec is not None, "benchmarks run as modules"
    words = ["python", "-m", spec.name]
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if field.metadata != WITHOUT_INFLUENCE and value != getattr(type(options)(), field.name):
            words += _words(field.name, value)
    return shlex.join(words)


def _words(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]


class Page:
    """A page of results. Make it before measuring: it notes how busy the machine is.

    Args:
        name: Name of the committed file, without its suffix.
        title: Heading of the page.
        options: What was asked for.
        packages: Distributions whose versions matter to the figures.
    """

    def __init__(self, name: str, title: str, options: PageOptions, *packages: str) -> None:
        self.path = options.output or RESULTS / f"{name}.md"
        self._beginning = [f"# {title}", f"    {command_line(options)}", f"{machine_line(*packages)}."]

    def write(self, *paragraphs: object) -> None:
        """Write title, command, machine and paragraphs, with an empty line between any two of them."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "\n\n".join([*self._beginning, *(str(each).strip() for each in paragraphs)])
        self.path.write_text(f"{text}\n", encoding="utf-8")
