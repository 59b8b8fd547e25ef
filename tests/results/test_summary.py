"""Summaries of jobs and of suites."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isaaclab_arena.api import Results
from isaaclab_arena.config.options import UNKNOWN
from isaaclab_arena.config.schema import SuiteMember
from isaaclab_arena.results.merge import (
    LATER_COLUMNS,
    merge_results,
    records,
    stale_tables,
    stored_results,
    write_tables,
)
from isaaclab_arena.results.statistics import mean_rate_interval, wilson_interval
from isaaclab_arena.storage.contents import Contents, one_hash
from isaaclab_arena.storage.ledger import RESULTS_FILE, ReportedStatus, tables_are_current
from tests.results.evidence import (
    BENCHMARK_COLUMNS,
    JOB_COLUMNS,
    SIMULATION_COLUMNS,
    SUITE_COLUMNS,
    commit_lines,
    planned,
    report,
    summary,
    there,
    write_job,
    write_lines,
    write_plan,
    write_report,
)

FAILURE = report(rank=2, status=ReportedStatus.FAILED, error="ValueError: no", traceback_file="lift/traceback.txt")
BEGUN = report(status=ReportedStatus.BEGUN)
STEPS = {"num_episodes": None, "num_steps": 50}
NOTICED = [report(rank=rank, remarks=("it was told something else",)) for rank in (0, 1)]
SAID = {
    "a failure": ("", [FAILURE], {"rank": 2}, ["'lift' on rank 2: ValueError: no", "lift/traceback.txt"]),
    "missing": ("ss-s-sssss", [BEGUN], {}, ["job 'lift' on rank 0 lacks 2 episodes (2, 4)"]),
    # Three successes and six failures are known; one error and ten missing could be either.
    "bounds": ("sssffffffe", [], {"num_episodes": 20}, ["33.3 [12.1, 64.6]*", "1 errors", "15.0 %", "70.0 %"]),
    "cut episodes": ("sss", [report(cut_episodes=7)], STEPS, ["7 episodes were running"]),
    "nothing ended": ("", [report(cut_episodes=4)], STEPS, ["there is no success rate", "4 were running"]),
    "noticed": ("ffffffffff", NOTICED, {}, ["* job 'lift': it was told something else\n"]),
    "a caveat": ("ssssssssff", [], {"policy_type": "scripted"}, []),
}


@pytest.mark.parametrize(("outcomes", "reports", "job", "words"), SAID.values(), ids=SAID)
def test_below_the_table_stands_once_what_is_to_be_known_of_it(tmp_path, outcomes, reports, job, words):
    text = summary(write_job(tmp_path, outcomes, *reports, **job))
    assert [text.count(word) for word in words] == [1] * len(words)
    assert words or "*" not in text


def test_episodes_that_count_in_place_of_an_error_or_were_solved_where_they_started_are_told_of(tmp_path):
    write_job(tmp_path, "ees", num_episodes=6)
    write_lines(tmp_path, [dataclasses.replace(line, attempt=2) for line in commit_lines("ss")])
    solved = [dataclasses.replace(each, termination="solved_at_start") for each in commit_lines("eee", first=3)]
    write_lines(tmp_path, solved)
    text = summary(tmp_path)
    assert "2 episodes count that ended in an error at first" in text
    assert "job 'lift': 3 of 6 episodes were solved at their start" in text


@pytest.mark.parametrize(("outcomes", "is_said"), [("ff", True), ("uu", True), ("f", False), ("ee", False)])
def test_a_job_says_when_a_fifth_of_its_episodes_end_in_their_first_step(tmp_path, outcomes, is_said):
    write_plan(tmp_path, planned())
    short = [dataclasses.replace(each, length=1) for each in commit_lines(outcomes)]
    write_lines(tmp_path, [*short, *commit_lines("s" * (10 - len(short)), first=len(short))])
    write_report(tmp_path, report())
    assert ("job 'lift': 2 of 10 episodes ended in their first step" in summary(tmp_path)) is is_said


def test_where_doing_nothing_succeeds_the_rates_of_that_environment_are_to_be_read_beside_it(tmp_path):
    names = ["nothing", "idle", "other", *(f"step_{number}" for number in range(8))]
    said: dict[str, dict[str, Any]] = {name: {"policy_type": "scripted"} for name in names[2:]}
    said["other"]["environment_args"] = {"object": "mug"}
    write_plan(tmp_path, *(planned(name, index=at, **said.get(name, {})) for at, name in enumerate(names)))
    for name in names:
        write_lines(tmp_path, commit_lines("ssffffffff", job=name))
        write_report(tmp_path, report(job=name))
    text = summary(tmp_path)
    assert "succeeds in 2 of 10 episodes" in text
    assert text.count("step_0, step_1, step_2, step_3, step_4 and 3 others with that\n") == 2


def test_tables_are_current_until_a_rank_writes_again_or_one_is_damaged(tmp_path):
    write_job(tmp_path, "ss", BEGUN)
    assert not tables_are_current(tmp_path)
    merged = merge_results(tmp_path)
    write_tables(tmp_path, merged)
    assert tables_are_current(tmp_path)
    assert stale_tables(tmp_path, merged) == []
    (tmp_path / "results.csv").unlink()
    assert stale_tables(tmp_path, merged) == [tmp_path / "results.csv"]
    write_lines(tmp_path, commit_lines("s", first=2))
    # The clock was set back in between: what is new looks older than the tables.
    for commit_file in tmp_path.glob("lift/*.jsonl"):
        os.utime(commit_file, ns=(0, 0))
    assert not tables_are_current(tmp_path)
    write_tables(tmp_path, merge_results(tmp_path))
    (tmp_path / RESULTS_FILE).write_text("{")
    assert not tables_are_current(tmp_path)


@pytest.mark.parametrize("drawn", [None, 8])
def test_tables_that_lack_pictures_are_stale_only_where_some_were_counted(tmp_path, drawn):
    write_job(tmp_path, "ss", report(pictures_drawn=drawn, pictures_looked_at=drawn))
    merged = merge_results(tmp_path)
    write_tables(tmp_path, dataclasses.replace(merged, jobs=merged.jobs.drop(columns=LATER_COLUMNS)))
    stale = {path.name for path in stale_tables(tmp_path, merged)}
    assert stale == ({"timing.csv", "timing.parquet", "results.json"} if drawn else set())


@pytest.mark.parametrize(("told", "is_stale"), [('  "elsewhere": [],\n', False), ('  "elsewhere": [{}],\n', True)])
def test_results_of_a_version_that_named_datasets_on_other_nodes_are_what_a_merge_gives(tmp_path, told, is_stale):
    merged, results = merge_results(write_job(tmp_path, "ss")), tmp_path / "results.json"
    write_tables(tmp_path, merged)
    results.write_text(results.read_text().replace('  "sources"', told + '  "sources"'))
    assert stale_tables(tmp_path, merged) == [results] * is_stale


# Tests of the one row that a suite has.


def write_suites(directory: Path, outcomes: dict[str, str], *, world_size: int = 1) -> Path:
    """Write a run whose jobs are tasks of suites, ``mine-0`` one of ``mine``; those without a dash are in none."""
    directory.mkdir(exist_ok=True)
    jobs = []
    for index, (name, letters) in enumerate(outcomes.items()):
        entry, dash, task = name.rpartition("-")
        suite = SuiteMember(name=entry, suite="libero_goal", task=task) if dash else None
        environment = f"goal/{task}" if dash else "lift_object"
        said = {"index": index, "num_episodes": len(letters), "environment": environment, "suite": suite}
        jobs.append(planned(name, rank=index % world_size, **said))
    write_plan(directory, *jobs, world_size=world_size)
    for job in jobs:
        letters = outcomes[job.name]
        if letters.strip("-"):
            write_lines(directory, commit_lines(letters, job=job.name, rank=job.rank or 0))
        if "-" not in letters:
            write_report(directory, report(job.name, job.rank or 0, cut_episodes=0))
    return directory


def rows(directory: Path) -> list[dict]:
    return records(merge_results(directory).suites)


def test_a_suite_has_the_mean_of_its_tasks_and_all_of_its_episodes(tmp_path):
    [row] = rows(write_suites(tmp_path, {"mine-0": "ssssssssss", "lift": "ff", "mine-1": "sf"}))
    mean, pooled = there(mean_rate_interval([(10, 10), (1, 2)])), there(wilson_interval(11, 12))
    expected = {"name": "mine", "suite": "libero_goal", "policy": "zero_action", "seed": 3, "status": "completed"}
    expected |= {"tasks": 2, "planned": 12, "episodes": 12, "successes": 11, "scored": 12, "reproducible": "bitwise"}
    expected |= {"mean_rate": 0.75, "mean_low": mean.low, "mean_high": mean.high}
    expected |= {"pooled_rate": 11 / 12, "pooled_low": pooled.low, "pooled_high": pooled.high}
    assert row.items() >= (expected | {"mean_lower_bound": 0.75, "mean_upper_bound": 0.75}).items()


BOUNDS = ("status", "scored", "mean_rate", "mean_lower_bound", "mean_upper_bound", "pooled_rate")


@pytest.mark.parametrize(
    ("first", "second", "expected", "words"),
    [
        ("sse-", "ffff", ("interrupted", 6, 0.5, 0.25, 0.5, 2 / 6), ["1 errors and 1 missing", "25.0 %", "50.0 %"]),
        ("ssss", "----", ("interrupted", 4, None, 0.5, 1.0, 1.0), ["some tasks have no episode"]),
        ("uu", "uu", ("completed", 0, None, None, None, None), []),
    ],
)
def test_errors_and_missing_episodes_widen_the_bounds_of_the_mean(tmp_path, first, second, expected, words):
    [row] = rows(write_suites(tmp_path, {"mine-0": first, "mine-1": second}))
    assert tuple(row[name] for name in BOUNDS) == expected
    text = summary(tmp_path, 200)
    assert ("* suite 'mine'" in text) is bool(words)
    for word in words:
        assert word in text


def test_the_console_shows_one_line_per_suite_below_the_jobs(tmp_path):
    write_suites(tmp_path, {"mine-0": "s" * 10, "mine-1": "s" * 10, "lift": "s", "other-0": "sf"})
    mine, other = [line.split() for line in summary(tmp_path, 200).splitlines() if "libero_goal" in line]
    assert " ".join(mine) == "mine libero_goal 2 20 100.0 [83.9, 100.0] 100.0 [83.9, 100.0] 0 0 completed"
    assert other[0] == "other"


def test_tables_of_suites_are_the_same_bytes_for_any_ranks_and_after_an_interruption(tmp_path):
    outcomes = {"mine-0": "sfs", "mine-1": "sss", "mine-2": "ffe"}
    begun = write_suites(tmp_path / "begun", {**outcomes, "mine-2": "f--"})
    write_lines(begun, commit_lines("ffe", job="mine-2")[1:])
    write_report(begun, report("mine-2"))
    written = {begun: begun / "suites.csv"}
    for world_size in (1, 2, 3):
        directory = write_suites(tmp_path / str(world_size), outcomes, world_size=world_size)
        written[directory] = directory / "suites.csv"
    for directory in written:
        write_tables(directory, merge_results(directory))
    assert len({path.read_bytes() for path in written.values()}) == 1
    table = pd.read_parquet(begun / "suites.parquet")
    assert list(table.columns) == list(SUITE_COLUMNS)
    assert stale_tables(begun, merge_results(begun)) == []
    (begun / "suites.csv").write_text("")
    assert stale_tables(begun, merge_results(begun)) == [begun / "suites.csv"]


def test_a_suite_names_what_decides_its_numbers_beside_the_policy(tmp_path):
    directory = write_suites(tmp_path, {"mine-0": "ss-", "mine-1": "sf-"})
    facts = {"protocol": "openpi", "engine": "mujoco 3.3.2", "numpy": "1.26"}
    for task in range(2):
        own = {"environment": f"libero:goal/{task}", **facts}
        write_report(directory, report(f"mine-{task}", simulated_by=own))
    [row] = rows(directory)
    assert (row["protocol"], row["engine"], row["simulated_by"]) == ("openpi", "mujoco 3.3.2", '{"numpy": "1.26"}')
    assert "suite 'mine': played by protocol openpi on mujoco 3.3.2" in summary(directory, 200)
    write_report(directory, report("mine-1", attempt=2, simulated_by={"protocol": "openpi", "engine": "mujoco 3.9.0"}))
    [row] = rows(directory)
    assert (row["engine"], row["simulated_by"]) == ("mujoco 3.3.2 | mujoco 3.9.0", '{"numpy": ["1.26", null]}')


LIBERO = {"protocol": "openpi", "engine": "mujoco 3.3.2", "python": "3.11.7", "MUJOCO_GL": "osmesa"}


def write_benchmark(directory: Path, facts: dict[str, dict], assets: dict[str, str], **ranks) -> Path:
    """Write a run of two tasks of a suite and a job of this package, which say by what they were simulated."""
    write_suites(directory, {"mine-0": "ss-", "mine-1": "sf-", "lift": "s-"}, **ranks)
    plan = merge_results(directory).plan
    (directory / "run.json").unlink()
    contents = {job: Contents(environment={"LIBERO assets": each}) for job, each in assets.items()}
    jobs = [dataclasses.replace(job, contents=contents.get(job.name)) for job in plan.jobs]
    write_plan(directory, *jobs, world_size=plan.world_size)
    for job in jobs:
        told = {"environment": f"libero:{job.name}", **facts[job.name]}
        write_report(directory, report(job.name, job.rank or 0, simulated_by=told))
    write_tables(directory, merge_results(directory))
    return directory


def test_the_row_of_a_job_names_what_decides_its_number_beside_the_policy(tmp_path):
    facts = {"mine-0": LIBERO, "mine-1": {**LIBERO, "MUJOCO_GL": "egl"}, "lift": {"engine": "mujoco 4.0.0"}}
    assets = {"mine-0": "1" * 64, "mine-1": "2" * 64}
    directory, other = (write_benchmark(tmp_path / str(n), facts, assets, world_size=n) for n in (1, 3))
    assert (directory / "results.csv").read_bytes() == (other / "results.csv").read_bytes()
    table = pd.read_csv(directory / "results.csv")
    assert list(table.columns) == [*JOB_COLUMNS, *BENCHMARK_COLUMNS]
    first, second, lift = ([row[name] for name in BENCHMARK_COLUMNS] for row in records(table))
    hashes = [one_hash({"": each}) for each in assets.values()]
    assert first == ["openpi", "mujoco 3.3.2", '{"MUJOCO_GL": "osmesa", "python": "3.11.7"}', hashes[0]]
    assert second == ["openpi", "mujoco 3.3.2", '{"MUJOCO_GL": "egl", "python": "3.11.7"}', hashes[1]]
    assert lift == [None] * 4
    [suite] = rows(directory)
    assert suite["simulated_by"] == '{"MUJOCO_GL": ["egl", "osmesa"], "python": "3.11.7"}'
    assert suite["environment_sha256"] not in [*hashes, None, UNKNOWN]
    stored = there(stored_results(directory))
    pd.testing.assert_frame_equal(stored.jobs, merge_results(directory).jobs, check_like=True)
    assert records(stored.suites) == [suite]
    assert list(Results(stored, directory).jobs.columns) == list(table.columns)


def test_what_a_benchmark_was_is_unknown_without_hashes_and_jobs_of_this_package_have_no_such_columns(tmp_path):
    names = ("mine-0", "mine-1", "lift")
    unknown = write_benchmark(tmp_path / "unknown", dict.fromkeys(names, LIBERO), {"mine-0": "1" * 64})
    first, second, _ = records(merge_results(unknown).jobs)
    assert len(first["environment_sha256"]) == 64
    assert second["environment_sha256"] == rows(unknown)[0]["environment_sha256"] == UNKNOWN
    own = {"engine": "mujoco 4.0.0", "model_sha256": "abc"}
    directory = write_benchmark(tmp_path / "own", dict.fromkeys(names, own), {})
    assert list(pd.read_csv(directory / "results.csv").columns) == list(JOB_COLUMNS)
    assert list(pd.read_csv(directory / "suites.csv").columns) == [*SUITE_COLUMNS, *SIMULATION_COLUMNS]


def test_a_run_without_suites_has_no_table_of_them(tmp_path):
    write_suites(tmp_path, {"lift": "sf"})
    write_tables(tmp_path, merge_results(tmp_path))
    assert not list(tmp_path.glob("suites.*"))
    assert '"suites"' not in (tmp_path / "results.json").read_text()
    assert "mean of tasks" not in summary(tmp_path)
