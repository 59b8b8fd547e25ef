"""The columns of the tables."""

import dataclasses
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from isaaclab_arena.api import Results
from isaaclab_arena.cli.main import main
from isaaclab_arena.config.schema import SuiteMember
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.process import results_console, show_results
from isaaclab_arena.results.columns import EPISODES, GROUPS, JOBS, METRICS, SUITES, Show, table_of
from isaaclab_arena.results.console import GROUPS_FILE, caveats, console_table, group_by, groups_table, print_summary
from isaaclab_arena.results.merge import merge_results, records, stale_tables, stored_results, write_tables
from isaaclab_arena.results.rows import JobEvidence, SuiteEvidence, short_policy_name
from isaaclab_arena.results.statistics import wilson_interval
from isaaclab_arena.results.stopping import alike_starts, condition_key, draw_of
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena.storage.commits import CommitLog
from isaaclab_arena.storage.ledger import ReportedStatus
from tests.results.evidence import (
    EPISODE_COLUMNS,
    GROUP_COLUMNS,
    JOB_COLUMNS,
    commit_lines,
    planned,
    report,
    there,
    write_job,
    write_lines,
    write_plan,
    write_report,
)
from tests.results.late_runs import write_late_run
from tests.results.reference_page import PAGE, written

# The tables of columns: names, places and values.


@pytest.mark.parametrize("columns", [JOBS, SUITES, METRICS, EPISODES, GROUPS])
def test_a_table_has_each_column_once_and_each_spread_is_a_column(columns):
    names = [each.name for each in columns]
    assert len(names) == len(set(names))
    assert {each.spread for each in columns} - {""} <= set(names)


@pytest.mark.parametrize("outcomes", ["", "sfteu"])
def test_every_column_has_a_value_for_a_job_that_left_no_report(outcomes):
    job = JobEvidence(job=planned(), log=CommitLog(lines=tuple(commit_lines(outcomes))), reports=())
    suite = SuiteEvidence(name="mine", jobs=[job])
    tables: list[tuple[Any, Any]] = [(JOBS, [job]), (SUITES, [suite]), (EPISODES, job.episodes)]
    for columns, rows in tables:
        always = [dataclasses.replace(each, when=None) for each in columns]
        assert list(table_of(always, rows).columns) == [each.name for each in columns]


def test_a_column_of_a_table_of_ones_own_is_one_line():
    evidence = [JobEvidence(job=planned(), log=CommitLog(lines=tuple(commit_lines("sf"))), reports=())]
    steps = dataclasses.replace(JOBS[0], name="steps", kind="Int64", value=lambda job: sum(job.lengths), show=Show.PAGE)
    table = table_of([*JOBS, steps], evidence, swept={"sweep.seed": [3]})
    assert (table["steps"].tolist(), str(table["steps"].dtype), list(table.columns)[-1]) == (
        [21],
        "Int64",
        "sweep.seed",
    )


def test_the_page_of_the_results_says_of_every_column_what_its_table_says():
    page = PAGE.read_text()
    assert page == written(page), "make columns writes it"


# The one definition of equal conditions.


def begun(outcomes: str, *starts: int | None, length: int = 10, total: float = 1.0):
    """Return episodes with their first observations, which went alike as far as their outcomes do."""
    lines = commit_lines(outcomes)
    return [
        dataclasses.replace(line, start=start, length=length, episode_return=total)
        for line, start in zip(lines, starts, strict=True)
    ]


def test_conditions_are_what_was_told_and_a_seed_stands_for_them_where_nothing_was():
    key = condition_key("lift", "cube", '{"cube.x": 0.5}', 7)
    assert key == condition_key("lift", "cube", '{"cube.x": 0.5}', 8)
    assert key not in (
        condition_key("push", "cube", '{"cube.x": 0.5}', 7),
        condition_key("lift", "can", '{"cube.x": 0.5}', 7),
    )
    assert condition_key("lift", None, "{}", 7) != condition_key("lift", None, "{}", 8)
    # A seed is the same draw in every environment, and a position is not.
    told = '{"gym.seed": 7, "gym.episode_index": 0}'
    assert draw_of(condition_key("gym:a", None, told, 1)) == draw_of(condition_key("gym:b", None, told, 1))
    assert draw_of(condition_key("a", None, "{}", 1)) == draw_of(condition_key("b", None, "{}", 1))
    assert draw_of(condition_key("a", None, '{"x": 1}', 1)) != draw_of(condition_key("b", None, '{"x": 1}', 1))


