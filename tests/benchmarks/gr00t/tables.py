"""Reading tables in Markdown."""


def cells(line: str) -> list[str]:
    """Return the cells of a line."""
    return [cell.strip() for cell in line.strip("|").split("|")]
