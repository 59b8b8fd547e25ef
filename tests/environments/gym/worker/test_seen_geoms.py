"""Geoms that cannot be seen in a picture are not drawn, and what reflects is drawn in a part of its own."""

import math
from typing import Any

import mujoco
import numpy as np
import pytest

from isaaclab_arena.environments.gym.worker.rendering import leave_out_unseen

WORLD = """
<mujoco>
  <asset>{material}</asset>
  <worldbody>
    <light pos="0 0 3" castshadow="{shadow}"/>
    <camera name="above" pos="0 0 2" fovy="60"/>
    <geom name="table" type="box" size="{table} 0.05" pos="0 0 -0.05"/>
    <geom name="mirror" type="box" size="0.1 0.1 0.01" pos="-0.5 0 0.01" {reflects}/>
    <geom name="ball" type="sphere" size="0.1" pos="0.3 0 0.1"/>
    <geom name="below" type="sphere" size="0.2" pos="0 0 -0.5"/>
    <geom name="beside" type="sphere" size="0.1" pos="5 0 0.1"/>
    <geom name="lamp" type="sphere" size="0.05" pos="-1 0 1.9"/>
  </worldbody>
</mujoco>
"""


class Renderer:
    """Has the names of robosuite's."""

    def __init__(self, *, table: str = "0.9 0.9", reflects: bool = False, shadow: bool = False) -> None:
        made = '<material name="glass" reflectance="0.5"/>' if reflects else ""
        told = {"material": made, "reflects": 'material="glass"' if reflects else "", "shadow": str(shadow).lower()}
        model = mujoco.MjModel.from_xml_string(WORLD.format(table=table, **told))
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        self.model: Any = type("Model", (), {"_model": model})
        self.data: Any = type("Data", (), {"_data": data})
        self.scn = mujoco.MjvScene(model, maxgeom=20)
        self.cam, self.vopt, self.pert = mujoco.MjvCamera(), mujoco.MjvOption(), mujoco.MjvPerturb()
        self.con: Any = type("Context", (), {"offWidth": 64, "offHeight": 64})
        self.drawn: list[tuple[set[str], bool]] = []

    def shown(self) -> tuple[set[str], bool]:
        """Drawn geoms, and whether mirrors are drawn."""
        none, reflects = int(mujoco.mjtGeom.mjGEOM_NONE), int(mujoco.mjtRndFlag.mjRND_REFLECTION)
        shown = [self.scn.geoms[number] for number in range(self.scn.ngeom)]
        model, kind = self.model._model, int(mujoco.mjtObj.mjOBJ_GEOM)
        names = {mujoco.mj_id2name(model, kind, geom.objid) for geom in shown if int(geom.type) != none}
        return names, bool(self.scn.flags[reflects])

    def render(self, width: int, height: int, camera_id: int | None = None, segmentation: bool = False) -> None:
        del width, height, camera_id, segmentation
        self.drawn.append(({"as robosuite draws it"}, True))

    def read_pixels(self, width: int, height: int, depth: bool = False, segmentation: bool = False) -> str:
        del width, height, depth, segmentation
        return "as robosuite reads it"


class Screen:
    """Stands for OpenGL, whose pixels are the number of the part that was drawn last."""

    def render(self, renderer, part) -> None:
        del part
        renderer.drawn.append(renderer.shown())

    def read(self, renderer, part) -> np.ndarray:
        return np.full((part[3], part[2], 3), len(renderer.drawn), np.uint8)


@pytest.fixture
def drawn():
    """Parts that a renderer draws of the requested world, and the parts that are read."""
    sparing = type("Sparing", (Renderer,), {"render": Renderer.render, "read_pixels": Renderer.read_pixels})
    for _ in range(2):
        leave_out_unseen(sparing, Screen(), compares=False)

    def draw(camera: int | None = 0, *, width: int = 32, depth: bool = False, **world: Any) -> tuple[list, Any]:
        renderer = sparing(**world)
        renderer.render(width, 32, camera_id=camera)
        return renderer.drawn, renderer.read_pixels(width, 32, depth=depth)

    return draw


def test_geoms_outside_the_picture_are_left_out_and_those_that_may_be_seen_stay(drawn):
    [(names, _)], read = drawn()
    assert names == {"table", "mirror", "ball", "below"}
    assert read == "as robosuite reads it"


def test_what_lies_below_a_table_that_fills_the_picture_is_left_out(drawn):
    [(names, _)], _ = drawn(table="2 2")
    assert names == {"table", "mirror", "ball"}


def test_a_mirror_is_drawn_in_a_part_of_its_own_with_what_may_be_seen_there(drawn):
    parts, read = drawn(reflects=True)
    assert parts[0] == ({"table", "mirror", "ball", "below"}, False)
    # The lamp is above the picture, and its image is in the mirror; the ball is in neither.
    assert parts[1] == ({"table", "mirror", "lamp"}, True)
    assert set(np.unique(read)) == {1, 2}
    columns = np.flatnonzero((read == 2).all(axis=2).any(axis=0))
    across = 16 + 16 * np.array([-0.6, -0.4]) / (1.98 * math.tan(math.radians(30)))
    assert columns[0] <= across[0] - 1
    assert columns[-1] >= across[1] + 1
    assert len(columns) < 12


def test_where_lights_cast_shadows_all_is_drawn(drawn):
    [(names, reflects)], _ = drawn(shadow=True, reflects=True)
    assert names == {"table", "mirror", "ball", "below", "beside", "lamp"}
    assert reflects


@pytest.mark.parametrize("asked", [{"camera": None}, {"camera": -1}, {"width": 65}])
def test_what_is_asked_in_another_way_is_drawn_as_robosuite_draws_it(drawn, asked):
    parts, read = drawn(**asked, reflects=True)
    assert parts == [({"as robosuite draws it"}, True)]
    assert read == "as robosuite reads it"


def test_depths_are_those_of_all_that_is_seen(drawn):
    parts, read = drawn(reflects=True, depth=True)
    assert parts[-1] == ({"as robosuite draws it"}, True)
    assert read == "as robosuite reads it"


class Whole(Renderer):
    """Reads what its screen does, all of it of one colour."""

    colour = 2

    def read_pixels(self, width: int, height: int, depth: bool = False, segmentation: bool = False) -> Any:
        del depth, segmentation
        return np.full((height, width, 3), self.colour, np.uint8)


def compared(colour: int) -> list[tuple[set[str], bool]]:
    """Drawn parts for two pictures of one camera; the first is compared with a whole one."""
    own = {"render": Whole.render, "read_pixels": Whole.read_pixels, "colour": colour}
    sparing = type("Sparing", (Whole,), own)
    leave_out_unseen(sparing, SameScreen())
    renderer = sparing(reflects=True)
    for _ in range(2):
        renderer.render(32, 32, camera_id=0)
    return renderer.drawn


class SameScreen(Screen):
    """Shows one colour, whatever was drawn."""

    def read(self, renderer, part) -> np.ndarray:
        del renderer
        return np.full((part[3], part[2], 3), 2, np.uint8)


def test_the_first_picture_of_a_camera_is_drawn_whole_too_and_the_next_is_not():
    whole = ({"as robosuite draws it"}, True)
    drawn = compared(colour=2)
    assert [each == whole for each in drawn] == [False, False, True, False, False]


def test_where_the_two_differ_all_is_drawn_from_then_on():
    whole = ({"as robosuite draws it"}, True)
    with pytest.warns(UserWarning, match="all is drawn"):
        drawn = compared(colour=3)
    assert [each == whole for each in drawn] == [False, False, True, True]
