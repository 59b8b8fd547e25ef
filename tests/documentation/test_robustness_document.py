"""The job file in docs/how_to/robustness.md gives the jobs that the page names."""

import json

from isaaclab_arena.cli.main import main
from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT

DOCUMENT = (ROOT / "docs" / "how_to" / "robustness.md").read_text()


def test_the_jobs_of_the_page_are_the_ones_that_it_names(tmp_path, capsys):
    (body,) = blocks(DOCUMENT, "yaml")
    (tmp_path / "jobs.yaml").write_text(body)
    assert main(["validate", "--json", str(tmp_path / "jobs.yaml")]) == 0
    [file] = json.loads(capsys.readouterr().out)["files"]
    ends = [f"{axis}-{level}" for axis in ("object_position", "action_noise", "all") for level in range(1, 6)]
    assert file["jobs"] == ["lift-benign", *(f"lift-{end}" for end in ends)]
