"""docs/how_to/tracking.md shows commands that work one after the other."""

import json
import shlex

import pytest

from isaaclab_arena.cli.main import main
from tests.documentation.reading import blocks, commands_of, typed
from tests.end_to_end.launching import ROOT

DOCUMENT = (ROOT / "docs" / "how_to" / "tracking.md").read_text()
LIBRARIES = {"--wandb": "wandb", "--mlflow": "mlflow", "--rerun": "rerun"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return a directory in which the commands have run."""
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    directory = tmp_path_factory.mktemp("tracked")
    (job_file,) = blocks(DOCUMENT, "yaml")
    (directory / "jobs.yaml").write_text(job_file)
    for line in commands_of(DOCUMENT.partition("## Afterwards")[0]):
        typed(line, directory)
    return directory / "outputs"


def test_the_commands_run_one_after_the_other(directory):
    assert list((directory / "tracked" / "logs" / "tensorboard").glob("events.*"))
    assert list((directory / "tracked_tensorboard" / "tensorboard").glob("events.*"))
    info = json.loads((directory / "tracked_lerobot" / "eval_info.json").read_text())
    assert [task["metrics"]["successes"] for task in info["per_task"]] == [[True] * 4, [True] * 4]


@pytest.mark.parametrize("option", LIBRARIES)
def test_a_run_is_sent_afterwards_as_it_says(directory, option, monkeypatch):
    pytest.importorskip(LIBRARIES[option], reason=f"the extra {LIBRARIES[option]} is not installed")
    [line] = [line for line in commands_of(DOCUMENT) if option in line]
    for name in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(directory.parent)
    assert main(shlex.split(line)[1:]) == 0
    assert any((directory / f"tracked_{LIBRARIES[option]}").iterdir())
