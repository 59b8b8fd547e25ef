from isaaclab_arena.environments.tasks.articulated import PRESSED_STEPS, TRAVEL_M
from tests.environments.building import build, hold_still, start
from tests.environments.moving import solve, turn_joint

PRESS = "button/press"


def test_a_button_that_the_hand_holds_down_is_pressed():
    steps = solve(build("press_button"))
    assert steps[-1].success
    assert steps[-1].metrics["final_press_m"] > 0.9 * TRAVEL_M


def test_the_spring_brings_the_button_up_again():
    env = build("press_button")
    start(env)
    turn_joint(env, PRESS, TRAVEL_M)
    for _ in range(10):
        env.step(hold_still(env))
    assert env.backend.joint_position(PRESS)[0, 0] < 0.1 * TRAVEL_M


def test_a_button_that_goes_down_without_the_hand_does_not_count():
    env = build("press_button")
    start(env)
    for _ in range(2 * PRESSED_STEPS):
        turn_joint(env, PRESS, TRAVEL_M)
        assert not env.step(hold_still(env)).success
