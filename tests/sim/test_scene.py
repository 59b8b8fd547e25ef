"""Scenes: models, poses and starts."""

import logging
import warnings
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest

from isaaclab_arena.environments.tasks.cartpole import CARTPOLE_ROBOT as CART
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.sim import scene
from isaaclab_arena.sim.backend import ModelChange, StartState, model_names, write_changes, write_starts
from isaaclab_arena.sim.backends import MujocoBackend
from isaaclab_arena.sim.mjcf_trial import MAX_SECONDS, wrong_with_mjcf
from isaaclab_arena.sim.scene import (
    ASSETS,
    MOST_KNOWN,
    ContactSensor,
    ScenePart,
    compose_scene,
    content_key,
    part_names,
)
from tests.sim.arm_and_cube import start_of

CUBE = ScenePart(prefix="object", asset="objects/cube.xml", position=(0.5, 0.0, 0.025))


def test_parts_keep_their_place_get_their_prefix_and_the_options_of_the_scene():
    model = compose_scene("scenes/table.xml", [CUBE])
    assert MujocoBackend(model, num_envs=1).names.joint_qpos["object/free"] == slice(0, 7)
    assert model.body("object/body").pos.tolist() == [0.5, 0.0, 0.025]
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
    assert f"when attaching '{tmp_path / 'own.xml'}' to" in line
    told = {each.partition(":")[0] for each in line.split("; ")[1:]}
    assert {"timestep", "integrator", "gravity", "memory", "nuserdata", "znear"} <= told
    assert "timestep: parent has 0.002, child has 0.001, keeping parent value" in line
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


def test_every_asset_compiles_and_needs_no_file_but_itself():
    for path in ASSETS.rglob("*.xml"):
        mujoco.MjModel.from_xml_path(str(path))
        text = path.read_text(encoding="utf-8")
        assert "file=" not in text, path
        assert "<mesh" not in text, path


def test_every_name_that_the_file_of_a_floor_robot_lacks_is_told_at_once_and_so_are_numbers_that_do_not_pair_up():
    with pytest.raises(ConfigError) as caught:
        replace(CART, root_body="robot/rial", joints=("robot/slider", "hinge"), free_joint="robot/free")
    told = [problem.message for problem in caught.value.problems]
    wrong = ("'robot/rial'", "'robot/rail'"), ("'robot/free'",), ("'hinge'", "'robot/hinge'")
    assert all(name in each for each, names in zip(told, wrong, strict=True) for name in names)
    assert {problem.file.rpartition("/")[2] for problem in caught.value.problems if problem.file} == {"cartpole.xml"}
    with pytest.raises(ConfigError, match="action_scale has 2"):
        replace(CART, action_scale=(1.0, 2.0))


# A short MJCF file can ask for any time and memory: it is compiled elsewhere first, within limits.


def nested(count: int, levels: int) -> str:
    inner = '<geom size=".1"/>'
    for _ in range(levels):
        inner = f'<replicate count="{count}" offset="1 0 0">{inner}</replicate>'
    return f"<worldbody>{inner}</worldbody>"


def textured(pixels: int) -> str:
    texture = f'<texture name="t" type="2d" builtin="flat" width="{pixels}" height="{pixels}"/>'
    return f'<asset>{texture}</asset><worldbody><geom size="1"/></worldbody>'


def verdict(directory: Path, content: str, max_seconds: int = MAX_SECONDS) -> str | None:
    (directory / "robot.xml").write_text(f"<mujoco>{content}</mujoco>")
    return wrong_with_mjcf(directory / "robot.xml", max_seconds=max_seconds)


def test_what_compiles_within_the_limits_is_let_in(tmp_path):
    assert verdict(tmp_path, nested(100, 2)) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nested(2, 15), "32768 geoms"),
        (f"<worldbody>{'<body/>' * 2001}</worldbody>", "2002 bodies"),
        (f"<worldbody>{'<body>' * 200_000}{'</body>' * 200_000}</worldbody>", "nest"),
        (textured(14_000), "536870912"),
        (textured(60_000), "allocate"),
        ("<worldbdy/>", "XML Error"),
    ],
)
def test_what_asks_for_too_much_is_refused_with_the_limit(tmp_path, content, message):
    assert message in str(verdict(tmp_path, content))


