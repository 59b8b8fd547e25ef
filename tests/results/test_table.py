import io
import re

import pytest
from rich.console import Console

from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.table import _COLUMNS, console_table, fitting_columns
from isaaclab_arena.storage.job_reports import ReportedStatus
from tests.results.evidence import planned, report, rows, write_plan, write_report, write_rows


def shown(folder, *, colour: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=120, force_terminal=colour, color_system="standard" if colour else None)
    console.print(console_table(merge_results(folder)))
    return stream.getvalue()


def test_a_job_is_one_line_with_its_interval(tmp_path):
    write_plan(tmp_path, planned())
    write_rows(tmp_path, rows("ssssssssff"))
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
    write_rows(tmp_path, rows("s" * 10, job="k"))
    write_report(tmp_path, report("k", env_steps=99_999_999))
    lines = shown(tmp_path).splitlines()
    assert max(map(len, lines)) <= 120
    assert "100.0 [72.2, 100.0]" in "\n".join(lines)
    assert "completed" in "\n".join(lines)


def test_missing_episodes_and_errors_are_red(tmp_path):
    write_plan(tmp_path, planned())
    write_rows(tmp_path, rows("sse-------"))
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


@pytest.mark.parametrize(("width", "absent"), [(200, set()), (110, {"return", "rank"}), (70, {"return", "policy"})])
def test_a_narrow_terminal_is_shown_fewer_columns_rather_than_torn_ones(width, absent):
    cells = [[23, 14, 13, 8, 21, 6, 6, 1, 1, 5, 1, 9]]
    shown = {_COLUMNS[index][0] for index in fitting_columns(cells, width)}
    assert not absent & shown
    assert {"job", "episodes", "success % [95 %]", "errors", "missing", "status"} <= shown
    assert len(shown) == len(_COLUMNS) or width < 200
