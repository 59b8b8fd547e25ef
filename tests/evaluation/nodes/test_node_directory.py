from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from isaaclab_arena.evaluation.nodes.node_directory import Place, find_places, lowest_rank_at
from tests.distributed.threads import ranks_in_threads


def find(*folders: Sequence[Path]) -> tuple[Place, ...]:
    """Return the places that ranks find which look at these folders, once all of them have found the same."""
    with ThreadPoolExecutor() as threads:
        first, *others = threads.map(find_places, ranks_in_threads(len(folders)), folders)
    assert all(places == first for places in others)
    return first


def test_ranks_that_see_one_folder_write_into_it_by_whatever_name(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    places = find([tmp_path / "out"], [tmp_path / "link"], [tmp_path / "out", tmp_path / "own"])
    assert [place.with_rank_zero for place in places] == [True] * 3
    assert [Path(place.folder).name for place in places] == ["out", "link", "out"]
    assert list((tmp_path / "out").iterdir()) == []


def test_a_rank_that_does_not_see_it_has_a_folder_of_its_own(tmp_path):
    (tmp_path / "out").mkdir()
    places = find([tmp_path / "out"], [tmp_path / "nowhere", tmp_path / "own"], [tmp_path / "out"])
    assert [place.with_rank_zero for place in places] == [True, False, True]
    assert places[1].folder == str(tmp_path / "own")
    assert str(places[1]) == f"{places[1].host}:{tmp_path / 'own'}"


def test_the_lowest_rank_at_a_place_makes_its_folder(tmp_path):
    own = tmp_path / "own"
    (tmp_path / "out").mkdir()
    places = find([tmp_path / "out"], [own], [own], [tmp_path / "out"], [tmp_path / "another"])
    assert [lowest_rank_at(places, rank) for rank in range(5)] == [0, 1, 1, 0, 4]


def test_the_same_path_on_another_machine_is_another_place():
    one, other = (
        Place(host=name, machine=name, folder="/scratch/run", with_rank_zero=False) for name in ("one", "other")
    )
    assert not one.shares_with(other)


def test_a_single_process_touches_nothing(tmp_path):
    (place,) = find([tmp_path / "not made yet"])
    assert place.with_rank_zero
