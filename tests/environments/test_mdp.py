"""Terms that tasks are composed of."""

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.mdp import terms
from isaaclab_arena.environments.mdp.spaces import (
    MAX_TRANSLATION_M,
    number_term,
    offset_term,
    orientation_term,
    position_term,
    read_terms,
)
from isaaclab_arena.environments.mdp.task import TaskSpec
from isaaclab_arena.environments.mdp.things import SceneObject
from isaaclab_arena.environments.variations.catalogue import check_paraphrases, word_distance
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.episode import draw_uniform
from isaaclab_arena.sim.math import rotation_error
from tests.environments.building import build, episode, start, steps_of


def settle(env, action: torch.Tensor, num_steps: int = 20) -> dict[str, torch.Tensor]:
    return steps_of(env, action, num_steps)[-1].observation["policy"]


def test_joints_go_where_a_joint_action_says():
    env = build("reach")
    start(env)
    goal = torch.tensor([[0.2, -0.3, 0.1, -2.2, 0.1, 2.1, 0.6, 0.03]])
    observation = settle(env, goal)
    torch.testing.assert_close(observation["robot_joint_pos"], goal[:, :7], atol=1e-3, rtol=0)
    torch.testing.assert_close(observation["gripper_pos"], torch.full((1, 2), 0.015), atol=1e-3, rtol=0)


def test_targets_never_outrun_the_joints_velocity_limits():
    env = build("reach")
    start(env)
    before = env.backend.ctrl.clone()
    env.step(torch.tensor([env.action_spec.high or ()]))
    moved = (env.backend.ctrl - before).abs()[0, env.action_mode.arm_controls]
    limit = torch.tensor(env.robot.joint_velocity_limit, dtype=torch.float64) * env.control_dt
    assert bool((moved <= limit + 1e-12).all())
    assert bool((moved > 0.9 * limit).any())


@pytest.mark.parametrize("extreme", [-1e6, 1e6])
def test_targets_stay_within_the_joint_limits_whatever_is_asked(extreme):
    env = build("reach")
    start(env)
    settle(env, torch.full((1, 8), extreme), 80)
    targets = env.backend.ctrl[0, env.action_mode.arm_controls]
    assert bool((targets >= torch.tensor(env.robot.joint_low).double() - 1e-6).all())
    assert bool((targets <= torch.tensor(env.robot.joint_high).double() + 1e-6).all())
    assert 0 <= env.backend.ctrl[0, env.action_mode.gripper_control] <= 0.04
    assert not env.backend.diverged.any()


@pytest.mark.parametrize(("robot", "step_m", "off_m"), [("panda", 0.03, 2.5e-3), ("so101", 0.02, 4e-3)])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_delta_moves_the_tool_by_that_much_and_does_not_turn_it(robot, step_m, off_m, axis):
    env = build("lift_object", action_mode="ee_delta", embodiment=robot)
    start(env)
    still = torch.tensor([[0.0, 0, 0, 0, 0, 0, 0.05]])
    before = settle(env, still, 15)
    move = still.clone()
    move[0, axis] = step_m
    env.step(move)
    after = settle(env, still, 25)
    torch.testing.assert_close(after["eef_pos"] - before["eef_pos"], move[:, :3], atol=off_m, rtol=0)
    if robot == "panda":
        assert rotation_error(after["eef_quat"], before["eef_quat"]).abs().max() < 0.01
        torch.testing.assert_close(after["gripper_pos"], torch.full((1, 2), 0.025), atol=1e-3, rtol=0)


def test_a_delta_turns_the_tool_in_the_world_frame_and_none_keeps_the_arm_where_it_is_told_to_be():
    env = build("lift_object", action_mode="ee_delta")
    start(env)
    still = torch.tensor([[0.0, 0, 0, 0, 0, 0, 0.08]])
    told = env.backend.ctrl.clone()
    before = settle(env, still, 10)
    torch.testing.assert_close(env.backend.ctrl, told, atol=1e-8, rtol=0)
    env.step(still + torch.tensor([[0.0, 0, 0, 0, 0, 0.1, 0]]))
    turned = rotation_error(settle(env, still, 20)["eef_quat"], before["eef_quat"])
    torch.testing.assert_close(turned, torch.tensor([[0.0, 0.0, 0.1]]), atol=5e-3, rtol=0)


def test_a_delta_is_clipped_to_its_bounds():
    env = build("lift_object", num_envs=2, action_mode="ee_delta")
    conditions = env.draw_conditions(episode(0).conditions_generator())
    env.reset(torch.arange(2), [conditions, conditions])
    env.step(torch.tensor([[MAX_TRANSLATION_M, 0, 0, 0, 0, 0, 0.08], [99.0, 0, 0, 0, 0, 0, 99.0]]))
    torch.testing.assert_close(env.backend.ctrl[0], env.backend.ctrl[1], atol=1e-6, rtol=0)


