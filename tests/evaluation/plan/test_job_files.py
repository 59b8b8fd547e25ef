"""Tests that every job file of the project is good."""

from pathlib import Path

import pytest

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.evaluation.plan.validation import resolve_jobs

JOB_FILES = sorted(path for path in (Path(__file__).parents[3] / "jobs").iterdir() if path.is_file())


@pytest.mark.parametrize("path", JOB_FILES, ids=lambda path: path.name)
def test_every_job_file_can_be_run(path):
    jobs_file = load_jobs_file(path)

    assert len(resolve_jobs(jobs_file.jobs, file=jobs_file.path)) == len(jobs_file.jobs) > 0
    assert [job.index for job in jobs_file.jobs] == list(range(len(jobs_file.jobs)))


def test_the_sweep_makes_the_jobs_that_its_comment_promises():
    jobs = load_jobs_file(next(path for path in JOB_FILES if path.name == "sweep.yaml")).jobs

    assert len(jobs) == 12
    assert jobs[0].name == "lift-seed0-cube"
    assert jobs[0].language_instruction == "lift the cube and hold it"
    assert jobs[-1].name == "reach-zero_action-seed1"
