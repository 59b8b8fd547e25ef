"""The tables of docs/users/arena.md: flags and keys of Isaac Lab Arena, and how each is taken."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "users" / "arena.md").read_text()
_ONE_PROGRAM = re.compile(r"\((eval|policy)\)$")


@dataclass(frozen=True)
class Row:
    """A flag or key of a table: what is written, of which programs, what becomes of it, and how."""

    written: str
    programs: tuple[str, ...]
    here: str
    how: str

    def equal(self) -> str:
        match = re.match(r"`([^`]+)`", self.how)
        assert match is not None, f"{self.written} names nothing that it is taken as"
        return match[1]


def table(heading: str) -> list[Row]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"
    ]
    return [
        Row(written, tuple(_ONE_PROGRAM.findall(cells[0])) or ("eval", "policy"), *cells[-2:])
        for cells in lines
        for written in re.findall(r"`([^`]+)`", cells[0])
    ]
