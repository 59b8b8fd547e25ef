"""One table from the files of all ranks."""

import csv
import dataclasses
import io
import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.results.merge import csv_text, merge_results, stale_tables, stored_results, write_tables
from isaaclab_arena.storage.ledger import read_run_plan
from tests.analysis.recorded_runs import failed_by, write_all_tables, write_run
from tests.results.evidence import (
    EPISODE_COLUMNS,
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
from tests.security.test_names import WICKED, steers
from tests.tracking.runs import stopped_run

JOBS = tuple(planned(name, index=index) for index, name in enumerate(["b", "a", "c"]))


def run_on(directory, world_size: int):
    """Write what a run of three jobs leaves behind."""
    directory.mkdir()
    jobs = [dataclasses.replace(job, rank=job.config.index % world_size) for job in JOBS]
    write_plan(directory, *jobs, world_size=world_size)
    for job in jobs:
        write_lines(directory, commit_lines("sfsftsfsfe", job=job.name, rank=job.rank or 0))
        write_report(directory, report(job.name, job.rank or 0, wall_s=1.0 + world_size))
    return merge_results(directory)


def test_the_tables_are_the_same_for_any_number_of_ranks(tmp_path):
    one, two, three = (run_on(tmp_path / str(world_size), world_size) for world_size in (1, 2, 3))
    for number, merged in ((1, one), (2, two), (3, three)):
        write_tables(tmp_path / str(number), merged)
        for name, columns in (("jobs", JOB_COLUMNS), ("episodes", EPISODE_COLUMNS)):
            pd.testing.assert_frame_equal(getattr(one, name)[[*columns]], getattr(merged, name)[[*columns]])
        for name in ("results.csv", "results.parquet", "episodes.csv", "episodes.parquet"):
            assert (tmp_path / "1" / name).read_bytes() == (tmp_path / str(number) / name).read_bytes()
    assert (tmp_path / "1" / "timing.csv").read_bytes() != (tmp_path / "3" / "timing.csv").read_bytes()
    assert list(one.jobs["name"]) == ["b", "a", "c"]
    assert list(one.episodes["episode_index"]) == [*range(10)] * 3
    assert one.complete


def test_events_are_in_parquet_and_json_and_the_csv_files_stay_what_they_were(tmp_path):
    told = [failed_by(None, 1.0), failed_by(None, 1.0), failed_by("dropped", 0.4), failed_by("dropped", 0.2)]
    for name, events in (("told", told), ("silent", [None] * 4)):
        write_plan(tmp_path / name, planned(num_episodes=4), planned("other", index=1, num_episodes=4))
        lines = zip(commit_lines("ssft"), events, strict=True)
        write_lines(tmp_path / name, [replace(line, events=each) for line, each in lines])
        write_lines(tmp_path / name, commit_lines("ssfe", job="other"))
        for job in ("lift", "other"):
            write_report(tmp_path / name, report(job))
        write_tables(tmp_path / name, merge_results(tmp_path / name))
        assert stale_tables(tmp_path / name, merge_results(tmp_path / name)) == []
    for name in ("results.csv", "episodes.csv"):
        assert (tmp_path / "told" / name).read_bytes() == (tmp_path / "silent" / name).read_bytes()
    episodes = pd.read_parquet(tmp_path / "told" / "episodes.parquet")
    assert episodes["progress"].tolist()[:4] == [1.0, 1.0, 0.4, 0.2]
    assert episodes["decisive_event"].isna().tolist()[:4] == [True, True, False, False]
    assert json.loads(str(episodes["events"][2])) == {"dropped": [1, 1]}
    job, other = json.loads((tmp_path / "told" / "results.json").read_text())["jobs"]
    assert (job["failure_progress"], job["score"]) == (pytest.approx(0.3), pytest.approx(0.5 + 0.5 * 0.3))
    assert (other["failure_progress"], other["score"]) == (None, None)
    assert "score" not in pd.read_parquet(tmp_path / "silent" / "results.parquet")


def test_what_a_dead_rank_did_not_finish_is_named(tmp_path):
    jobs = [dataclasses.replace(job, rank=job.config.index) for job in JOBS]
    write_plan(tmp_path, *jobs, world_size=3)
    write_lines(tmp_path, commit_lines("ssssssssss", job="b"))
    write_report(tmp_path, report("b"))
    write_lines(tmp_path, commit_lines("sss-------", job="a", rank=1))
    merged = merge_results(tmp_path)
    assert not merged.complete
    assert [(each.job, each.rank, each.status, each.episode_indices) for each in merged.missing] == [
        ("a", 1, "interrupted", tuple(range(3, 10))),
        ("c", 2, "missing", tuple(range(10))),
    ]
    assert merged.jobs["missing"].tolist() == [0, 7, 10]
    assert merged.jobs["episodes"].tolist() == [10, 3, 0]


def test_a_failed_job_makes_a_run_incomplete_even_with_all_its_episodes_and_a_skipped_one_does_not(tmp_path):
    failed, skipped = tmp_path / "failed", tmp_path / "skipped"
    merged = merge_results(write_job(failed, "ss", report(status="failed", error="RuntimeError: no"), num_episodes=2))
    assert (merged.complete, merged.jobs["error"].tolist()) == (False, ["RuntimeError: no"])
    write_plan(skipped, planned(status=JobStatus.COMPLETED, rank=None))
    merged = merge_results(skipped)
    assert (merged.complete, merged.jobs["status"].tolist()) == (True, ["skipped"])


def test_an_episode_committed_twice_counts_once(tmp_path):
    write_lines(write_job(tmp_path, "s" * 10), commit_lines("f"))
    merged = merge_results(tmp_path)
    assert (merged.jobs["successes"].tolist(), merged.jobs["reproducible"].tolist()) == ([10], ["plan"])
    assert "episode 0 was committed" in merged.problems[0]


def test_an_error_that_was_run_again_gives_way_and_is_counted_as_retried(tmp_path):
    write_job(tmp_path, "ses", num_episodes=3)
    write_lines(tmp_path, [dataclasses.replace(line, attempt=2) for line in commit_lines("s", first=1)])
    merged = merge_results(tmp_path)
    assert merged.jobs[["successes", "errors", "retried"]].to_numpy().tolist() == [[3, 0, 1]]
    assert merged.jobs["reproducible"].tolist() == ["bitwise"]


def test_swept_keys_are_columns_of_the_results_for_any_number_of_ranks(tmp_path):
    swept: list[dict] = [{"seed": 1, "policy_config_dict.speed": 1}, {"seed": 2, "policy_config_dict.speed": 0.5}]
    swept.append({"arena_env_args.object": "=can", "variations": {"cube.mass.enabled": True}})
    for world_size in (1, 3):
        jobs = [planned(name, index=at, rank=at % world_size, swept=swept[at]) for at, name in enumerate("bac")]
        write_plan(tmp_path / str(world_size), *jobs, world_size=world_size)
        for job in jobs:
            write_lines(tmp_path / str(world_size), commit_lines("sf", job=job.name, rank=job.rank or 0))
        write_tables(tmp_path / str(world_size), merge_results(tmp_path / str(world_size)))
    results = tmp_path / "1" / "results.csv"
    assert results.read_bytes() == (tmp_path / "3" / "results.csv").read_bytes()
    table = pd.read_parquet(results.with_suffix(".parquet"))
    keys = ["seed", "policy_config_dict.speed", "arena_env_args.object", "variations"]
    assert list(table.columns) == [*JOB_COLUMNS, *(f"sweep.{key}" for key in keys)]
    seeds, speeds, objects, variations = (pd.Series(table[f"sweep.{key}"]) for key in keys)
    assert (seeds.tolist()[:2], str(speeds.dtype), objects.tolist()[2]) == ([1, 2], "Float64", "=can")
    assert json.loads(variations.tolist()[2]) == {"cube.mass.enabled": True}
    assert list(pd.read_csv(results)["sweep.arena_env_args.object"])[2] == "'=can"


@pytest.mark.parametrize(
    "cell", ["=cmd()", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1dcmd()", "\uff20a", "\x00=1", *WICKED[:-1]]
)
def test_a_cell_neither_runs_in_a_spreadsheet_nor_steers_a_terminal(cell):
    text = {"text": pd.array([cell], dtype="string"), "mixed": pd.Series([cell], dtype=object)}
    written = csv_text(pd.DataFrame({**text, "number": [-1.5], "whole": pd.array([-2], dtype="Int64")}))
    [cells] = csv.DictReader(io.StringIO(written))
    assert not steers(written)
    assert (cells.pop("number"), cells.pop("whole")) == ("-1.5", "-2")
    assert all(value[0] not in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20" for value in cells.values())


RUNS = {
    "complete": {"lift": "sssfte", "reach": "sf"},
    "with episodes missing": {"lift": "ss-f", "reach": "--"},
    "without success": {"lift": "uu"},
    "with a suite": {"mine:0": "ssf", "mine:1": "sff", "reach": "sf"},
}


@pytest.mark.parametrize("kind", [*RUNS, "late answers", "events", "repeats", "actions at bounds"])
def test_tables_give_what_a_merge_gives(tmp_path: Path, kind: str):
    run = tmp_path / "run"
    if kind == "late answers":
        write_late_run(run)
    elif kind == "events":
        write_run(run, {"lift": "sff"}, events={1: failed_by("dropped"), 2: failed_by(None)})
    elif kind == "repeats":
        write_run(run, {"mine:a": "sfsf", "mine:b": "ssff"}, starts=2)
    elif kind == "actions at bounds":
        write_plan(run, planned(num_episodes=2))
        write_lines(run, [replace(line, saturated_action_share=0.5) for line in commit_lines("sf")])
    else:
        write_run(run, RUNS[kind], swept={"variations.noise.high": 0.5})
        for run_id, remark in ((read_run_plan(run).run_id, "ours"), ("other", "theirs")):
            write_report(run, report("lift", run=run_id, remarks=(remark,)))
    write_all_tables(run)
    merged, found = merge_results(run), there(stored_results(run))
    assert stale_tables(run, merged) == []
    files = {path: path.read_bytes() for path in write_tables(run, merged)}
    assert {path: path.read_bytes() for path in write_tables(run, merge_results(run))} == files
    assert not list(run.glob(".*"))
    tables = ("jobs", "episodes", "suites")
    for name in tables:
        pd.testing.assert_frame_equal(getattr(found, name), getattr(merged, name), check_like=True)
    rest = dict.fromkeys(tables, pd.DataFrame())
    assert str(replace(found, **rest)) == str(replace(merged, **rest))
    if kind == "complete":
        assert found.remarks == ("job 'lift': ours",)


def test_tables_that_are_missing_old_or_damaged_are_not_believed_and_answers_are_found_by_a_merge_alone(tmp_path):
    run = write_run(tmp_path / "run", {"lift": "sf--"})
    assert stored_results(run) is None
    write_all_tables(run)
    assert stored_results(run) is not None
    (run / "timing.parquet").write_bytes(b"PAR1")
    assert stored_results(run) is None
    write_all_tables(run)
    write_lines(run, commit_lines("s", first=2))
    assert stored_results(run) is None
    stopped_run(tmp_path / "stopped")
    write_all_tables(tmp_path / "stopped")
    assert stored_results(tmp_path / "stopped") is None
