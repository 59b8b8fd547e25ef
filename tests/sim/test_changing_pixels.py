import mujoco
import numpy as np
import pytest

from isaaclab_arena.sim.backend import VisibleWorld
from isaaclab_arena.sim.warp_cameras import MovingGeoms


def world_of(model: mujoco.MjModel) -> VisibleWorld:
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return VisibleWorld.of(model, data)


def body(geom: str, *, joint: str = "<freejoint/>", attributes: str = "") -> str:
    return f'<body pos="0.1 0.2 0.3" quat="1 0.4 -0.2 0.3" {attributes}>{joint}<geom {geom}/></body>'


def model_of(*bodies: str) -> mujoco.MjModel:
    mesh = '<asset><mesh name="wedge" vertex="0 0 0  0.3 0 0  0 0.2 0  0 0 0.25"/></asset>'
    return mujoco.MjModel.from_xml_string(f"<mujoco>{mesh}<worldbody>{''.join(bodies)}</worldbody></mujoco>")


SURFACES = {
    'type="sphere" size="0.1"': lambda points: 0.1 * points / np.linalg.norm(points, axis=1, keepdims=True),
    'type="box" size="0.05 0.1 0.15"': lambda points: np.sign(points) * (0.05, 0.1, 0.15),
    'type="capsule" size="0.04 0.25"': lambda points: (
        0.04 * points / np.linalg.norm(points, axis=1, keepdims=True) + (0, 0, 0.25) * np.sign(points[:, 2:])
    ),
    'type="cylinder" size="0.1 0.2"': lambda points: np.column_stack(
        [0.1 * points[:, :2] / np.linalg.norm(points[:, :2], axis=1, keepdims=True), 0.2 * np.sign(points[:, 2])]
    ),
    'type="mesh" mesh="wedge"': None,
}


@pytest.mark.parametrize("geom", list(SURFACES))
def test_a_hull_holds_the_outermost_points_of_every_shape_and_little_more(geom):
    model = model_of(body(geom))
    world, surface = world_of(model), SURFACES[geom]
    directions = np.random.default_rng(0).normal(size=(500, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    local = np.asarray(model.mesh_vert, np.float64) if surface is None else surface(directions)
    points = world.poses["geom_xpos"][0] + local @ world.poses["geom_xmat"][0].reshape(3, 3).T
    hulls = MovingGeoms(model).hulls(world)
    spare = (hulls.centres @ directions.T + hulls.radii[:, None]).max(axis=0) - (points @ directions.T).max(axis=0)
    assert spare.min() > 0
    assert spare.max() < (0.3 if surface is None else 0.02)


def test_each_geom_that_moves_has_a_hull_of_its_own():
    model = model_of(*(body(geom) for geom in SURFACES))
    hulls, alone = MovingGeoms(model).hulls(world_of(model)), (model_of(body(geom)) for geom in SURFACES)
    numbers = [len(MovingGeoms(each).hulls(world_of(each)).radii) for each in alone]
    assert np.diff([*hulls.starts, len(hulls.radii)]).tolist() == numbers


def test_what_hangs_on_the_world_does_not_move_and_what_a_program_places_does():
    fixed, free, placed = (
        body('size="0.1"', joint=""),
        body('size="0.1"'),
        body('size="0.1"', joint="", attributes='mocap="true"'),
    )
    assert MovingGeoms(model_of(fixed, free, placed)).ids.tolist() == [1, 2]


def test_a_plane_that_moves_fits_into_no_hull():
    assert not MovingGeoms(model_of(body('type="plane" size="1 1 1"', joint="", attributes='mocap="true"'))).are_bounded
    assert MovingGeoms(model_of(body('size="0.1"'))).are_bounded


def test_where_nothing_moves_there_is_no_hull():
    still = model_of(body('size="0.1"', joint=""))
    assert len(MovingGeoms(still).hulls(world_of(still)).starts) == 0
