"""The lists of small faults, and whether each still fits the code that it breaks."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One slip that somebody could make.

    Attributes:
        area: The list that it stands in.
        file: The file it breaks, relative to the project's root.
        old: Text that occurs once in the file.
        new: What stands there instead.
        tests: Test files that must notice it, the mirrored one first.
        why: The promise that it breaks.
    """

    area: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    def put_into(self, text: str) -> str:
        """Return the file's text with the fault in it."""
        return text.replace(self.old, self.new)

    def misfit(self, root: Path) -> str | None:
        """Say why the fault does not fit the tree at ``root``, or return None if it does."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        text = path.read_text()
        if (count := text.count(self.old)) != 1:
            return f"the old text occurs {count} times in {self.file}, not once: {self.old!r}"
        if missing := [name for name in self.tests if not (root / name).is_file()]:
            return f"tests that do not exist: {', '.join(missing)}"
        return (
            "the new text is the old one" if self.old == self.new else _why_it_is_no_python(path, self.put_into(text))
        )


def _why_it_is_no_python(path: Path, text: str) -> str | None:
    if path.suffix != ".py":
        return None
    try:
        compile(text, path.name, "exec")
    except SyntaxError as error:
        return f"with the new text {path.name} is no Python: {error}"
    return None


def areas(directory: Path) -> list[str]:
    """Return the names of the lists in a directory."""
    return sorted(path.stem for path in directory.glob("*.yaml"))


def read_faults(directory: Path, area: str) -> list[Fault]:
    """Return the faults of one list.

    Raises:
        ValueError: If an entry has other keys than a fault has, or names no tests.
    """
    entries: list[dict[str, Any]] = yaml.safe_load((directory / f"{area}.yaml").read_text())
    return [_fault(area, number, entry) for number, entry in enumerate(entries, start=1)]


def _fault(area: str, number: int, entry: dict[str, Any]) -> Fault:
    expected = {field.name for field in fields(Fault)} - {"area"}
    if set(entry) != expected or not entry["tests"]:
        raise ValueError(f"{area}.yaml, entry {number}: expected {sorted(expected)} and tests, got {entry}")
    return Fault(area=area, **{**entry, "tests": tuple(entry["tests"])})
