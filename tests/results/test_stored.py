import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.results.merge import MergedResults, merge_results, stored_results
from tests.analysis.recorded_runs import failed_by, write_all_tables, write_run
from tests.results.evidence import commit_lines, report, write_lines, write_report
from tests.results.late_runs import write_late_run
from tests.tracking.runs import stopped_run

RUNS = {
    "complete": {"lift": "sssfte", "reach": "sf"},
    "with episodes missing": {"lift": "ss-f", "reach": "--"},
    "without success": {"lift": "uu"},
    "with a suite": {"mine:0": "ssf", "mine:1": "sff", "reach": "sf"},
}


def without_tables(results: MergedResults) -> MergedResults:
    return dataclasses.replace(results, jobs=pd.DataFrame(), episodes=pd.DataFrame(), suites=pd.DataFrame())


@pytest.mark.parametrize("jobs", RUNS.values(), ids=RUNS)
def test_tables_give_what_a_merge_gives(tmp_path: Path, jobs: dict[str, str]):
    run = write_run(tmp_path / "run", jobs, swept={"variations.noise.high": 0.5})
    write_all_tables(run)
    merged, stored = merge_results(run), stored_results(run)
    assert stored is not None
    pd.testing.assert_frame_equal(stored.jobs, merged.jobs)
    pd.testing.assert_frame_equal(stored.episodes, merged.episodes)
    pd.testing.assert_frame_equal(stored.suites, merged.suites)
    assert str(without_tables(stored)) == str(without_tables(merged))


def test_tables_give_what_a_merge_gives_of_late_answers(tmp_path: Path):
    run = write_late_run(tmp_path / "run")
    write_all_tables(run)
    stored = stored_results(run)
    assert stored is not None
    pd.testing.assert_frame_equal(stored.jobs, merge_results(run).jobs, check_like=True)


def test_tables_give_what_a_merge_gives_of_events(tmp_path: Path):
    run = write_run(tmp_path / "run", {"lift": "sff"}, events={1: failed_by("dropped"), 2: failed_by(None)})
    write_all_tables(run)
    merged, stored = merge_results(run), stored_results(run)
    assert stored is not None
    assert stored.episodes["decisive_event"].tolist()[1] == "dropped"
    pd.testing.assert_frame_equal(stored.jobs, merged.jobs)
    pd.testing.assert_frame_equal(stored.episodes, merged.episodes)


def test_remarks_in_reports_of_another_run_do_not_count(tmp_path: Path):
    run = write_run(tmp_path / "run", {"lift": "sf"})
    for run_id, remark in ((merge_results(run).plan.run_id, "ours"), ("other", "theirs")):
        write_report(run, report(run=run_id, remarks=(remark,)))
    write_all_tables(run)
    stored = stored_results(run)
    assert stored is not None
    assert stored.remarks == merge_results(run).remarks == ("job 'lift': ours",)


def test_tables_that_are_missing_old_or_damaged_are_not_believed(tmp_path: Path):
    run = write_run(tmp_path / "run", {"lift": "sf--"})
    assert stored_results(run) is None
    write_all_tables(run)
    assert stored_results(run) is not None
    (run / "timing.parquet").write_bytes(b"PAR1")
    assert stored_results(run) is None
    write_all_tables(run)
    write_lines(run, commit_lines("s", first=2))
    assert stored_results(run) is None


def test_answers_are_found_by_a_merge_alone(tmp_path: Path):
    stopped_run(tmp_path)
    write_all_tables(tmp_path)
    assert stored_results(tmp_path) is None
