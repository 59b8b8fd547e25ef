import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.distributed.ranks import PeerStoppedError, Ranks
from isaaclab_arena.errors import ArenaError, ConfigError, DiskUnusableError, StorageError
from isaaclab_arena.models.rsl_rl_checkpoint import model_path, numbered_checkpoints
from isaaclab_arena.training.checkpoints import (
    newest_readable,
    packed,
    read_learned,
    read_rank_state,
    read_together,
    state_path,
    write_checkpoint,
)
from tests.distributed.threads import ranks_in_threads


def learned(iterations: int) -> dict:
    return {"actor_state_dict": {"weight": torch.tensor([float(iterations)])}, "iter": iterations, "infos": {}}


def write(directory, iterations: int, *, kept: int = 2, ranks: int = 1):
    states = [packed({"torch_rng": torch.full((3,), rank, dtype=torch.uint8)}) for rank in range(ranks)]
    return write_checkpoint(directory, learned(iterations), states, iterations=iterations, kept=kept)


def test_the_newest_checkpoints_stay_with_what_belongs_to_them(tmp_path):
    for iterations in (0, 50, 100):
        write(tmp_path, iterations)
    assert list(numbered_checkpoints(tmp_path)) == [50, 100]
    assert {path.name for path in tmp_path.iterdir()} == {"model_50.pt", "state_50.pt", "model_100.pt", "state_100.pt"}


def test_a_checkpoint_that_was_evaluated_stays_as_a_policy(tmp_path):
    for iterations in (0, 50, 100, 150):
        states = [packed({"torch_rng": torch.zeros(3, dtype=torch.uint8)})]
        write_checkpoint(tmp_path, learned(iterations), states, iterations=iterations, kept=1, stays={50}.__contains__)
    assert list(numbered_checkpoints(tmp_path)) == [50, 150]
    assert sorted(path.name for path in tmp_path.glob("state_*")) == ["state_150.pt"]
    assert newest_readable(tmp_path)[0] == 150


def test_a_checkpoint_says_with_which_iteration_to_go_on(tmp_path):
    assert read_learned(write(tmp_path, 7))["iter"] == 7


def test_where_the_newest_checkpoint_is_torn_the_one_before_is_taken(tmp_path):
    for iterations in (50, 100):
        write(tmp_path, iterations)
    model_path(tmp_path, 100).write_bytes(b"PK torn")
    assert newest_readable(tmp_path)[0] == 50
    model_path(tmp_path, 50).write_bytes(b"")
    with pytest.raises(StorageError, match="none of the 2 checkpoints"):
        newest_readable(tmp_path)


def test_every_rank_finds_its_own_state(tmp_path):
    write(tmp_path, 7, ranks=2)
    states = [read_rank_state(tmp_path, iterations=7, rank=rank, world_size=2) for rank in range(2)]
    assert [state["torch_rng"].tolist() for state in states if state] == [[0, 0, 0], [1, 1, 1]]


def test_the_state_of_another_number_of_ranks_is_none(tmp_path):
    write(tmp_path, 7, ranks=2)
    assert read_rank_state(tmp_path, iterations=7, rank=0, world_size=3) is None
    state_path(tmp_path, 7).unlink()
    assert read_rank_state(tmp_path, iterations=7, rank=0, world_size=2) is None


def taken_up(*directories: Path) -> list[Any]:
    """Result of a joint checkpoint read, by rank; each rank sees the run in its own directory."""

    def read(ranks: Ranks, directory: Path) -> tuple[dict[str, Any], dict[str, Any] | None] | ArenaError:
        try:
            return read_together(directory, ranks)
        except ArenaError as error:
            ranks.give_up(str(error))
            return error

    with ThreadPoolExecutor() as threads:
        return list(threads.map(read, ranks_in_threads(len(directories)), directories))


@pytest.fixture
def views(tmp_path) -> list[Path]:
    """Two directories that hold one run of two ranks, as the two ranks see it."""
    for rank in range(2):
        for iterations in (50, 100):
            write(tmp_path / str(rank), iterations, ranks=2)
    return [tmp_path / "0", tmp_path / "1"]


