"""Tests of telling once what is wrong with many tasks of a suite."""

from isaaclab_arena.config.schema import JobConfig, SuiteMember
from isaaclab_arena.errors import Problem
from isaaclab_arena.evaluation.validation import told_once


def task(name: str, *, entry: str = "mine") -> JobConfig:
    suite = SuiteMember(name=entry, suite="kitchen", task=name)
    return JobConfig(
        index=0, name=f"{entry}-{name}", environment=f"cook:{name}", policy_type="zero_action", suite=suite
    )


def problem(message: str, *, job: str = "mine-a", key: str | None = "environment") -> Problem:
    return Problem(message, job=job, key=key)


def test_what_all_tasks_of_a_suite_lack_is_told_of_the_first():
    found = [(task(name), problem(f"'{name}' needs cook", job=f"mine-{name}")) for name in ("open", "close", "pour")]
    assert told_once(found) == [
        problem("'open' needs cook (and so for 2 other tasks of suite 'kitchen')", job="mine-open")
    ]
    assert told_once(found[:2])[0].message.endswith("(and so for another task of suite 'kitchen')")


def test_what_one_task_lacks_is_told_as_it_is():
    found = [(task("open"), problem("no lid")), (task("close"), problem("no hinge"))]
    assert told_once(found) == [problem("no lid"), problem("no hinge")]
    twice = [(task("open"), problem("no lid")), (task("open"), problem("no lid", key="python"))]
    assert told_once(twice) == [each for _, each in twice]


def test_entries_and_jobs_in_no_suite_are_told_apart():
    alone = JobConfig(index=0, name="alone", environment="reach", policy_type="zero_action")
    found = [(task("open"), problem("no lid")), (task("open", entry="other"), problem("no lid"))]
    found += [(alone, problem("no lid")), (alone, problem("no lid"))]
    assert len(told_once(found)) == 4
