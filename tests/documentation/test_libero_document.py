"""The job files of the document on LIBERO, and the one that is ready, are read from a checkout."""

import re
from pathlib import Path

import pytest

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.options import read_options
from isaaclab_arena.environments.catalog import ENVIRONMENTS, SUITES
from isaaclab_arena.environments.libero.protocols import PROTOCOLS
from tests.end_to_end.launching import ROOT
from tests.environments.libero.checkouts import make_checkout

TEXT = (ROOT / "docs" / "how_to" / "libero.md").read_text()
JOB_FILES = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
READY = (ROOT / "jobs" / "benchmarks" / "libero_spatial.yaml").read_text()


@pytest.mark.parametrize("body", [*JOB_FILES, READY], ids=["suite", "one_task", "ready"])
def test_a_job_file_names_tasks_of_the_checkout_and_options_that_exist(tmp_path: Path, monkeypatch, body: str):
    checkout = make_checkout(tmp_path)
    monkeypatch.setenv("LIBERO_PATH", str(checkout))
    (tmp_path / "jobs.yaml").write_text(body.replace("~/LIBERO", str(checkout)) if body != READY else body)
    jobs = load_jobs_file(tmp_path / "jobs.yaml", suites=SUITES).jobs
    assert jobs
    for job in jobs:
        builder = ENVIRONMENTS.get(job.environment)
        read_options(builder.config_class, dict(job.environment_args), owner=job.environment)


def test_the_table_of_protocols_has_them_all_and_their_seeds_and_sizes():
    [header] = re.findall(r"^\| \| (.*) \|$", TEXT, re.MULTILINE)
    assert [name.strip(" `") for name in header.split("|")] == list(PROTOCOLS)
    rows = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:-1]] for row in TEXT.splitlines()
            if row.startswith("| ")}  # fmt: skip
    assert rows["steps: 10, 90"] == [
        f"{each.steps_in('libero_10')}, {each.steps_in('libero_90')}" for each in PROTOCOLS.values()
    ]
    assert rows["steps: spatial, object, goal"] == [
        ", ".join(str(each.steps_in(f"libero_{suite}")) for suite in ("spatial", "object", "goal"))
        for each in PROTOCOLS.values()
    ]
    assert rows["episodes of a task"] == [str(each.num_episodes) for each in PROTOCOLS.values()]
    shown = [f"{each.camera_size}, {each.picture_size}" if each.picture_size else str(each.camera_size)
             for each in PROTOCOLS.values()]  # fmt: skip
    assert rows["pictures drawn, and shown"] == shown
    assert all(each.wait_steps == 10 for each in PROTOCOLS.values())
