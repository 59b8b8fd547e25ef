import pytest

from isaaclab_arena.sim.scene import compose_scene
from tests.sim.arm_and_cube import PARTS


@pytest.fixture(scope="module")
def model():
    """An arm, a cube and a target on the table."""
    return compose_scene("scenes/table.xml", PARTS)
