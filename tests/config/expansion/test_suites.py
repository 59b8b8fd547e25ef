"""Tests of suites in job files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from isaaclab_arena.config.expansion.suites import MAX_JOBS, SuiteTask
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.config.schema import JobsFile, SuiteMember
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.registry import Registry

JOB = {"name": "mine", "policy_type": "zero_action", "num_episodes": 2}

_WAY_OUT = "ask isaaclab-arena compare when their episodes are there"


@dataclass
class Listed:
    """A suite of numbered tasks, which needs an option to find them."""

    num_tasks: int = 3
    same: bool = False
    asked: list[Mapping[str, Any]] = field(default_factory=list)

    def tasks(self, options: Mapping[str, Any]) -> list[SuiteTask]:
        self.asked.append(dict(options))
        if options.get("checkout") == "nowhere":
            raise ConfigError(Problem("there is no such directory", key="checkout"))
        numbers = [0 if self.same else number for number in range(self.num_tasks)]
        return [
            SuiteTask(label=f"task{number}", environment=f"cook:kitchen/{number}", options={"dish": number})
            for number in numbers
        ]


def registered(**suites: Any) -> Registry:
    registry = Registry("suite", {}, entry_point_group="isaaclab_arena.nobody")
    for name, suite in suites.items():
        registry.register(name, suite)
    return registry


def read(*jobs: dict[str, Any], suite: Any = None, **top: Any) -> JobsFile:
    registry = registered(kitchen=Listed() if suite is None else suite)
    return read_jobs({"jobs": list(jobs), **top}, source="jobs.yaml", suites=registry)


def problems(*jobs: dict[str, Any], suite: Any = None, **top: Any) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read(*jobs, suite=suite, **top)
    return list(map(str, raised.value.problems))


def test_a_suite_becomes_one_job_per_task_and_all_share_the_rest():
    suite = Listed()
    mine = {**JOB, "suite": "kitchen", "arena_env_args": {"checkout": "here", "num_envs": 4}, "seed": 7}

    found = read(mine, {**JOB, "name": "after", "arena_env_args": {"environment": "reach"}}, suite=suite)

    assert [job.name for job in found.jobs] == ["mine-task0", "mine-task1", "mine-task2", "after"]
    assert [job.environment for job in found.jobs[:3]] == [f"cook:kitchen/{number}" for number in range(3)]
    assert {(job.num_envs, job.num_episodes, job.seed, job.policy_type) for job in found.jobs[:3]} == {
        (4, 2, 7, "zero_action")
    }
    assert [job.environment_args for job in found.jobs[:3]] == [{"checkout": "here", "dish": each} for each in range(3)]
    assert [job.suite for job in found.jobs] == [
        *(SuiteMember(name="mine", suite="kitchen", task=f"task{number}") for number in range(3)),
        None,
    ]
    assert [job.index for job in found.jobs] == [0, 1, 2, 3]
    assert suite.asked == [{"checkout": "here", "num_envs": 4}]


def test_a_sweep_makes_a_suite_of_each_combination():
    found = read({**JOB, "suite": "kitchen", "sweep": {"seed": [0, 1]}})

    assert [job.name for job in found.jobs[2:4]] == ["mine-seed0-task2", "mine-seed1-task0"]
    assert [job.suite.name for job in found.jobs if job.suite] == ["mine-seed0"] * 3 + ["mine-seed1"] * 3


def test_suites_can_be_swept_and_stand_in_the_defaults():
    registry = registered(kitchen=Listed(num_tasks=1), garden=Listed(num_tasks=2))
    swept = {**JOB, "sweep": {"suite": ["kitchen", "garden"]}}

    found = read_jobs({"jobs": [swept]}, source="jobs.yaml", suites=registry)

    assert [job.name for job in found.jobs] == ["mine-kitchen-task0", "mine-garden-task0", "mine-garden-task1"]
    assert len(read(JOB, defaults={"suite": "kitchen"}).jobs) == 3
    own = {**JOB, "suite": None, "arena_env_args": {"environment": "reach"}}
    assert [job.name for job in read(own, defaults={"suite": "kitchen"}).jobs] == ["mine"]


def test_a_suite_is_the_run_of_its_jobs_written_out():
    environments = [{"environment": f"cook:kitchen/{number}", "dish": number} for number in range(3)]
    written = [
        {**JOB, "name": f"mine-task{number}", "arena_env_args": each} for number, each in enumerate(environments)
    ]
    assert read({**JOB, "suite": "kitchen"}).config_hash == read(*written).config_hash


@pytest.mark.parametrize(
    ("changes", "suite", "expected"),
    [
        ({"suite": "kitchn"}, None, "suite: no suite called 'kitchn'; did you mean 'kitchen'?"),
        ({"suite": 3}, None, "suite: 3 is not the name of a suite"),
        ({"suite": "kitchen", "arena_env_args": {"environment": "reach"}}, None,
         "suite: gives every job its environment; leave out either this or arena_env_args.environment"),
        ({"suite": "kitchen", "arena_env_args": {"checkout": "nowhere"}}, None,
         "arena_env_args.checkout: there is no such directory"),
        ({"suite": "kitchen", "arena_env_args": 3}, None, "arena_env_args: 3 is not a mapping"),
        ({"suite": "kitchen", "name": "m" * 78}, None,
         "name: with a task behind it, has 84 characters; at most 80 are allowed"),
        ({"suite": "kitchen"}, Listed(num_tasks=0), "suite: 'kitchen' lists no task"),
        ({"suite": "kitchen"}, Listed(same=True), "suite: 'kitchen' lists a task twice"),
        ({"suite": "kitchen"}, object, "suite: 'kitchen' is registered as a type, which lists no tasks"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_suite_is_told_with_its_key(changes, suite, expected):
    name = changes.get("name", "mine")
    assert problems({**JOB, **changes}, suite=suite) == [f"jobs.yaml: job '{name}': {expected}"]


def test_what_is_wrong_with_all_jobs_of_a_suite_is_told_once():
    assert problems({**JOB, "suite": "kitchen", "num_episodes": 0}) == [
        "jobs.yaml: job 'mine': num_episodes: must be at least 1, got 0"
    ]


def test_a_task_whose_job_gets_a_name_that_is_taken_is_refused():
    taken = {**JOB, "name": "mine-task1", "arena_env_args": {"environment": "reach"}}
    [problem] = problems({**JOB, "suite": "kitchen"}, taken)
    assert "job 'mine-task1': name: is taken by an earlier job" in problem


def test_a_suite_may_not_make_more_jobs_than_a_file_may_have():
    registry = registered(kitchen=Listed(num_tasks=MAX_JOBS + 1))
    with pytest.raises(ConfigError, match=f"suite: makes {MAX_JOBS + 1} jobs, and a file may have {MAX_JOBS} in all"):
        read_jobs({"jobs": [{**JOB, "suite": "kitchen"}]}, source="jobs.yaml", suites=registry)


def test_where_no_suites_are_known_a_suite_is_refused():
    with pytest.raises(ConfigError, match="no suite called 'kitchen'"):
        read_jobs({"jobs": [{**JOB, "suite": "kitchen"}]}, source="jobs.yaml")


@pytest.mark.parametrize(
    ("named", "what"),
    [("mine-task1", "job 'mine-task1' belongs to a suite"), ("mine", "'mine' is a suite")],
    ids=["task", "suite"],
)
def test_no_question_stops_a_suite_early(named, what):
    [problem] = problems({**JOB, "suite": "kitchen"}, bars=[{"job": named, "at_least": 0.5, "stop": {}}])
    assert problem == f"jobs.yaml: bars[0].job: {what}, and suites do not stop early: {_WAY_OUT}"
