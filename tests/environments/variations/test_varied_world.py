import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.simulation.varied_steps import operations
from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.robots.embodiment import Embodiment
from isaaclab_arena.environments.tasks.grasping import Reach
from isaaclab_arena.environments.variations.catalogue import footprints
from isaaclab_arena.environments.variations.overrides import enabled_variations
from isaaclab_arena.interfaces.environment_builder import Sampler, Variation
from isaaclab_arena.interfaces.episode import point
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from tests.environments.building import CPU, build, hold_still, play, steps_of
from tests.environments.variations.varying import (
    begin,
    build_varied,
    catalogue_of,
    conditions_of,
    everything,
    fixed,
    simulation,
)

OBJECT = "object/body"
NUM_EPISODES = 2

GRAVITY = Variation(
    asset="world",
    name="gravity",
    unit="m/s²",
    description="acceleration of everything that falls, along z",
    sampler=Sampler(low=(-12.0,), high=(-8.0,)),
    minimum=-30.0,
    maximum=0.0,
    nominal=(-9.81,),
    changes=lambda model, value: {("opt.gravity", 2): value},
)


class ReachAnywhere(Reach):
    """Is done on other planets too."""

    def __init__(self, embodiment: Embodiment) -> None:
        super().__init__(embodiment)
        self.spec = replace(self.spec, variations=(GRAVITY,))


def test_a_task_can_have_variations_of_its_own():
    builder, options = TableTask(make_task=lambda _, robot: ReachAnywhere(robot)), TableOptions()
    offered = builder.variations(options)
    assert GRAVITY in offered
    on = enabled_variations(offered, fixed("world.gravity", -9.81, -1.6))
    env = builder.build(options, num_envs=2, device=CPU, num_threads=1, variations=on)
    conditions = begin(env)
    assert [each["world.gravity"] for each in conditions] == [-9.81, -1.6]
    assert env.backend.model_field("opt.gravity")[:, 2].tolist() == [-9.81, -1.6]
    env.reset(torch.tensor([1]), [{key: value for key, value in conditions[1].items() if key != "world.gravity"}])
    assert env.backend.model_field("opt.gravity")[:, 2].tolist() == [-9.81, -9.81]


def values_of(env, field, name):
    model = simulation(env).model
    find = {"body": model.body, "cam": model.camera, "geom": model.geom}[field.partition("_")[0]]
    return env.backend.model_field(field)[:, find(name).id]


@pytest.mark.parametrize("name", ["lift_object", "open_drawer"])
def test_with_everything_varied_an_episode_ends_in_the_same_bits_in_any_batch(name):
    alone = play(build_varied(name, everything(name)), RandomActionPolicy(), NUM_EPISODES)
    together = play(build_varied(name, everything(name), num_envs=3), RandomActionPolicy(), NUM_EPISODES)
    assert {index: record.conditions for index, record in alone.records.items()} == {
        index: record.conditions for index, record in together.records.items()
    }
    assert alone.states == together.states


def test_variations_that_are_off_change_no_bit():
    off = {f"{variation.key}.enabled": False for variation in catalogue_of("lift_object")}
    plain, unvaried = build("lift_object"), build_varied("lift_object", off)
    assert plain.provenance() == unvaried.provenance()
    one, other = (play(env, RandomActionPolicy(), 1) for env in (plain, unvaried))
    assert one.states == other.states
    assert one.records[0].conditions == other.records[0].conditions


def test_conditions_survive_json_and_give_the_same_episode_again():
    env = build_varied("pick_and_place", everything("pick_and_place"))
    conditions = conditions_of(env, 2)
    states = []
    for given in (conditions, json.loads(json.dumps(conditions))):
        env.reset(torch.tensor([0]), [given])
        steps_of(env, hold_still(env), 5)
        states.append(env.episode_states([0])[0]["integration_state"])
    assert np.array_equal(*states)


