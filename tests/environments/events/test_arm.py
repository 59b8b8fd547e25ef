from isaaclab_arena.environments.events import MomentRing, arm_facts
from tests.environments.building import build, hold_still, start


def arm_told(joint: int, turn_rad: float):
    """Motion of an arm whose one joint turns for 40 control steps."""
    env = build("lift_object")
    start(env)
    ring = MomentRing(env.backend, num_envs=1, capacity=40)
    ring.start([0])
    action = hold_still(env)
    action[0, joint] += turn_rad
    for _ in range(40):
        env.step(action)
        ring.keep()
    return arm_facts(ring.moments([0])[0], env.robot)


def test_a_hand_that_presses_on_the_table_is_blocked():
    arm = arm_told(1, 1.3)
    assert arm.blocked[-10:].all()
    assert not arm.blocked[:5].any()
    assert arm.travel_m[0] == 0
    assert arm.travel_m[-1] > 0.1


def test_an_arm_at_the_limit_of_a_joint_is_blocked():
    assert arm_told(6, 10.0).blocked[-10:].all()


def test_an_arm_that_stands_where_it_is_told_to_be_is_not_blocked():
    assert not arm_told(1, 0.1).blocked.any()
