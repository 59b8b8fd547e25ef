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
from isaaclab_arena.interfaces.episode import EpisodeEvents
from isaaclab_arena.results.merge import (
    MergedResults,
    csv_text,
    merge_results,
    stale_tables,
    stored_results,
    write_tables,
)
from isaaclab_arena.storage.commits import read_commits
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


def stored(directory: Path) -> MergedResults:
    return there(stored_results(directory))


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


def test_the_tables_come_back_from_disk_and_merging_again_gives_the_same_files(tmp_path):
    directory = tmp_path / "run"
    merged = run_on(directory, 2)
    before = {path: path.read_bytes() for path in write_tables(directory, merged)}
    for name, table, columns in (
        ("results", merged.jobs, JOB_COLUMNS),
        ("episodes", merged.episodes, EPISODE_COLUMNS),
    ):
        parquet = pd.read_parquet(directory / f"{name}.parquet")
        assert {column: str(kind) for column, kind in parquet.dtypes.items()} == columns
        pd.testing.assert_frame_equal(parquet, table.loc[:, [*columns]])
        assert list(pd.read_csv(directory / f"{name}.csv").columns) == list(columns)
    document = json.loads((directory / "results.json").read_text())
    assert document["complete"]
    assert [job["success_rate"] for job in document["jobs"]] == merged.jobs["success_rate"].tolist()
    assert {path: path.read_bytes() for path in write_tables(directory, merge_results(directory))} == before
    assert not list(directory.glob(".*"))


def test_events_are_in_parquet_and_json_and_the_csv_files_stay_what_they_were(tmp_path):
    dropped = EpisodeEvents(progress=0.4, decisive="dropped", seen={"dropped": (31, 2)})
    told = {"s": EpisodeEvents(progress=1.0, decisive=None, seen={}), "f": dropped, "t": replace(dropped, progress=0.2)}
    letters = "ssft"
    for name, events in (("told", told), ("silent", dict.fromkeys(letters))):
        directory = tmp_path / name
        write_plan(directory, planned(num_episodes=4))
        lines = zip(commit_lines(letters), letters, strict=True)
        write_lines(directory, [replace(line, events=events[letter]) for line, letter in lines])
        write_report(directory, report())
        merged = merge_results(directory)
        write_tables(directory, merged)
        assert stale_tables(directory, merge_results(directory)) == []
    for name in ("results.csv", "episodes.csv"):
        assert (tmp_path / "told" / name).read_bytes() == (tmp_path / "silent" / name).read_bytes()
    episodes = pd.read_parquet(tmp_path / "told" / "episodes.parquet")
    assert episodes["progress"].tolist() == [1.0, 1.0, 0.4, 0.2]
    assert episodes["decisive_event"].isna().tolist() == [True, True, False, False]
    assert json.loads(str(episodes["events"][2])) == {"dropped": [31, 2]}
    (job,) = json.loads((tmp_path / "told" / "results.json").read_text())["jobs"]
    assert (job["failure_progress"], job["score"]) == (pytest.approx(0.3), pytest.approx(0.5 + 0.5 * 0.3))
    assert "score" not in pd.read_parquet(tmp_path / "silent" / "results.parquet")


@pytest.mark.parametrize("letters", ["ssss", "ssff", "eeee"])
def test_a_job_whose_environment_tells_no_events_has_no_score_in_a_run_where_another_does(tmp_path, letters):
    solved = EpisodeEvents(progress=1.0, decisive=None, seen={})
    write_plan(tmp_path, planned("told", num_episodes=4, index=0), planned("silent", num_episodes=4, index=1))
    write_lines(tmp_path, [replace(line, events=solved) for line in commit_lines("ssss", job="told")])
    write_lines(tmp_path, commit_lines(letters, job="silent"))
    for name in ("told", "silent"):
        write_report(tmp_path, report(name))
    jobs = merge_results(tmp_path).jobs.set_index("name")
    assert jobs.loc["told", "score"] == 1.0
    assert jobs.loc["silent", ["failure_progress", "score"]].isna().all()


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


def test_torn_and_broken_files_are_survived_and_told(tmp_path):
    write_plan(tmp_path, planned())
    path = write_lines(tmp_path, commit_lines("sssss"))
    path.write_bytes(b"garbage\n" + path.read_bytes()[:-20])
    (tmp_path / "lift" / "job_report_rank0.json").write_text("{")
    merged = merge_results(tmp_path)
    assert merged.jobs["episodes"].tolist() == [4]
    assert len(merged.problems) == 2


def test_an_episode_committed_twice_counts_once(tmp_path):
    write_plan(tmp_path, planned())
    write_report(tmp_path, report())
    write_lines(tmp_path, commit_lines("ssssssssss"))
    write_lines(tmp_path, commit_lines("f"))
    merged = merge_results(tmp_path)
    assert merged.jobs["successes"].tolist() == [10]
    assert merged.jobs["reproducible"].tolist() == ["plan"]
    assert "episode 0 was committed more than once" in merged.problems[0]


def test_an_error_that_was_run_again_gives_way_and_is_counted_as_retried(tmp_path):
    write_plan(tmp_path, planned(num_episodes=3))
    write_lines(tmp_path, commit_lines("ses"))
    write_lines(tmp_path, [dataclasses.replace(line, attempt=2) for line in commit_lines("s", first=1)])
    write_report(tmp_path, report())
    merged = merge_results(tmp_path)
    assert merged.jobs[["successes", "errors", "retried"]].to_numpy().tolist() == [[3, 0, 1]]
    assert merged.jobs["reproducible"].tolist() == ["bitwise"]


