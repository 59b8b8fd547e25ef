"""Runs that an earlier program recorded: their tables, their datasets, and a resume of one that was killed half-way.

``recorded_runs/runs.tar.xz`` holds three runs of ``recorded_runs/jobs.json``, recorded at revision ac6d1992: by one
process, by two ranks that claimed their episodes, and by one process that was killed.
"""

import csv
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import command, run

HERE = Path(__file__).parent / "recorded_runs"
JOBS = HERE / "jobs.json"


@pytest.fixture
def recorded(tmp_path) -> Path:
    with tarfile.open(HERE / "runs.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def rows(run_directory: Path, *apart: str) -> list[dict[str, Any]]:
    """Return the table of jobs without what simulated them, with numbers that SciPy computes rounded."""
    with (run_directory / "results.csv").open(newline="") as file:
        return [
            {name: _rounded(value) for name, value in row.items() if name not in ("simulated_by", *apart)}
            for row in csv.DictReader(file)
        ]


def _rounded(value: str) -> str | float:
    try:
        return float(f"{float(value):.10g}")
    except ValueError:
        return value


def contents(run_directory: Path) -> dict[str, Any]:
    """Return every array and attribute of all datasets, but for what says when and where an episode ran."""
    found: dict[str, Any] = {}
    for path in sorted(run_directory.glob("*/dataset_*.hdf5")):

        def describe(name: str, item: h5py.Group | h5py.Dataset, path: Path = path) -> None:
            place = f"{path.parent.name}/{name}"
            apart = {"commit", "env_id", "provenance"}
            found.update({f"{place}@{key}": str(value) for key, value in item.attrs.items() if key not in apart})
            if isinstance(item, h5py.Dataset):
                array = np.asarray(item[()])
                found[place] = (array.dtype.str, array.shape, array.tobytes())

        with h5py.File(path) as file:
            file.visititems(describe)
    return found


@pytest.mark.parametrize("name", ["one_process", "two_ranks"])
def test_the_tables_of_a_recorded_run_are_made_again_byte_for_byte(recorded, name):
    before = {path.name: path.read_bytes() for path in (recorded / name).glob("*.csv")}
    jobs = rows(recorded / name)
    for path in (recorded / name).glob("*.[cp]*"):
        path.unlink()
    assert main(["merge", str(recorded / name)]) == 0
    assert (recorded / name / "episodes.csv").read_bytes() == before["episodes.csv"]
    assert rows(recorded / name) == jobs


def test_a_run_of_today_records_the_same_bits_and_tables(recorded, tmp_path):
    done = run(command("--eval_jobs_config", JOBS, "--output_dir", tmp_path / "today", "--no_report"))
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "today") == contents(recorded / "one_process")
    assert (tmp_path / "today" / "episodes.csv").read_bytes() == (recorded / "one_process/episodes.csv").read_bytes()
    assert rows(tmp_path / "today") == rows(recorded / "one_process")


def test_a_run_that_was_killed_ends_as_the_one_that_was_not(recorded):
    killed, whole = recorded / "killed", recorded / "one_process"
    done = run(command("--eval_jobs_config", JOBS, "--output_dir", killed, "--resume", "--no_report"))
    assert done.returncode == 0, done.stderr
    assert contents(killed) == contents(whole)
    assert (killed / "episodes.csv").read_bytes() == (whole / "episodes.csv").read_bytes()
    # On another kind of machine than that of the first start, a resumed run promises the plan alone.
    promise = ("reproducible", "plan_because")
    assert rows(killed, *promise) == rows(whole, *promise)
