import io
import re
import sys

import pytest
from rich.console import Console

from isaaclab_arena.evaluation.console import results_console, show_results
from isaaclab_arena.results.console import console_table, print_summary
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.storage.reports import ReportedStatus
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report
from tests.results.late_runs import write_late_run


def shown(directory, *, colour: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=colour, color_system="standard" if colour else None)
    console.print(console_table(merge_results(directory)))
    return stream.getvalue()


def test_a_job_is_one_line_with_its_interval(tmp_path):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("ssssssssff"))
    write_report(tmp_path, report())
    (line,) = [line for line in shown(tmp_path).splitlines() if "lift_object" in line]
    for part in ("lift", "zero_action", "10", "80.0 [49.0, 94.3]", "14.5", "200", "completed"):
        assert part in line


def test_it_fits_in_120_columns_with_long_names(tmp_path):
    write_plan(
        tmp_path,
        planned("j" * 80, index=0, environment="e" * 60, policy_type="their.package.module.A" + "p" * 60),
        planned("k", index=1),
    )
    write_lines(tmp_path, commit_lines("s" * 10, job="k"))
    write_report(tmp_path, report("k", env_steps=99_999_999))
    lines = shown(tmp_path).splitlines()
    assert max(map(len, lines)) <= 120
    assert "100.0 [72.2, 100.0]" in "\n".join(lines)
    assert "completed" in "\n".join(lines)


def test_missing_episodes_and_errors_are_red(tmp_path):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("sse-------"))
    write_report(tmp_path, report(status=ReportedStatus.FAILED))
    text = shown(tmp_path, colour=True)
    assert [match.strip() for match in re.findall(r"\x1b\[1;31m( *\d+)\x1b", text)] == ["1", "7"]
    assert "3/10" in text


def test_names_cannot_steer_the_terminal(tmp_path):
    write_plan(tmp_path, planned("[red]x", environment="a\x1b[31m\u202eb"))
    text = shown(tmp_path)
    assert "[red]x" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def headings(directory, width: int) -> list[str]:
    return [str(column.header) for column in console_table(merge_results(directory), width).columns]


@pytest.mark.parametrize(
    ("width", "absent"), [(200, set()), (90, {"steps/s", "rank"}), (66, {"return ±sd", "length ±sd", "environment"})]
)
def test_a_narrow_terminal_is_shown_fewer_columns_rather_than_torn_ones(tmp_path, width, absent):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("ssssssssff"))
    write_report(tmp_path, report())
    shown_headings = headings(tmp_path, width)
    assert not absent & set(shown_headings)
    assert {"job", "episodes", "success % [95 %]", "errors", "missing", "status"} <= set(shown_headings)
    assert len(shown_headings) == 12 or width < 200


def test_where_success_is_not_measured_the_return_stays_however_narrow_the_terminal(tmp_path):
    write_plan(tmp_path, planned())
    write_lines(tmp_path, commit_lines("uuuu"))
    write_report(tmp_path, report())
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


def test_jobs_of_a_sweep_are_told_apart_by_columns(tmp_path):
    swept = [
        {
            "seed": seed,
            "variations.cube.mass.high": 0.5,
            "policy_type": policy,
            "arena_env_args.camera_size": [size, 64],
        }
        for seed, policy, size in ((0, "zero_action", 64), (1, "scripted", 128))
    ]
    jobs = [planned(f"job{index}", index=index, swept=values) for index, values in enumerate(swept)]
    write_plan(tmp_path, *jobs)
    shown_headings = headings(tmp_path, 200)
    assert shown_headings[:6] == ["job", "environment", "policy", "seed", "camera_size", "episodes"]
    lines = {line.split()[0]: line for line in shown(tmp_path).splitlines()}
    assert "[64, 64]" in lines["job0"]
    assert "[128, 64]" in lines["job1"]


def test_values_of_a_sweep_that_look_alike_in_the_table_are_no_column(tmp_path):
    swept = [{"labels.path": f"{'a' * 70}{end}"} for end in "xy"]
    write_plan(tmp_path, *(planned(f"job{index}", index=index, swept=values) for index, values in enumerate(swept)))
    assert "path" not in headings(tmp_path, 300)


def test_late_answers_show_what_they_came_to_beside_what_was_measured(tmp_path):
    write_late_run(tmp_path)
    columns = {
        str(column.header): [str(cell) for cell in column.cells]
        for column in console_table(merge_results(tmp_path), 1000).columns
    }
    assert columns["steps"] == ["0", "1", "2", "4", "8", "-"]
    assert columns["stale %"] == ["0", "50", "67", "80", "89", "-"]
    assert columns["queries/s"][:2] == ["20.00", "10.00"]
    assert columns["measured ms"] == [*["62, 169"] * 5, "-"]


def test_a_run_in_which_nothing_is_late_has_no_columns_for_that(tmp_path):
    write_plan(tmp_path, planned())
    assert "stale %" not in headings(tmp_path, 1000)


def test_in_a_file_no_row_is_folded(tmp_path, monkeypatch):
    write_plan(tmp_path, planned("j" * 80, environment="e" * 90))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.delenv("COLUMNS", raising=False)
    merged = merge_results(tmp_path)
    show_results(lambda console: print_summary(merged, tmp_path, console))
    assert isinstance(sys.stdout, io.StringIO)
    (line,) = [line for line in sys.stdout.getvalue().splitlines() if line.startswith("jjj")]
    assert "j" * 80 in line
    assert "e" * 90 in line


def test_a_launcher_tells_its_ranks_how_wide_the_terminal_is(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("COLUMNS", "77")
    assert results_console().width == 77
