import mujoco
import torch

from isaaclab_arena.environments.tasks.walk_humanoid import HUMANOID, PELVIS, STANDING_HEIGHT_M
from isaaclab_arena.sim.scene import ASSETS, ScenePart, compose_scene
from tests.environments.building import build_on_the_floor, start, steps_of


def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(ASSETS / HUMANOID.asset))


def test_it_has_the_mass_and_the_joints_of_a_small_person():
    humanoid = model()
    assert 40 < humanoid.body_subtreemass[1] < 50
    assert humanoid.nu == len(HUMANOID.joints) == 21
    actuated = {humanoid.joint(int(joint)).name for joint in humanoid.actuator_trnid[:, 0]}
    assert actuated == {name.removeprefix("robot/") for name in HUMANOID.joints}


def test_left_and_right_are_mirrored():
    humanoid = model()
    for name in HUMANOID.joints:
        left = name.removeprefix("robot/")
        if not left.startswith("left_"):
            continue
        right = left.replace("left_", "right_")
        low, high = humanoid.joint(left).range
        flip = left.endswith(("roll", "yaw"))
        assert tuple(humanoid.joint(right).range) == ((-high, -low) if flip else (low, high))
        assert (humanoid.actuator(left).forcerange == humanoid.actuator(right).forcerange).all()


def test_the_default_posture_is_within_the_limits_and_so_is_what_actions_ask_of_the_legs():
    humanoid = model()
    settings = zip(HUMANOID.joints, HUMANOID.default_joint_position, HUMANOID.action_scale, strict=True)
    for name, default, scale in settings:
        low, high = humanoid.joint(name.removeprefix("robot/")).range
        assert low <= default <= high
        assert scale < high - low


def test_it_stands_by_itself_for_as_long_as_it_is_left_alone():
    env = build_on_the_floor("walk_humanoid", num_envs=2)
    start(env)
    assert not any(step.terminated.any() for step in steps_of(env, torch.zeros(2, 21), 200))
    height = env.backend.body_position(PELVIS)[:, 2]
    assert ((height - STANDING_HEIGHT_M).abs() < 0.02).all()


def test_it_touches_only_the_floor():
    humanoid = compose_scene("scenes/floor.xml", (ScenePart(prefix="robot", asset=HUMANOID.asset),))
    floor = humanoid.geom("floor").id
    robot = [geom for geom in range(humanoid.ngeom) if geom != floor]
    assert not any(humanoid.geom_contype[geom] for geom in robot)
    assert humanoid.geom_contype[floor]
