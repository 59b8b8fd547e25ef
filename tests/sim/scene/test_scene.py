from pathlib import Path

import mujoco
import pytest

from isaaclab_arena.sim.mujoco.backend import MujocoBackend
from isaaclab_arena.sim.scene.scene import ASSETS, ContactSensor, ScenePart, compose_scene

CUBE = ScenePart(prefix="object", asset="objects/cube.xml", position=(0.5, 0.0, 0.025))


def test_parts_keep_their_place_and_get_their_prefix():
    model = compose_scene("scenes/table.xml", [CUBE])
    backend = MujocoBackend(model, num_envs=1)
    assert backend.names.joint_qpos["object/free"] == slice(0, 7)
    assert model.body("object/body").pos.tolist() == [0.5, 0.0, 0.025]


def test_the_options_of_the_scene_hold_for_the_whole():
    model = compose_scene("scenes/table.xml", [CUBE])
    assert model.opt.timestep == 0.002
    assert int(model.opt.integrator) == int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST)


def test_a_contact_sensor_tells_whether_two_bodies_touch():
    sensor = ContactSensor(name="cube_on_table", body="object/body", other="table")
    model = compose_scene("scenes/table.xml", [CUBE], [sensor])
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 50)
    assert data.sensor("cube_on_table").data[0] > 0
    data.qpos[2] += 0.1
    mujoco.mj_forward(model, data)
    assert data.sensor("cube_on_table").data[0] == 0


@pytest.mark.parametrize("path", sorted(ASSETS.rglob("*.xml")), ids=lambda path: path.stem)
def test_every_asset_compiles_and_needs_no_file_but_itself(path: Path):
    mujoco.MjModel.from_xml_path(str(path))
    text = path.read_text(encoding="utf-8")
    assert "file=" not in text
    assert "<mesh" not in text
