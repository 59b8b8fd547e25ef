"""``isaaclab-arena verify`` on whole runs: what it finds, and that nothing escapes it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.eval_runner import main as evaluate
from isaaclab_arena.results import read_episode, write_episode
from tests.end_to_end.launching import ROOT, command, run, wait_until, write_jobs
from tests.environments.gym.gym_fakes import ID as GYM_ID
from tests.fakes_environment import files_below

pytestmark = pytest.mark.usefixtures("quick_python")

LIFT = {
    "name": "lift",
    "arena_env_args": {"environment": "lift_object", "num_envs": 4},
    "policy_type": "scripted",
    "num_episodes": 5,
}
NETWORK = {
    "name": "reach",
    "arena_env_args": {"environment": "reach", "num_envs": 8},
    "policy_type": "tests.fakes_network.NetworkPolicy",
    "num_episodes": 2,
}


def evaluated(directory: Path, *jobs: dict[str, Any], arguments: tuple[str, ...] = ()) -> Path:
    """Run jobs in this process and return the output directory."""
    path = write_jobs(directory / "jobs.json", jobs)
    assert evaluate(["--eval_jobs_config", str(path), "--output_dir", str(directory / "out"), *arguments]) == 0
    return directory / "out"


@pytest.fixture(scope="module")
def untouched(tmp_path_factory) -> Path:
    return evaluated(tmp_path_factory.mktemp("untouched"), LIFT)


@pytest.fixture
def copied(untouched, tmp_path) -> Path:
    return Path(shutil.copytree(untouched, tmp_path / "out"))


def edit_lines(path: Path, edit: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    lines = edit([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def change_state(output: Path, step: int) -> None:
    """Change one bit of demo_2's states."""
    with h5py.File(output / "lift" / "dataset_lift.hdf5", "r+") as file:
        states = file["data/demo_2/states/rigid_object/cube/root_pose"]
        assert isinstance(states, h5py.Dataset)
        states[step, 0] = np.nextafter(states[step, 0], 1)


def fix_checksum(output: Path) -> None:
    """Make a changed demo_2 look as if it had been recorded so."""
    dataset = output / "lift" / "dataset_lift.hdf5"
    crc = write_episode(output.with_name("changed.h5"), read_episode(dataset, 2))
    with h5py.File(dataset, "r+") as file:
        attributes = file["data/demo_2"].attrs
        attributes["checksum"] = crc
        attributes["commit"] = json.dumps({**json.loads(str(attributes["commit"])), "checksum": crc})
    change_line(output, checksum=crc)
    assert main(["merge", str(output)]) == 0


def change_line(output: Path, **changes: Any) -> None:
    """Change the commit line of demo_2."""

    def changed(lines):
        return [{**line, **changes} if line["episode_index"] == 2 else line for line in lines]

    edit_lines(output / "lift" / "episode_results_rank0.jsonl", changed)


def change_attribute(output: Path, group: str, **changes: Any) -> None:
    with h5py.File(output / "lift" / "dataset_lift.hdf5", "r+") as file:
        file[group].attrs.update(changes)


def test_a_run_is_verified_bitwise_at_another_number_of_env_slots_and_ranks(untouched, capsys):
    before = {name: (untouched / name).stat().st_mtime_ns for name in files_below(untouched)}
    assert main(["verify", str(untouched), "--sample", "3"]) == 0
    told = capsys.readouterr().out
    assert "every array is intact, no episode is missing or recorded twice" in told
    assert "num_envs from 4 to 1; ranks from 1 to 2" in told
    assert told.count("steps, bitwise\n") == 3
    assert "3 of 3 episodes bitwise" in told
    after = {name: (untouched / name).stat().st_mtime_ns for name in files_below(untouched)}
    assert after.pop("verification.json") > 0
    before.pop("verification.json", None)
    assert after == before
    found = json.loads((untouched / "verification.json").read_text())
    assert [each["is_bitwise"] for each in found["episodes"]] == [True] * 3
    assert found["is_sound"] is True


def test_a_tampered_recording_is_found_with_its_step_and_field(copied, capsys):
    change_state(copied, step=21)
    fix_checksum(copied)
    capsys.readouterr()
    assert main(["verify", str(copied), "--sample", "5", "--nproc", "1", "--num_envs", "2"]) == 1
    told = capsys.readouterr().out
    assert "every array is intact" in told
    assert "lift episode 2: 37 steps, differs first at control step 21: states/rigid_object/cube/root_pose by " in told
    assert "4 of 5 episodes bitwise" in told


