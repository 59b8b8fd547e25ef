import dataclasses

import pytest

from isaaclab_arena.storage.hdf5 import episodes as hdf5
from isaaclab_arena.storage.layout import COMMIT_ATTRIBUTE
from isaaclab_arena.storage.recorded_line import attributes_of, contradiction
from isaaclab_arena.storage.run.commits import CommitRow
from tests.storage.recovery.crashed_runs import JobOnDisk


@pytest.fixture
def row(tmp_path) -> CommitRow:
    return dataclasses.replace(JobOnDisk(tmp_path).row(1), metrics={"force": 0.1, "none": None})


@pytest.fixture
def attributes(tmp_path, row):
    """What is read back from the recording of an episode."""
    path = JobOnDisk(tmp_path).write_part(row)
    return hdf5.read_attributes(path, 1)


def test_a_line_and_its_recording_say_the_same(row, attributes):
    assert contradiction(row, attributes) is None


def test_where_a_recording_lies_may_change(row, attributes):
    assert contradiction(dataclasses.replace(row, dataset_file="other.hdf5", episode_file=None), attributes) is None


@pytest.mark.parametrize(
    "field", [field.name for field in dataclasses.fields(CommitRow) if not field.name.endswith("_file")]
)
def test_whatever_else_was_changed_in_a_line_is_named(row, attributes, field):
    changed = dataclasses.replace(row, **{field: "changed"})
    assert str(contradiction(changed, attributes)).startswith(f"its commit line says {field} changed, its recording ")


@pytest.mark.parametrize("name", ["success", "outcome", "episode_return", "conditions", "metrics", "episode_seed"])
def test_whatever_was_changed_in_a_recording_is_named(row, attributes, name):
    assert name in attributes_of(row)
    found = contradiction(row, {**attributes, name: "changed"})
    assert found is not None
    assert f" says {name} " in found
    assert found.endswith("its recording changed")


def test_a_recording_with_another_number_of_steps_is_named(row, attributes):
    assert (
        contradiction(row, {**attributes, "num_samples": 4}) == "its commit line says episode_length 5, its recording 4"
    )


def test_a_recording_whose_line_is_none_is_named(row, attributes):
    assert contradiction(row, {**attributes, COMMIT_ATTRIBUTE: "{"}) == "its recording holds a commit line that is none"


def test_a_recording_without_a_line_is_compared_by_its_attributes(row, attributes):
    del attributes[COMMIT_ATTRIBUTE]
    assert contradiction(row, attributes) is None
    assert contradiction(dataclasses.replace(row, success=False), attributes) is not None
