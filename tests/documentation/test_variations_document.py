"""The catalogue in docs/how_to/variations.md is what the program offers."""

import re

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import ROOT

DOCUMENT = (ROOT / "docs" / "how_to" / "variations.md").read_text()


def catalogue(printed: str) -> str:
    """Return the rows of the document's table, from those that the program prints below its heading."""
    rows = [re.split(" {2,}", line.strip()) for line in printed.partition("\u2500\n")[2].splitlines() if line.strip()]
    return "\n".join(
        f"| `{key}` | {drawn} | {unit.removeprefix('-')} | {meaning} |" for key, _, drawn, unit, meaning in rows
    )


def test_the_documented_catalogue_is_the_programs(capsys):
    words = ["--policy_type", "scripted", "--list_variations", "lift_object", "--object", "cube"]
    assert main(["policy", *words]) == 0
    rows = catalogue(capsys.readouterr().out)
    assert rows.count("\n") > 10
    assert rows in DOCUMENT, f"paste this into docs/how_to/variations.md:\n{rows}"
