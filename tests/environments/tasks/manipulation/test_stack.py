from isaaclab_arena.environments.tasks.two_cubes import STACKED_STEPS
from tests.environments.building import build, hold_still, start
from tests.environments.moving import put, solve


def tower(offset_m: float = 0.0):
    env = build("stack")
    start(env)
    put(env, "blue", (0.5, 0.2, 0.025))
    put(env, "red", (0.5, 0.2 + offset_m, 0.075))
    return env


def test_a_cube_that_was_put_on_the_other_and_let_go_is_stacked():
    steps = solve(build("stack"))
    assert steps[-1].success


def test_a_tower_must_stand_for_half_a_second():
    env = tower()
    successes = [bool(env.step(hold_still(env)).success) for _ in range(STACKED_STEPS + 1)]
    assert any(successes)
    assert not any(successes[: STACKED_STEPS - 1])


def test_a_cube_that_hangs_over_is_no_tower():
    env = tower(offset_m=0.023)
    assert not any(env.step(hold_still(env)).success for _ in range(2 * STACKED_STEPS))


def test_the_blue_cube_on_the_red_one_is_the_wrong_way_round():
    env = tower()
    put(env, "red", (0.5, 0.2, 0.025))
    put(env, "blue", (0.5, 0.2, 0.075))
    assert not any(env.step(hold_still(env)).success for _ in range(2 * STACKED_STEPS))
