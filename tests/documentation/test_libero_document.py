"""The job files of the document on LIBERO are right for a checkout."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import ROOT
from tests.environments.libero.checkouts import in_checkout, make_checkout

TEXT = (ROOT / "docs" / "how_to" / "libero.md").read_text()
JOB_FILES = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
READY = (ROOT / "jobs" / "benchmarks" / "libero_spatial.yaml").read_text()


@pytest.mark.parametrize("body", [*JOB_FILES, READY], ids=["one_task", "ready"])
def test_a_job_file_names_tasks_of_the_checkout_and_options_that_exist(tmp_path: Path, monkeypatch, capsys, body: str):
    checkout = make_checkout(tmp_path)
    monkeypatch.setenv("LIBERO_PATH", str(checkout))
    monkeypatch.setenv("LIBERO_PYTHON", sys.executable)
    own = body.replace("~/LIBERO", str(checkout)).replace("~/libero/bin/python", sys.executable)
    document = yaml.safe_load(own if body != READY else body)
    for job in document["jobs"]:
        job["arena_env_args"]["environment_variables"] = in_checkout(checkout)["environment_variables"]
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump(document))
    assert main(["validate", str(tmp_path / "jobs.yaml")]) == 0
    assert "libero:libero_spatial/0" in capsys.readouterr().out