def test_mass_scales_inertia_presses_on_the_table_and_leaves_the_other_env_slots_alone():
    env = build_varied("lift_object", fixed("cube.mass", 0.4, 0.1), num_envs=2)
    forces = simulation(env).batch.bind("qfrc_constraint")
    begin(env)
    nominal = simulation(env).model
    assert values_of(env, "body_mass", OBJECT) == pytest.approx([0.4, 0.1])
    ratio = values_of(env, "body_inertia", OBJECT) / nominal.body_inertia[nominal.body(OBJECT).id]
    assert ratio == pytest.approx(np.repeat([[4.0], [1.0]], 3, axis=1))
    steps_of(env, hold_still(env), 10)
    # What rests is held up by contact forces equal to its weight.
    upwards = env.backend.names.joint_dof["object/free"].start + 2
    assert forces[:, upwards] == pytest.approx([0.4 * 9.81, 0.1 * 9.81], rel=0.02)


def test_a_larger_object_stands_on_the_table_and_not_in_it():
    # A position takes the place of the task's own draw, but for its height.
    overrides = {**fixed("cube.size", 1.0, 1.5), **fixed("cube.position", [0.45, 0.1])}
    env = build_varied("lift_object", overrides, num_envs=2)
    conditions = begin(env)
    assert [point(each["cube.position"]) for each in conditions] == [
        (0.45, 0.1, pytest.approx(height)) for height in (0.025, 0.0375)
    ]
    steps_of(env, hold_still(env), 10)
    assert env.backend.body_position(OBJECT)[:, 2].numpy() == pytest.approx([0.025, 0.0375], abs=5e-4)
    small, large = values_of(env, "geom_rbound", "object/shape")
    assert large == pytest.approx(1.5 * small)


def test_friction_decides_whether_a_grasp_holds():
    slippery_and_rough = build_varied("lift_object", fixed("cube.friction", 0.02, 1.0), num_envs=2)
    records = play(slippery_and_rough, ScriptedPolicy(), 2).records
    assert [records[index].success for index in range(2)] == [False, True]


def test_colour_light_and_cameras_vary_in_the_fields_that_renderers_read():
    overrides = {
        **fixed("cube.color", [0.1, 0.2, 0.9]),
        **fixed("light.direction", [0.0, 3.0, -4.0]),
        **fixed("light.intensity", 0.5),
        **fixed("robot_head_cam.position", [0.0, 0.0, 0.1]),
        **fixed("wrist_cam.rotation", [0.0, 0.0, 0.5]),
    }
    env = build_varied("lift_object", overrides)
    begin(env)
    model = simulation(env).model
    assert values_of(env, "geom_rgba", "object/shape")[0] == pytest.approx([0.1, 0.2, 0.9, 1.0])
    assert env.backend.model_field("light_dir")[0, 0] == pytest.approx([0.0, 0.6, -0.8])
    assert env.backend.model_field("light_diffuse")[0, 1] == pytest.approx(0.5 * model.light_diffuse[1])
    shift = values_of(env, "cam_pos", "robot_head_cam")[0] - model.camera("robot_head_cam").pos
    assert shift == pytest.approx([0.0, 0.0, 0.1])
    turned = values_of(env, "cam_quat", "robot/wrist_cam")[0]
    assert 2 * np.arccos(abs(turned @ model.camera("robot/wrist_cam").quat)) == pytest.approx(0.5)


def test_an_env_slot_that_starts_again_forgets_what_varied_before():
    env = build_varied("lift_object", {**fixed("cube.mass", 0.4), **fixed("cube.color", [0.1, 0.2, 0.9])})
    begin(env)
    env.reset(torch.tensor([0]), [build("lift_object").draw_conditions(np.random.default_rng(0))])
    for field in ("body_mass", "body_inertia", "body_subtreemass", "geom_rgba", "body_invweight0", "dof_M0"):
        assert np.array_equal(env.backend.model_field(field)[0], getattr(simulation(env).model, field))


