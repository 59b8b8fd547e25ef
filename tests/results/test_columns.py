"""The tables of columns: names, places and values."""

import dataclasses
from typing import Any

import pytest

from isaaclab_arena.results.columns import EPISODES, GROUPS, JOBS, METRICS, SUITES, Show, table_of
from isaaclab_arena.results.rows import JobEvidence, SuiteEvidence
from tests.results.evidence import commit_lines, planned


@pytest.mark.parametrize("columns", [JOBS, SUITES, METRICS, EPISODES, GROUPS])
def test_a_table_has_each_column_once_and_each_spread_is_a_column(columns):
    names = [each.name for each in columns]
    assert len(names) == len(set(names))
    assert {each.spread for each in columns} - {""} <= set(names)


@pytest.mark.parametrize("outcomes", ["", "sfteu"])
def test_every_column_has_a_value_for_a_job_that_left_no_report(outcomes):
    job = JobEvidence(job=planned(), finished=commit_lines(outcomes), reports=())
    suite = SuiteEvidence(name="mine", jobs=[job])
    tables: list[tuple[Any, Any]] = [(JOBS, [job]), (SUITES, [suite]), (EPISODES, job.episodes)]
    for columns, rows in tables:
        always = [dataclasses.replace(each, when=None) for each in columns]
        assert list(table_of(always, rows).columns) == [each.name for each in columns]


def test_a_column_of_a_table_of_ones_own_is_one_line():
    evidence = [JobEvidence(job=planned(), finished=commit_lines("sf"), reports=())]
    steps = dataclasses.replace(JOBS[0], name="steps", kind="Int64", value=lambda job: sum(job.lengths), show=Show.PAGE)
    table = table_of([*JOBS, steps], evidence, swept={"sweep.seed": [3]})
    assert (table["steps"].tolist(), str(table["steps"].dtype), list(table.columns)[-1]) == (
        [21],
        "Int64",
        "sweep.seed",
    )
