from isaaclab_arena.environments.tasks.two_cubes import SORTED_STEPS
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import build, hold_still, play, start
from tests.environments.moving import put


def started():
    env = build("sort_two")
    start(env)
    places = {name: env.backend.body_position(f"{name}/body")[0].tolist() for name in ("left_bin", "right_bin")}
    return env, {name: (x, y, 0.034) for name, (x, y, _) in places.items()}


def test_two_sorted_cubes_are_a_success_and_full_progress():
    record = play(build("sort_two"), ScriptedPolicy(), 1).records[0]
    assert record.success
    assert record.metrics["progress"] == 1.0


def test_one_sorted_cube_is_half_the_progress_and_no_success():
    env, places = started()
    put(env, "red", places["left_bin"])
    steps = [env.step(hold_still(env)) for _ in range(2 * SORTED_STEPS)]
    assert steps[-1].metrics["progress"] == 0.5
    assert steps[-1].metrics["progress.red_in_left_bin"] == 1.0
    assert steps[-1].metrics["progress.blue_in_right_bin"] == 0.0
    assert not any(step.success for step in steps)


def test_cubes_in_each_others_bins_are_no_progress():
    env, places = started()
    put(env, "red", places["right_bin"])
    put(env, "blue", places["left_bin"])
    steps = [env.step(hold_still(env)) for _ in range(2 * SORTED_STEPS)]
    assert steps[-1].metrics["progress"] == 0.0
    assert not any(step.success for step in steps)


def test_both_in_their_bins_are_a_success():
    env, places = started()
    put(env, "red", places["left_bin"])
    put(env, "blue", places["right_bin"])
    assert any(env.step(hold_still(env)).success for _ in range(3 * SORTED_STEPS))
