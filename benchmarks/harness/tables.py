"""Format figures, and tables of them in Markdown."""

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median of values with the smallest and the largest: ``1.20 (1.10 to 1.35)``."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> list[str]:
    """Return the lines of a table.

    Args:
        heading: Titles of the columns.
        rows: Cells of each row.
        words: Number of columns of words, which come first. The other columns hold numbers, aligned to the right.
    """
    rule = ["---"] * words + ["--:"] * (len(heading) - words)
    return [_line(cells) for cells in (heading, rule, *rows)]


class Table:
    """A table that prints each row as soon as it is measured.

    Args:
        heading: Titles of the columns.
        words: Number of columns of words, which come first.
    """

    def __init__(self, *heading: str, words: int = 1) -> None:
        self._lines = markdown_table(heading, (), words=words)
        print("\n".join(self._lines), flush=True)

    def add(self, *cells: object) -> None:
        """Add a row and print it."""
        self._lines.append(_line([str(cell) for cell in cells]))
        print(self._lines[-1], flush=True)

    def __str__(self) -> str:
        """Return the table in Markdown."""
        return "\n".join(self._lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def line_of(page: str, name: str) -> list[str]:
    """Return the cells of the line of a page's tables that begins with a name, without it.

    Raises:
        LookupError: If the page has no such line.
    """
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0] == name:
            return cells[1:]
    raise LookupError(f"there is no line '{name}'")
