"""The same job file on any number of ranks, and what happens when one of them dies."""

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from tests.end_to_end.launching import command, episodes_table, jobs_table, run, start, wait_until, write_jobs

JOBS = [
    {"name": "reach", "arena_env_args": {"environment": "reach", "num_envs": 3}, "policy_type": "scripted"},
    {"name": "lift", "arena_env_args": {"environment": "lift_object", "num_envs": 2}, "policy_type": "scripted"},
    {"name": "random", "arena_env_args": {"environment": "lift_object", "num_envs": 4}, "policy_type": "random_action"},
    {"name": "drawer", "arena_env_args": {"environment": "open_drawer", "num_envs": 2}, "policy_type": "scripted"},
    {"name": "steps", "arena_env_args": {"environment": "reach", "num_envs": 2}, "policy_type": "random_action",
     "num_steps": 200},
]  # fmt: skip


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory) -> tuple[Path, Path]:
    """The job file, and what one process makes of it."""
    directory = tmp_path_factory.mktemp("ranks")
    jobs = [job if "num_steps" in job else {**job, "num_episodes": 5} for job in JOBS]
    path = write_jobs(directory / "jobs.json", jobs)
    output = directory / "one"
    finished = run(command("--eval_jobs_config", path, "--output_dir", output))
    assert finished.returncode == 0, finished.stderr
    return path, output


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_merged_table_is_the_same_for_any_number_of_ranks(one_rank, tmp_path, ranks):
    path, alone = one_rank
    together = tmp_path / "together"
    finished = run(command("--eval_jobs_config", path, "--output_dir", together, ranks=ranks))
    assert finished.returncode == 0, finished.stderr
    pd.testing.assert_frame_equal(jobs_table(together), jobs_table(alone))
    pd.testing.assert_frame_equal(episodes_table(together), episodes_table(alone))
    for index, job in enumerate(JOBS):
        assert (together / job["name"] / f"dataset_{job['name']}_rank{index % ranks}.hdf5").is_file()


