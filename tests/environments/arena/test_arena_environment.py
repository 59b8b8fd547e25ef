import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import point
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy, ZeroActionPolicy
from isaaclab_arena.recording.recorder import flatten
from tests.environments.building import (
    ALL_ENVIRONMENTS,
    IN_SOME_ACTION_MODE,
    build,
    episode,
    hold_still,
    play,
    solved,
    start,
)

GOLDEN_CUBE_POSITION = (0.40418810584105447, -0.18688298953304192, 0.025)


def test_conditions_of_a_seed_never_change():
    conditions = build("lift_object").draw_conditions(episode(5).conditions_generator())
    assert conditions["cube.position"] == GOLDEN_CUBE_POSITION


def test_objects_have_the_same_conditions_so_that_comparisons_are_paired():
    cube, can = (
        build("lift_object", object=name).draw_conditions(episode(0).conditions_generator()) for name in ("cube", "can")
    )
    assert point(cube["cube.position"])[:2] == point(can["can.position"])[:2]
    assert cube["robot.joint_position"] == can["robot.joint_position"]


def test_an_environment_that_nobody_holds_is_gone_at_once():
    gc.disable()
    try:
        env = build("lift_object")
        gone = [weakref.ref(each) for each in (env, env.backend, env._cameras)]
        env.close()
        del env
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()


def test_env_slots_that_are_not_running_rest():
    env = build("lift_object", num_envs=3)
    start(env, env_ids=[1])
    before = env.state()
    step = env.step(hold_still(env))
    for joints in ("joint_position", "joint_velocity"):
        after = env.state()["articulation"]["robot"][joints]
        assert torch.equal(after[[0, 2]], before["articulation"]["robot"][joints][[0, 2]])
    assert step.reward[[0, 2]].tolist() == [0, 0]
    assert not (step.terminated | step.truncated | solved(step) | step.diverged)[[0, 2]].any()


def test_an_env_slot_is_truncated_at_the_time_limit_and_then_keeps_its_last_observation():
    env = build("reach", num_envs=2)
    start(env)
    steps = [env.step(hold_still(env)) for _ in range(env.max_episode_length)]
    assert not any(step.truncated.any() for step in steps[:-1])
    assert steps[-1].truncated.tolist() == [True, True]
    after = env.step(torch.zeros(2, 8))
    for term, value in steps[-1].observation["policy"].items():
        assert torch.equal(after.observation["policy"][term], value)
    assert not after.truncated.any()


def test_a_nan_action_is_an_error_of_its_env_slot_alone():
    env, alone = build("lift_object", num_envs=3), build("lift_object", num_envs=3)
    start(env)
    start(alone)
    action = hold_still(env)
    action[1] = torch.nan
    broken, sound = env.step(action), alone.step(hold_still(alone))
    assert broken.diverged.tolist() == [False, True, False]
    assert not solved(broken)[1]
    assert not broken.terminated[1]
    for term, value in sound.observation["policy"].items():
        assert torch.equal(broken.observation["policy"][term][[0, 2]], value[[0, 2]])


@pytest.mark.parametrize("name", ALL_ENVIRONMENTS)
def test_an_episode_replays_bit_for_bit_from_its_stored_start(name):
    env = build(name, num_envs=2)
    start(env)
    stored = env.episode_states([1])[0]["integration_state"]
    policy = ScriptedPolicy()
    actions = []
    observation = start(env)
    for _ in range(25):
        actions.append(policy.get_action(env, observation))
        observation = env.step(actions[-1]).observation
    expected = env.episode_states([1])[0]["integration_state"]
    replay = build(name, num_envs=1)
    start(replay)
    replay.backend.set_integration_state(0, stored)
    for action in actions:
        replay.step(action[1:])
    assert np.array_equal(replay.episode_states([0])[0]["integration_state"], expected)


