import numpy as np
import pytest

from isaaclab_arena.sim.backend import StartState, model_names, write_starts
from isaaclab_arena.sim.scene import compose_scene
from tests.sim.arm_and_cube import PARTS, start_of


@pytest.fixture(scope="module")
def model():
    return compose_scene("scenes/table.xml", PARTS)


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


def test_another_number_of_values_than_a_joint_has_is_refused_by_name(model):
    # Together they are as many numbers as they should be.
    start = StartState(joint_positions={"robot/panda_joint1": (1.0, 2.0), "object/free": (0.1, 0.2, 0.3, 1, 0, 0)})
    with pytest.raises(ValueError, match="'robot/panda_joint1' is given another number of values than the 1 that it"):
        write_starts([start], model_names(model), fields(model, 1, np.float64), np.arange(1))


def test_starts_and_worlds_have_to_be_as_many(model):
    with pytest.raises(ValueError, match="1 start states for 2 worlds"):
        write_starts([StartState()], model_names(model), fields(model, 2, np.float64), np.arange(2))