def test_episodes_that_began_and_went_alike_are_one_whatever_their_seeds():
    assert alike_starts(begun("fff", 5, 5, 6)) == [5, 5, None]
    assert alike_starts(begun("ffss", 5, 5, 6, 6)) == [5, 5, 6, 6]
    # What came after the start makes them different, such as ice on which one slips, or a policy's own noise.
    assert alike_starts(begun("fsf", 5, 5, 5)) == [None] * 3
    for other in ({"episode_return": 0.5}, {"checksum": 3}):
        lines = begun("fff", 5, 5, 5)
        lines[2] = dataclasses.replace(lines[2], **other)
        assert alike_starts(lines) == [None] * 3
    # An environment that tells its conditions needs no observation.
    assert alike_starts(commit_lines("ffff")) == [None] * 4


# Runs whose episodes tell how often actions lay at their bounds: all tables have it, and much of it is said.


SHARE = "saturated_action_share"


def write_run(directory: Path, jobs: Mapping[str, Sequence[float | None]], outcome: str = "f") -> Path:
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
        lines = zip(commit_lines(outcome * len(told), job=name), told, strict=True)
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


def test_more_than_a_gripper_is_said_of_the_worst_jobs_that_fail_and_less_is_not(tmp_path):
    assert said(write_run(tmp_path / "gripper", {"lift": [1 / 7] * 3, "push": [None]})) == []
    assert said(write_run(tmp_path / "solved", {"lift": [0.9] * 3}, outcome="s")) == []
    few = write_run(tmp_path / "some", {"lift": [0.37] * 3, "push": [0.0], "pull": [0.8], "roll": [None]})
    [line] = said(few)
    assert line.endswith(": 80 % in job 'pull', 37 % in job 'lift'")
    assert line in printed(lambda console: print_summary(merge_results(few), few, console), 160)
    [line] = said(write_run(tmp_path / "many", {f"job{number}": [number / 100] for number in range(3, 33)}))
    assert ": 32 % in job 'job32', 31 % in job 'job31', " in line
    assert line.endswith(", 25 % in job 'job25' and many in 9 others")


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
    stored = there(stored_results(tmp_path))
    for kind in ("jobs", "suites", "episodes"):
        pd.testing.assert_frame_equal(getattr(stored, kind), getattr(merged, kind))
    results = Results(merged, tmp_path)
    assert (list(results.jobs.columns)[-1], list(results.episodes.columns)[-1]) == (SHARE, SHARE)


def test_a_run_of_an_earlier_version_has_the_tables_that_it_always_had(tmp_path):
    path = write_lines(write_run(tmp_path, {"lift": [None, None]}, outcome="s"), commit_lines("ss"))
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


def printed(show: Callable[[Console], object], width: int = 120, *, colour: bool = False) -> str:
    stream = io.StringIO()
    show(Console(file=stream, width=width, force_terminal=colour, color_system="standard" if colour else None))
    return stream.getvalue()


def shown(directory, *, colour: bool = False) -> str:
    return printed(lambda console: console.print(console_table(merge_results(directory))), colour=colour)


def test_a_job_is_one_line_with_its_interval(tmp_path):
    (line,) = [line for line in shown(write_job(tmp_path, "ssssssssff")).splitlines() if "lift_object" in line]
    for part in ("lift", "zero_action", "10", "80.0 [49.0, 94.3]", "14.5", "200", "completed"):
        assert part in line


def test_it_fits_in_120_columns_with_long_names_that_cannot_steer_the_terminal(tmp_path):
    write_plan(
        tmp_path,
        planned("j" * 80, index=0, environment="e" * 60, policy_type="their.package.module.A" + "p" * 60),
        planned("k", index=1),
        planned("[red]x", index=2, environment="a\x1b[31m\u202eb"),
    )
    write_lines(tmp_path, commit_lines("s" * 10, job="k"))
    write_report(tmp_path, report("k", env_steps=99_999_999))
    text = shown(tmp_path)
    assert max(map(len, text.splitlines())) <= 120
    assert all(part in text for part in ("100.0 [72.2, 100.0]", "completed", "[red]x"))
    assert not set("\x1b\u202e") & set(text)


def test_missing_episodes_and_errors_are_red(tmp_path):
    text = shown(write_job(tmp_path, "sse-------", report(status=ReportedStatus.FAILED)), colour=True)
    assert [match.strip() for match in re.findall(r"\x1b\[1;31m( *\d+)\x1b", text)] == ["1", "7"]
    assert "3/10" in text