def test_a_higher_table_lowers_the_robot_and_raises_what_it_sees():
    env, low = build_varied("lift_object", fixed("table.height", 0.05)), build("lift_object")
    [conditions] = begin(env)
    seen = env.step(hold_still(env)).observation["policy"]
    low.reset(torch.tensor([0]), [conditions])
    seen_before = low.step(hold_still(low)).observation["policy"]
    assert seen["object_pos"] - seen_before["object_pos"] == pytest.approx(torch.tensor([[0.0, 0.0, 0.05]]), abs=1e-5)
    assert seen["eef_pos"].numpy() == pytest.approx(seen_before["eef_pos"].numpy(), abs=1e-4)
    assert env.state()["articulation"]["robot"]["root_pose"][0, 2] == pytest.approx(-0.05)


def test_distractors_stand_clear_of_the_task_and_of_each_other():
    env = build_varied("pick_and_place", fixed("distractors.count", 3, 1), num_envs=2)
    conditions = begin(env)
    assert [each["distractors.count"] for each in conditions] == [3, 1]
    model, things = simulation(env).model, env.backend.body_position("object/body")[:, :2]
    spots = np.array([conditions[0][f"distractor_{index}.position"] for index in (1, 2, 3)])[:, :2]
    gaps = [np.linalg.norm(a - b) for i, a in enumerate(spots) for b in spots[:i]]
    assert min(gaps) > 0.1
    assert min(np.linalg.norm(spots - things[0].numpy(), axis=1)) > 0.1
    assert len(footprints(model, env.task)) == 2
    steps_of(env, hold_still(env), 20)
    poses = env.state()["rigid_object"]["distractor_1"]["root_pose"].numpy()
    assert poses[:, :2] == pytest.approx(
        np.array([point(each["distractor_1.position"])[:2] for each in conditions]), abs=2e-3
    )
    assert "distractor_2.position" not in conditions[1]
    assert env.backend.body_position("distractor_2/body")[1, 0] < -1


def test_actions_get_noise_of_the_strength_asked_for():
    env = build_varied("reach", fixed("action.noise", 0.01))
    [conditions] = begin(env)
    assert isinstance(conditions["action.noise_seed"], int)
    still, before = hold_still(env), env.backend.ctrl.clone()
    moves = []
    for _ in range(60):
        env.step(still)
        moves.append((env.backend.ctrl - before)[0, env.action_mode.arm_controls].numpy().copy())
    spec = env.action_spec
    spans = np.array(spec.high) - np.array(spec.low)
    assert np.std(moves, axis=0)[:2] == pytest.approx(0.01 * spans[:2], rel=0.35)


def test_a_delayed_env_slot_sees_the_past_and_its_neighbour_does_not():
    env, prompt = build_varied("reach", fixed("observation.delay", 2, 0), num_envs=2), build("reach", num_envs=2)
    conditions, action = begin(env), torch.zeros(env.action_space.shape)
    now = [prompt.reset(torch.arange(2), conditions)["policy"]["robot_joint_pos"]]
    for step in range(1, 5):
        now.append(prompt.step(action).observation["policy"]["robot_joint_pos"])
        seen = env.step(action).observation["policy"]["robot_joint_pos"]
        assert torch.equal(seen[0], now[max(0, step - 2)][0])
        assert torch.equal(seen[1], now[step][1])


@pytest.mark.parametrize("cameras", [{}, {"enable_cameras": True, "camera_size": 16}])
def test_a_control_step_takes_as_many_operations_for_any_number_of_env_slots(cameras):
    counts = []
    for num_envs in (2, 9):
        env = build_varied("lift_object", everything("lift_object", **cameras), num_envs=num_envs, **cameras)
        begin(env)
        # The first step of a process makes what later ones remember.
        steps_of(env, hold_still(env), 1)
        counts.append(operations(env, hold_still(env)))
    assert counts[0] == counts[1]
    assert (counts[0] > 400) == bool(cameras)
