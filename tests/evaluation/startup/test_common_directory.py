"""Ranks, as threads, look for the run's directory where each of them was told to."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.start_up import common_directory
from tests.distributed.threads import ranks_in_threads


def seen_by_each(made: Path, options: Sequence[RunOptions]) -> list[str]:
    """Finding of each rank, or the message of its error."""

    def look(ranks: Ranks) -> str:
        rank = ranks.context.rank
        try:
            return str(common_directory(ranks, options[rank], None if rank else made, delay_s=0.0))
        except ConfigError as error:
            return str(error)

    with ThreadPoolExecutor(len(options)) as threads:
        return list(threads.map(look, ranks_in_threads(len(options))))


def named(*directories: Path) -> list[RunOptions]:
    return [RunOptions(output_dir=str(each)) for each in directories]


def test_each_rank_sees_the_directory_by_its_own_name(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    asked = [tmp_path / "out", tmp_path / "link", tmp_path / "out"]
    assert seen_by_each(asked[0], named(*asked)) == [*map(str, asked)]
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("base", ["outputs", "mounted"])
def test_a_dated_directory_is_found_by_the_name_of_rank_0_or_in_the_own_base(tmp_path, base):
    dated = tmp_path / "outputs" / "2026-01-01_00-00-00"
    dated.mkdir(parents=True)
    (tmp_path / "mounted").symlink_to(tmp_path / "outputs")
    options = [RunOptions(), RunOptions(output_base_dir=str(tmp_path / base))]
    assert [Path(each).resolve() for each in seen_by_each(dated, options)] == [dated] * 2


def test_nodes_that_do_not_see_it_are_named_by_all_ranks_with_the_two_ways_out(tmp_path):
    (tmp_path / "out").mkdir()
    said = seen_by_each(tmp_path / "out", named(tmp_path / "out", tmp_path / "own", tmp_path / "out"))
    assert said[0] == said[1] == said[2]
    assert said[0].startswith(f"--output_dir: rank 0 has made {tmp_path / 'out'} on ")
    assert all(part in said[0] for part in ("rank 1 on", "all nodes share", "--cluster ray"))
    assert "rank 2" not in said[0]
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert list((tmp_path / "out").iterdir()) == []


def test_of_many_ranks_only_some_are_named(tmp_path):
    (tmp_path / "out").mkdir()
    message = seen_by_each(tmp_path / "out", named(tmp_path / "out", *[tmp_path / "own"] * 11))[0]
    assert "rank 8 on" in message
    assert "rank 9 on" not in message
    assert "and 3 more cannot see it" in message