def headings(directory, width: int) -> list[str]:
    return [str(column.header) for column in console_table(merge_results(directory), width).columns]


@pytest.mark.parametrize(
    ("width", "absent"), [(200, set()), (90, {"steps/s", "rank"}), (66, {"return ±sd", "length ±sd", "environment"})]
)
def test_a_narrow_terminal_is_shown_fewer_columns_rather_than_torn_ones(tmp_path, width, absent):
    write_job(tmp_path, "ssssssssff")
    shown_headings = headings(tmp_path, width)
    assert not absent & set(shown_headings)
    assert {"job", "episodes", "success % [95 %]", "errors", "missing", "status"} <= set(shown_headings)
    assert len(shown_headings) == 12 or width < 200


def test_where_success_is_not_measured_the_return_stays_however_narrow_the_terminal(tmp_path):
    write_job(tmp_path, "uuuu")
    assert "return ±sd" in headings(tmp_path, 20)
    assert "success % [95 %]" not in headings(tmp_path, 100), "a column of dashes goes first"
    assert "success % [95 %]" in headings(tmp_path, 200)


def test_the_spread_over_episodes_stands_beside_each_mean(tmp_path):
    write_plan(tmp_path, planned("many", num_episodes=3), planned("one", index=1, num_episodes=1))
    write_lines(tmp_path, commit_lines("ssf", job="many"))
    write_lines(tmp_path, commit_lines("s", job="one"))
    many, one = (line for line in shown(tmp_path).splitlines() if "lift_object" in line)
    assert "11.0 ±1.0" in many
    assert "1.00 ±1.00" in many
    assert "±" not in one, "one episode tells nothing of a spread"


def test_jobs_of_a_sweep_are_told_apart_by_columns_unless_their_values_look_alike(tmp_path):
    swept = [
        {
            "seed": seed,
            "variations.cube.mass.high": 0.5,
            "policy_type": policy,
            "arena_env_args.camera_size": [size, 64],
            "labels.path": f"{'a' * 70}{seed}",
        }
        for seed, policy, size in ((0, "zero_action", 64), (1, "scripted", 128))
    ]
    write_plan(tmp_path, *(planned(f"job{index}", index=index, swept=values) for index, values in enumerate(swept)))
    assert headings(tmp_path, 300)[:6] == ["job", "environment", "policy", "seed", "camera_size", "episodes"]
    lines = {line.split()[0]: line for line in shown(tmp_path).splitlines()}
    assert "[64, 64]" in lines["job0"]
    assert "[128, 64]" in lines["job1"]


def test_a_job_that_does_not_sweep_a_key_shows_its_own_value_there(tmp_path):
    key, speed = "arena_env_args.object", "policy_config_dict.speed"
    write_plan(
        tmp_path,
        planned("can", index=0, object="can", swept={key: "can", speed: 1}),
        planned("mug", index=1, object="mug", swept={key: "mug", speed: 2}),
        planned("own", index=2, object="cube", policy_config={"speed": 0}),
        planned("none", index=3, environment="reach", object=None),
    )
    table = console_table(merge_results(tmp_path), 300)
    columns = {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}
    assert columns["object"] == ["can", "mug", "cube", "-"]
    assert columns["speed"] == ["1", "2", "0", "-"]


def test_jobs_differ_in_the_table_by_what_they_evaluate_as_long_as_the_line_has_room(tmp_path):
    write_plan(tmp_path, planned("a", object="can"), planned("b", index=1, object="mug", embodiment="so101"))
    assert headings(tmp_path, 300)[:6] == ["job", "environment", "policy", "object", "embodiment", "episodes"]
    assert "object" not in headings(tmp_path, 60)
    write_plan(tmp_path / "alike", planned("a", object="can"), planned("b", index=1, object="can"))
    assert "object" not in headings(tmp_path / "alike", 300)
    others = planned("a", object="can"), planned("b", index=1, environment="reach", object=None)
    write_plan(tmp_path / "others", *others)
    assert "object" not in headings(tmp_path / "others", 300), "the environment tells them apart"


@pytest.mark.parametrize(
    ("policy_type", "shown"),
    [
        ("scripted", "scripted"),
        ("my.package:MyPolicy", "MyPolicy"),
        ("my.package.MyPolicy", "MyPolicy"),
        ("reach_policy:act", "act (reach_policy.py)"),
        ("my.package.act", "act (package.py)"),
        ("__main__.act", "act"),
        ("train.make.<locals>.act", "act"),
    ],
)
def test_a_function_is_named_with_its_file_because_many_are_called_alike(policy_type, shown):
    assert short_policy_name(policy_type) == shown


