"""Runs that declare metrics: all tables and services show them, and runs that declare none stay as they were."""

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.analysis.comparison import Question, compare_runs
from isaaclab_arena.analysis.comparison_files import measures_table, write_comparison
from isaaclab_arena.api import load_results
from isaaclab_arena.config.schema import Question as Bar
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.report import writing
from isaaclab_arena.results.console import print_summary
from isaaclab_arena.results.merge import merge_results, read, records, stale_tables, write_tables
from isaaclab_arena.results.rows import JobEvidence, metrics_of
from isaaclab_arena.results.statistics import interval_of_mean
from isaaclab_arena.results.stopping import Answer, RateCounts
from isaaclab_arena.storage.ledger import read_run_plan
from isaaclab_arena.tracking.watched_run import OpenedTracker, WatchedRun
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report
from tests.tracking.runs import NotingTracker

HEIGHT = Metric(name="final_height_m", unit="m", better="higher", summary=("mean", "sd", "min"))
TIME = Metric(name="grasped_after_s", unit="s", better="lower")


def write_run(directory: Path, *, heights: tuple[float, ...] = (0.1, 0.2, 0.3, 0.6), metrics=(HEIGHT, TIME)) -> Path:
    directory.mkdir()
    write_plan(directory, planned(num_episodes=len(heights)))
    lines = zip(commit_lines("ssfe"[: len(heights)]), heights, strict=True)
    write_lines(directory, [dataclasses.replace(line, metrics={"final_height_m": height}) for line, height in lines])
    write_report(directory, report(metrics=metrics))
    write_tables(directory, merge_results(directory))
    return directory


def test_a_metric_has_a_row_with_its_mean_and_interval_and_errors_are_left_out(tmp_path):
    run = write_run(tmp_path / "run")
    height, time = records(pd.read_csv(run / "metrics.csv"))
    assert [height[name] for name in ("job", "metric", "unit", "better", "episodes", "method")] == [
        "lift", "final_height_m", "m", "higher", 3, "t",
    ]  # fmt: skip
    assert (height["mean"], height["sd"], height["min"]) == pytest.approx((0.2, 0.1, 0.1))
    assert height["high"] - 0.2 == pytest.approx(4.302653 * 0.1 / 3**0.5)
    # Nothing measured it.
    assert (time["metric"], time["episodes"], time["mean"], time["low"], time["method"]) == (
        "grasped_after_s", 0, None, None, None,
    )  # fmt: skip
    assert json.loads((run / "results.json").read_text())["metrics"][0]["mean"] == pytest.approx(0.2)
    assert load_results(run).metrics["metric"].tolist() == ["final_height_m", "grasped_after_s"]


def test_tables_with_metrics_can_be_read_again(tmp_path):
    run = write_run(tmp_path / "run")
    assert stale_tables(run, merge_results(run)) == []
    pd.testing.assert_frame_equal(read(run).metrics, merge_results(run).metrics)
    (run / "metrics.csv").unlink()
    assert stale_tables(run, merge_results(run)) == [run / "metrics.csv"]


def test_a_run_that_declares_none_has_no_such_files_and_the_same_tables(tmp_path):
    declared, silent = write_run(tmp_path / "declared"), write_run(tmp_path / "silent", metrics=())
    assert not list(silent.glob("metrics.*"))
    assert "metrics" not in json.loads((silent / "results.json").read_text())
    for name in ("results.csv", "episodes.csv", "timing.csv"):
        assert (declared / name).read_bytes() == (silent / name).read_bytes()


def test_many_episodes_have_an_interval_that_follows_their_skewness_and_equal_draws_count_once():
    values = np.random.default_rng(0).exponential(size=400)
    found = interval_of_mean(values, np.arange(400))
    assert found is not None
    interval, method = found
    assert method == "bootstrap"
    assert interval.high - values.mean() > values.mean() - interval.low > 0
    twice = interval_of_mean(np.repeat(values[:20], 2), np.repeat(np.arange(20), 2))
    assert twice == interval_of_mean(values[:20], np.arange(20))
    assert interval_of_mean(values[:1], np.arange(1)) is None


@pytest.mark.filterwarnings("error")
def test_values_that_differ_by_rounding_alone_have_an_interval():
    # Sums over repeated draws round differently.
    values, draws = np.full(300, 0.1), np.minimum(np.arange(300), 250)
    for noise in (np.zeros(300), 1e-17 * np.arange(300)):
        found = interval_of_mean(values + noise, draws)
        assert found is not None
        assert found[1] == "t"
        assert (found[0].low, found[0].high) == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize("beyond", [10, 12])
