from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isaaclab_arena.evaluation.nodes.node_directory import NodeDirectory, find_node_directories, lowest_rank_in
from tests.distributed.threads import ranks_in_threads


def find(*candidates: Sequence[Path]) -> tuple[NodeDirectory, ...]:
    """Return the directories that ranks find which look at these, once all of them have found the same."""
    with ThreadPoolExecutor() as threads:
        first, *others = threads.map(find_node_directories, ranks_in_threads(len(candidates)), candidates)
    assert all(directories == first for directories in others)
    return first


def test_ranks_that_see_one_directory_write_into_it_by_whatever_name(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    directories = find([tmp_path / "out"], [tmp_path / "link"], [tmp_path / "out", tmp_path / "own"])
    assert [each.with_rank_zero for each in directories] == [True] * 3
    assert [Path(each.directory).name for each in directories] == ["out", "link", "out"]
    assert list((tmp_path / "out").iterdir()) == []


def test_a_rank_that_does_not_see_it_has_a_directory_of_its_own(tmp_path):
    (tmp_path / "out").mkdir()
    directories = find([tmp_path / "out"], [tmp_path / "nowhere", tmp_path / "own"], [tmp_path / "out"])
    assert [each.with_rank_zero for each in directories] == [True, False, True]
    assert directories[1].directory == str(tmp_path / "own")
    assert str(directories[1]) == f"{directories[1].host}:{tmp_path / 'own'}"


def test_the_lowest_rank_in_a_directory_makes_it(tmp_path):
    own = tmp_path / "own"
    (tmp_path / "out").mkdir()
    directories = find([tmp_path / "out"], [own], [own], [tmp_path / "out"], [tmp_path / "another"])
    assert [lowest_rank_in(directories, rank) for rank in range(5)] == [0, 1, 1, 0, 4]


def test_the_same_path_on_another_node_is_another_directory():
    one, other = (
        NodeDirectory(host=name, machine=name, directory="/scratch/run", with_rank_zero=False)
        for name in ("one", "other")
    )
    assert not one.shares_with(other)


def test_a_single_process_touches_nothing(tmp_path):
    (own,) = find([tmp_path / "not made yet"])
    assert own.with_rank_zero
