"""Late answers on ranks that claim their work, of which one is killed: the table is that of one rank."""

import json
import os
import signal
import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from tests.end_to_end.launching import (
    EVAL_RUNNER,
    command,
    episodes_table,
    free_port,
    jobs_table,
    run,
    same_tables,
    start,
    wait_until,
    write_jobs,
)

WAYS = ("wait", "hold", "chunk", "rtc")
"""What the robot may do until an answer is there."""

JOBS = [
    {
        "name": meanwhile,
        "arena_env_args": {"environment": "reach"},
        "policy_type": "tests.evaluation.plants.NoisyReaching",
        "num_episodes": 8,
        "latency": {"steps": [0, 2], "meanwhile": meanwhile},
    }
    for meanwhile in WAYS
]

NAMED = (
    "job",
    "latency",
    "meanwhile",
    "stale_action_share",
    "queries_per_s",
    "metrics",
    "dataset_file",
    "commit",
    "provenance",
)
"""What differs between jobs that do the same: names, times, and how late answers are."""


def job_file(directory: Path, num_envs: int) -> Path:
    jobs = [{**job, "arena_env_args": {"environment": "reach", "num_envs": num_envs}} for job in JOBS]
    return write_jobs(directory / "jobs.json", jobs)


def num_committed(output: Path, rank: int) -> int:
    return sum(len(path.read_text().splitlines()) for path in output.glob(f"*/episode_results_rank{rank}*.jsonl"))


def start_ranks(directory: Path, num_ranks: int):
    jobs, port = job_file(directory, 3), free_port()
    arguments = ["--eval_jobs_config", jobs, "--output_dir", directory / "out", "--assignment", "dynamic"]
    variables = {"WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        start(
            [sys.executable, *EVAL_RUNNER, *map(str, arguments)],
            directory / f"rank{rank}.log",
            extra={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(num_ranks)
    ]


def recorded(path: Path) -> dict[str, bytes]:
    """Return every array and attribute of a dataset, but those that say of which job, when, where and how late."""
    kept: dict[str, bytes] = {}

    def keep(name: str, member: h5py.Group | h5py.Dataset) -> None:
        plain = {key: value for key, value in member.attrs.items() if key not in NAMED}
        kept.update({f"{name}@{key}": np.asarray(value).tobytes() for key, value in plain.items()})
        if isinstance(member, h5py.Dataset):
            kept[name] = np.asarray(member).tobytes()

    with h5py.File(path) as file:
        file.visititems(keep)
    return kept


def lines_of(table: pd.DataFrame, job_column: str, job: str) -> str:
    """Return a job's lines of a table, without what says which job it is and how late its answers are."""
    own = table[table[job_column] == job]
    return own.drop(columns=[name for name in own if name in (job_column, *NAMED)]).to_csv(index=False)


def test_answers_that_are_on_time_leave_tables_and_recordings_as_they_are_without_latency(tmp_path):
    plain = {key: value for key, value in JOBS[0].items() if key != "latency"}
    plain |= {"name": "plain", "num_episodes": 3, "arena_env_args": {"environment": "reach", "num_envs": 2}}
    on_time = [{**plain, "name": way, "latency": {"steps": 0, "meanwhile": way}} for way in WAYS]
    jobs, output = write_jobs(tmp_path / "jobs.json", [plain, *on_time]), tmp_path / "out"
    finished = run(command("--eval_jobs_config", jobs, "--output_dir", output), timeout_s=600)
    assert finished.returncode == 0, finished.stderr

    def came_out(job: str) -> dict[str, object]:
        return {
            "results": lines_of(jobs_table(output), "name", job),
            "episodes": lines_of(episodes_table(output), "job", job),
            "recordings": recorded(output / job / f"dataset_{job}.hdf5"),
        }

    expected = came_out("plain")
    for way in WAYS:
        for what, content in came_out(way).items():
            assert content == expected[what], (way, what)
    # Nor does an episode whose answers are waited for say anything more than one without latency.
    episodes = episodes_table(output)
    waited, without = (episodes[episodes["job"] == name]["metrics"].tolist() for name in ("wait", "plain"))
    assert waited == without


@pytest.mark.slow
def test_late_answers_do_not_depend_on_ranks_env_slots_kills_or_resumes(tmp_path):
    one = tmp_path / "one"
    one.mkdir()
    finished = run(command("--eval_jobs_config", job_file(one, 2), "--output_dir", one / "out"), timeout_s=600)
    assert finished.returncode == 0, finished.stderr

    processes, output = start_ranks(tmp_path, 2), tmp_path / "out"
    try:
        wait_until(lambda: num_committed(output, 1) >= 2, timeout_s=300)
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert not (output / "results.json").exists()
    resumed = run(command("--eval_jobs_config", tmp_path / "jobs.json", "--resume", output), timeout_s=600)
    assert resumed.returncode == 0, resumed.stderr
    assert same_tables(output, one / "out")
    jobs = json.loads((output / "results.json").read_text())["jobs"]
    assert [job["stale_action_share"] > 0 for job in jobs] == [False, True, True, True]
    assert all(job["queries_per_s"] > 0 for job in jobs)

    three = tmp_path / "three"
    three.mkdir()
    jobs_of_all = ("--eval_jobs_config", job_file(three, 4), "--output_dir", three / "out", "--split_jobs")
    together = run(command(*jobs_of_all, ranks=3), timeout_s=600)
    assert together.returncode == 0, together.stderr
    assert same_tables(three / "out", one / "out")


@pytest.mark.slow
def test_what_was_measured_stands_after_a_kill_for_the_resumed_run_and_for_verify(tmp_path):
    job = {**JOBS[0], "name": "measured", "latency": {"measured": True, "meanwhile": "hold"}, "num_episodes": 6}
    jobs, output = write_jobs(tmp_path / "jobs.json", [job]), tmp_path / "out"
    arguments = ["--eval_jobs_config", str(jobs), "--output_dir", str(output)]
    process = start([sys.executable, *EVAL_RUNNER, *arguments], tmp_path / "killed.log")
    try:
        wait_until(lambda: num_committed(output, 0) >= 2, timeout_s=300)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    resumed = run(command("--eval_jobs_config", jobs, "--resume", output), timeout_s=300)
    assert resumed.returncode == 0, resumed.stderr
    attempts = [json.loads((output / "attempts" / f"attempt_{number}.json").read_text()) for number in (1, 2)]
    first, second = (entry for attempt in attempts for entry in attempt["jobs"])
    assert first["latency"] is not None
    assert second["latency"] == first["latency"]
    verified = run([sys.executable, "-m", "isaaclab_arena.cli", "verify", str(output), "--sample", "6"], timeout_s=300)
    assert verified.returncode == 0, verified.stderr
