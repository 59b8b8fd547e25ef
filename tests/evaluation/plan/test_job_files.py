"""Tests that every job file of the project is good."""

import re
from pathlib import Path

import pytest

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.validation import resolve_jobs, robustness_arms

JOB_FILES = sorted(path for path in (Path(__file__).parents[3] / "jobs").iterdir() if path.is_file())
ELSEWHERE = [path for path in JOB_FILES if "oc.env" in path.read_text()]
"""Those whose environments need an interpreter of their own."""


@pytest.mark.parametrize("path", [path for path in JOB_FILES if path not in ELSEWHERE], ids=lambda path: path.name)
def test_every_job_file_can_be_run(path):
    jobs_file = load_jobs_file(path, arms=robustness_arms)

    assert len(resolve_jobs(jobs_file.jobs, file=jobs_file.path)) == len(jobs_file.jobs) > 0
    assert [job.index for job in jobs_file.jobs] == list(range(len(jobs_file.jobs)))


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: path.name)
def test_a_job_file_whose_interpreter_is_missing_says_so_and_how_to_make_it(path, tmp_path, monkeypatch):
    [(variable, default)] = set(re.findall(r'\$\{oc\.env:(\w+),"(\S+)"\}', path.read_text()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(variable, raising=False)
    jobs = load_jobs_file(path, suites=SUITES).jobs
    with pytest.raises(ConfigError) as raised:
        resolve_jobs(jobs, file=path.name)
    entries = {job.name if job.suite is None else job.suite.name for job in jobs}
    assert len(raised.value.problems) == len(entries)
    for problem in raised.value.problems:
        assert problem.key == "arena_env_args.python"
        assert problem.message.startswith(f"'{default}' is no program that can be run; name an interpreter")
    environment = default.removesuffix("/bin/python")
    assert f"#   python3 -m venv {environment} && {environment}/bin/pip install " in path.read_text()
    monkeypatch.setenv(variable, "/opt/own/bin/python")
    assert {job.environment_args["python"] for job in load_jobs_file(path, suites=SUITES).jobs} == {
        "/opt/own/bin/python"
    }


def test_the_sweep_makes_the_jobs_that_its_comment_promises():
    jobs = load_jobs_file(next(path for path in JOB_FILES if path.name == "sweep.yaml")).jobs

    assert len(jobs) == 12
    assert jobs[0].name == "lift-seed0-cube"
    assert jobs[0].language_instruction == "lift the cube and hold it"
    assert jobs[-1].name == "reach-zero_action-seed1"
