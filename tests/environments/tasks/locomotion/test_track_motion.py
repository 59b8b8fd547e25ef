import pytest
import torch

from isaaclab_arena.environments.arena.environment import FloorEnvironment
from isaaclab_arena.environments.tasks.track_motion import LARGEST_KEYPOINT_ERROR_M, TrackMotion
from isaaclab_arena.environments.tasks.walk_humanoid import HUMANOID, JOINTS, ROOT
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.interfaces.episode import number
from tests.environments.building import build_on_the_floor, episode, refusal, start

NOTHING = torch.zeros(1, len(JOINTS))


def motion_of(env: FloorEnvironment) -> TrackMotion:
    assert isinstance(env.task, TrackMotion)
    return env.task


def started(begin_s: float = 0.0, **options) -> FloorEnvironment:
    env = build_on_the_floor("track_motion", **options)
    conditions = {"motion.start_s": begin_s, "robot.joint_offset": (0.0,) * len(JOINTS)}
    env.reset(torch.tensor([0]), [conditions])
    return env


def drawn_start(env: FloorEnvironment, index: int) -> float:
    return number(env.draw_conditions(episode(index).conditions_generator())["motion.start_s"])


def place(env: FloorEnvironment, frame: int, *, aside_m: float = 0.0) -> None:
    """Put the humanoid where the motion has it in a frame, or beside that."""
    start_state = env.task.start_state(
        {"motion.start_s": frame * env.control_dt, "robot.joint_offset": (0.0,) * len(JOINTS)}
    )
    env.backend.reset(torch.tensor([0]), [start_state])
    env.backend.joint_position(ROOT)[0, 1] += aside_m


def follow(env: FloorEnvironment, *, aside_m: float = 0.0) -> Step:
    """Carry the humanoid through the motion, from frame to frame, to the end of the episode."""
    for frame in range(env.max_episode_length + 1):
        place(env, frame, aside_m=aside_m)
        step = env.step(NOTHING)
        if (step.terminated | step.truncated).any():
            return step
    raise AssertionError("the motion has no end")


def test_a_motion_followed_to_its_end_is_a_success():
    step = follow(started())
    assert step.success
    assert step.metrics["mpkpe_m"] < 0.02


def test_a_motion_followed_beside_it_is_none():
    step = follow(started(), aside_m=LARGEST_KEYPOINT_ERROR_M + 0.03)
    assert not step.success
    assert step.truncated
    assert step.metrics["mpkpe_m"].item() == pytest.approx(LARGEST_KEYPOINT_ERROR_M + 0.03, abs=0.02)


def test_only_the_end_decides():
    env = started()
    for frame in range(20):
        place(env, frame)
        step = env.step(NOTHING)
        assert not step.success
        assert not step.terminated


def test_holding_the_joints_of_the_motion_is_not_enough_to_follow_it():
    env = started()
    steps = [env.step(NOTHING) for _ in range(env.max_episode_length)]
    assert any(step.terminated for step in steps)
    assert not any(step.success for step in steps)


def test_a_humanoid_that_is_far_from_the_motion_is_lost():
    env = started()
    env.backend.joint_position(ROOT)[0, 2] -= 0.3
    assert env.step(NOTHING).terminated


def test_an_episode_that_begins_late_ends_with_the_motion():
    env = started(5.9)
    steps = [env.step(NOTHING) for _ in range(5)]
    assert [bool(step.terminated) for step in steps] == [False] * 4 + [True]
    assert steps[-1].success


def test_an_episode_that_begins_late_and_misses_the_motion_is_lost():
    env = started(5.9)
    env.backend.joint_position(ROOT)[0, 1] += 0.15
    steps = [env.step(NOTHING) for _ in range(5)]
    assert steps[-1].terminated
    assert not steps[-1].success


def test_episodes_begin_with_the_motion_unless_they_may_begin_anywhere():
    env, anywhere = build_on_the_floor("track_motion"), build_on_the_floor("track_motion", start="anywhere")
    assert {drawn_start(env, index) for index in range(20)} == {0.0}
    draws = {drawn_start(anywhere, index) for index in range(20)}
    assert len(draws) > 10
    assert max(draws) < 6.0


def test_both_starts_draw_the_same_postures():
    env, anywhere = build_on_the_floor("track_motion"), build_on_the_floor("track_motion", start="anywhere")
    first, second = (each.draw_conditions(episode(3).conditions_generator()) for each in (env, anywhere))
    assert first["robot.joint_offset"] == second["robot.joint_offset"]


def test_a_zero_action_asks_for_the_motion_s_next_frame_and_the_last_action_is_read_back():
    env = started(1.0)
    action = torch.linspace(-0.5, 0.5, len(JOINTS))[None]
    observation = env.step(action).observation
    controls = torch.stack([env.backend.ctrl[0, env.backend.names.actuators[name]] for name in HUMANOID.actuators])
    target = motion_of(env)._motion.joint_position[51]
    scale = torch.tensor(HUMANOID.action_scale).double()
    assert controls.tolist() == pytest.approx((torch.from_numpy(target) + scale * action[0]).tolist())
    assert observation["policy"]["last_action"][0].tolist() == pytest.approx(action[0].tolist(), abs=1e-5)


def test_it_observes_where_the_motion_will_be_next():
    env = started(1.0)
    policy = start_observation(env)
    assert policy["motion_phase"][0].item() == pytest.approx(1 / 6, abs=1e-3)
    reference = motion_of(env)._motion
    wanted = reference.joint_position[51] - HUMANOID.default_joint_position
    assert policy["reference_joint_pos"][0].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)
    way = reference.root_position[51] - reference.root_position[50]
    assert policy["reference_root_pos"][0].tolist() == pytest.approx(way.tolist(), abs=1e-4)
    assert policy["reference_root_rot"][0].tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-5)


def start_observation(env: FloorEnvironment) -> dict[str, torch.Tensor]:
    conditions = {"motion.start_s": 1.0, "robot.joint_offset": (0.0,) * len(JOINTS)}
    return env.reset(torch.tensor([0]), [conditions])["policy"]


def test_an_unknown_start_and_a_missing_motion_are_refused():
    assert refusal("track_motion", start="begining").problems[0].key == "start"
    problem = refusal("track_motion", motion_file="nowhere.csv").problems[0]
    assert problem.key == "motion_file"
    assert "nowhere.csv" in problem.message


def test_env_slots_start_at_their_own_place_in_the_motion():
    env = build_on_the_floor("track_motion", num_envs=3, start="anywhere")
    start(env)
    begins = [drawn_start(env, env_id) for env_id in range(3)]
    phases = env.step(torch.zeros(3, len(JOINTS))).observation["policy"]["motion_phase"][:, 0]
    assert phases.tolist() == pytest.approx([(begin + 0.02) / 6 for begin in begins], abs=1e-5)
