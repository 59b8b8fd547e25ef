"""Late answers on the page: what was assumed beside what was measured, and success as latency grows."""

import re
from pathlib import Path

import pytest

from isaaclab_arena.config.schema import Meanwhile
from isaaclab_arena.report.writing import html_of, page_of
from isaaclab_arena.results.merge import merge_results, stored_results, write_tables
from tests.results.late_runs import LATE, write_late_run


def page_words(directory: Path, *, stored: bool = False) -> str:
    merged = merge_results(directory)
    if stored:
        write_tables(directory, merged)
        found = stored_results(directory)
        assert found is not None
        merged = found
    html = html_of(page_of({directory: merged}, embedded_bytes=0), directory)
    return " ".join(re.sub(r"<[^>]+>", "", html).split())


@pytest.mark.parametrize("stored", [False, True])
def test_each_job_says_what_was_assumed_what_was_measured_and_what_it_came_to(tmp_path, stored):
    words = page_words(write_late_run(tmp_path / "run"), stored=stored)
    assert words.count("Late answers") == len(LATE)
    assert "assumed 4 control steps, meanwhile hold measured 62.0 ms (p50), 169.1 ms (p95)" in words
    assert "stale actions 80 %, 4.00 queries a second of robot time" in words


def test_while_the_world_waits_nothing_is_stale_and_queries_are_told_too(tmp_path):
    words = page_words(write_late_run(tmp_path / "run", Meanwhile.WAIT))
    assert words.count("stale actions 0 %, 20.00 queries a second of robot time") == len(LATE)


def test_a_sweep_over_latency_gives_a_curve_with_an_interval_at_each_point(tmp_path):
    directory = write_late_run(tmp_path / "run")
    page = page_of({directory: merge_results(directory)}, embedded_bytes=0)
    (curve,) = page.curves
    assert curve.key == "latency.steps"
    assert [(point.label, point.successes, point.scored) for point in curve.points] == [
        ("0", 10, 10),
        ("1", 9, 10),
        ("2", 7, 10),
        ("4", 4, 10),
        ("8", 1, 10),
    ]
    assert [point.x for point in curve.points] == [0.0, 0.125, 0.25, 0.5, 1.0]
    assert all(point.interval.low <= point.rate <= point.interval.high for point in curve.points)
