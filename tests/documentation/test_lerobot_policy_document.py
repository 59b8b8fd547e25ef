"""docs/bring_your_policy/lerobot.md shows a job that plays a policy of LeRobot."""

from pathlib import Path

from tests.documentation.reading import as_arguments, blocks, commands_of
from tests.end_to_end.launching import ROOT, patience_s, run
from tests.policy.lerobot.policies import INTERPRETER, SITE, STATE, saved

DOCUMENT = (ROOT / "docs" / "bring_your_policy" / "lerobot.md").read_text()
WRIST = "observation.images.wrist"


def make_interpreter(path: Path) -> None:
    """Make what stands in for an interpreter with LeRobot."""
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nPYTHONPATH={SITE} exec {INTERPRETER["python"]} "$@"\n')
    path.chmod(0o755)


def test_the_commands_run_one_after_the_other(tmp_path):
    make_interpreter(tmp_path / "lerobot" / "bin" / "python")
    features = {WRIST: {"type": "VISUAL", "shape": [3, 64, 64]}, STATE: {"type": "STATE", "shape": [9]}}
    action = {"action": {"type": "ACTION", "shape": [8]}}
    saved(tmp_path / "outputs" / "train" / "act", input_features=features, output_features=action)
    (job_file,) = blocks(DOCUMENT, "yaml")
    (tmp_path / "lerobot.yaml").write_text(job_file.replace("num_episodes: 20", "num_episodes: 2"))
    for line in commands_of(DOCUMENT):
        if line.startswith("isaaclab-arena"):
            variables = {"HOME": str(tmp_path)}
            done = run(as_arguments(line), timeout_s=patience_s(120), directory=tmp_path, extra=variables)
            assert done.returncode == 0, done.stderr
    assert "completed" in (tmp_path / "outputs" / "act" / "results.csv").read_text()
