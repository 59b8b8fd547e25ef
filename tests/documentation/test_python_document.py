"""The Python of docs/how_to/python.md runs, one block after the other."""

from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT


def test_every_block_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks((ROOT / "docs" / "how_to" / "python.md").read_text(), "python"):
        exec(block, names)
    shown = capsys.readouterr().out
    assert "0.0 (0.0, " in shown
    assert "command line: job 'lift_object': --object: no object called 'cann'" in shown