def test_late_answers_show_what_they_came_to_beside_what_was_measured(tmp_path):
    table = console_table(merge_results(write_late_run(tmp_path / "late")), 1000)
    columns = {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}
    assert columns["steps"] == ["0", "1", "2", "4", "8", "-"]
    assert columns["stale %"] == ["0", "50", "67", "80", "89", "-"]
    assert columns["queries/s"][:2] == ["20.00", "10.00"]
    assert columns["measured ms"] == [*["62, 169"] * 5, "-"]
    assert "stale %" not in headings(write_job(tmp_path / "in time", "s"), 1000)


def test_in_a_file_no_row_is_folded_and_a_launcher_tells_its_ranks_how_wide_the_terminal_is(tmp_path, monkeypatch):
    write_plan(tmp_path, planned("j" * 80, environment="e" * 90))
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.delenv("COLUMNS", raising=False)
    merged = merge_results(tmp_path)
    show_results(lambda console: print_summary(merged, tmp_path, console))
    (line,) = [line for line in stream.getvalue().splitlines() if line.startswith("jjj")]
    assert "j" * 80 in line
    assert "e" * 90 in line
    monkeypatch.setenv("COLUMNS", "77")
    assert results_console().width == 77


def placed(line, place):
    """Return an episode that starts from conditions that no other place has."""
    return dataclasses.replace(line, conditions={"place": place, **line.conditions})


HIGH = "variations.cube.mass.sampler_cfg.high"


@pytest.fixture
def merged(tmp_path):
    strengths = {"weak-1": 0.2, "weak-2": 0.2, "strong": 2.0}
    outcomes = {"weak-1": "ssf", "weak-2": "sse", "strong": "fts", "plain": "sss"}
    jobs = [
        planned(
            name,
            index=index,
            num_episodes=3,
            variations={"cube.mass.sampler_cfg.high": strengths[name]} if name in strengths else {},
        )
        for index, name in enumerate(outcomes)
    ]
    write_plan(tmp_path, *jobs)
    for name, letters in outcomes.items():
        (tmp_path / name).mkdir()
        write_lines(tmp_path, [placed(line, name) for line in commit_lines(letters, job=name)])
        write_report(tmp_path, report(name))
    return merge_results(tmp_path)


def test_jobs_with_the_same_strength_are_pooled_and_strengths_are_in_order(merged):
    groups = group_by(merged, [HIGH])
    assert groups[HIGH].tolist() == [None, 0.2, 2.0]
    assert groups["jobs"].tolist() == [1, 2, 1]
    assert groups["episodes"].tolist() == [3, 6, 3]
    assert groups["successes"].tolist() == [3, 4, 1]
    assert groups["scored"].tolist() == [3, 5, 3]
    assert groups["errors"].tolist() == [0, 1, 0]
    interval = there(wilson_interval(4, 5))
    assert (groups["success_low"][1], groups["success_high"][1]) == (interval.low, interval.high)


def test_several_keys_make_a_row_per_combination_and_groups_are_written_beside_the_other_tables(tmp_path, merged):
    groups = group_by(merged, ["name", "seed"])
    assert groups["name"].tolist() == ["plain", "strong", "weak-1", "weak-2"]
    assert groups["seed"].tolist() == [3, 3, 3, 3]
    with pytest.raises(ConfigError, match=f"did you mean '{HIGH}'"):
        group_by(merged, [HIGH.replace("mass", "mas")])
    assert main(["merge", str(tmp_path), "--by", HIGH]) == 0
    assert pd.read_csv(tmp_path / GROUPS_FILE)["successes"].tolist() == [3, 4, 1]


def test_numbers_are_in_the_order_of_their_size_and_not_of_their_digits(tmp_path):
    jobs = [planned(str(seed), index=index, seed=seed) for index, seed in enumerate((10, 9, 100, 2))]
    write_plan(tmp_path, *jobs)
    assert group_by(merge_results(tmp_path), ["seed"])["seed"].tolist() == [2, 9, 10, 100]


def test_success_that_is_not_measured_is_no_zero(tmp_path):
    groups = group_by(merge_results(write_job(tmp_path, "uuu", num_episodes=3)), ["seed"])
    assert groups["scored"].tolist() == [0]
    assert groups["successes"].isna().tolist() == groups["success_rate"].isna().tolist() == [True]
    assert "0.0" not in printed(lambda console: console.print(groups_table(groups, ["seed"])))