def drop_line(output: Path) -> None:
    edit_lines(output / "lift" / "episode_results_rank0.jsonl", lambda lines: lines[:-1])


def drop_tables(output: Path) -> None:
    for path in [*output.glob("*.csv"), *output.glob("*.parquet"), output / "results.json"]:
        path.unlink()


def edit_table(output: Path) -> None:
    path = output / "results.csv"
    path.write_text(path.read_text().replace("scripted", "mine"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda output: change_state(output, 3), "the arrays of /data/demo_2 are not what was written"),
        (
            lambda output: change_line(output, success=False, outcome="failure"),
            "job 'lift': demo_2 in dataset_lift.hdf5: its commit line says success False, its recording True",
        ),
        (
            lambda output: change_attribute(output, "data/demo_2", success=False),
            "says success True, its recording False",
        ),
        (lambda output: change_attribute(output, "data/demo_2", num_samples=3), ", its recording 3"),
        (
            lambda output: change_attribute(output, "data", total=1),
            "states 1 control steps, its episodes have ",
        ),
        (lambda output: change_line(output, checksum=None), "but its commit line states no recording"),
        (lambda output: (output / "attempts" / "attempt_1.json").write_text("{"), "attempt_1.json: is not valid JSON"),
        (drop_line, "job 'lift' was interrupted and lacks episode 4"),
        (drop_line, "which has no line in the commit record"),
        (edit_table, "results.csv differs from a merge of these files"),
        (lambda output: (output / "episodes.parquet").unlink(), "episodes.parquet is missing"),
        (drop_tables, "holds no tables; isaaclab-arena merge writes them"),
        (lambda output: (output / "lift" / "dataset_lift.hdf5").unlink(), "no file holds demo_4 with the checksum"),
        (
            lambda output: shutil.copy(
                output / "lift" / "dataset_lift.hdf5", output / "lift" / "dataset_lift_rank7.hdf5"
            ),
            "demo_0 is recorded in ",
        ),
        (
            lambda output: (output / "lift" / "dataset_lift_rank1.hdf5").write_bytes(b"\x89HDF torn"),
            "dataset_lift_rank1.hdf5",
        ),
    ],
)
def test_whatever_is_wrong_with_the_files_is_told(copied, capsys, damage, words):
    damage(copied)
    assert main(["verify", str(copied), "--sample", "0"]) == 1
    told = capsys.readouterr().out
    assert words in told
    assert "every array is intact" not in told
    found = json.loads((copied / "verification.json").read_text())
    assert words in " ".join(found["problems"])


def test_files_alone_can_be_checked(untouched, capsys):
    assert main(["verify", str(untouched), "--sample", "0"]) == 0
    assert capsys.readouterr().out.endswith("no episode was run again\n")


def test_a_run_that_cannot_be_written_to_is_verified_all_the_same(copied, capsys):
    (copied / "verification.json").unlink(missing_ok=True)
    (copied / "verification.json").mkdir()
    assert main(["verify", str(copied), "--sample", "0"]) == 0
    assert "not kept for the page of the run: " in capsys.readouterr().out


def test_without_a_recording_endings_are_compared_and_another_version_is_named(tmp_path, capsys):
    output = evaluated(tmp_path, LIFT, arguments=("--no_dataset",))
    edit_json(output / "attempts" / "attempt_1.json", lambda attempt: attempt["versions"].update(mujoco="3.0.0"))
    capsys.readouterr()
    assert main(["verify", str(output), "--sample", "2", "--nproc", "1"]) == 0
    told = capsys.readouterr().out
    assert told.count("changed since the run: mujoco was 3.0.0, is now ") == 1
    assert told.count("steps, ended the same\n") == 2
    assert "without a dataset only conditions, outcome, length, return and metrics can be compared" in told