def test_an_episode_beyond_a_decision_changes_no_interval(beyond):
    # The first two began and went alike. The third began so too and, if it is longer, went otherwise.
    lines = [
        dataclasses.replace(
            line, start=5, episode_return=0.0, episode_length=10, variations={}, metrics={HEIGHT.name: 0.3}
        )
        for line in commit_lines("sss")
    ]
    lines[2] = dataclasses.replace(lines[2], episode_length=beyond)
    bar = Bar(name="bar", jobs=("lift",), max_episodes=2, at_least=0.5)
    counts = RateCounts(successes=2, trials=2)
    answer = Answer(question=bar, episodes=2, counts=counts, log_e_value=0.0, needed_log_e_value=1.0)
    job = JobEvidence(job=planned(), finished=lines, reports=[report(metrics=(HEIGHT,))], answers=[answer])
    assert job.needed == 2
    [height] = metrics_of(job)
    assert (len(height.values), height.interval) == (2, None)


def test_the_table_shows_columns_and_metrics_that_were_asked_for(tmp_path):
    run = write_run(tmp_path / "run")
    stream = io.StringIO()
    columns = ["final_height_m", "success_rate", "seed"]
    print_summary(merge_results(run), run, Console(file=stream, width=120), columns=columns)
    headings, _, row = stream.getvalue().splitlines()[:3]
    assert headings.split()[:2] == ["job", "final_height_m"]
    assert row.split()[:3] == ["lift", "0.2", "±0.1"]
    with pytest.raises(ConfigError, match="--columns: there is no column or metric 'final_hight_m'; did you mean"):
        print_summary(merge_results(run), run, Console(file=stream), columns=["final_hight_m"])


def test_metrics_cannot_steer_the_terminal(tmp_path):
    run = write_run(
        tmp_path / "run", metrics=(dataclasses.replace(HEIGHT, unit="\x1b[31mm"), Metric(name="[red]\x1bx"))
    )
    stream = io.StringIO()
    columns = ["final_height_m", "[red]\x1bx"]
    print_summary(merge_results(run), run, Console(file=stream, width=120), columns=columns)
    assert "[red]" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_the_page_and_trackers_show_metrics(tmp_path):
    run, tracker = write_run(tmp_path / "run"), NotingTracker()
    assert "0.2 ±0.1 [-0.04841, 0.4484] m</b>, higher is better" in writing.write_report([run]).read_text()
    watch = WatchedRun(run, read_run_plan(run), [OpenedTracker("noting", lambda: tracker)])
    watch.look()
    watch.finish()
    assert [each.values["metrics/final_height_m"] for each in tracker.jobs] == [pytest.approx(0.2)]


def test_a_comparison_tests_the_metrics_that_both_sides_declare(tmp_path):
    baseline, candidate = write_run(tmp_path / "a"), write_run(tmp_path / "b", heights=(0.2, 0.3, 0.5, 0.1))
    found = compare_runs(read_run(candidate), read_run(baseline), Question())
    height = measures_table(found).set_index("measure").loc["final_height_m"]
    assert height[["pairs", "candidate", "baseline"]].tolist() == ["3", "0.3333", "0.2"]
    silent = compare_runs(read_run(candidate), read_run(write_run(tmp_path / "c", metrics=())), Question())
    assert "final_height_m" not in silent.tasks[0].metrics


def test_metrics_that_are_called_like_a_measure_stand_beside_it(tmp_path):
    declared = tuple(Metric(name=name) for name in ("length", "difference", "=1+1"))
    baseline, candidate = (write_run(tmp_path / name, metrics=declared) for name in "ab")
    for run in (baseline, candidate):
        [commits] = (run / "lift").glob("*.jsonl")
        commits.write_text(commits.read_text().replace('"final_height_m"', '"length":0.5,"difference":0.5,"=1+1"'))
    found = compare_runs(read_run(candidate), read_run(baseline), Question())
    means = measures_table(found).set_index("measure")["candidate"].to_dict()
    assert (means["length"], means["metric length"], means["metric difference"]) == ("11", "0.5", "0.5")
    figures = pd.read_csv(write_comparison(tmp_path / "out", found)[1])
    assert figures["difference_high"].tolist() != figures["metric_difference_high"].tolist()
    assert "'=1+1_difference" in figures


@pytest.mark.parametrize("wrong", [{"better": "bigger"}, {"summary": ("average",)}, {"name": ""}])
def test_a_metric_that_says_something_unknown_is_refused(wrong):
    with pytest.raises(ValueError, match="no metric"):
        Metric(**{"name": "final_height_m", **wrong})