def test_a_file_that_multiplies_for_ever_is_refused_in_time(tmp_path):
    said = str(verdict(tmp_path, nested(2, 40), max_seconds=2))
    # On a machine that is busy with other work the wall clock runs out first.
    assert "within 2 s" in said or "more than 4 s" in said


def fields(model, num_worlds: int, dtype) -> dict[str, np.ndarray]:
    shapes = {"qpos": (model.nq,), "qvel": (model.nv,), "ctrl": (model.nu,), "mocap_pos": (model.nmocap, 3)}
    return {name: np.full((num_worlds, *shape), 0.5, dtype) for name, shape in shapes.items()}


def write_one_by_one(starts, names, into, worlds) -> None:
    """Write start states number by number, as slowly and plainly as can be."""
    for world, start in zip(worlds, starts, strict=True):
        for joint, position in start.joint_positions.items():
            into["qpos"][world, names.joint_qpos[joint]] = position
        for joint, velocity in start.joint_velocities.items():
            into["qvel"][world, names.joint_dof[joint]] = velocity
        for actuator, control in start.controls.items():
            into["ctrl"][world, names.actuators[actuator]] = control
        for body, position in start.mocap_positions.items():
            into["mocap_pos"][world, names.mocap_bodies[body]] = position


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_worlds_together_get_the_bits_that_they_get_one_by_one(model, dtype):
    names = model_names(model)
    starts = [
        start_of(1),
        StartState(),
        start_of(3),
        StartState(joint_velocities={"object/free": (0.1, 0.2, 0.3, 0.4, 0.5, 1 / 3)}),
        StartState(joint_positions={"object/free": (0.1, 0.2, 0.3, 1, 0, 0, 0)}),
        StartState(joint_positions={"robot/panda_joint2": (1 / 3,), "robot/panda_joint1": (1 / 7,)}),
    ]
    worlds = np.array([7, 0, 2, 3, 5, 4])
    written, expected = fields(model, 8, dtype), fields(model, 8, dtype)
    write_starts(starts, names, written, worlds)
    write_one_by_one(starts, names, expected, worlds)
    for name, values in expected.items():
        assert np.array_equal(written[name], values), name
        assert (written[name][[1, 6]] == 0.5).all(), "other worlds stay as they are"


def test_another_number_of_values_than_a_joint_has_or_of_starts_than_worlds_is_refused(model):
    # Together they are as many numbers as they should be.
    start = StartState(joint_positions={"robot/panda_joint1": (1.0, 2.0), "object/free": (0.1, 0.2, 0.3, 1, 0, 0)})
    with pytest.raises(ValueError, match="'robot/panda_joint1'"):
        write_starts([start], model_names(model), fields(model, 1, np.float64), np.arange(1))
    with pytest.raises(ValueError, match="1 start states for 2"):
        write_starts([StartState()], model_names(model), fields(model, 2, np.float64), np.arange(2))


def mass(entry: int, value: float) -> ModelChange:
    return ModelChange(field="body_mass", entry=entry, value=(value,))


def test_each_world_gets_its_own_changes_and_no_other_and_the_later_of_two_wins():
    colour = ModelChange(field="geom_rgba", entry=4, value=(1.0, 0.0, 0.0, 1.0))
    fields = {"body_mass": np.zeros((4, 3)), "geom_rgba": np.zeros((4, 5, 4))}
    write_changes([[mass(1, 0.2), mass(1, 0.1), colour], [], [mass(1, 0.3), mass(2, 0.4)]], fields, np.array([3, 0, 1]))
    assert fields["body_mass"].tolist() == [[0, 0, 0], [0, 0.3, 0.4], [0, 0, 0], [0, 0.1, 0]]
    assert fields["geom_rgba"][3, 4].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert fields["geom_rgba"].sum() == 2


def test_a_process_remembers_a_limited_number_of_files(tmp_path):
    model = "<mujoco><worldbody><body name='{}'/></worldbody></mujoco>"
    for number in range(2 * MOST_KNOWN + 1):
        file = tmp_path / f"{number}.xml"
        file.write_text(model.format(number))
        content_key(file)
    assert len(scene._known_keys) <= MOST_KNOWN
    (tmp_path / "0.xml").write_text(model.format("another"))
    assert part_names(str(tmp_path / "0.xml")).bodies == ("another",)
