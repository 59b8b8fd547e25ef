import torch

from isaaclab_arena.environments.tasks.grasping import LIFT_HEIGHT_M, LIFTED_STEPS
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import build, hold_still, start, steps_of


def put_object(env, position: tuple[float, float, float], velocity=(0.0, 0.0, 0.0)) -> None:
    """Put the object of env slot 0 somewhere, upright."""
    names = env.backend.names
    env.backend.qpos[0, names.joint_qpos["object/free"]] = torch.tensor([*position, 1, 0, 0, 0]).double()
    env.backend.qvel[0, names.joint_dof["object/free"]] = torch.tensor([*velocity, 0, 0, 0]).double()


def lift(env):
    """Play the scripted policy to the end; return the steps."""
    policy, observation = ScriptedPolicy(), start(env)
    steps = []
    while not steps or not (steps[-1].terminated | steps[-1].truncated).all():
        steps.append(env.step(policy.get_action(env, observation)))
        observation = steps[-1].observation
    return steps


def test_success_is_half_a_second_above_the_height_without_a_break():
    steps = lift(build("lift_object"))
    high = [bool(step.metrics["final_height_m"] >= LIFT_HEIGHT_M) for step in steps]
    assert steps[-1].success
    assert high[-LIFTED_STEPS:] == [True] * LIFTED_STEPS
    assert not high[-LIFTED_STEPS - 1]


def test_a_thrown_object_is_not_lifted():
    env = build("lift_object")
    start(env)
    put_object(env, (0.5, 0.3, 0.05), velocity=(0.0, 0.0, 5.0))
    steps = [env.step(hold_still(env)) for _ in range(20)]
    assert sum(bool(step.metrics["final_height_m"] > LIFT_HEIGHT_M) for step in steps) > LIFTED_STEPS
    assert not any(step.success for step in steps)


def test_an_object_that_lies_on_the_hand_is_not_held():
    env = build("lift_object")
    start(env)
    tcp = env.backend.site_position("robot/tcp")[0].tolist()
    for _ in range(2 * LIFTED_STEPS):
        put_object(env, (tcp[0], tcp[1], tcp[2] + 0.16))
        assert not env.step(hold_still(env)).success


def test_an_object_that_is_let_go_starts_the_count_again():
    env = build("lift_object")
    policy, observation = ScriptedPolicy(), start(env)
    while env.task.held_steps[0] < LIFTED_STEPS - 2:
        observation = env.step(policy.get_action(env, observation)).observation
    opened = policy.get_action(env, observation)
    opened[0, -1] = 0.08
    step = [env.step(opened) for _ in range(4)][-1]
    assert env.task.held_steps[0] == 0
    assert not step.success


def test_an_object_that_falls_off_the_table_ends_the_episode_as_a_failure():
    env = build("lift_object")
    start(env)
    put_object(env, (0.5, 0.9, 0.05))
    steps = steps_of(env, hold_still(env), 20)
    assert sum(bool(step.terminated) for step in steps) == 1
    assert not any(step.success or step.truncated for step in steps)


def test_the_reward_rises_from_the_table_to_the_goal():
    rewards = [step.reward.item() for step in lift(build("lift_object"))]
    assert rewards[0] < rewards[len(rewards) // 2] < rewards[-1]