def test_all_ranks_go_on_from_one_checkpoint_each_with_its_own_state(views):
    found = taken_up(*views)
    assert [learned["iter"] for learned, _ in found] == [100, 100]
    assert [rank_state["torch_rng"].tolist() for _, rank_state in found] == [[0, 0, 0], [1, 1, 1]]
    model_path(views[0], 100).write_bytes(b"PK torn")
    assert [learned["iter"] for learned, _ in taken_up(views[0], views[0])] == [50, 50]


@pytest.mark.parametrize("name", ["model_100.pt", "state_100.pt"])
def test_a_rank_that_finds_another_content_ends_the_training_on_all_ranks(views, name):
    (views[1] / name).write_bytes(b"PK torn")
    for error in taken_up(*views):
        assert isinstance(error, ConfigError)
        assert str(error).startswith(f"the ranks do not agree on {name} (rank 0: ")
    (views[1] / name).unlink()
    assert "rank 1: absent" in str(taken_up(*views)[1])


@pytest.mark.parametrize("name", ["model_100.pt", "state_100.pt"])
def test_a_file_that_one_rank_cannot_read_ends_the_training_and_no_older_one_is_taken(views, name):
    # Following it fails in the system, as reading a disk may.
    (views[1] / name).unlink()
    (views[1] / name).symlink_to("n" * 300)
    first, second = taken_up(*views)
    assert isinstance(first, PeerStoppedError)
    assert isinstance(second, StorageError)
    assert str(second) == f"cannot read {views[1] / name}: File name too long"
    first, second = taken_up(*reversed(views))
    assert (type(first), type(second)) == (StorageError, PeerStoppedError)


def test_where_one_ranks_state_is_damaged_all_begin_new_episodes(views):
    for view in views:
        torch.save({"0": torch.frombuffer(bytearray(packed({})), dtype=torch.uint8), "1": 7}, state_path(view, 100))
    assert [(learned["iter"], state) for learned, state in taken_up(*views)] == [(100, None), (100, None)]


def test_a_damaged_state_is_as_good_as_none(tmp_path):
    write(tmp_path, 7)
    for content in ([1, 2], {"7": torch.zeros(3)}):
        torch.save(content, state_path(tmp_path, 7))
        assert read_rank_state(tmp_path, iterations=7, rank=0, world_size=1) is None
    state_path(tmp_path, 7).write_bytes(b"torn")
    assert read_rank_state(tmp_path, iterations=7, rank=0, world_size=1) is None


def test_a_full_disk_leaves_the_checkpoint_before_and_is_named(tmp_path, monkeypatch):
    write(tmp_path, 50)

    write_a_part = os.write

    def torn(descriptor: int, content: memoryview) -> int:
        write_a_part(descriptor, content[:9])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", torn)
    with pytest.raises(DiskUnusableError, match=r"cannot write .*state_100\.pt: No space left on device"):
        write(tmp_path, 100)
    assert {path.name for path in tmp_path.iterdir()} == {"model_50.pt", "state_50.pt"}


def test_a_file_with_code_in_it_is_not_loaded(tmp_path):
    path = tmp_path / "model_1.pt"
    torch.save({"actor_state_dict": {}, "iter": 1, "infos": pickle.PickleBuffer}, path)
    with pytest.raises(ConfigError, match="is not loaded: it could run code"):
        read_learned(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn"])
def test_a_torn_file_is_told(tmp_path, content):
    path = tmp_path / "model_1.pt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model_1\.pt"):
        read_learned(path)


def test_another_kind_of_file_is_no_checkpoint(tmp_path):
    path = tmp_path / "model_1.pt"
    torch.save({"weights": torch.zeros(1)}, path)
    with pytest.raises(ConfigError, match="is no checkpoint of rsl_rl: it has no actor_state_dict and no iter"):
        read_learned(path)
