"""The variations in docs/how_to/variations.md are those that the program offers."""

import re

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import ROOT

DOCUMENT = (ROOT / "docs" / "how_to" / "variations.md").read_text()


def test_the_documented_variations_are_the_programs(capsys):
    words = ["--policy_type", "scripted", "--list_variations", "lift_object", "--object", "cube"]
    assert main(["policy", *words]) == 0
    # The program prints its rows below a line: the name, whether it is on, its range, its unit and its meaning.
    printed = capsys.readouterr().out.partition("\u2500\n")[2]
    offered = [line.split()[0] for line in printed.splitlines() if line.strip()]
    assert len(offered) > 10
    table = DOCUMENT.partition("\n| what | variations |")[2].partition("\n\n")[0]
    columns = [row.split(" | ")[1] for row in table.splitlines()[2:]]
    assert sorted(re.findall(r"`(\S+)`", "\n".join(columns))) == sorted(offered)
