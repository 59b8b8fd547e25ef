"""The job files of the document on LIBERO are right for pip's package."""

import re
from pathlib import Path

import pytest
import yaml

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import ROOT
from tests.environments.libero.checkouts import as_package, in_checkout, make_checkout

TEXT = (ROOT / "docs" / "how_to" / "libero.md").read_text()
JOB_FILES = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
READY = (ROOT / "jobs" / "benchmarks" / "libero_spatial.yaml").read_text()


@pytest.mark.parametrize("body", [*JOB_FILES, READY], ids=["one_task", "ready"])
def test_a_job_file_names_tasks_of_the_package_and_options_that_exist(tmp_path: Path, monkeypatch, capsys, body: str):
    checkout = make_checkout(tmp_path)
    variables, python = in_checkout(checkout)["environment_variables"], str(as_package(checkout))
    monkeypatch.delenv("LIBERO_PATH", raising=False)
    monkeypatch.setenv("LIBERO_PYTHON", python)
    document = yaml.safe_load(body.replace("~/libero/bin/python", python))
    for job in document["jobs"]:
        job["arena_env_args"]["environment_variables"] = variables
    (tmp_path / "jobs.yaml").write_text(yaml.safe_dump(document))
    assert main(["validate", str(tmp_path / "jobs.yaml")]) == 0
    assert "libero:libero_spatial/0" in capsys.readouterr().out
