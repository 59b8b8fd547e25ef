"""Tests of the one row that a suite has."""

import dataclasses
import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from isaaclab_arena.api.results import Results
from isaaclab_arena.config.schema import SuiteMember
from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.results.console import print_summary
from isaaclab_arena.results.merge import merge_results, records, stale_tables, stored_results, write_tables
from isaaclab_arena.results.statistics import mean_rate_interval, wilson_interval
from isaaclab_arena.storage.contents import Contents, one_hash
from tests.results.evidence import (
    BENCHMARK_COLUMNS,
    JOB_COLUMNS,
    SIMULATION_COLUMNS,
    SUITE_COLUMNS,
    commit_lines,
    planned,
    report,
    write_lines,
    write_plan,
    write_report,
)


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


def shown(directory: Path) -> str:
    stream = io.StringIO()
    print_summary(merge_results(directory), directory, Console(file=stream, width=200))
    return stream.getvalue()


def test_a_suite_has_the_mean_of_its_tasks_and_all_of_its_episodes(tmp_path):
    [row] = rows(write_suites(tmp_path, {"mine-0": "ssssssssss", "lift": "ff", "mine-1": "sf"}))
    mean, pooled = mean_rate_interval([(10, 10), (1, 2)]), wilson_interval(11, 12)
    assert mean is not None
    assert pooled is not None
    assert (row["name"], row["suite"], row["policy"], row["seed"]) == ("mine", "libero_goal", "zero_action", 3)
    assert (row["status"], row["tasks"], row["planned"], row["episodes"]) == ("completed", 2, 12, 12)
    assert (row["mean_rate"], row["mean_low"], row["mean_high"]) == (0.75, mean.low, mean.high)
    assert (row["successes"], row["scored"], row["pooled_rate"]) == (11, 12, 11 / 12)
    assert (row["pooled_low"], row["pooled_high"]) == (pooled.low, pooled.high)
    assert (row["mean_lower_bound"], row["mean_upper_bound"], row["reproducible"]) == (0.75, 0.75, "bitwise")


def test_errors_and_missing_episodes_widen_the_bounds_of_the_mean(tmp_path):
    [row] = rows(write_suites(tmp_path, {"mine-0": "sse-", "mine-1": "ffff"}))
    assert (row["mean_rate"], row["mean_lower_bound"], row["mean_upper_bound"]) == (0.5, 0.25, 0.5)
    assert (row["errors"], row["missing"], row["scored"], row["status"]) == (1, 1, 6, "interrupted")
    line = (
        "1 errors and 1 missing episodes do not count; the mean of its tasks is 25.0 % if they are counted as failures"
    )
    assert f"* suite 'mine': {line}, 50.0 % as successes" in shown(tmp_path)


def test_there_is_no_mean_before_every_task_has_a_rate(tmp_path):
    [row] = rows(write_suites(tmp_path, {"mine-0": "ssss", "mine-1": "----"}))
    assert (row["mean_rate"], row["mean_low"], row["pooled_rate"]) == (None, None, 1.0)
    assert "* suite 'mine': not every task has an episode that says whether it succeeded" in shown(tmp_path)


def test_a_suite_without_success_has_neither_rate(tmp_path):
    [row] = rows(write_suites(tmp_path, {"mine-0": "uu", "mine-1": "uu"}))
    assert [row[name] for name in ("mean_rate", "pooled_rate", "successes", "mean_lower_bound")] == [None] * 4
    assert row["episodes"] == 4


def test_the_console_shows_one_line_per_suite_below_the_jobs(tmp_path):
    write_suites(tmp_path, {"mine-0": "s" * 10, "mine-1": "s" * 10, "lift": "s", "other-0": "sf"})
    lines = shown(tmp_path).splitlines()
    [mine] = [line for line in lines if line.split()[:2] == ["mine", "libero_goal"]]
    assert mine.split()[2:] == [
        "2",
        "20",
        "100.0",
        "[83.9,",
        "100.0]",
        "100.0",
        "[83.9,",
        "100.0]",
        "0",
        "0",
        "completed",
    ]
    assert [line.split()[0] for line in lines if "libero_goal" in line] == ["mine", "other"]


def test_tables_of_suites_are_the_same_bytes_for_any_ranks_and_after_an_interruption(tmp_path):
    outcomes = {"mine-0": "sfs", "mine-1": "sss", "mine-2": "ffe"}
    written = []
    for world_size in (1, 2, 3):
        directory = write_suites(tmp_path / str(world_size), outcomes, world_size=world_size)
        write_tables(directory, merge_results(directory))
        written.append((directory / "suites.csv").read_bytes())
    begun = write_suites(tmp_path / "begun", {**outcomes, "mine-2": "f--"})
    begun.joinpath("run.json").unlink()
    write_plan(begun, *(dataclasses.replace(job) for job in merge_results(tmp_path / "1").plan.jobs))
    write_lines(begun, commit_lines("ffe", job="mine-2")[1:])
    write_report(begun, report("mine-2"))
    write_tables(begun, merge_results(begun))
    assert (begun / "suites.csv").read_bytes() == written[0] == written[1] == written[2]
    table = pd.read_parquet(begun / "suites.parquet")
    assert list(table.columns) == list(SUITE_COLUMNS)
    assert stale_tables(begun, merge_results(begun)) == []
    (begun / "suites.csv").write_text("")
    assert stale_tables(begun, merge_results(begun)) == [begun / "suites.csv"]


