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
from isaaclab_arena.results import read_episode, write_episode
from tests.end_to_end.launching import ROOT, evaluated, job, launched, wait_until
from tests.environments.gym.gym_fakes import ID as GYM_ID
from tests.fakes_environment import files_below

pytestmark = pytest.mark.usefixtures("quick_python")

LIFT = job("lift_object", num_episodes=5, num_envs=4, name="lift")
NETWORK = job("reach", "tests.fakes_network.NetworkPolicy", 2, num_envs=8, name="reach")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory) -> Path:
    return evaluated(tmp_path_factory.mktemp("untouched") / "out", LIFT)


@pytest.fixture
def copied(untouched, tmp_path) -> Path:
    return Path(shutil.copytree(untouched, tmp_path / "out"))


@pytest.fixture
def verify(capsys) -> Callable[..., tuple[int, str]]:
    """Return the exit code of `verify` on a run, and what it says."""

    def verify(output: Path, *options: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main(["verify", str(output), *map(str, options)])
        return code, "".join(capsys.readouterr())

    return verify


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
    """Change the commit line of demo_2, or drop the last line where nothing is to change."""
    path = output / "lift" / "episode_results_rank0.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line | changes if line["episode_index"] == 2 else line for line in lines][: None if changes else -1]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def change_attribute(output: Path, group: str, **changes: Any) -> None:
    with h5py.File(output / "lift" / "dataset_lift.hdf5", "r+") as file:
        file[group].attrs.update(changes)


def times(output: Path) -> dict[str, int]:
    return {name: (output / name).stat().st_mtime_ns for name in files_below(output) if name != "verification.json"}


def test_a_run_is_verified_bitwise_at_another_number_of_env_slots_and_ranks(untouched, verify):
    before = times(untouched)
    code, told = verify(untouched, "--sample", 3)
    assert code == 0
    assert "every array is intact, no episode is missing or recorded twice" in told
    assert "num_envs from 4 to 1; ranks from 1 to 2" in told
    assert told.count("steps, bitwise\n") == 3
    assert "3 of 3 episodes bitwise" in told
    assert times(untouched) == before
    found = json.loads((untouched / "verification.json").read_text())
    assert [each["is_bitwise"] for each in found["episodes"]] == [True] * 3
    assert found["is_sound"] is True


def test_a_tampered_recording_is_found_with_its_step_and_field(copied, verify):
    change_state(copied, step=21)
    fix_checksum(copied)
    code, told = verify(copied, "--sample", 5, "--nproc", 1, "--num_envs", 2)
    assert code == 1
    assert "every array is intact" in told
    assert "lift episode 2: 37 steps, differs first at control step 21: states/rigid_object/cube/root_pose by " in told
    assert "4 of 5 episodes bitwise" in told


def drop_tables(output: Path) -> None:
    for path in [*output.glob("*.csv"), *output.glob("*.parquet"), output / "results.json"]:
        path.unlink()


def edit_table(output: Path) -> None:
    path = output / "results.csv"
    path.write_text(path.read_text().replace("scripted", "mine"))


def copy_dataset(output: Path) -> None:
    shutil.copy(output / "lift" / "dataset_lift.hdf5", output / "lift" / "dataset_lift_rank7.hdf5")


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda output: change_state(output, 3), "the arrays of /data/demo_2 are not what was written"),
    (
        lambda output: change_line(output, success=False, outcome="failure"),
        "job 'lift': demo_2 in dataset_lift.hdf5: its commit line says success False, its recording True",
    ),
    (lambda output: change_attribute(output, "data/demo_2", success=False), "says success True, its recording False"),
    (lambda output: change_attribute(output, "data/demo_2", num_samples=3), ", its recording 3"),
    (lambda output: change_attribute(output, "data", total=1), "states 1 control steps, its episodes have "),
    (lambda output: change_line(output, checksum=None), "but its commit line states no recording"),
    (lambda output: (output / "attempts" / "attempt_1.json").write_text("{"), "attempt_1.json: is not valid JSON"),
    (change_line, "job 'lift' was interrupted and lacks episode 4"),
    (change_line, "which has no line in the commit record"),
    (edit_table, "results.csv differs from a merge of these files"),
    (lambda output: (output / "episodes.parquet").unlink(), "episodes.parquet is missing"),
    (drop_tables, "holds no tables; isaaclab-arena merge writes them"),
    (lambda output: (output / "lift" / "dataset_lift.hdf5").unlink(), "no file holds demo_4 with the checksum"),
    (copy_dataset, "demo_0 is recorded in "),
    (lambda output: (output / "lift" / "dataset_lift_rank1.hdf5").write_bytes(b"\x89HDF torn"), "dataset_lift_rank1"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_whatever_is_wrong_with_the_files_is_told(copied, verify, damage, words):
    damage(copied)
    code, told = verify(copied, "--sample", 0)
    assert code == 1
    assert words in told
    assert "every array is intact" not in told
    assert words in " ".join(json.loads((copied / "verification.json").read_text())["problems"])


def test_files_alone_can_be_checked_even_where_nothing_can_be_written(copied, verify):
    (copied / "verification.json").unlink(missing_ok=True)
    (copied / "verification.json").mkdir()
    code, told = verify(copied, "--sample", 0)
    assert code == 0
    assert "not kept for the page of the run: " in told
    assert "no episode was run again\n" in told


def test_without_a_recording_endings_are_compared_and_another_version_is_named(tmp_path, verify):
    output = evaluated(tmp_path / "out", LIFT, options=("--no_dataset",))
    path = output / "attempts" / "attempt_1.json"
    attempt = json.loads(path.read_text())
    attempt["versions"]["mujoco"] = "3.0.0"
    path.write_text(json.dumps(attempt))
    code, told = verify(output, "--sample", 2, "--nproc", 1)
    assert code == 0
    assert told.count("changed since the run: mujoco was 3.0.0, is now ") == 1
    assert told.count("steps, ended the same\n") == 2
    assert "without a dataset only conditions, outcome, length, return and metrics can be compared" in told


def test_an_environment_that_ignores_its_seed_is_caught(tmp_path, verify, monkeypatch):
    monkeypatch.chdir(ROOT)
    args = {"make_kwargs": {"misbehaviour": "unseeded"}, "seeded": False, "success_key": "success"}
    output = evaluated(tmp_path / "out", job(f"gym:{GYM_ID}", "random_action", 2, num_envs=1, args=args))
    code, told = verify(output, "--nproc", 1)
    assert code == 1
    assert told.count("differs first at control step 0: obs/") == 2
    assert "0 of 2 episodes bitwise" in told


def test_a_network_is_asked_on_as_many_env_slots_again_and_its_class_can_be_refused(tmp_path, verify, monkeypatch):
    monkeypatch.chdir(ROOT)
    output = evaluated(tmp_path / "out", NETWORK)
    code, told = verify(output, "--nproc", 1, "--sample", 2)
    assert code == 0
    assert "num_envs from 8 to 1" in told
    assert "2 of 2 episodes bitwise" in told
    code, told = verify(output, "--nproc", 1, "--sample", 1, "--no_import")
    assert code == 1
    assert "--no_import" in told


def test_a_networks_answers_change_where_that_is_not_enough_and_that_is_explained(tmp_path, verify, monkeypatch):
    monkeypatch.chdir(ROOT)
    output = evaluated(tmp_path / "out", job("reach", "tests.fakes_network.NetworkPolicy", 2, num_envs=1))
    code, told = verify(output, "--nproc", 1, "--sample", 2)
    assert code == 0
    assert told.count("differs first at control step 0: actions by ") == 2
    assert "0 of 2 episodes bitwise (0 control steps); 2 differ as expected" in told
    assert "(expected: the policy's actions may change with num_envs; --deterministic fixes its batch)" in told


def test_a_deterministic_run_of_a_network_is_verified_bitwise(tmp_path, verify, monkeypatch):
    monkeypatch.chdir(ROOT)
    # In a process of its own: what makes torch deterministic lasts as long as the process.
    output = launched(tmp_path / "out", NETWORK, options=("--deterministic", "--policy_batch", 8))
    code, told = verify(output, "--nproc", 1, "--sample", 2)
    assert (code, "2 of 2 episodes bitwise" in told) == (0, True)
    code, told = verify(output, "--num_envs", 9)
    assert code == 2
    assert "--num_envs: must be at most 8, the run's policy_batch, got 9" in told


def test_relative_paths_of_a_policy_count_from_where_the_run_was_started(untouched, tmp_path, verify, monkeypatch):
    """Unless nothing that is named may be imported or gone to."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    shutil.copytree(untouched / "lift", here / "recordings")
    monkeypatch.chdir(here)
    replayed = {**LIFT, "policy_type": "replay", "policy_config_dict": {"replay_file_path": "recordings"}}
    output = evaluated(elsewhere / "out", replayed)
    monkeypatch.chdir(elsewhere)
    code, told = verify(output, "--nproc", 1, "--sample", 1)
    assert (code, "1 of 1 episodes bitwise" in told) == (0, True)
    code, told = verify(output, "--nproc", 1, "--sample", 1, "--no_import")
    assert (code, "no recording at 'recordings'" in told) == (1, True)


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


def test_a_policy_that_is_not_there_any_more_is_named(copied, verify):
    plan = json.loads((copied / "run.json").read_text())
    plan["jobs"][0]["config"]["policy_type"] = "scribbled"
    (copied / "run.json").write_text(json.dumps(plan))
    code, told = verify(copied, "--nproc", 1)
    assert code == 1
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
