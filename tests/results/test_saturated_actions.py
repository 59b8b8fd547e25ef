"""Runs whose episodes tell how often actions lay at their bounds: all tables have it, and much of it is said."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from isaaclab_arena.api.results import Results
from isaaclab_arena.config.schema import SuiteMember
from isaaclab_arena.results.console import caveats, group_by, print_summary
from isaaclab_arena.results.merge import merge_results, records, stale_tables, stored_results, write_tables
from isaaclab_arena.storage.disk import json_line
from tests.results.evidence import (
    EPISODE_COLUMNS,
    GROUP_COLUMNS,
    JOB_COLUMNS,
    commit_lines,
    planned,
    report,
    write_lines,
    write_plan,
    write_report,
)

SHARE = "saturated_action_share"


def write_run(directory: Path, jobs: Mapping[str, Sequence[float | None]]) -> Path:
    """Write a run: name of a job to the share of each of its episodes, of 10, 11, 12 … steps."""
    write_plan(
        directory,
        *(
            planned(
                name, index=index, num_episodes=len(told), suite=SuiteMember(name="both", suite="kitchen", task=name)
            )
            for index, (name, told) in enumerate(jobs.items())
        ),
    )
    for name, told in jobs.items():
        lines = zip(commit_lines("s" * len(told), job=name), told, strict=True)
        write_lines(directory, [dataclasses.replace(line, saturated_action_share=share) for line, share in lines])
        write_report(directory, report(name, cut_episodes=0))
    return directory


def said(directory: Path) -> list[str]:
    return [line for line in caveats(merge_results(directory)) if "bounds" in line]


def test_a_job_has_the_share_of_all_of_its_entries(tmp_path):
    merged = merge_results(write_run(tmp_path, {"lift": [0.1, 0.4, None]}))
    [row] = records(merged.jobs)
    assert row[SHARE] == pytest.approx((10 * 0.1 + 11 * 0.4) / 21)
    assert [each[SHARE] for each in records(merged.episodes)] == [0.1, 0.4, None]


def test_every_table_has_it_and_can_be_read_again(tmp_path):
    merged = merge_results(write_run(tmp_path, {"lift": [0.5, 0.0], "push": [None, None]}))
    write_tables(tmp_path, merged)
    share = pytest.approx(5 / 21)
    for name, expected in {
        "results": [share, None],
        "episodes": [0.5, 0.0, None, None],
        "suites": [share],
    }.items():
        assert list(pd.read_csv(tmp_path / f"{name}.csv").columns)[-1] == SHARE
        assert [row[SHARE] for row in records(pd.read_parquet(tmp_path / f"{name}.parquet"))] == expected
    assert records(group_by(merged, ["environment"]))[0][SHARE] == share
    assert [row[SHARE] for row in records(group_by(merged, ["name"]))] == [share, None]
    assert stale_tables(tmp_path, merged) == []
    stored = stored_results(tmp_path)
    assert stored is not None
    for kind in ("jobs", "suites", "episodes"):
        pd.testing.assert_frame_equal(getattr(stored, kind), getattr(merged, kind))
    results = Results(merged, tmp_path)
    assert (list(results.jobs.columns)[-1], list(results.episodes.columns)[-1]) == (SHARE, SHARE)


def test_a_run_of_an_earlier_version_has_the_tables_that_it_always_had(tmp_path):
    path = write_lines(write_run(tmp_path, {"lift": [None, None]}), commit_lines("ss"))
    lines = path.read_text()
    assert f'"{SHARE}":null' in lines.replace(" ", "")
    for each in path.parent.glob("*.jsonl"):
        without = each.read_text().replace(f'"{SHARE}":null,', "").replace(f'"{SHARE}": null, ', "")
        assert SHARE not in without
        each.write_text(without)
    merged = merge_results(tmp_path)
    write_tables(tmp_path, merged)
    assert not merged.problems
    assert list(pd.read_csv(tmp_path / "results.csv").columns) == list(JOB_COLUMNS)
    assert list(pd.read_csv(tmp_path / "episodes.csv").columns) == list(EPISODE_COLUMNS)
    assert list(group_by(merged, ["seed"]).columns) == ["seed", *GROUP_COLUMNS]
    assert SHARE not in json_line(records(merged.suites))


def test_more_than_a_twentieth_is_said_and_less_is_not(tmp_path):
    assert said(write_run(tmp_path / "few", {"lift": [0.05] * 3, "push": [None]})) == []
    directory = write_run(tmp_path / "many", {"lift": [0.37] * 3, "push": [0.0], "pull": [0.8], "roll": [None]})
    line = "* action entries at or beyond their bounds: 80 % in job 'pull', 37 % in job 'lift'"
    assert said(directory) == [line]
    stream = io.StringIO()
    print_summary(merge_results(directory), directory, Console(file=stream, width=160))
    assert line in stream.getvalue()


def test_of_many_jobs_the_worst_are_named(tmp_path):
    shares = {f"job{number}": [number / 100] for number in range(3, 33)}
    [line] = said(write_run(tmp_path, shares))
    assert line.startswith("* action entries at or beyond their bounds: 32 % in job 'job32', 31 % in job 'job31', ")
    assert line.endswith(", 25 % in job 'job25' and much in 19 others")
