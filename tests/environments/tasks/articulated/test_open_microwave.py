import torch

from isaaclab_arena.environments.tasks.articulated import NUM_WAYPOINTS, OPEN_RAD, PULLED_RAD
from tests.environments.building import build, hold_still, start
from tests.environments.moving import solve, turn_joint

HINGE = "microwave/hinge"


def test_a_door_pulled_by_its_handle_is_open():
    steps = solve(build("open_microwave"))
    assert steps[-1].success
    assert steps[-1].metrics["final_angle_rad"] >= OPEN_RAD
    assert steps[-1].metrics["pulled_rad"] >= PULLED_RAD


def test_a_door_that_swings_open_without_a_hand_is_not_pulled():
    env = build("open_microwave")
    start(env)
    turn_joint(env, HINGE, 1.2)
    steps = [env.step(hold_still(env)) for _ in range(10)]
    assert steps[-1].metrics["final_angle_rad"] > OPEN_RAD
    assert not any(step.success for step in steps)


def test_the_door_stays_shut_by_itself():
    env = build("open_microwave")
    start(env)
    angles = [env.step(hold_still(env)).metrics["final_angle_rad"].item() for _ in range(20)]
    assert max(angles) < 0.01


def test_the_waypoints_lie_on_the_way_of_the_handle():
    env = build("open_microwave")
    start(env)
    for number, degrees in zip(range(1, NUM_WAYPOINTS + 1), (15, 30, 45, 60, 72), strict=True):
        turn_joint(env, HINGE, degrees * torch.pi / 180)
        env.step(hold_still(env))
        handle, way = (env.backend.site_position(f"microwave/{name}")[0] for name in ("handle", f"way_{number}"))
        torch.testing.assert_close(handle, way, atol=2e-3, rtol=0)
