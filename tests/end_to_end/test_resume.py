"""A run that dies and is taken up again ends in the table that an undisturbed one gives."""

import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.end_to_end.launching import command, episodes_table, jobs_table, run, same_tables, start, write_jobs

JOBS = [
    {"name": name, "arena_env_args": {"environment": "reach", "num_envs": 2}, "policy_type": policy, "num_episodes": 12}
    for name, policy in (("zero", "zero_action"), ("random", "random_action"), ("scripted", "scripted"))
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("undisturbed")
    finished = evaluate(directory, "--output_dir", directory / "out")
    assert finished.returncode == 0, finished.stderr
    # Its tables, with which all others are compared byte for byte, tell what happened and how far failures came.
    assert len(set(episodes_table(directory / "out")["decisive_event"].dropna())) > 1
    assert not any(math.isnan(score) for score in jobs_table(directory / "out")["score"])
    return directory / "out"


def evaluate(directory: Path, *arguments: object, ranks: int = 1, **changes) -> subprocess.CompletedProcess[str]:
    jobs = write_jobs(directory / "jobs.json", [{**job, **changes} for job in JOBS])
    return run(command("--eval_jobs_config", jobs, *arguments, ranks=ranks))


def committed(output_directory: Path) -> Counter[tuple[str, int]]:
    """Count the commit lines of each episode. A line that a running process has begun to write does not count yet."""
    lines = [
        json.loads(line)
        for path in output_directory.glob("*/episode_results_rank*.jsonl")
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
    return Counter((line["job_name"], line["episode_index"]) for line in lines)


def killed_run(directory: Path, *, ranks: int, after_episodes: int) -> Path:
    """Start a run, kill all of its processes when some episodes are committed, and return its directory."""
    output = directory / "out"
    jobs = write_jobs(directory / "jobs.json", JOBS)
    process = start(command("--eval_jobs_config", jobs, "--output_dir", output, ranks=ranks), directory / "log")
    deadline = time.monotonic() + 60
    while committed(output).total() < after_episodes and time.monotonic() < deadline:
        time.sleep(0.005)
    # The ranks are in sessions of their own under torchrun; a marker in their command line finds them all.
    for pid in [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]:
        if str(output) in _command_line(pid) and pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return output


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize(("ranks_before", "ranks_after"), [(1, 2), (2, 1)])
def test_a_killed_run_is_finished_on_another_number_of_ranks(tmp_path, undisturbed, ranks_before, ranks_after):
    output = killed_run(tmp_path, ranks=ranks_before, after_episodes=5)
    before = committed(output)
    assert 5 <= before.total() < 36
    finished = evaluate(tmp_path, "--output_dir", output, "--resume", ranks=ranks_after)
    assert finished.returncode == 0, finished.stderr
    assert same_tables(output, undisturbed)
    after = committed(output)
    assert set(after.values()) == {1}, "an episode that was finished ran again"
    assert before <= after


def test_a_finished_run_is_left_as_it_is(tmp_path, undisturbed):
    contents = {path: path.read_bytes() for path in undisturbed.rglob("*") if path.is_file()}
    times = {path: path.stat().st_mtime_ns for path in contents}
    finished = evaluate(tmp_path, "--resume", undisturbed)
    assert finished.returncode == 0, finished.stderr
    assert "there is nothing to do" in finished.stderr
    assert "scripted" in finished.stdout
    assert {path: path.read_bytes() for path in undisturbed.rglob("*") if path.is_file()} == contents
    assert {path: path.stat().st_mtime_ns for path in contents} == times


def test_another_plan_is_refused_and_the_difference_shown(tmp_path, undisturbed):
    refused = evaluate(tmp_path, "--resume", undisturbed, num_episodes=11)
    assert refused.returncode == 2
    assert f"{undisturbed}: is a different run (3 things differ)" in refused.stderr
    assert "job 'zero': num_episodes: was 12 when the run began, now 11; a run may grow" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_resume_without_a_directory_finds_the_run_of_the_same_jobs(tmp_path):
    base = tmp_path / "outputs"
    for num_episodes in (1, 2):
        assert evaluate(tmp_path, "--output_base_dir", base, num_episodes=num_episodes).returncode == 0
    older, newer = sorted(base.iterdir())
    broken = base / "2999-01-01_00-00-00"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    found = evaluate(tmp_path, "--output_base_dir", base, "--resume", num_episodes=1)
    assert found.returncode == 0, found.stderr
    assert f"results in {older}" in found.stdout
    assert f"skipping {broken}: " in found.stderr
    shutil.rmtree(broken)
    refused = evaluate(tmp_path, "--output_base_dir", base, "--resume", num_episodes=1, seed=9)
    assert refused.returncode == 2
    assert f"{newer}: is a different run" in refused.stderr
    grown = evaluate(tmp_path, "--output_base_dir", base, "--resume", num_episodes=3)
    assert grown.returncode == 0, grown.stderr
    assert f"results in {newer}" in grown.stdout


def test_a_finished_run_mends_its_tables_and_saves_its_conditions(tmp_path):
    assert evaluate(tmp_path, "--output_dir", tmp_path / "out", num_episodes=1).returncode == 0
    table = tmp_path / "out" / "results.csv"
    right = table.read_bytes()
    table.write_bytes(right.replace(b"zero_action", b"mine"))
    saved = tmp_path / "conditions.json"
    arguments = ("--resume", tmp_path / "out", "--save_conditions", saved, "--record_viewport_video")
    again = evaluate(tmp_path, *arguments, num_episodes=1)
    assert again.returncode == 0, again.stderr
    assert "results.csv did not match the commit record, and is written again" in again.stderr
    assert "no episode runs, so none is filmed" in again.stderr
    assert table.read_bytes() == right
    assert saved.is_file()


def test_with_an_exact_directory_resume_starts_what_has_not_begun(tmp_path):
    arguments = ("--output_dir", tmp_path / "out", "--resume")
    begun, again = (evaluate(tmp_path, *arguments, num_episodes=1) for _ in range(2))
    assert begun.returncode == again.returncode == 0, begun.stderr + again.stderr
    assert "there is nothing to do" not in begun.stderr
    assert "there is nothing to do" in again.stderr


def test_a_directory_that_holds_no_run_cannot_be_resumed(tmp_path):
    refused = evaluate(tmp_path, "--resume", f"{tmp_path}/outptus")
    assert refused.returncode == 2
    assert f"--resume: there is no directory '{tmp_path}/outptus'" in refused.stderr
    refused = evaluate(tmp_path, "--resume", f"{tmp_path}/")
    assert refused.returncode == 2
    assert "holds no run to resume" in refused.stderr
