from tests.environments.building import build, hold_still, start
from tests.environments.moving import solve, turn_joint

SLIDE = "cabinet/slide"


def test_a_drawer_that_the_hand_pushes_in_is_shut():
    steps = solve(build("close_drawer"))
    assert steps[-1].success
    assert steps[-1].metrics["final_opening_m"] <= 0.01


def test_the_drawer_starts_open_and_stays_open_by_itself():
    env = build("close_drawer")
    start(env)
    opening = [env.step(hold_still(env)).metrics["final_opening_m"].item() for _ in range(20)]
    assert min(opening) > 0.11


def test_a_drawer_that_jumps_shut_does_not_count():
    env = build("close_drawer")
    start(env)
    turn_joint(env, SLIDE, 0.0)
    steps = [env.step(hold_still(env)) for _ in range(10)]
    assert steps[-1].metrics["final_opening_m"] < 0.01
    assert not any(step.success for step in steps)
