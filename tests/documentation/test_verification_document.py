"""docs/how_to/verification.md shows what the commands say."""

from tests.documentation.reading import as_arguments, blocks
from tests.end_to_end.launching import ROOT, run

DOCUMENT = (ROOT / "docs" / "how_to" / "verification.md").read_text()


def test_the_commands_run_one_after_the_other(tmp_path):
    (commands,) = blocks(DOCUMENT, "bash")
    finished = [run(as_arguments(line), timeout_s=200, directory=tmp_path) for line in commands.splitlines()]
    assert [each.returncode for each in finished] == [0, 0, 0], [each.stderr for each in finished]
    assert "3 of 3 episodes bitwise" in finished[1].stdout
    assert "2 of 2 episodes bitwise" in finished[2].stdout