def test_an_environment_that_ignores_its_seed_is_caught(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    job = {
        "name": "draw",
        "arena_env_args": {
            "environment": f"gym:{GYM_ID}",
            "make_kwargs": {"misbehaviour": "unseeded"},
            "seeded": False,
            "success_key": "success",
        },
        "policy_type": "random_action",
        "num_episodes": 2,
    }
    output = evaluated(tmp_path, job)
    capsys.readouterr()
    assert main(["verify", str(output), "--nproc", "1"]) == 1
    told = capsys.readouterr().out
    assert told.count("differs first at control step 0: obs/") == 2
    assert "0 of 2 episodes bitwise" in told


def test_a_network_is_asked_on_as_many_env_slots_again_and_is_verified_bitwise(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    output = evaluated(tmp_path, NETWORK)
    capsys.readouterr()
    assert main(["verify", str(output), "--nproc", "1", "--sample", "2"]) == 0
    told = capsys.readouterr().out
    assert "num_envs from 8 to 1" in told
    assert "2 of 2 episodes bitwise" in told


def test_a_networks_answers_change_where_that_is_not_enough_and_that_is_explained(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    output = evaluated(tmp_path, {**NETWORK, "arena_env_args": {"environment": "reach", "num_envs": 1}})
    capsys.readouterr()
    assert main(["verify", str(output), "--nproc", "1", "--sample", "2"]) == 0
    told = capsys.readouterr().out
    assert told.count("differs first at control step 0: actions by ") == 2
    assert "0 of 2 episodes bitwise (0 control steps); 2 differ as expected" in told
    assert "(expected: the policy's actions may change with num_envs; --deterministic fixes its batch)" in told


def test_a_deterministic_run_of_a_network_is_verified_bitwise(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    # In a process of its own: what makes torch deterministic lasts as long as the process.
    path, output = write_jobs(tmp_path / "jobs.json", [NETWORK]), tmp_path / "out"
    finished = run(command("--eval_jobs_config", path, "--output_dir", output, "--deterministic", "--policy_batch", 8))
    assert finished.returncode == 0, finished.stderr
    assert main(["verify", str(output), "--nproc", "1", "--sample", "2"]) == 0
    assert "2 of 2 episodes bitwise" in capsys.readouterr().out
    assert main(["verify", str(output), "--num_envs", "9"]) == 2
    assert "--num_envs: must be at most 8, the run's policy_batch, got 9" in capsys.readouterr().err


def test_relative_paths_of_a_policy_count_from_where_the_run_was_started(untouched, tmp_path, capsys, monkeypatch):
    """Unless nothing that is named may be imported or gone to."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    shutil.copytree(untouched / "lift", here / "recordings")
    replayed = {**LIFT, "policy_type": "replay", "policy_config_dict": {"replay_file_path": "recordings"}}
    monkeypatch.chdir(here)
    output = evaluated(elsewhere, replayed)
    monkeypatch.chdir(elsewhere)
    capsys.readouterr()
    assert main(["verify", str(output), "--nproc", "1", "--sample", "1"]) == 0
    assert "1 of 1 episodes bitwise" in capsys.readouterr().out
    assert main(["verify", str(output), "--nproc", "1", "--sample", "1", "--no_import"]) == 1
    assert "no recording at 'recordings'" in capsys.readouterr().err


def test_classes_that_are_not_registered_can_be_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    output = evaluated(tmp_path, NETWORK)
    assert main(["verify", str(output), "--nproc", "1", "--sample", "1", "--no_import"]) == 1
    assert "--no_import" in capsys.readouterr().err


def test_a_verification_that_is_told_to_end_leaves_nothing_behind(untouched, tmp_path):
    """Neither processes nor files: its ranks are told to end too."""
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(tmp_path))
    verify = [sys.executable, "-m", "isaaclab_arena.cli", "verify", str(untouched), "--nproc", "2"]
    with subprocess.Popen(verify, env={**os.environ, **places}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("num_envs from"):
                break
        wait_until(lambda: any(tmp_path.glob("*/*")))
        process.terminate()
        process.stdout.read()
        assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_seen_enough_is_no_error(untouched):
    verify = [sys.executable, "-m", "isaaclab_arena.cli", "verify", str(untouched), "--sample", "0"]
    with subprocess.Popen(verify, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 128 + signal.SIGPIPE


def test_a_policy_that_is_not_there_any_more_is_named(copied, capsys):
    def rename(plan):
        plan["jobs"][0]["config"]["policy_type"] = "scribbled"

    edit_json(copied / "run.json", rename)
    assert main(["verify", str(copied), "--nproc", "1"]) == 1
    told = capsys.readouterr().err
    assert "the episodes could not be run again:" in told
    assert "no policy called 'scribbled'" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{directory}"], "holds no run.json: it is not the output of a run"),
        (["{run}", "--sample", "-1"], "--sample: must be at least 0, got -1"),
        (["{run}", "--nproc", "0"], "--nproc: must be at least 1, got 0"),
    ],
)
def test_mistakes_are_told_with_exit_code_2(untouched, tmp_path, capsys, arguments, message):
    assert main(["verify", *(argument.format(run=untouched, directory=tmp_path) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err