def test_one_table_is_printed_however_many_ranks_there_are(one_rank, tmp_path):
    path, _ = one_rank
    finished = run(
        command("--eval_jobs_config", path, "--output_dir", tmp_path / "out", ranks=2, module=["-m", "eval_runner"])
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("results in") == 1
    assert finished.stdout.count("reach") >= 1


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_costs_its_unfinished_episodes_and_nothing_else(tmp_path, victim):
    """The run ends by itself, says so in its exit code, and the table names what is missing."""
    jobs = [
        {
            "name": f"job{index}",
            "arena_env_args": {"environment": "lift_object", "num_envs": 2},
            "policy_type": "random_action",
            "num_episodes": 5000 if index == victim else 3,
        }
        for index in range(3)
    ]
    output = tmp_path / "out"
    path = write_jobs(tmp_path / "jobs.json", jobs)
    process = start(command("--eval_jobs_config", path, "--output_dir", output, ranks=3), tmp_path / "log")
    try:
        wait_until(lambda: _num_committed(output, f"job{victim}", victim) >= 4)
        status = json.loads((output / "logs" / f"rank{victim}.status.json").read_text())
        os.kill(status["pid"], signal.SIGKILL)
        assert process.wait(timeout=120) != 0
    finally:
        _end(process)
    committed = [_num_committed(output, f"job{index}", index) for index in range(3)]
    document = json.loads((output / "results.json").read_text())
    missing = {entry["job"]: entry for entry in document["missing"]}
    assert not document["complete"]
    assert missing[f"job{victim}"]["rank"] == victim
    assert len(missing[f"job{victim}"]["episode_indices"]) == 5000 - committed[victim]
    assert [job["episodes"] for job in document["jobs"]] == committed
    assert f"missing: job 'job{victim}' on rank {victim} lacks" in (tmp_path / "log").read_text()


def test_when_only_rank_0_is_told_to_stop_the_table_still_holds_what_the_others_finish(tmp_path):
    jobs = [
        {
            "name": f"job{index}",
            "arena_env_args": {"environment": "lift_object", "num_envs": 2},
            # Rank 0 waits for the others for seconds, in which they need not keep the cores from other tests.
            "policy_type": "tests.fakes_slow.SluggishPolicy",
            "policy_config_dict": {"marks": str(tmp_path), "wait_s": 0.01},
            "num_episodes": 5000,
        }
        for index in range(3)
    ]
    output = tmp_path / "out"
    path = write_jobs(tmp_path / "jobs.json", jobs)
    process = start(command("--eval_jobs_config", path, "--output_dir", output, ranks=3), tmp_path / "log")
    try:
        wait_until(lambda: all(_num_committed(output, f"job{rank}", rank) for rank in range(3)))
        os.kill(json.loads((output / "logs" / "rank0.status.json").read_text())["pid"], signal.SIGTERM)
        assert process.wait(timeout=120) != 0
    finally:
        _end(process)
    committed = [_num_committed(output, f"job{index}", index) for index in range(3)]
    document = json.loads((output / "results.json").read_text())
    assert [job["episodes"] for job in document["jobs"]] == committed
    assert [job["status"] for job in document["jobs"]] == ["interrupted"] * 3
    # torchrun's report comes last, and with it what rank 0 said before the others had ended.
    _, report = (tmp_path / "log").read_text().split("Root Cause (first observed failure):")
    assert "still running when this rank ended: rank 1, 2; their finished episodes are in the last" in report
    assert f"continue with: isaaclab-arena resume {output}" in report
    assert "episodes  success" not in report


def test_a_failure_with_fail_fast_ends_all_ranks_and_prints_one_table(tmp_path):
    broken = {"policy_type": "tests.fakes.ShrugPolicy", "policy_config_dict": {"raise_at": 3}, "num_episodes": 3}
    long = {"policy_type": "random_action", "num_episodes": 5000}
    environment = {"arena_env_args": {"environment": "reach", "num_envs": 2}}
    jobs = [{"name": name, **environment, **what} for name, what in (("bad", broken), ("b", long), ("c", long))]
    output = tmp_path / "out"
    path = write_jobs(tmp_path / "jobs.json", jobs)
    finished = run(command("--eval_jobs_config", path, "--output_dir", output, "--fail_fast", ranks=3))
    assert finished.returncode != 0
    assert finished.stdout.count("results in") == 1, finished.stdout
    document = json.loads((output / "results.json").read_text())
    assert [job["status"] for job in document["jobs"]] == ["failed", "interrupted", "interrupted"]
    assert document["jobs"][0]["error"] == "ValueError: I would rather not"
    # torchrun's report, which comes below the table, gives the reason of the rank that failed first.
    assert "a job failed on rank 0, and --fail_fast ends the run" in finished.stderr.splitlines()[-2]


def test_a_run_whose_reader_has_gone_is_complete_all_the_same(one_rank, tmp_path):
    path, _ = one_rank
    line = shlex.join(command("--eval_jobs_config", path, "--output_dir", tmp_path / "out"))
    finished = run(["bash", "-c", f"{line} | true; exit ${{PIPESTATUS[0]}}"])
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "out" / "results.csv").is_file()


def test_a_finished_run_can_be_merged_again_later(one_rank, tmp_path):
    _, output = one_rank
    before = (output / "results.csv").read_bytes()
    (output / "results.csv").unlink()
    finished = run(command("merge", output, module=["-m", "isaaclab_arena.cli"]))
    assert finished.returncode == 0, finished.stderr
    assert (output / "results.csv").read_bytes() == before


def test_an_interrupted_run_keeps_what_finished_and_exits_with_the_signals_code(tmp_path):
    job = {
        "name": "long",
        "arena_env_args": {"environment": "lift_object", "num_envs": 2},
        "policy_type": "random_action",
        "num_episodes": 5000,
    }
    output = tmp_path / "out"
    path = write_jobs(tmp_path / "jobs.json", [job])
    process = start(command("--eval_jobs_config", path, "--output_dir", output), tmp_path / "log")
    try:
        wait_until(lambda: _num_committed(output, "long", 0) >= 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        _end(process)
    job = json.loads((output / "results.json").read_text())["jobs"][0]
    assert job["status"] == "interrupted"
    assert job["episodes"] == _num_committed(output, "long", 0)
    last_line = (tmp_path / "log").read_text().splitlines()[-1]
    assert last_line == f"continue with: isaaclab-arena resume {output}"


def _num_committed(output: Path, job: str, rank: int) -> int:
    path = output / job / f"episode_results_rank{rank}.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
