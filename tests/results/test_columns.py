"""The columns of the tables."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.schema import SuiteMember
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.results.columns import EPISODES, JOBS, SUITES, table_of
from isaaclab_arena.results.console import GROUPS_FILE, caveats, console_table, group_by
from isaaclab_arena.results.merge import merge_results, records
from isaaclab_arena.results.rows import JobEvidence, SuiteEvidence, short_policy_name
from isaaclab_arena.results.statistics import wilson_interval
from isaaclab_arena.results.stopping import condition_key, draw_of
from isaaclab_arena.storage.commits import CommitLog
from isaaclab_arena.storage.ledger import ReportedStatus
from tests.results.evidence import (
    commit_lines,
    planned,
    printed,
    report,
    summary,
    there,
    write_job,
    write_lines,
    write_plan,
    write_report,
)
from tests.results.late_runs import write_late_run
from tests.results.reference_page import PAGE, written


@pytest.mark.parametrize("outcomes", ["", "sfteu"])
def test_every_column_has_a_value_for_a_job_that_left_no_report(outcomes):
    job = JobEvidence(job=planned(), log=CommitLog(lines=tuple(commit_lines(outcomes))), reports=())
    suite = SuiteEvidence(name="mine", jobs=[job])
    tables: list[tuple[Any, Any]] = [(JOBS, [job]), (SUITES, [suite]), (EPISODES, job.episodes)]
    for columns, rows in tables:
        always = [dataclasses.replace(each, when=None) for each in columns]
        names = [each.name for each in columns]
        assert list(table_of(always, rows).columns) == names
        assert {each.spread for each in columns} - {""} <= set(names)


def test_the_page_of_the_results_says_of_every_column_what_its_table_says():
    assert PAGE.read_text() == written(PAGE.read_text())


def test_conditions_are_what_was_told_and_a_seed_stands_for_them_where_nothing_was():
    key = condition_key("lift", "cube", '{"cube.x": 0.5}', 7)
    assert key == condition_key("lift", "cube", '{"cube.x": 0.5}', 8)
    for environment, thing in (("push", "cube"), ("lift", "can")):
        assert key != condition_key(environment, thing, '{"cube.x": 0.5}', 7)
    assert condition_key("lift", None, "{}", 7) != condition_key("lift", None, "{}", 8)
    # A seed is the same draw in every environment, and a position is not.
    for told, is_same in (('{"gym.seed": 7, "gym.episode_index": 0}', True), ("{}", True), ('{"x": 1}', False)):
        first, second = (draw_of(condition_key(environment, None, told, 1)) for environment in ("gym:a", "gym:b"))
        assert (first == second) is is_same


def write_run(directory: Path, jobs: Mapping[str, Sequence[float | None]], outcome: str = "f") -> Path:
    """Write a run: name of a job to the share of each of its episodes, of 10, 11, 12 … steps."""
    entries = []
    for index, (name, told) in enumerate(jobs.items()):
        member = SuiteMember(name="both", suite="kitchen", task=name)
        entries.append(planned(name, index=index, num_episodes=len(told), suite=member))
    write_plan(directory, *entries)
    for name, told in jobs.items():
        lines = zip(commit_lines(outcome * len(told), job=name), told, strict=True)
        write_lines(directory, [dataclasses.replace(line, saturated_action_share=share) for line, share in lines])
        write_report(directory, report(name, cut_episodes=0))
    return directory


def said(directory: Path) -> list[str]:
    return [line for line in caveats(merge_results(directory)) if "bounds" in line]


def test_actions_at_their_bounds_are_told_of_the_worst_jobs_that_fail_and_less_than_a_gripper_is_not(tmp_path):
    assert said(write_run(tmp_path / "gripper", {"lift": [1 / 7] * 3, "push": [None]})) == []
    assert said(write_run(tmp_path / "solved", {"lift": [0.9] * 3}, outcome="s")) == []
    few = write_run(tmp_path / "some", {"lift": [0.37] * 3, "push": [0.0], "pull": [0.8], "roll": [None]})
    [line] = said(few)
    assert line.endswith(": 80 % in job 'pull', 37 % in job 'lift'")
    assert line in summary(few, 160)
    [line] = said(write_run(tmp_path / "many", {f"job{number}": [number / 100] for number in range(3, 33)}))
    assert ": 32 % in job 'job32', 31 % in job 'job31', " in line
    assert line.endswith(", 25 % in job 'job25' and many in 9 others")


def shown(directory, *, colour: bool = False) -> str:
    return printed(lambda console: console.print(console_table(merge_results(directory))), colour=colour)


def cells(directory) -> dict[str, list[str]]:
    """Map the headings of a wide table to the cells below them."""
    table = console_table(merge_results(directory), 1000)
    return {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}


def test_a_job_is_one_line_with_its_interval(tmp_path):
    (line,) = [line for line in shown(write_job(tmp_path / "many", "ssssssssff")).splitlines() if "lift_object" in line]
    for part in ("lift", "zero_action", "10", "80.0 [49.0, 94.3]", "14.5 ±3.0", "4.50 ±3.03", "200", "completed"):
        assert part in line
    assert "±" not in shown(write_job(tmp_path / "one", "s")).replace("±sd", "")


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
    assert "success % [95 %]" not in headings(tmp_path, 100)
    assert "success % [95 %]" in headings(tmp_path, 200)


def test_jobs_of_a_sweep_are_told_apart_by_columns_unless_their_values_look_alike(tmp_path):
    jobs = []
    for seed, policy, size in ((0, "zero_action", 64), (1, "scripted", 128)):
        swept = {"seed": seed, "variations.cube.mass.high": 0.5, "policy_type": policy}
        swept |= {"arena_env_args.camera_size": [size, 64], "labels.path": f"{'a' * 70}{seed}"}
        jobs.append(planned(f"job{seed}", index=seed, swept=swept))
    write_plan(tmp_path, *jobs)
    assert [*cells(tmp_path)][:6] == ["job", "environment", "policy", "seed", "camera_size", "episodes"]
    assert cells(tmp_path)["camera_size"] == ["[64, 64]", "[128, 64]"]


def test_a_job_that_does_not_sweep_a_key_shows_its_own_value_there(tmp_path):
    key, speed = "arena_env_args.object", "policy_config_dict.speed"
    write_plan(
        tmp_path,
        planned("can", index=0, object="can", swept={key: "can", speed: 1}),
        planned("mug", index=1, object="mug", swept={key: "mug", speed: 2}),
        planned("own", index=2, object="cube", policy_config={"speed": 0}),
        planned("none", index=3, environment="reach", object=None),
    )
    assert cells(tmp_path)["object"] == ["can", "mug", "cube", "-"]
    assert cells(tmp_path)["speed"] == ["1", "2", "0", "-"]


NAMES = {
    "scripted": "scripted",
    "my.package:MyPolicy": "MyPolicy",
    "my.package.MyPolicy": "MyPolicy",
    "reach_policy:act": "act (reach_policy.py)",
    "my.package.act": "act (package.py)",
    "__main__.act": "act",
    "train.make.<locals>.act": "act",
}


@pytest.mark.parametrize(("policy_type", "shown"), NAMES.items())
def test_a_function_is_named_with_its_file_because_many_are_called_alike(policy_type, shown):
    assert short_policy_name(policy_type) == shown


def test_late_answers_show_what_they_came_to_beside_what_was_measured(tmp_path):
    late = cells(write_late_run(tmp_path / "late"))
    assert late["steps"] == ["0", "1", "2", "4", "8", "-"]
    assert late["stale %"] == ["0", "50", "67", "80", "89", "-"]
    assert late["queries/s"][:2] == ["20.00", "10.00"]
    assert late["measured ms"] == [*["62, 169"] * 5, "-"]
    assert "stale %" not in cells(write_job(tmp_path / "in time", "s"))


HIGH = "variations.cube.mass.sampler_cfg.high"


@pytest.fixture
def merged(tmp_path):
    strengths = {"weak-1": 0.2, "weak-2": 0.2, "strong": 2.0}
    outcomes = {"weak-1": "ssf", "weak-2": "sse", "strong": "fts", "plain": "sss"}
    jobs = []
    for index, name in enumerate(outcomes):
        variations = {"cube.mass.sampler_cfg.high": strengths[name]} if name in strengths else {}
        jobs.append(planned(name, index=index, num_episodes=3, variations=variations))
    write_plan(tmp_path, *jobs)
    for name, letters in outcomes.items():
        lines = commit_lines(letters, job=name)
        write_lines(
            tmp_path, [dataclasses.replace(line, conditions={"place": name, **line.conditions}) for line in lines]
        )
        write_report(tmp_path, report(name))
    return merge_results(tmp_path)


def test_jobs_with_the_same_strength_are_pooled_and_strengths_are_in_order(merged):
    groups = group_by(merged, [HIGH])
    names = [HIGH, "jobs", "episodes", "successes", "scored", "errors"]
    expected = [[None, 1, 3, 3, 3, 0], [0.2, 2, 6, 4, 5, 1], [2.0, 1, 3, 1, 3, 0]]
    assert [[row[name] for name in names] for row in records(groups)] == expected
    interval = there(wilson_interval(4, 5))
    assert (groups["success_low"][1], groups["success_high"][1]) == (interval.low, interval.high)


def test_several_keys_make_a_row_per_combination_and_groups_are_written_beside_the_other_tables(tmp_path, merged):
    groups = group_by(merged, ["name", "seed"])
    assert groups["name"].tolist() == ["plain", "strong", "weak-1", "weak-2"]
    write_plan(tmp_path / "seeds", *(planned(f"s{seed}", index=at, seed=seed) for at, seed in enumerate((10, 9, 100))))
    assert group_by(merge_results(tmp_path / "seeds"), ["seed"])["seed"].tolist() == [9, 10, 100]
    with pytest.raises(ConfigError, match=f"did you mean '{HIGH}'"):
        group_by(merged, [HIGH.replace("mass", "mas")])
    assert main(["merge", str(tmp_path), "--by", HIGH]) == 0
    assert pd.read_csv(tmp_path / GROUPS_FILE)["successes"].tolist() == [3, 4, 1]
