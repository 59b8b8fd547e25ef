from isaaclab_arena.environments.tasks.pushing import HOLD_STEPS, LIFTED_M
from tests.environments.building import build, hold_still, start
from tests.environments.moving import put, solve


def goal_of(env) -> tuple[float, float]:
    x, y, _ = env.backend.body_position("goal/body")[0].tolist()
    return x, y


def test_a_pushed_object_ends_on_the_disc_without_leaving_the_table():
    steps = solve(build("push_to_goal", object="can"))
    assert steps[-1].success
    assert steps[-1].metrics["final_goal_distance_m"] < 0.03


def test_success_lasts_a_quarter_of_a_second():
    env = build("push_to_goal")
    start(env)
    put(env, "object", (*goal_of(env), 0.025))
    successes = [bool(env.step(hold_still(env)).success) for _ in range(HOLD_STEPS)]
    assert successes == [False] * (HOLD_STEPS - 1) + [True]


def test_an_object_beside_the_disc_does_not_count():
    env = build("push_to_goal")
    start(env)
    x, y = goal_of(env)
    put(env, "object", (x, y + 0.04, 0.025))
    assert not any(env.step(hold_still(env)).success for _ in range(2 * HOLD_STEPS))


def test_lifting_the_object_loses():
    env = build("push_to_goal")
    start(env)
    put(env, "object", (*goal_of(env), 0.025 + 2 * LIFTED_M))
    step = env.step(hold_still(env))
    assert step.terminated
    assert not step.success


def test_an_object_on_its_side_loses():
    env = build("push_to_goal", object="can")
    start(env)
    put(env, "object", (*goal_of(env), 0.031))
    env.backend.qpos[0, env.backend.names.joint_qpos["object/free"]][3:5] = 0.5**0.5
    step = env.step(hold_still(env))
    assert step.terminated
    assert not step.success
