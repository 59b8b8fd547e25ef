import logging
import warnings
from pathlib import Path

import mujoco
import pytest

from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.scene import ASSETS, ContactSensor, ScenePart, compose_scene

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


def test_settings_of_a_part_that_have_no_effect_are_told_once_and_by_nobody_else(tmp_path, monkeypatch, caplog, capfd):
    text = (ASSETS / "objects" / "cube.xml").read_text()
    settings = (
        '<option timestep="0.001" integrator="RK4" cone="elliptic" gravity="0 0 1"><flag energy="enable"/></option>'
        '<size memory="1M" nuserdata="3" nuser_body="2"/><visual><map znear="0.5"/><global offwidth="9"/></visual>'
    )
    (tmp_path / "own.xml").write_text(text.replace("<worldbody>", f"{settings}<worldbody>", 1))
    part = ScenePart(prefix="object", asset=str(tmp_path / "own.xml"), position=CUBE.position)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("isaaclab_arena"), "propagate", True)
    with warnings.catch_warnings(), caplog.at_level("INFO", logger="isaaclab_arena"):
        warnings.simplefilter("error")
        models = [compose_scene("scenes/table.xml", [part]) for _ in range(2)]
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path / 'own.xml'}: the scene's settings hold")
    assert {"timestep", "integrator", "gravity", "memory", "nuserdata", "znear"} <= set(line.split(": ")[2].split(", "))
    assert capfd.readouterr().err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["own.xml"]
    plain = compose_scene("scenes/table.xml", [CUBE])
    for model in models:
        assert (model.opt.timestep, model.opt.gravity.tolist()) == (plain.opt.timestep, plain.opt.gravity.tolist())
        assert model.nuserdata == plain.nuserdata


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
