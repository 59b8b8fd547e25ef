"""The Python of docs/how_to/python.md runs, one block after the other."""

import pytest

from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT

BLOCKS = blocks((ROOT / "docs" / "how_to" / "python.md").read_text(), "python")
OF_STABLE_BASELINES3 = [block for block in BLOCKS if "stable_baselines3" in block]


def test_every_block_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in BLOCKS:
        if block not in OF_STABLE_BASELINES3:
            exec(block, names)
    shown = capsys.readouterr().out
    assert "0.0 (0.0, " in shown
    assert "command line: job 'lift_object': --object: no object called 'cann'" in shown


def test_stable_baselines3_needs_no_wrapper():
    pytest.importorskip("stable_baselines3")
    (block,) = OF_STABLE_BASELINES3
    exec(block.replace("100_000", "1"), {})