def test_a_point_of_a_box_is_what_numpy_draws_to_the_last_bit():
    ranges = np.random.default_rng(1)
    for _ in range(500):
        low = tuple(ranges.normal(size=7).tolist())
        high = tuple((np.array(low) + ranges.exponential(size=7)).tolist())
        ours, numpys = np.random.default_rng(5), np.random.default_rng(5)
        assert draw_uniform(ours, low, high) == tuple(numpys.uniform(low, high).tolist())
        assert ours.random() == numpys.random(), "the stream goes on from another place"


def test_a_total_is_the_same_in_every_batch():
    values = torch.rand(1000, 12, generator=torch.Generator().manual_seed(0))
    whole = terms.total(values)
    assert torch.equal(whole[17:18], terms.total(values[17:18]))
    torch.testing.assert_close(whole, values.sum(dim=1))
    torch.testing.assert_close(terms.total_square(values), (values**2).sum(dim=1))


def test_tracking_is_as_wide_as_a_bell_with_a_longer_tail_or_makes_every_bit_of_the_way_worth_the_same():
    tracked = terms.tracking(torch.tensor([0.0, 0.01, 0.25, 4.0]), width=0.5)
    assert tracked[0] == 1
    assert tracked[1].item() == pytest.approx(math.exp(-0.04), abs=1e-3)
    assert tracked[2].item() == pytest.approx(0.41, abs=0.01)
    assert tracked[3] > math.exp(-16)
    relative = terms.relative_tracking(torch.tensor([0.0, 0.35, 0.7, 2.0]), torch.tensor([0.5] * 4), slack=0.2)
    assert relative.tolist() == pytest.approx([1.0, 0.5, 0.0, 0.0], abs=1e-6)


def test_a_low_pass_follows_a_step_within_its_time_constant():
    value, seen = torch.zeros(1, 1), []
    for _ in range(100):
        value = terms.low_passed(value, torch.ones(1, 1), dt=0.02, time_constant=0.25)
        seen.append(value.item())
    assert seen[12] == pytest.approx(1 - math.exp(-13 * 0.02 / 0.25), abs=0.02)
    assert seen[-1] > 0.99


def test_feet_at_their_heights_are_worth_most_and_only_those_that_touch_slip():
    wanted = torch.tensor([[0.07, 0.0], [0.07, 0.0]])
    kept = terms.clearance_tracking(torch.tensor([[0.07, 0.0], [0.0, 0.0]]), wanted, width=0.04)
    assert kept[0] == 1
    assert 0.5 < kept[1] < 0.7
    velocity = torch.tensor([[[0.3, 0.4], [1.0, 0.0]]])
    assert terms.slip(velocity, torch.tensor([[True, False]])).item() == pytest.approx(0.25)


POINT = torch.tensor([[0.5, 0.1, 0.2], [0.6, 0.0, 0.3]], dtype=torch.float64)
NOWHERE = cast("Any", None)


def test_points_are_seen_from_the_robots_base_and_nothing_else_is():
    origin = torch.tensor([[0.0, 0.0, -0.1], [0.0, 0.0, 0.0]], dtype=torch.float64)
    terms = {
        "place": position_term(lambda _: POINT),
        "way": offset_term(lambda _: POINT),
        "number": number_term("x", "m", lambda _: POINT[:, :1]),
        "orientation": orientation_term(lambda _: torch.ones(2, 4)),
    }
    seen = read_terms(terms, NOWHERE, torch.device("cpu"), origin)
    torch.testing.assert_close(seen["place"], torch.tensor([[0.5, 0.1, 0.3], [0.6, 0.0, 0.3]]))
    torch.testing.assert_close(seen["way"], POINT.float())
    torch.testing.assert_close(seen["number"], POINT[:, :1].float())
    assert seen["orientation"].tolist() == [[1.0] * 4] * 2
    assert [term.spec.unit for term in terms.values()] == ["m", "m", "m", None]


# Paraphrases say the task in other words, from near to far, and nothing else.

OWN = "pick up the cube and lift it"


def test_paraphrases_from_near_to_far_by_the_share_of_words_that_only_one_of_them_has_are_taken():
    others = ("Open the drawer!", "please open the drawer", "pull it")
    assert [word_distance("open the drawer", other) for other in others] == [0.0, 0.25, 1.0]
    check_paraphrases(OWN, ["please pick up the cube and lift it", "grab the cube and lift it", "raise that block"])
    check_paraphrases(OWN, [])
    # A number that the task itself says is no telltale.
    check_paraphrases("stack the two cubes", ["please stack the two cubes"])


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["pick up the cube and lift it, level 3"], "does: 3, level"),
        (["paraphrase: lift the cube"], "does: paraphrase"),
        (["lift the cube in two seconds"], "does: two"),
        (["lift the cube by 10cm"], "does: 10"),
        (["lift it, and pick the cube up"], "the words of"),
        (["raise that block", "please pick up the cube and lift it"], "from near to far"),
    ],
    ids=str,
)
def test_one_that_tells_of_the_change_or_changes_nothing_or_is_out_of_order_is_refused(said, message):
    with pytest.raises(ConfigError, match=message) as refused:
        check_paraphrases(OWN, said)
    assert refused.value.problems[0].key == "paraphrases"