def test_the_state_has_isaac_labs_layout():
    env = build("pick_and_place", num_envs=2, object="can")
    start(env)
    state = env.state()
    assert set(state["rigid_object"]) == {"can", "bin"}
    robot = state["articulation"]["robot"]
    shapes = {name: tuple(value.shape) for name, value in robot.items()}
    assert shapes == {"joint_position": (2, 9), "joint_velocity": (2, 9), "root_pose": (2, 7), "root_velocity": (2, 6)}
    assert tuple(state["rigid_object"]["can"]["root_pose"].shape) == (2, 7)
    assert tuple(state["rigid_object"]["can"]["root_velocity"].shape) == (2, 6)
    assert build("open_drawer").state()["articulation"]["cabinet"]["joint_position"].shape == (1, 1)


@pytest.mark.parametrize("name", ALL_ENVIRONMENTS)
def test_the_state_can_be_made_later_of_its_parts_to_the_last_bit(name):
    env = build(name, num_envs=2)
    start(env)
    seen, kept = [], []
    for action in torch.rand(5, *env.action_space.shape) * 0.2 - 0.1:
        env.step(action)
        seen.append(env.state())
        kept.append(torch.cat(tuple(env.state_parts()), dim=1))
    made = env.state_of(torch.cat(kept).numpy())
    assert made.keys() == seen[0].keys()
    for path, values in flatten(made, ""):
        kind, thing, field = path.strip("/").split("/")
        assert values.dtype == np.float64
        assert np.array_equal(values, torch.cat([state[kind][thing][field] for state in seen]).numpy())


def test_the_velocity_of_a_loose_thing_is_that_of_its_joint_to_the_last_bit():
    env = build("stack", num_envs=3)
    start(env)
    for action in torch.rand(20, *env.action_space.shape) - 0.5:
        env.step(action)
        for thing, joint in env.task.spec.rigid_objects.items():
            assert torch.equal(env.state()["rigid_object"][thing]["root_velocity"], env.backend.free_velocity(joint))


def test_nothing_changes_a_tensor_that_was_returned():
    env = build("lift_object", num_envs=2)
    assert env.returns_own_tensors
    returned = [*start(env)["policy"].values()]
    for action in torch.rand(6, *env.action_space.shape) - 0.5:
        step = env.step(action)
        returned += [*step.observation["policy"].values(), step.reward]
        start(env, [1])
    copies = [tensor.clone() for tensor in returned]
    env.step(torch.zeros(env.action_space.shape))
    start(env)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(returned, copies, strict=True))
    assert len({tensor.data_ptr() for tensor in returned}) == len(returned)


@pytest.mark.parametrize(("name", "mode"), IN_SOME_ACTION_MODE)
def test_doing_nothing_or_anything_solves_no_task_and_breaks_no_physics(name, mode):
    for policy in (ZeroActionPolicy(), RandomActionPolicy()):
        records = play(build(name, num_envs=4, action_mode=mode), policy, 4).records
        assert [record.success for record in records.values()] == [False] * 4


def test_the_instruction_names_the_object_and_users_may_read_arenas_attributes():
    env = build("pick_and_place", object="cylinder")
    assert env.task_description == "put the green cylinder into the blue bin"
    assert isinstance(env.unwrapped, Environment)
    assert env.step_dt == env.control_dt == 0.05
    assert env.action_space.shape == (1, 8)


def test_provenance_tells_worlds_apart():
    digests = {name: build(name).provenance()["model_sha256"] for name in ALL_ENVIRONMENTS}
    # Two tasks of one world: a cube and a disc on the table.
    assert digests.pop("push_cube") == digests["push_to_goal"]
    assert len(set(digests.values())) == len(digests)
    assert build("reach", num_envs=3).provenance() == build("reach").provenance()


class Closes:
    """Worlds that only say whether they were closed."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_an_environment_that_is_closed_closes_its_worlds():
    env = build("reach")
    worlds: Any = Closes()
    env.backend = worlds
    env.close()
    assert worlds.closed
