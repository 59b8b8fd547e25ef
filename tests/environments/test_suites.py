"""Tests of the suites that this package knows."""

import pytest

from isaaclab_arena.config.expansion.suites import Suite
from isaaclab_arena.config.schema import MAX_NAME_CHARACTERS
from isaaclab_arena.environments.catalog import ENVIRONMENTS, METAWORLD_MT10, METAWORLD_MT50, SUITES


@pytest.mark.parametrize("suite", [METAWORLD_MT10, METAWORLD_MT50], ids=["mt10", "mt50"])
def test_tasks_of_a_suite_are_environments_whose_labels_leave_room_in_a_name(suite):
    tasks = suite.tasks({})
    assert len({task.label for task in tasks}) == len(tasks)
    assert all(task.environment in ENVIRONMENTS for task in tasks)
    assert max(len(task.label) for task in tasks) <= MAX_NAME_CHARACTERS // 2


def test_every_registered_suite_lists_tasks():
    assert all(isinstance(SUITES.get(name), Suite) for name in SUITES.names())
    assert set(METAWORLD_MT10.names) < set(METAWORLD_MT50.names)
