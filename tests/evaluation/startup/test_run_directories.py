from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.nodes.node_directory import NodeDirectory
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.startup.run_directories import (
    RunDirectory,
    describe_run_in_own_directory,
    directories_of_ranks,
    make_own_directory,
)
from isaaclab_arena.storage.run.attempts import read_attempt, write_attempt
from isaaclab_arena.storage.run.run_plan import read_run_plan
from tests.distributed.threads import ranks_in_threads
from tests.results.evidence import attempt, planned, write_plan

_Answer = TypeVar("_Answer")


def on_each(num_ranks: int, ask: Callable[[Ranks], _Answer]) -> list[_Answer]:
    """Let every rank do the same at the same time."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(ask, ranks_in_threads(num_ranks)))


def directories(
    directory: Path, outputs: Sequence[str], *, resumes: bool = False, **options
) -> tuple[NodeDirectory, ...]:
    (directory / outputs[0]).mkdir(exist_ok=True)
    run_directory = RunDirectory(path=directory / outputs[0], resumes=resumes)

    def ask(ranks: Ranks) -> tuple[NodeDirectory, ...]:
        own = RunOptions(output_dir=str(directory / outputs[ranks.context.rank]), **options)
        return directories_of_ranks(ranks, own, run_directory)

    return on_each(len(outputs), ask)[0]


def test_ranks_that_are_given_other_directories_write_there(tmp_path):
    found = directories(tmp_path, ["first", "second", "first"])
    assert [Path(each.directory).name for each in found] == ["first", "second", "first"]


def test_a_dated_directory_is_that_of_rank_0_or_one_of_the_same_name(tmp_path):
    dated = tmp_path / "outputs" / "2026-01-01_00-00-00"
    dated.mkdir(parents=True)
    seen, _ = on_each(
        2, lambda ranks: directories_of_ranks(ranks, RunOptions(), RunDirectory(path=dated, resumes=False))
    )
    assert [each.directory for each in seen] == [str(dated)] * 2


def test_work_cannot_be_claimed_from_machines_that_share_no_disk(tmp_path):
    with pytest.raises(
        ConfigError, match=r"--assignment: ranks claim work through files .* for rank 1 on .*second; use"
    ):
        directories(tmp_path, ["first", "second"], assignment="dynamic")
    assert directories(tmp_path, ["first", "first"], assignment="dynamic")


def test_a_run_in_several_directories_is_resumed_once_they_are_one(tmp_path):
    with pytest.raises(
        ConfigError, match=r"--resume: needs all files .* put the directories of all nodes into that of"
    ):
        directories(tmp_path, ["first", "second"], resumes=True, resume="")
    assert directories(tmp_path, ["first", "first"], resumes=True, resume="")


def test_one_rank_per_machine_makes_its_directory_and_describes_the_run_there(tmp_path):
    found = directories(tmp_path, ["first", "second", "second"])
    write_plan(tmp_path / "first", planned("b"), world_size=3)
    write_attempt(tmp_path / "first", attempt())

    def make(ranks: Ranks) -> bool:
        lock = make_own_directory(ranks, found)
        describe_run_in_own_directory(ranks, found, attempt=1)
        return lock is not None

    assert on_each(3, make) == [False, True, False]
    assert read_run_plan(tmp_path / "second") == read_run_plan(tmp_path / "first")
    assert read_attempt(tmp_path / "second", 1) == read_attempt(tmp_path / "first", 1)


def test_a_machine_whose_directory_holds_something_is_named_by_all_ranks(tmp_path):
    found = directories(tmp_path, ["first", "second"])
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "notes.txt").touch()

    def refusal(ranks: Ranks) -> str:
        with pytest.raises(ConfigError) as raised:
            make_own_directory(ranks, found)
        return str(raised.value)

    for message in on_each(2, refusal):
        assert message.startswith(f"rank 1 on {found[1].host}: --output_dir: '{tmp_path / 'second'}' is not empty")
