"""Late answers on ranks that claim their work, of which one is killed: the table is that of one rank."""

import json
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from tests.end_to_end.launching import (
    command,
    committed,
    end,
    episodes_table,
    job,
    jobs_table,
    launched,
    ranks_of,
    results_of,
    run,
    run_of,
    same_tables,
    start,
    wait_until,
)

WAYS = ("wait", "hold", "chunk", "rtc")
"""What the robot may do until an answer is there."""

NAMED = {"job", "name", "latency", "meanwhile", "stale_action_share", "queries_per_s", "metrics", "dataset_file"}
NAMED |= {"commit", "provenance"}
"""What differs between jobs that do the same: names, times, and how late answers are."""


def late(num_envs: int, *, steps: object = (0, 2), num_episodes: int = 8) -> list[dict]:
    policy, latency = "tests.evaluation.plants.NoisyReaching", {"steps": steps}
    jobs = [job("reach", policy, num_episodes, num_envs=num_envs, name=way) for way in WAYS]
    return [{**each, "latency": {**latency, "meanwhile": each["name"]}} for each in jobs]


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


def lines_of(table: pd.DataFrame, column: str, name: str) -> str:
    """Return a job's lines of a table, without what says which job it is and how late its answers are."""
    own = table[table[column] == name]
    return own.drop(columns=[each for each in own if each in NAMED]).to_csv(index=False)


def test_answers_that_are_on_time_leave_tables_and_recordings_as_they_are_without_latency(tmp_path):
    on_time = late(2, steps=0, num_episodes=3)
    plain = {key: value for key, value in on_time[0].items() if key != "latency"} | {"name": "plain"}
    output = launched(tmp_path / "out", plain, *on_time, timeout_s=600)
    jobs, episodes = jobs_table(output), episodes_table(output)
    for table, column in ((jobs, "name"), (episodes, "job")):
        assert {lines_of(table, column, way) for way in WAYS} == {lines_of(table, column, "plain")}
    expected = recorded(output / "plain" / "dataset_plain.hdf5")
    assert all(recorded(output / way / f"dataset_{way}.hdf5") == expected for way in WAYS)
    # Nor does an episode whose answers are waited for say anything more than one without latency.
    waited, without = (episodes[episodes["job"] == name]["metrics"].tolist() for name in ("wait", "plain"))
    assert waited == without


@pytest.mark.slow
def test_late_answers_do_not_depend_on_ranks_env_slots_kills_or_resumes(tmp_path):
    one = launched(tmp_path / "one", *late(2), timeout_s=600)
    output = tmp_path / "out"
    with ranks_of(output, *late(3)):
        wait_until(lambda: committed(output, rank=1).total() >= 2, timeout_s=300)
    assert not (output / "results.json").exists()
    launched(output, options=("--resume",), timeout_s=600)
    assert same_tables(output, one)
    jobs = results_of(output)["jobs"]
    assert [each["stale_action_share"] > 0 for each in jobs] == [False, True, True, True]
    assert all(each["queries_per_s"] > 0 for each in jobs)
    three = launched(tmp_path / "three", *late(4), options=("--split_jobs",), ranks=3, timeout_s=600)
    assert same_tables(three, one)


@pytest.mark.slow
def test_what_was_measured_stands_after_a_kill_for_the_resumed_run_and_for_verify(tmp_path):
    output = tmp_path / "out"
    measured = {**late(2, num_episodes=6)[0], "latency": {"measured": True, "meanwhile": "hold"}}
    process = start(run_of(output, measured), tmp_path / "killed.log")
    wait_until(lambda: committed(output).total() >= 2, timeout_s=300)
    end(process)
    launched(output, options=("--resume",), timeout_s=300)
    attempts = [json.loads((output / "attempts" / f"attempt_{number}.json").read_text()) for number in (1, 2)]
    first, second = (entry for attempt in attempts for entry in attempt["jobs"])
    assert first["latency"] is not None
    assert second["latency"] == first["latency"]
    verified = run(command("verify", output, "--sample", 6, module=["-m", "isaaclab_arena.cli"]), timeout_s=300)
    assert verified.returncode == 0, verified.stderr