def test_a_suite_names_what_decides_its_numbers_beside_the_policy(tmp_path):
    directory = write_suites(tmp_path, {"mine-0": "ss-", "mine-1": "sf-"})
    for task in range(2):
        facts = {"environment": f"libero:goal/{task}", "protocol": "openpi", "engine": "mujoco 3.3.2", "numpy": "1.26"}
        write_report(directory, report(f"mine-{task}", simulated_by=facts))
    write_tables(directory, merge_results(directory))
    [row] = rows(directory)
    assert (row["protocol"], row["engine"], row["simulated_by"]) == ("openpi", "mujoco 3.3.2", '{"numpy": "1.26"}')
    assert "suite 'mine': played by protocol openpi on mujoco 3.3.2" in shown(directory)
    stored = stored_results(directory)
    assert stored is not None
    assert records(stored.suites) == [row]
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
    written = [
        write_benchmark(tmp_path / str(ranks), facts, assets, world_size=ranks) / "results.csv" for ranks in (1, 3)
    ]
    assert written[0].read_bytes() == written[1].read_bytes()
    directory = written[0].parent
    table = pd.read_csv(written[0])
    assert list(table.columns) == [*JOB_COLUMNS, *BENCHMARK_COLUMNS]
    first, second, lift = records(table)
    assert (first["protocol"], first["engine"]) == ("openpi", "mujoco 3.3.2")
    assert first["simulated_by"] == '{"MUJOCO_GL": "osmesa", "python": "3.11.7"}'
    assert second["simulated_by"] == '{"MUJOCO_GL": "egl", "python": "3.11.7"}'
    hashes = [one_hash({"": each}) for each in assets.values()]
    assert [first["environment_sha256"], second["environment_sha256"]] == hashes
    assert [lift[name] for name in BENCHMARK_COLUMNS] == [None] * 4
    [suite] = rows(directory)
    assert suite["simulated_by"] == '{"MUJOCO_GL": ["egl", "osmesa"], "python": "3.11.7"}'
    assert suite["environment_sha256"] not in [*hashes, None, UNKNOWN]
    stored = stored_results(directory)
    assert stored is not None
    pd.testing.assert_frame_equal(stored.jobs, merge_results(directory).jobs, check_like=True)
    assert records(stored.suites) == [suite]
    assert list(Results(stored, directory).jobs.columns) == list(table.columns)


def test_what_a_benchmark_was_is_unknown_where_nobody_wrote_the_hash_of_its_files_down(tmp_path):
    facts = {"mine-0": LIBERO, "mine-1": LIBERO, "lift": {"engine": "mujoco 4.0.0"}}
    directory = write_benchmark(tmp_path, facts, {"mine-0": "1" * 64})
    first, second, _ = records(merge_results(directory).jobs)
    assert len(first["environment_sha256"]) == 64
    assert second["environment_sha256"] == rows(directory)[0]["environment_sha256"] == UNKNOWN


def test_jobs_of_this_package_have_no_such_columns(tmp_path):
    facts = {name: {"engine": "mujoco 4.0.0", "model_sha256": "abc"} for name in ("mine-0", "mine-1", "lift")}
    directory = write_benchmark(tmp_path, facts, {})
    assert list(pd.read_csv(directory / "results.csv").columns) == list(JOB_COLUMNS)
    assert list(pd.read_csv(directory / "suites.csv").columns) == [*SUITE_COLUMNS, *SIMULATION_COLUMNS]


def test_a_suite_whose_environments_name_neither_has_no_such_columns(tmp_path):
    directory = write_suites(tmp_path, {"mine-0": "s-"})
    write_report(directory, report("mine-0", simulated_by={"model": "abc"}))
    assert list(merge_results(directory).suites.columns) == list(SUITE_COLUMNS)


def test_a_run_without_suites_has_no_table_of_them(tmp_path):
    write_suites(tmp_path, {"lift": "sf"})
    write_tables(tmp_path, merge_results(tmp_path))
    assert not list(tmp_path.glob("suites.*"))
    assert '"suites"' not in (tmp_path / "results.json").read_text()
    assert "mean of tasks" not in shown(tmp_path)


@pytest.mark.parametrize(("outcomes", "status"), [("ss", "completed"), ("s-", "interrupted"), ("--", "interrupted")])
def test_a_suite_stands_where_the_least_of_its_tasks_does(tmp_path, outcomes, status):
    [row] = rows(write_suites(tmp_path, {"mine-0": "ss", "mine-1": outcomes}))
    assert row["status"] == status
