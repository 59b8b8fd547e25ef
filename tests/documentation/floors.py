"""The floors of the house as text, written from the import contracts into docs/concepts/floors.md.

`python -m tests.documentation.floors` writes them; a test holds that the document has what it would write.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "concepts" / "floors.md"
HOUSE = "isaaclab_arena"
_BLOCK = re.compile(r"(<!-- floors -->\n).*?(<!-- end of floors -->)", re.DOTALL)


def floors_of_package(package: str) -> list[tuple[int, str, str]]:
    """Return floor, name and purpose of the rooms of a package from the top down, as its contract orders them."""
    layers = _contracts()[package]
    return [
        (len(layers) - 1 - depth, name, _purpose(package, name))
        for depth, layer in enumerate(layers)
        for name in re.split(r"\s*[|:]\s*", layer)
    ]


def with_floors(text: str) -> str:
    """Return a document with its floors as they are now: of the house a line per room, of packages in it a line."""
    inside = [package for package in _contracts() if package != HOUSE]
    floors = "\n".join([*_rooms(HOUSE), "", *(f"- `{package}`: {_in_a_line(package)}" for package in inside)])
    return _BLOCK.sub(lambda block: f"{block[1]}{floors}\n{block[2]}", text)


def _rooms(package: str) -> Iterator[str]:
    rooms = floors_of_package(package)
    width = max(len(name) for _, name, _ in rooms)
    above = None
    for floor, name, purpose in rooms:
        yield f"    {'' if floor == above else floor:>2}  {name:<{width}}  {purpose}"
        above = floor


def _in_a_line(package: str) -> str:
    floors = groupby(floors_of_package(package), lambda room: room[0])
    return " → ".join(", ".join(f"`{name}`" for _, name, _ in rooms) for _, rooms in floors)


def _contracts() -> dict[str, list[str]]:
    """Return the layers of every package that has a contract of its own, the whole house first."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    contracts = [contract for contract in tools["importlinter"]["contracts"] if contract["type"] == "layers"]
    return {contract["containers"][0]: contract["layers"] for contract in contracts}


def _purpose(package: str, name: str) -> str:
    place = ROOT / Path(*package.split("."), name)
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    return docstring.split("\n\n")[0].replace("\n", " ").rstrip(".")


if __name__ == "__main__":
    DOCUMENT.write_text(with_floors(DOCUMENT.read_text()))