def test_distances_are_euclidean_and_a_horizontal_one_knows_no_height():
    assert terms.distance(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 5.0, 7.0]])).item() == 5.0
    assert terms.horizontal_distance(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[4.0, 6.0, 9.0]])).item() == 5.0


def test_progress_is_clipped_at_both_ends():
    assert terms.progress(torch.tensor([-1.0, 0.05, 2.0]), start=0.0, goal=0.1).tolist() == [0.0, 0.5, 1.0]


def test_a_count_grows_breaks_off_and_waits_while_its_env_slot_rests():
    condition = torch.tensor([True, False, True])
    running = torch.tensor([True, True, False])
    assert terms.count_while(condition, torch.tensor([3, 3, 3]), running).tolist() == [4, 0, 3]


@pytest.mark.parametrize(
    ("hand_x", "expected_x"),
    [(-0.2, -0.06), (-0.05, -0.05), (-0.025, -0.03), (0.0, -0.06), (0.1, -0.06)],
    ids=["far behind", "behind", "touching", "on it", "on the wrong side"],
)
def test_a_hand_pushes_from_behind(hand_x, expected_x):
    hand = torch.tensor([[hand_x, 0.0, 0.3]])
    point = terms.push_point(hand, torch.tensor([[0.0, 0.0, 0.02]]), torch.tensor([[0.5, 0.0, 0.0]]), (0.03, 0.06))
    assert point[0].tolist() == pytest.approx([expected_x, 0.0, 0.02])
    # A thing that is at its goal has a push point nonetheless.
    assert torch.isfinite(terms.push_point(hand, hand, hand, (0.03, 0.06))).all()


@pytest.mark.parametrize(
    ("quaternion", "tilt"),
    [((0.0, 1.0, 0.0, 0.0), 0.0), ((1.0, 0.0, 0.0, 0.0), 1.0), ((0.5**0.5, 0.5**0.5, 0, 0), 0.5)],
)
def test_tilt_is_how_far_a_hand_is_from_pointing_down(quaternion, tilt):
    assert terms.tilt_from_down(torch.tensor([quaternion])).item() == pytest.approx(tilt)


def test_way_counts_where_a_hand_touches_and_is_no_faster_than_a_hand_is():
    so_far = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    way = torch.tensor([0.05, 0.05, 0.051, -0.05, -0.2, -0.05])
    touched = torch.tensor([True, False, True, True, True, False])
    counted = terms.moved_by_hand(so_far, way, touched, fastest=0.05)
    assert counted.tolist() == pytest.approx([0.15, 0.1, 0.1, 0.05, 0.0, 0.1])


ON_THE_TABLE = ((0.4, -0.2), (0.6, 0.2))
FREE = '<freejoint name="free"/>'


@pytest.mark.parametrize(
    ("content", "declared", "told"),
    [
        (f'<body name="cup">{FREE}</body>', {"loose": True}, "'body'.*known are: cup"),
        ('<body name="body"><freejoint name="cup_joint"/></body>', {"loose": True}, "called 'free'"),
        ('<body name="body"><joint name="free" type="slide"/></body>', {"loose": True}, "called 'free'"),
        ('<body name="body"/>', {"loose": True}, "called 'free'"),
        (f'<body name="outer">{FREE}<body name="body"/></body>', {"loose": True}, "called 'free'"),
        ('<body name="body"/>', {"area": ON_THE_TABLE}, 'mocap="true"'),
        ("<bdy/>", {}, "cannot be read: "),
        ('<body name="body\udcff"/>', {}, "cannot be read: 'utf-8'"),
        (None, {}, r"cup\.xml"),
        # These are things.
        (f'<body name="body">{FREE}</body>', {"loose": True}, None),
        ('<body name="body" mocap="true"/>', {"area": ON_THE_TABLE}, None),
        ('<body name="body"/>', {}, None),
    ],
)
def test_a_thing_has_a_body_of_its_name_that_moves_as_it_is_declared(tmp_path, content, declared, told):
    file = tmp_path / "cup.xml"
    if content is not None:
        file.write_text(f"<mujoco><worldbody>{content}</worldbody></mujoco>", errors="surrogateescape")
    if told is None:
        assert SceneObject(prefix="cup", asset=str(file), **declared).body == "cup/body"
        return
    with pytest.raises(ConfigError, match=f"(?s)cup.xml.*{told}" if content else told):
        SceneObject(prefix="cup", asset=str(file), **declared)


class Upturned(SceneObject):
    """A thing that stands on its head."""

    def part(self):
        return replace(super().part(), quaternion=(0.0, 1.0, 0.0, 0.0))


def test_a_thing_says_itself_how_it_stands_in_a_scene():
    things = [each(prefix="bin", asset="objects/bin.xml", position=(0.5, 0.0, 0.2)) for each in (SceneObject, Upturned)]
    spec = TaskSpec(name="right_the_bin", instruction="right the bin", time_limit_s=1.0, things=tuple(things))
    assert [part.quaternion for part in spec.parts] == [(1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0)]