def test_text_that_a_spreadsheet_would_run_is_quoted_in_csv_only(tmp_path):
    write_plan(tmp_path, planned("=HYPERLINK(0)", index=0), planned("@b", index=1), planned("c", index=2))
    merged = merge_results(tmp_path)
    write_tables(tmp_path, merged)
    assert pd.read_csv(tmp_path / "results.csv")["name"].tolist() == ["'=HYPERLINK(0)", "'@b", "c"]
    assert pd.read_parquet(tmp_path / "results.parquet")["name"].tolist() == ["=HYPERLINK(0)", "@b", "c"]


def test_very_many_lines_are_read_and_merged(tmp_path):
    write_plan(tmp_path, planned(num_episodes=20_000))
    text = write_lines(tmp_path, commit_lines("s")).read_text()
    texts = (text.replace('"episode_index": 0', f'"episode_index": {index}') for index in range(20_000))
    (tmp_path / "lift" / "episode_results_rank0.jsonl").write_text("".join(texts))
    write_report(tmp_path, report())
    merged = merge_results(tmp_path)
    assert len(merged.episodes) == len(read_commits(tmp_path / "lift", "lift").lines) == 20_000
    assert merged.complete


def test_swept_keys_are_columns_of_the_results_for_any_number_of_ranks(tmp_path):
    swept = [{"seed": 1, "policy_config_dict.speed": 1}, {"seed": 2, "policy_config_dict.speed": 0.5}, {}]
    swept[2] = {"arena_env_args.object": "=can", "variations": {"cube.mass.enabled": True}}
    contents = []
    for world_size in (1, 3):
        directory = tmp_path / str(world_size)
        directory.mkdir()
        jobs = [
            planned(job.name, index=index, rank=index % world_size, swept=values)
            for index, (job, values) in enumerate(zip(JOBS, swept, strict=True))
        ]
        write_plan(directory, *jobs, world_size=world_size)
        for job in jobs:
            write_lines(directory, commit_lines("sf", job=job.name, rank=job.rank or 0))
            write_report(directory, report(job.name, job.rank or 0))
        write_tables(directory, merge_results(directory))
        contents.append((directory / "results.csv").read_bytes())
    assert contents[0] == contents[1]
    table = pd.read_parquet(tmp_path / "1" / "results.parquet")
    keys = ["seed", "policy_config_dict.speed", "arena_env_args.object", "variations"]
    assert list(table.columns) == [*JOB_COLUMNS, *(f"sweep.{key}" for key in keys)]
    seeds, speeds, objects, variations = (pd.Series(table[f"sweep.{key}"]) for key in keys)
    assert seeds.tolist()[:2] == [1, 2]
    assert str(speeds.dtype) == "Float64"
    assert objects.tolist()[2] == "=can"
    assert json.loads(variations.tolist()[2]) == {"cube.mass.enabled": True}
    in_csv = pd.Series(pd.read_csv(tmp_path / "1" / "results.csv")["sweep.arena_env_args.object"])
    assert in_csv.tolist()[2] == "'=can", "no spreadsheet runs it"


# Cells of tables, as a spreadsheet and a terminal take them.


@pytest.mark.parametrize(
    "cell", ["=cmd()", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1dcmd()", "\uff20a", "\x00=1", *WICKED[:-1]]
)
def test_a_cell_neither_runs_in_a_spreadsheet_nor_steers_a_terminal(cell):
    table = pd.DataFrame({"text": pd.array([cell], dtype="string"), "mixed": pd.Series([cell], dtype=object)})
    text = csv_text(table)
    [cells] = csv.DictReader(io.StringIO(text))
    assert not steers(text)
    assert all(value[0] not in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20" for value in cells.values())


def test_numbers_in_a_table_are_no_formulas():
    assert csv_text(pd.DataFrame({"a": [-1.5], "b": pd.array([-2], dtype="Int64")})) == "a,b\n-1.5,-2\n"


RUNS = {
    "complete": {"lift": "sssfte", "reach": "sf"},
    "with episodes missing": {"lift": "ss-f", "reach": "--"},
    "without success": {"lift": "uu"},
    "with a suite": {"mine:0": "ssf", "mine:1": "sff", "reach": "sf"},
}


def without_tables(results: MergedResults) -> MergedResults:
    return dataclasses.replace(results, jobs=pd.DataFrame(), episodes=pd.DataFrame(), suites=pd.DataFrame())


@pytest.mark.parametrize("kind", [*RUNS, "late answers", "events"])
def test_tables_give_what_a_merge_gives(tmp_path: Path, kind: str):
    run = tmp_path / "run"
    if kind == "late answers":
        write_late_run(run)
    elif kind == "events":
        write_run(run, {"lift": "sff"}, events={1: failed_by("dropped"), 2: failed_by(None)})
    else:
        write_run(run, RUNS[kind], swept={"variations.noise.high": 0.5})
        for run_id, remark in ((read_run_plan(run).run_id, "ours"), ("other", "theirs")):
            write_report(run, report("lift", run=run_id, remarks=(remark,)))
    write_all_tables(run)
    merged, found = merge_results(run), stored(run)
    for name in ("jobs", "episodes", "suites"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(merged, name), check_like=True)
    assert str(without_tables(found)) == str(without_tables(merged))
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
