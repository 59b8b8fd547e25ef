"""What must be true of a run's directory, whatever happened to it."""

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from isaaclab_arena.results import list_episodes, read_attributes, verify_episodes
from tests.end_to_end.launching import episodes_table, same_tables


def committed(output: Path) -> Counter[tuple[str, int]]:
    """Return how many whole commit lines each episode has, by job and index."""
    found: Counter[tuple[str, int]] = Counter()
    for path in output.glob("*/episode_results_rank*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                written = json.loads(line)
                found[written["job_name"], written["episode_index"]] += 1
            except (ValueError, TypeError, KeyError):
                continue
    return found


def is_called_complete(output: Path) -> bool:
    """Whether there is a table that says that the run is complete."""
    table = output / "results.json"
    return table.exists() and json.loads(table.read_text())["complete"]


def check_whole(output: Path, undisturbed: Path, *, twice: Collection[tuple[str, int]] = ()) -> None:
    """The run has everything that an undisturbed one has, once, and nothing else.

    Args:
        output: The run's directory.
        undisturbed: That of the undisturbed one.
        twice: Episodes that two ranks finished, both of which have recorded the same.
    """
    check_results(output, undisturbed, twice=twice)
    _check_nothing_is_left_over(output)


def check_results(output: Path, undisturbed: Path, *, twice: Collection[tuple[str, int]] = ()) -> None:
    """The run has everything that an undisturbed one has, once; see `check_whole`."""
    assert is_called_complete(output)
    assert same_tables(output, undisturbed)
    _check_recordings(output, twice)


def _check_recordings(output: Path, twice: Collection[tuple[str, int]]) -> None:
    table = episodes_table(output)
    for job in output.glob("*/"):
        if not any(job.glob("episode_results_rank*.jsonl")):
            continue
        finished = table[table["job"] == job.name]
        expected = {
            int(index): int(crc) for index, crc in zip(finished["episode_index"], finished["checksum"], strict=True)
        }
        found: Counter[int] = Counter()
        for path in job.glob("dataset_*.hdf5"):
            indices = list_episodes(path)
            verify_episodes(path, indices)
            found.update(indices)
            assert {index: read_attributes(path, index)["checksum"] for index in indices} == {
                index: expected[index] for index in indices
            }
        assert found.keys() == expected.keys(), f"recorded episodes of job {job.name}"
        assert {(job.name, index) for index in found if found[index] > 1} <= {*twice}


def _check_nothing_is_left_over(output: Path) -> None:
    files = [path for path in output.rglob("*") if path.is_file() and "set_aside" not in path.parts]
    left_over = [
        str(path.relative_to(output))
        for path in files
        if path.name.endswith(".tmp") or path.suffix == ".h5" or (path.name.startswith(".") and path.name != ".lock")
    ]
    assert left_over == []
