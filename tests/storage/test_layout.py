import pytest

from isaaclab_arena.storage import layout


def test_dataset_names_carry_the_rank_only_where_there_are_several():
    assert layout.dataset_file_name("lift", 0, 1) == "dataset_lift.hdf5"
    assert layout.dataset_file_name("lift", 2, 4) == "dataset_lift_rank2.hdf5"


def test_a_jobs_datasets_are_known_by_their_names():
    assert layout.is_dataset_of("lift", "dataset_lift.hdf5")
    assert layout.is_dataset_of("lift", "dataset_lift_rank12.hdf5")
    assert not layout.is_dataset_of("lift", "dataset_lift_backup.hdf5")
    assert not layout.is_dataset_of("lift", "../dataset_lift.hdf5")


def test_the_traceback_of_a_later_attempt_has_another_name():
    assert layout.traceback_file_name(1, attempt=1) == "traceback_rank1.txt"
    assert layout.traceback_file_name(1, attempt=2) == "traceback_rank1_attempt2.txt"


@pytest.mark.parametrize("index", [0, 7, 123, 1_234_567])
def test_an_index_survives_its_names(index):
    assert layout.episode_index_of_file(layout.episode_file_name(index)) == index
    assert layout.demo_index(layout.demo_name(index)) == index


@pytest.mark.parametrize("name", ["e12.txt", "demo_", "demo_1x", "xdemo_1", ".e000001.h5.host.1.tmp"])
def test_other_names_have_no_index(name):
    assert layout.episode_index_of_file(name) is None
    assert layout.demo_index(name) is None
