"""How many steps a protocol gives a suite; `test_documented_protocols` has what else it decides."""

import pytest

from isaaclab_arena.environments.libero import PROTOCOLS


@pytest.mark.parametrize(("suite", "steps"), [("libero_goal_task", 300), ("libero_10_temp", 520), ("libero_100", 520)])
def test_a_suite_made_from_another_has_its_steps(suite, steps):
    assert PROTOCOLS["strict"].steps_in(suite) == steps
