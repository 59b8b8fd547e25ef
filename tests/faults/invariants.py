"""What must be true of a run's directory, whatever happened to it."""

import json
from pathlib import Path

from isaaclab_arena.results import list_episodes, read_attributes, verify_episodes
from tests.end_to_end.launching import committed, episodes_table, same_tables

__all__ = ["check_results", "check_whole", "committed", "is_called_complete"]


def is_called_complete(output: Path) -> bool:
    """Whether there is a table that says that the run is complete."""
    table = output / "results.json"
    return table.exists() and json.loads(table.read_text())["complete"]


def check_whole(output: Path, undisturbed: Path) -> None:
    """The run has everything that an undisturbed one has, once, and nothing else."""
    check_results(output, undisturbed)
    files = [path for path in output.rglob("*") if path.is_file() and "set_aside" not in path.parts]
    hidden = [path for path in files if path.name.startswith(".") and path.name != ".lock"]
    assert hidden + [path for path in files if path.suffix in (".h5", ".tmp")] == []


def check_results(output: Path, undisturbed: Path) -> None:
    """The run has everything that an undisturbed one has, once."""
    assert is_called_complete(output)
    assert same_tables(output, undisturbed)
    table = episodes_table(output)
    for job in output.glob("*/"):
        if not any(job.glob("episode_results_rank*.jsonl")):
            continue
        finished = table[table["job"] == job.name]
        expected = dict(zip(finished["episode_index"], finished["checksum"], strict=True))
        found: list[int] = []
        for path in job.glob("dataset_*.hdf5"):
            indices = list_episodes(path)
            verify_episodes(path, indices)
            found += indices
            assert all(read_attributes(path, index)["checksum"] == expected[index] for index in indices)
        assert sorted(found) == sorted(expected), f"recorded episodes of job {job.name}"
