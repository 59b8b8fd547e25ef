"""Scenes: models, poses and starts."""

import logging
import warnings
from dataclasses import replace

import mujoco
import numpy as np
import pytest

from isaaclab_arena.environments.tasks.cartpole import CARTPOLE_ROBOT as CART
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.sim import scene
from isaaclab_arena.sim.backend import ModelChange, StartState, model_names, write_changes, write_starts
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

CUBE = ScenePart(prefix="object", asset="objects/cube.xml", position=(0.5, 0.0, 0.025))


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
    assert str(tmp_path / "own.xml") in line
    told = {each.partition(":")[0] for each in line.split("; ")[1:]}
    assert {"timestep", "integrator", "gravity", "memory", "nuserdata", "znear"} <= told
    assert capfd.readouterr().err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["own.xml"]
    for model in (*models, compose_scene("scenes/table.xml", [CUBE])):
        assert (model.opt.timestep, model.opt.gravity.tolist(), model.nuserdata) == (0.002, [0, 0, -9.81], 0)
        assert int(model.opt.integrator) == int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST)
        assert model.body("object/body").pos.tolist() == [0.5, 0.0, 0.025]


def test_a_contact_sensor_tells_whether_two_bodies_touch():
    sensor = ContactSensor(name="touches", body="object/body", other="table")
    model = compose_scene("scenes/table.xml", [CUBE], [sensor])
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 50)
    assert data.sensor("touches").data[0] > 0
    data.qpos[2] += 0.1
    mujoco.mj_forward(model, data)
    assert data.sensor("touches").data[0] == 0


def test_every_name_that_the_file_of_a_floor_robot_lacks_is_told_at_once_and_so_are_numbers_that_do_not_pair_up():
    with pytest.raises(ConfigError) as caught:
        replace(CART, root_body="robot/rial", joints=("robot/slider", "hinge"), free_joint="robot/free")
    wrong = ("'robot/rial'", "'robot/rail'"), ("'robot/free'",), ("'hinge'", "'robot/hinge'")
    for problem, names in zip(caught.value.problems, wrong, strict=True):
        assert all(name in problem.message for name in names)
        assert str(problem.file).endswith("/cartpole.xml")
    with pytest.raises(ConfigError, match="action_scale"):
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


@pytest.mark.parametrize(
    ("content", "max_seconds", "messages"),
    [
        (nested(100, 2), MAX_SECONDS, ("None",)),
        (nested(2, 15), MAX_SECONDS, ("32768 geoms",)),
        (f"<worldbody>{'<body/>' * 2001}</worldbody>", MAX_SECONDS, ("2002 bodies",)),
        (f"<worldbody>{'<body>' * 200_000}{'</body>' * 200_000}</worldbody>", MAX_SECONDS, ("nest",)),
        (textured(14_000), MAX_SECONDS, ("536870912",)),
        (textured(60_000), MAX_SECONDS, ("allocate",)),
        ("<worldbdy/>", MAX_SECONDS, ("XML Error",)),
        # On a machine that is busy with other work the wall clock runs out first.
        (nested(2, 40), 2, ("within 2 s", "more than 4 s")),
    ],
    ids=["allowed", "geoms", "bodies", "nested", "texture", "memory", "no MJCF", "endless"],
)
def test_what_asks_for_too_much_is_refused_with_the_limit(tmp_path, content, max_seconds, messages):
    (tmp_path / "robot.xml").write_text(f"<mujoco>{content}</mujoco>")
    said = str(wrong_with_mjcf(tmp_path / "robot.xml", max_seconds=max_seconds))
    assert any(message in said for message in messages), said


def test_each_world_starts_as_it_is_told_and_others_stay_as_they_are(model):
    names = model_names(model)
    shapes = {"qpos": (model.nq,), "qvel": (model.nv,), "ctrl": (model.nu,), "mocap_pos": (model.nmocap, 3)}
    written = {name: np.full((3, *shape), 0.5, np.float32) for name, shape in shapes.items()}
    moving = StartState(
        joint_positions={"robot/panda_joint2": (1 / 3,), "robot/panda_joint1": (1 / 7,)},
        joint_velocities={"object/free": (0.1, 0.2, 0.3, 0.4, 0.5, 1 / 3)},
        controls={"robot/panda_joint3": 0.25},
        mocap_positions={"target/body": (0.1, 0.2, 0.3)},
    )
    expected = {name: values.copy() for name, values in written.items()}
    expected["qpos"][2, names.joint_qpos["robot/panda_joint2"]] = 1 / 3
    expected["qpos"][2, names.joint_qpos["robot/panda_joint1"]] = 1 / 7
    expected["qvel"][2, names.joint_dof["object/free"]] = (0.1, 0.2, 0.3, 0.4, 0.5, 1 / 3)
    expected["ctrl"][2, names.actuators["robot/panda_joint3"]] = 0.25
    expected["mocap_pos"][2, names.mocap_bodies["target/body"]] = (0.1, 0.2, 0.3)
    write_starts([moving, StartState()], names, written, np.array([2, 0]))
    for name, values in expected.items():
        assert np.array_equal(written[name], values), name
    # Together they are as many numbers as they should be.
    wrong = StartState(joint_positions={"robot/panda_joint1": (1.0, 2.0), "object/free": (0.1, 0.2, 0.3, 1, 0, 0)})
    for starts, told in (([wrong, wrong], "'robot/panda_joint1'"), ([moving], "1 .* 2")):
        with pytest.raises(ValueError, match=told):
            write_starts(starts, names, written, np.array([2, 0]))


def test_each_world_gets_its_own_changes_and_no_other_and_the_later_of_two_wins():
    def mass(entry: int, value: float) -> ModelChange:
        return ModelChange(field="body_mass", entry=entry, value=(value,))

    colour = ModelChange(field="geom_rgba", entry=4, value=(1.0, 0.0, 0.0, 1.0))
    fields = {"body_mass": np.zeros((4, 3)), "geom_rgba": np.zeros((4, 5, 4))}
    write_changes([[mass(1, 0.2), mass(1, 0.1), colour], [], [mass(1, 0.3), mass(2, 0.4)]], fields, np.array([3, 0, 1]))
    assert fields["body_mass"].tolist() == [[0, 0, 0], [0, 0.3, 0.4], [0, 0, 0], [0, 0.1, 0]]
    assert fields["geom_rgba"][3, 4].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert fields["geom_rgba"].sum() == 2


def test_a_process_remembers_a_limited_number_of_files(tmp_path):
    model = "<mujoco><worldbody><body name='{}'/></worldbody></mujoco>"
    for number in range(2 * MOST_KNOWN + 1):
        (tmp_path / f"{number}.xml").write_text(model.format(number))
        content_key(tmp_path / f"{number}.xml")
    assert len(scene._known_keys) <= MOST_KNOWN
    (tmp_path / "0.xml").write_text(model.format("another"))
    assert part_names(str(tmp_path / "0.xml")).bodies == ("another",)
