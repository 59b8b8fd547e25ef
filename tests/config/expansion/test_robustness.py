"""Tests of `robustness` in job files."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from isaaclab_arena.config.expansion.suites import Robustness, read_robustness, written_robustness
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import JobConfig, JobDefaults
from isaaclab_arena.errors import ConfigError

JOB = {"policy_type": "zero_action", "num_episodes": 2, "arena_env_args": {"environment": "reach"}}


def two_arms(job: JobConfig, asked: Robustness) -> Sequence[JobConfig]:
    """Make the job itself and one for each level, with no environment behind them."""
    return [replace(job, name=f"{job.name}-{level}", seed=level) for level in (0, *asked.levels)]


def read(*jobs: dict[str, Any], **how: Any) -> tuple[JobConfig, ...]:
    document = {"jobs": [{**JOB, **job} for job in jobs], **how.pop("more", {})}
    return read_jobs(document, source="jobs.yaml", arms=two_arms, **how).jobs


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        ({}, Robustness()),
        ({"axes": "all", "levels": 2}, Robustness(levels=(1, 2))),
        ({"axes": ["light", "delay", "light"], "levels": [5, 1]}, Robustness(axes=("light", "delay"), levels=(1, 5))),
        ({"axes": "light"}, Robustness(axes=("light",))),
        (written_robustness("light, delay", 1), Robustness(axes=("light", "delay"), levels=(1,))),
        (written_robustness("all", None), Robustness()),
    ],
    ids=str,
)
def test_axes_and_levels_are_read(value, asked):
    assert read_robustness(value) == asked


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "robustness: 3 is not a mapping"),
        ({"axis": "light"}, "robustness.axis: unknown key; did you mean 'axes'?"),
        ({"levels": 0}, "robustness.levels: must be 1 to 20, or a list of such levels, got 0"),
        ({"levels": [1, 40]}, "robustness.levels: must be 1 to 20, or a list of such levels, got [1, 40]"),
        ({"axes": 3}, "robustness.axes: must be all or a list of axes, got 3"),
        ({"axes": []}, "robustness.axes: lists no axis"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told_with_its_job(value, message):
    with pytest.raises(ConfigError) as refused:
        read({"name": "reach", "robustness": value})
    assert f"jobs.yaml: job 'reach': {message}" in {str(problem) for problem in refused.value.problems}


def test_arms_stand_where_their_job_stood_and_are_counted_on():
    jobs = read({"name": "a"}, {"name": "b", "robustness": {"levels": 2}}, {"name": "c"})
    assert [(job.index, job.name) for job in jobs] == [(0, "a"), (1, "b-0"), (2, "b-1"), (3, "b-2"), (4, "c")]


def test_defaults_the_file_and_the_command_line_may_ask_for_it_and_the_job_has_the_last_word():
    asked = JobDefaults(robustness={"levels": 1})
    assert [job.name for job in read({"name": "a"}, defaults=asked)] == ["a-0", "a-1"]
    of_file = {"defaults": {"robustness": {"levels": [3]}}}
    assert [job.name for job in read({"name": "a"}, more=of_file, defaults=asked)] == ["a-0", "a-3"]
    own = {"name": "a", "robustness": {"levels": [4]}}
    assert [job.name for job in read(own, more=of_file, defaults=asked)] == ["a-0", "a-4"]


def test_an_arm_with_the_name_of_another_job_is_refused():
    with pytest.raises(ConfigError, match="is taken by an earlier job"):
        read({"name": "a-0"}, {"name": "a", "robustness": {"levels": 1}})


def test_a_program_that_makes_no_arms_refuses_the_key():
    job = {**JOB, "name": "a", "robustness": {}}
    with pytest.raises(ConfigError, match="job 'a': robustness: is for runs of a job file"):
        read_jobs({"jobs": [job]}, source="jobs.yaml")
