"""The row of a job, and of each of its metrics."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.analysis.comparison import Question, compare_runs
from isaaclab_arena.analysis.comparison_files import measures_table
from isaaclab_arena.api import load_results
from isaaclab_arena.config.schema import Delays, LatencyConfig, Meanwhile
from isaaclab_arena.config.schema import Question as Bar
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.episode import Metric
from isaaclab_arena.report import writing
from isaaclab_arena.results.console import print_summary
from isaaclab_arena.results.merge import merge_results, records, stale_tables, write_tables
from isaaclab_arena.results.rows import JobEvidence, metrics_of
from isaaclab_arena.results.statistics import interval_of_mean
from isaaclab_arena.results.stopping import Answer, RateCounts
from isaaclab_arena.storage.commits import CommitLog
from isaaclab_arena.storage.ledger import QueryPace, ServerUsage, StartUp, read_run_plan
from isaaclab_arena.tracking.watched_run import OpenedTracker, WatchedRun
from tests.results.evidence import (
    commit_lines,
    episode_row,
    job_row,
    planned,
    printed,
    report,
    there,
    write_lines,
    write_plan,
    write_report,
)
from tests.tracking.runs import NotingTracker

DONE = (report(),)


def evidence(outcomes: str = "", *, reports=DONE, **job) -> JobEvidence:
    return JobEvidence(job=planned(**job), log=CommitLog(lines=tuple(commit_lines(outcomes))), reports=list(reports))


def row_of(outcomes: str = "s", *reports, **job) -> dict[str, Any]:
    return job_row(evidence(outcomes, reports=reports or DONE, **job))


def test_errors_are_neither_successes_nor_failures_and_bounds_count_them_both_ways():
    row = job_row(evidence("sssffte---"))
    assert (row["episodes"], row["successes"], row["failures"], row["timeouts"]) == (7, 3, 2, 1)
    assert (row["errors"], row["missing"], row["planned"]) == (1, 3, 10)
    assert row["success_rate"] == pytest.approx(3 / 6)
    assert row["success_low"] < 0.5 < row["success_high"]
    assert (row["success_rate_lower_bound"], row["success_rate_upper_bound"]) == (0.3, 0.7)
    row = row_of("sefs", num_episodes=4)
    assert (row["mean_length"], row["mean_return"]) == pytest.approx(((10 + 12 + 13) / 3, (0 + 2 + 3) / 3))
    row = row_of("e" * 10)
    assert (row["success_rate"], row["mean_length"]) == (None, None)
    assert (row["success_rate_lower_bound"], row["success_rate_upper_bound"]) == (0.0, 1.0)


def test_success_that_is_not_measured_has_no_rate():
    assert row_of("uuuuuuuute")["successes"] is not None
    row = row_of("uuuuuuuuue")
    names = ("successes", "success_rate", "success_low", "success_rate_lower_bound")
    assert [row[name] for name in names] == [None] * 4


def test_what_a_job_misses_follows_from_its_plan_or_its_policy_and_is_unknown_without_a_trace():
    row = row_of("ss", report(cut_episodes=4), num_episodes=None, num_steps=100)
    assert (row["planned"], row["missing"], row["cut"]) == (None, 0, 4)
    assert row_of("sss", report(num_episodes=5), num_episodes=None)["missing"] == 2
    assert job_row(evidence("", num_episodes=None, reports=()))["missing"] is None


@pytest.mark.parametrize(
    ("job", "cut"), [({"num_episodes": None, "num_steps": 50}, 5), ({"num_episodes": 12}, 5), ({"num_episodes": 10}, 0)]
)
def test_cut_is_what_the_last_attempt_left_and_nothing_where_all_episodes_finished(job, cut):
    later = [report(attempt=2, cut_episodes=2), report(attempt=2, rank=1, cut_episodes=3)]
    assert row_of("sf" * 5, report(status="interrupted", cut_episodes=7), *later, **job)["cut"] == cut


EGL, OSMESA = ({"environment": "gym:Push-v0", "mujoco": "4.0.0", "MUJOCO_GL": name} for name in ("egl", "osmesa"))
BITWISE, PLAN, UNBUILT = report(), report(reproducible="plan"), report(status="failed", reproducible=None)
DOUBT = report(rank=1, reproducible="plan", plan_because="loaded dice", policy_batch=4)
HERE, THERE = report(processor="Xeon"), report(rank=1, processor="EPYC")
ON_GPU, ON_CPU = report(device_kind="cuda (NVIDIA H100)"), report(rank=1, device_kind="cpu")
PROMISES = {
    "one batch": ([report(policy_batch=4)], "bitwise", None, 4),
    "a doubt": ([report(policy_batch=4), DOUBT], "plan", "loaded dice", 4),
    "a doubt first": ([PLAN, report(attempt=2)], "plan", None, None),
    "two batches": ([report(policy_batch=4), report(rank=1, policy_batch=8)], "plan", "batch sizes", 8),
    "one processor": ([HERE, report(rank=1, processor="Xeon")], "bitwise", None, None),
    "two processors": ([HERE, THERE], "plan", "processors", None),
    "two devices": ([ON_GPU, ON_CPU, report(rank=2)], "plan", "kinds of device", None),
    "one OpenGL": ([report(simulated_by=EGL), report(rank=1, simulated_by=EGL), report(rank=2)], "bitwise", None, None),
    "two OpenGLs": ([report(simulated_by=EGL), report(rank=1, simulated_by=OSMESA)], "plan", "OpenGL", None),
    "never built": ([UNBUILT], None, None, None),
    "built later": ([UNBUILT, report(attempt=2)], "bitwise", None, None),
    # Reports of programs that did not say take no promise away.
    "did not say": ([BITWISE, report(attempt=2, policy_batch=4)], "bitwise", None, 4),
    "did not say why": ([PLAN], "plan", None, None),
}


@pytest.mark.parametrize(("reports", "promise", "because", "batch"), PROMISES.values(), ids=PROMISES)
def test_why_a_job_is_no_more_than_the_plan_stands_beside_it(reports, promise, because, batch):
    row = row_of("s", *reports)
    assert (row["reproducible"], row["policy_batch"]) == (promise, batch)
    assert because in (row["plan_because"] or "") if because else row["plan_because"] is None


def test_unequal_commits_and_other_versions_take_the_promise_of_equal_bits_away():
    unequal = dataclasses.replace(evidence("s").log, unequal_episodes=(0,))
    for changes, because in (({"log": unequal}, "twice"), ({"same_conditions": False}, "versions")):
        row = job_row(dataclasses.replace(evidence("s"), **changes))
        assert row["reproducible"] == "plan"
        assert because in row["plan_because"]


def test_an_episodes_row_says_of_it_what_its_line_says():
    said = {"episode_seed": 99, "rank": 2, "attempt": 3, "wall_s": 1.5, "checksum": 7, "env_id": 1}
    row = episode_row(planned(object="can"), dataclasses.replace(commit_lines("u")[0], metrics={"a_m": 0.5}, **said))
    expected = said | {"success": None, "outcome": None, "seed": 3, "length": 10, "return": 0.0}
    expected |= {"termination": "terminated", "conditions": '{"cube.x": 0.5}', "metrics": '{"a_m": 0.5}'}
    expected |= {"job": "lift", "environment": "lift_object", "object": "can", "policy": "zero_action"}
    assert {name: row[name] for name in expected} == expected


def test_a_job_that_a_later_attempt_finished_is_completed_and_says_how_long_all_took():
    failed = report(status="failed", cut_episodes=4, wall_s=10.0, error="RuntimeError: no", traceback_file="t.txt")
    row = row_of("s" * 10, failed, *[report(rank=rank, attempt=2, wall_s=4.0 + rank) for rank in (0, 1)])
    assert (row["status"], row["cut"], row["attempts"], row["rank"]) == ("completed", 0, 2, "0, 1")
    assert (row["error"], row["traceback_file"]) == (None, None)
    # The longest rank of each attempt.
    assert (row["wall_s"], row["build_s"], row["env_steps"]) == (10.0 + 5.0, 3 * 1.0, 1800)
    assert row["env_steps_per_s"] == 1800 / (9.0 + 4.0)
    assert row_of("s", report(wall_s=4.0, build_s=4.0, env_steps=0))["env_steps_per_s"] is None


def test_what_a_rank_said_when_it_began_stands_for_the_report_that_it_did_not_live_to_write():
    begun = report(status="begun", wall_s=0.5, reproducible="plan", plan_because="it draws", policy_batch=4)
    row = row_of("s" * 10, begun)
    assert (row["status"], row["reproducible"], row["plan_because"]) == ("completed", "plan", "it draws")
    assert (row["policy_batch"], row["attempts"], row["rank"]) == (4, 1, "0")


def test_what_the_start_took_adds_up_and_is_empty_where_nobody_knows():
    first = StartUp(import_s=2.0, compile_s=10.0, build_environment_s=0.5, first_step_s=0.25)
    other = StartUp(import_s=0.0, kernel_wait_s=9.0, build_environment_s=0.25)
    row = row_of("s", report(start_up=first), report(rank=1, start_up=other), report(rank=2))
    assert [row[name] for name in ("import_s", "compile_s", "kernel_wait_s")] == [2.0, 10.0, 9.0]
    assert [row[name] for name in ("build_environment_s", "first_step_s", "first_reset_s")] == [0.75, 0.25, None]
    silent = row_of()
    assert all(silent[each.name] is None for each in dataclasses.fields(StartUp))


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
    run, silent = write_run(tmp_path / "run"), write_run(tmp_path / "silent", metrics=())
    height, time = records(pd.read_csv(run / "metrics.csv"))
    said = {"job": "lift", "metric": "final_height_m", "unit": "m", "better": "higher", "episodes": 3, "method": "t"}
    assert height.items() >= said.items()
    assert (height["mean"], height["sd"], height["min"]) == pytest.approx((0.2, 0.1, 0.1))
    assert height["high"] - 0.2 == pytest.approx(4.302653 * 0.1 / 3**0.5)
    # Nothing measured it.
    unmeasured = {"metric": "grasped_after_s", "episodes": 0, "mean": None, "low": None, "method": None}
    assert time.items() >= unmeasured.items()
    assert json.loads((run / "results.json").read_text())["metrics"][0]["mean"] == pytest.approx(0.2)
    merged = merge_results(run)
    pd.testing.assert_frame_equal(load_results(run).metrics, merged.metrics)
    (run / "metrics.csv").unlink()
    assert stale_tables(run, merged) == [run / "metrics.csv"]
    # A run that declares none has no such files, and else the same.
    assert not list(silent.glob("metrics.*"))
    assert "metrics" not in json.loads((silent / "results.json").read_text())
    assert (run / "results.csv").read_bytes() == (silent / "results.csv").read_bytes()


def test_many_episodes_have_an_interval_that_follows_their_skewness_and_equal_draws_count_once():
    values = np.random.default_rng(0).exponential(size=400)
    interval, method = there(interval_of_mean(values, np.arange(400)))
    assert method == "bootstrap"
    assert interval.high - values.mean() > values.mean() - interval.low > 0
    # The ends of scipy's BCa bootstrap with 400,000 resamples of the fewest values that are enough.
    fewest, method = there(interval_of_mean(values[:100], np.arange(100)))
    ends = pytest.approx((0.98259, 1.4299), abs=1.5e-3)
    assert (method, (fewest.low, fewest.high)) == ("bootstrap", ends)
    assert there(interval_of_mean(values[:99], np.arange(99)))[1] == "t"
    twice = interval_of_mean(np.repeat(values[:20], 2), np.repeat(np.arange(20), 2))
    assert twice == interval_of_mean(values[:20], np.arange(20))
    assert interval_of_mean(values[:1], np.arange(1)) is None


@pytest.mark.filterwarnings("error")
def test_values_that_differ_by_rounding_alone_have_an_interval():
    # Sums over repeated draws round differently.
    values, draws = np.full(300, 0.1), np.minimum(np.arange(300), 250)
    for noise in (np.zeros(300), 1e-17 * np.arange(300)):
        interval, method = there(interval_of_mean(values + noise, draws))
        assert (interval.low, interval.high, method) == (pytest.approx(0.1), pytest.approx(0.1), "t")


@pytest.mark.parametrize("beyond", [10, 12])
def test_an_episode_beyond_a_decision_changes_no_interval(beyond):
    # The first two began and went alike. The third began so too and, if it is longer, went otherwise.
    alike = {"start": 5, "episode_return": 0.0, "conditions": {}, "metrics": {HEIGHT.name: 0.3}}
    lengths = zip(commit_lines("sss"), (10, 10, beyond), strict=True)
    lines = [dataclasses.replace(line, length=length, **alike) for line, length in lengths]
    bar = Bar(name="bar", jobs=("lift",), max_episodes=2, at_least=0.5)
    counts = RateCounts(successes=2, trials=2)
    answer = Answer(question=bar, episodes=2, counts=counts, log_e_value=0.0, needed_log_e_value=1.0)
    job = evidence(reports=[report(metrics=(HEIGHT,))])
    job = dataclasses.replace(job, log=CommitLog(lines=tuple(lines)), answers=[answer])
    assert job.needed == 2
    [height] = metrics_of(job)
    assert (len(height.values), height.interval) == (2, None)


def test_the_table_shows_columns_and_metrics_that_were_asked_for_and_these_steer_no_terminal(tmp_path):
    wicked = (dataclasses.replace(HEIGHT, unit="\x1b[31mm"), Metric(name="[red]\x1bx"))
    merged = merge_results(write_run(tmp_path / "run", metrics=wicked))

    def shown(*columns: str) -> str:
        return printed(lambda console: print_summary(merged, tmp_path / "run", console, columns=columns))

    text = shown("final_height_m", "success_rate", "seed", "[red]\x1bx")
    headings, _, row = text.splitlines()[:3]
    assert headings.split()[:2] == ["job", "final_height_m"]
    assert row.split()[:3] == ["lift", "0.2", "±0.1"]
    assert ("[red]" in text, "\x1b" in text) == (True, False)
    with pytest.raises(ConfigError, match="final_hight_m"):
        shown("final_hight_m")


def test_the_page_and_trackers_show_metrics(tmp_path):
    run, tracker = write_run(tmp_path / "run"), NotingTracker()
    assert "0.2 ±0.1 [-0.04841, 0.4484] m</b>, higher" in writing.write_report([run]).read_text()
    WatchedRun(run, read_run_plan(run), [OpenedTracker("noting", lambda: tracker)]).finish()
    assert [each.values["metrics/final_height_m"] for each in tracker.jobs] == [pytest.approx(0.2)]


def test_a_comparison_tests_the_metrics_that_both_sides_declare(tmp_path):
    baseline, candidate = write_run(tmp_path / "a"), write_run(tmp_path / "b", heights=(0.2, 0.3, 0.5, 0.1))
    found = compare_runs(read_run(candidate), read_run(baseline), Question())
    height = measures_table(found).set_index("measure").loc["final_height_m"]
    assert height[["pairs", "candidate", "baseline"]].tolist() == ["3", "0.3333", "0.2"]
    silent = compare_runs(read_run(candidate), read_run(write_run(tmp_path / "c", metrics=())), Question())
    assert "final_height_m" not in silent.tasks[0].metrics


def test_what_ranks_asked_of_a_policy_server_adds_up_and_a_job_without_one_says_nothing():
    asked = {"queries": 10, "entries": 30, "calls": 10.0, "call_entries": 40.0, "queue_s": 0.5, "busy_s": 1.0}
    used = ServerUsage(**asked, seen_s=4.0, seen_busy_s=2.0, seen_entries=60)
    cells = row_of("s", *(report(rank=rank, wall_s=5.0, build_s=1.0, policy_server=used) for rank in (0, 1)))
    assert [cells[name] for name in ("server_queries", "server_entries")] == [20, 60]
    # Both ranks saw the same server for 4 s, of which it was busy for 2 s with what both asked.
    assert [cells[name] for name in ("server_offered_per_s", "server_busy_share")] == [15.0, 0.5]
    assert [cells[name] for name in ("server_batch_fill", "server_queue_ms")] == [0.75, 50.0]
    silent = row_of()
    assert all(silent[name] is None for name in silent if name.startswith("server_"))


def test_a_server_is_never_busier_than_always_however_many_nodes_have_one_and_whatever_other_jobs_ask():
    # Two nodes: the server of the first is busy without a pause, half of it with another job's queries.
    first = ServerUsage(queries=10, entries=30, busy_s=1.9, seen_s=4.0, seen_busy_s=4.0, seen_entries=80)
    second = ServerUsage(queries=10, entries=30, busy_s=4.8, seen_s=6.0, seen_busy_s=5.0, seen_entries=40)
    used = enumerate((first, second))
    cells = row_of("s", *(report(rank=rank, wall_s=7.0, build_s=1.0, policy_server=each) for rank, each in used))
    assert (cells["server_busy_share"], cells["server_offered_per_s"]) == (0.9, 12.0)
    # One query shows nothing of what the server does beside it.
    once = report(policy_server=ServerUsage(queries=1, entries=1, busy_s=1.0))
    assert row_of("s", once)["server_busy_share"] is None


def test_a_job_with_late_answers_tells_what_was_assumed_what_it_came_to_and_what_was_true():
    metrics = [{"latency.stale_share": share, "latency.queries_per_s": 2.0} for share in (0.0, 1.0)]
    lines = [dataclasses.replace(line, metrics=own) for line, own in zip(commit_lines("sf"), metrics, strict=True)]
    late = LatencyConfig(ms=(120.0, 120.0), meanwhile=Meanwhile.CHUNK)
    config = dataclasses.replace(planned().config, latency=late)
    job = dataclasses.replace(planned(), config=config, latency=Delays(steps=((3, 1),), control_dt=0.05))
    ranks = [report(rank=0, query_s=(0.010, 0.020)), report(rank=1, query_s=(0.030,))]
    cells = job_row(JobEvidence(job=job, log=CommitLog(lines=tuple(lines)), reports=ranks))
    assert (cells["latency"], cells["meanwhile"]) == ("3 control steps of 50 ms", "chunk")
    # The episodes have 10 and 11 control steps.
    assert (cells["stale_action_share"], cells["queries_per_s"]) == (pytest.approx(11 / 21), 2.0)
    assert (cells["measured_latency_p50_ms"], cells["measured_latency_p95_ms"]) == (20.0, pytest.approx(29.0))
    silent = row_of()
    assert all(silent[name] is None for name in ("latency", "meanwhile", "queries_per_s", "measured_latency_p50_ms"))


@pytest.mark.parametrize(
    ("outcomes", "is_paced", "stale", "queries"),
    [
        # Episodes of 10 and 11 control steps have two queries each.
        ("sf", True, 0.0, pytest.approx(4 / (21 * 0.05))),
        ("", True, None, None),
        # Whoever finished the episodes did not live to say how often it asked.
        ("sf", False, None, None),
    ],
)
def test_while_the_world_waits_nothing_is_stale_and_queries_follow_from_the_lengths_of_episodes(
    outcomes, is_paced, stale, queries
):
    paced = report(query_pace=QueryPace(steps=8, control_dt=0.05))
    config = dataclasses.replace(planned().config, latency=LatencyConfig(steps=(3, 3), meanwhile=Meanwhile.WAIT))
    job = dataclasses.replace(evidence(outcomes), job=dataclasses.replace(planned(), config=config))
    cells = job_row(dataclasses.replace(job, reports=[report(rank=1), *([paced] if is_paced else [])]))
    assert (cells["stale_action_share"], cells["queries_per_s"]) == (stale, queries)
