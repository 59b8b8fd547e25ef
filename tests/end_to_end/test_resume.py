"""A run that dies and is taken up again ends in the table that an undisturbed one gives."""

import math
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.launching import (
    command,
    committed,
    episodes_table,
    job,
    jobs_table,
    run,
    run_of,
    same_tables,
    start,
    wait_until,
    write_jobs,
)


def jobs(num_episodes: int = 12, **keys: Any) -> list[dict]:
    policies = {"zero": "zero_action", "random": "random_action", "scripted": "scripted"}
    return [job("reach", policy, num_episodes, name=name, **keys) for name, policy in policies.items()]


def evaluate(directory: Path, *arguments: object, ranks: int = 1, **changes) -> subprocess.CompletedProcess[str]:
    path = write_jobs(directory / "jobs.json", jobs(**changes))
    return run(command("--eval_jobs_config", path, *arguments, ranks=ranks))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    finished = evaluate(output.parent, "--output_dir", output)
    assert finished.returncode == 0, finished.stderr
    # Its tables, with which all others are compared byte for byte, tell what happened and how far failures came.
    assert len(set(episodes_table(output)["decisive_event"].dropna())) > 1
    assert not any(math.isnan(score) for score in jobs_table(output)["score"])
    return output


def killed_run(output: Path, *, ranks: int) -> None:
    """Start a run, and kill all of its processes when some episodes are committed."""
    process = start(run_of(output, *jobs(), ranks=ranks), output.with_name("log"))
    wait_until(lambda: committed(output).total() >= 5)
    # The ranks are in sessions of their own under torchrun; a marker in their command line finds them all.
    listed = subprocess.run(["pgrep", "--full", str(output)], capture_output=True, text=True, check=False)
    for pid in map(int, listed.stdout.split()):
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(("ranks_before", "ranks_after"), [(1, 2), (2, 1)])
def test_a_killed_run_is_finished_on_another_number_of_ranks(tmp_path, undisturbed, ranks_before, ranks_after):
    output = tmp_path / "out"
    killed_run(output, ranks=ranks_before)
    before = committed(output)
    assert 5 <= before.total() < 36
    finished = evaluate(tmp_path, "--output_dir", output, "--resume", ranks=ranks_after)
    assert finished.returncode == 0, finished.stderr
    assert same_tables(output, undisturbed)
    after = committed(output)
    assert set(after.values()) == {1}, "an episode that was finished ran again"
    assert before <= after


def test_a_finished_run_is_left_as_it_is(tmp_path, undisturbed):
    def state() -> dict[Path, tuple[bytes, int]]:
        files = [path for path in undisturbed.rglob("*") if path.is_file()]
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = state()
    finished = evaluate(tmp_path, "--resume", undisturbed)
    assert finished.returncode == 0, finished.stderr
    assert "there is nothing to do" in finished.stderr
    assert "scripted" in finished.stdout
    assert state() == before


def test_what_cannot_be_resumed_is_refused_and_another_plan_shown(tmp_path, undisturbed):
    for directory, changes, words in (
        (undisturbed, {"num_episodes": 11}, f"{undisturbed}: is a different run (3 things differ)"),
        (undisturbed, {"num_episodes": 11}, "job 'zero': num_episodes: was 12 when the run began, now 11"),
        (tmp_path / "outptus", {}, f"--resume: there is no directory '{tmp_path}/outptus'"),
        (tmp_path, {}, "holds no run to resume"),
    ):
        refused = evaluate(tmp_path, "--resume", directory, **changes)
        assert refused.returncode == 2
        assert words in refused.stderr
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


def test_with_an_exact_directory_resume_starts_what_has_not_begun_and_mends_what_is_finished(tmp_path):
    output, saved = tmp_path / "out", tmp_path / "conditions.json"
    begun = evaluate(tmp_path, "--output_dir", output, "--resume", num_episodes=1)
    assert begun.returncode == 0, begun.stderr
    assert "there is nothing to do" not in begun.stderr
    table = output / "results.csv"
    right = table.read_bytes()
    table.write_bytes(right.replace(b"zero_action", b"mine"))
    arguments = ("--output_dir", output, "--resume", "--save_conditions", saved, "--record_viewport_video")
    again = evaluate(tmp_path, *arguments, num_episodes=1)
    assert again.returncode == 0, again.stderr
    for words in ("there is nothing to do", "results.csv did not match the commit record", "so none is filmed"):
        assert words in again.stderr
    assert table.read_bytes() == right
    assert saved.is_file()
