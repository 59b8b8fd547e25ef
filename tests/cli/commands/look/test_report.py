import json
from pathlib import Path

import pytest

from isaaclab_arena.cli.commands.derived import report as main
from isaaclab_arena.errors import ConfigError
from tests.analysis.recorded_runs import write_run


def test_the_command_says_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_run(tmp_path / "run", {"lift": "sf"})
    assert main([str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"report in {tmp_path / 'run' / 'report.html'}\n"
    assert main([str(tmp_path / "run"), "--output", str(tmp_path / "a.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(tmp_path / "a.html")}


@pytest.mark.parametrize("arguments", [[], ["run", "--embed_mb", "-1"]])
def test_mistakes_are_refused(arguments: list[str]):
    with pytest.raises(ConfigError):
        main(arguments)
