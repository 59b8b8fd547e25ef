import dataclasses

import pytest

from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.layout import COMMIT_ATTRIBUTE
from isaaclab_arena.storage.ledger import CommitLine, attributes_of, contradiction
from tests.storage.recovery.crashed_runs import JobOnDisk


@pytest.fixture
def line(tmp_path) -> CommitLine:
    return dataclasses.replace(JobOnDisk(tmp_path).line(1), metrics={"force": 0.1, "none": None})


@pytest.fixture
def attributes(tmp_path, line):
    """What is read back from the recording of an episode."""
    path = JobOnDisk(tmp_path).write_part(line)
    return hdf5.read_attributes(path, 1)


def test_a_line_and_its_recording_say_the_same(line, attributes):
    assert contradiction(line, attributes) is None


def test_where_a_recording_lies_may_change(line, attributes):
    assert contradiction(dataclasses.replace(line, dataset_file="other.hdf5", episode_file=None), attributes) is None


@pytest.mark.parametrize(
    "field", [field.name for field in dataclasses.fields(CommitLine) if not field.name.endswith("_file")]
)
def test_whatever_else_was_changed_in_a_line_is_named(line, attributes, field):
    changed = dataclasses.replace(line, **{field: "changed"})
    assert str(contradiction(changed, attributes)).startswith(f"its commit line says {field} changed, its recording ")


@pytest.mark.parametrize("name", ["success", "outcome", "episode_return", "conditions", "metrics", "episode_seed"])
def test_whatever_was_changed_in_a_recording_is_named(line, attributes, name):
    assert name in attributes_of(line)
    found = contradiction(line, {**attributes, name: "changed"})
    assert found is not None
    assert f" says {name} " in found
    assert found.endswith("its recording changed")


def test_a_recording_with_another_number_of_steps_is_named(line, attributes):
    assert (
        contradiction(line, {**attributes, "num_samples": 4})
        == "its commit line says episode_length 5, its recording 4"
    )


def test_a_recording_whose_line_is_none_is_named(line, attributes):
    assert (
        contradiction(line, {**attributes, COMMIT_ATTRIBUTE: "{"}) == "its recording holds a commit line that is none"
    )


def test_a_recording_without_a_line_is_compared_by_its_attributes(line, attributes):
    del attributes[COMMIT_ATTRIBUTE]
    assert contradiction(line, attributes) is None
    assert contradiction(dataclasses.replace(line, success=False), attributes) is not None
