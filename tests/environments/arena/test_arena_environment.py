"""The environment of a task: steps, verdicts and snapshots."""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from isaaclab_arena.cli.listing import catalog_text
from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.environments.catalog import CUBE, ENVIRONMENTS, OBJECTS
from isaaclab_arena.environments.mdp.task import Task, Verdict
from isaaclab_arena.environments.tasks.velocity_go1 import VelocityGo1
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import ConditionValue, point
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.sim.backend import Backend, Capture, capture_on
from tests.environments.building import (
    ALL_ENVIRONMENTS,
    CPU,
    FLOOR_ENVIRONMENTS,
    IN_SOME_ACTION_MODE,
    assert_the_same,
    build,
    build_on_the_floor,
    episode,
    flat,
    random_actions,
    refusal,
    solved,
    start,
    tensors_of,
)
from tests.environments.building import steps_of as repeated
from tests.environments.variations.varying import build_varied
from tests.sim.tape import tape

GOLDEN_CUBE_POSITION = (0.40418810584105447, -0.18688298953304192, 0.025)


def test_conditions_of_a_seed_never_change_and_are_those_of_other_objects_so_that_comparisons_are_paired():
    cube, can = (
        build("lift_object", object=name).draw_conditions(episode(5).conditions_generator()) for name in ("cube", "can")
    )
    assert cube["cube.position"] == GOLDEN_CUBE_POSITION
    assert point(cube["cube.position"])[:2] == point(can["can.position"])[:2]
    assert cube["robot.joint_position"] == can["robot.joint_position"]


LENGTHS_AND_STARTS = {
    "reach": (120, 14.746739),
    "lift_object": (160, 11.283956),
    "pick_and_place": (240, 23.129145),
    "open_drawer": (200, 14.159116),
    "close_drawer": (200, 17.583391),
    "open_microwave": (240, 13.523823),
    "stack": (240, 15.206919),
    "pick_by_colour": (160, 15.206919),
    "sort_two": (400, 34.023399),
    "push_to_goal": (300, 21.388791),
    "push_cube": (160, 22.438537),
    "press_button": (160, 9.697803),
    "cartpole": (500, -0.646685),
    "velocity_go1": (500, -58.848201),
    "walk_humanoid": (500, 9.372807),
    "track_motion": (300, -0.010012),
}
"""Control steps of each task, and the sum of all numbers that twenty episodes of seed 0 start with."""


def numbers(value: ConditionValue) -> list[float]:
    return [] if isinstance(value, str) else [float(each) for each in np.ravel(value)]


@pytest.mark.parametrize("name", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_a_task_ends_in_time_and_its_episodes_start_where_they_always_did(name):
    env = build(name)
    draws = [env.draw_conditions(episode(index).conditions_generator()) for index in range(20)]
    total = sum(number for draw in draws for value in draw.values() for number in numbers(value))
    steps, expected = LENGTHS_AND_STARTS[name]
    assert (env.max_episode_length, total) == (steps, pytest.approx(expected, abs=1e-5))
    assert env.control_dt == (0.02 if name in FLOOR_ENVIRONMENTS else 0.05)


@pytest.mark.parametrize("name", ["lift_object", *FLOOR_ENVIRONMENTS])
def test_a_nan_action_is_an_error_of_its_env_slot_alone_until_that_begins_anew(name):
    env, alone = build(name, num_envs=3), build(name, num_envs=3)
    start(env)
    start(alone)
    action = torch.zeros(env.action_space.shape)
    sound = alone.step(action.clone())
    action[1] = torch.nan
    broken = env.step(action)
    assert broken.diverged.tolist() == [False, True, False]
    assert torch.isfinite(broken.reward).all()
    assert not (solved(broken) | broken.terminated)[1]
    for term, value in sound.observation["policy"].items():
        assert torch.equal(broken.observation["policy"][term][[0, 2]], value[[0, 2]])
    start(env, [1])
    assert not env.step(torch.zeros(env.action_space.shape)).diverged.any()


POSE, VELOCITY = 7, 6
ARM = {"joint_position": 9, "joint_velocity": 9, "root_pose": POSE, "root_velocity": VELOCITY}


@pytest.mark.parametrize(
    ("name", "robot", "others"),
    [
        ("stack", ARM, {"red_cube", "blue_cube"}),
        ("open_drawer", ARM, set()),
        ("velocity_go1", {**ARM, "joint_position": 12, "joint_velocity": 12}, set()),
        ("cartpole", {**ARM, "joint_position": 2, "joint_velocity": 2}, set()),
    ],
)
def test_the_state_has_isaac_labs_layout_and_loose_bodies_move_as_their_joints_do(name, robot, others):
    env = build(name, num_envs=2)
    start(env)
    repeated(env, torch.full(env.action_space.shape, 0.3), 5)
    state, loose = env.state(), {"red_cube": "red/free", "blue_cube": "blue/free", "robot": "robot/free"}
    found = state["articulation"]["robot"]
    assert {key: tuple(value.shape) for key, value in found.items()} == {key: (2, size) for key, size in robot.items()}
    assert set(state.get("rigid_object", {})) == others
    assert set(state["articulation"]) == {"robot", *(["cabinet"] if name == "open_drawer" else [])}
    if name in ("open_drawer", "cartpole"):
        assert not found["root_velocity"].any()
        assert found["root_pose"][0, 2] == pytest.approx(1.2 if name == "cartpole" else 0.0)
    moving = {**state.get("rigid_object", {}), **({"robot": found} if name == "velocity_go1" else {})}
    for thing, body in moving.items():
        assert torch.equal(body["root_pose"], env.backend.joint_position(loose[thing]))
        assert torch.equal(body["root_velocity"], env.backend.free_velocity(loose[thing]))
        assert body["root_velocity"].any()


@pytest.mark.parametrize(("name", "mode"), [*IN_SOME_ACTION_MODE, *((name, None) for name in FLOOR_ENVIRONMENTS)])
def test_acting_at_random_solves_no_task_and_breaks_no_physics(name, mode):
    env = build(name, num_envs=2, **({"action_mode": mode} if mode else {}))
    start(env)
    for action in random_actions(env, 60):
        step = env.step(action)
        assert not (solved(step) | step.diverged).any()


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


# Verdicts and observations that are replayed are those that are made step by step, bit for bit.

NUM_ENVS = 3
STEPS = 14
GPU = torch.device("cuda:0")


def built(
    name: str, *, capture: Capture | None = None, device: torch.device = CPU, parts=None, **options
) -> ArenaEnvironment:
    """Return an environment that replays its verdicts, or does not; ``parts`` replaces some of its builder."""
    builder = ENVIRONMENTS.get(name)

    def make_backend(*args, **how) -> Backend:
        backend = builder.make_backend(*args, **how)
        backend.capture = capture
        return backend

    changed = replace(builder, make_backend=make_backend, **(parts or {}))
    return changed.build(changed.config_class(**options), num_envs=NUM_ENVS, device=device, num_threads=1)


def steps_of(env: ArenaEnvironment) -> list[dict[str, torch.Tensor]]:
    """Results of steps in some of which an env slot rests, times out or begins anew."""
    start(env, [0, 1])
    env._length[0] = env.max_episode_length - STEPS + 4
    return given(env, random_actions(env, STEPS))


def given(env: ArenaEnvironment, actions: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Make steps, after two of which a new episode starts in env slot 1."""
    seen = []
    for index, action in enumerate(actions):
        seen.append(tensors_of(env.step(action)))
        if index in {2, 6}:
            conditions = env.draw_conditions(episode(40 + index).conditions_generator())
            seen.append(flat(env.reset(torch.tensor([1]), [conditions])))
    return seen


SEEING = {"enable_cameras": True, "camera_size": 16}


@pytest.mark.parametrize("name", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_every_task_gives_the_same_where_its_verdicts_are_replayed_also_beside_pictures(name, caplog):
    options = SEEING if name == "lift_object" else {}
    with caplog.at_level(logging.INFO):
        replayed = built(name, capture=tape, **options)
    assert replayed.task.capturable
    assert_the_same(steps_of(replayed), steps_of(built(name, **options)))
    assert "not replayed" not in caplog.text


class CountingWalk(VelocityGo1):
    """Judges by a number of its own, which no graph knows."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = 0

    def judge(self, backend, running) -> Verdict:
        self.judged += 1
        return super().judge(backend, running)


def test_a_task_with_a_verdict_of_its_own_is_judged_step_by_step_until_it_says_otherwise():
    task = CountingWalk()
    env = built("velocity_go1", capture=tape, parts={"make_task": lambda _: task})
    start(env)
    for action in random_actions(env, 5):
        env.step(action)
    assert task.judged == 5
    assert type("SaysSo", (CountingWalk,), {"capturable": True}).capturable
    # A class beside the one that judges says nothing of that verdict.
    assert not type("Mixed", (type("Fast", (), {"capturable": True}), CountingWalk), {}).capturable


def memory_of(task: Task) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in task.memory().items()}


def judged_again(env: ArenaEnvironment, before: Mapping[str, torch.Tensor], moved: torch.Tensor) -> Verdict:
    """Judge the state once more, step by step, from what the task remembered before."""
    live = dict(env.task.memory())
    after = memory_of(env.task)
    for name, tensor in live.items():
        tensor.copy_(before[name])
    judgement = env.task.judge(env.backend, moved)
    for name, tensor in live.items():
        assert torch.equal(getattr(env.task, name), after[name]), name
        tensor.copy_(after[name])
        setattr(env.task, name, tensor)
    return judgement


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lift_object", "velocity_go1", "walk_humanoid", "open_drawer"])
def test_graphs_of_a_gpu_give_the_verdicts_and_observations_of_single_kernels(name, caplog):
    env = built(name, device=GPU, backend="warp", capture=capture_on(GPU))
    start(env)
    with torch.no_grad(), caplog.at_level(logging.INFO):
        for action in random_actions(env, STEPS).to(GPU):
            env._command(action)
            env.backend.step(env._running, env._num_substeps)
            before = memory_of(env.task)
            env._sound.copy_(env._running)
            replayed = env._judge()
            plain = judged_again(env, before, env._running)
            for field in ("reward", "success", "lost"):
                assert torch.equal(getattr(replayed, field), getattr(plain, field)), field
            for metric, value in plain.metrics.items():
                found = replayed.metrics[metric]
                torch.testing.assert_close(found, value, rtol=0, atol=0, equal_nan=True, msg=metric)
            seen = env._observation()["policy"]
            for term, spec in env._terms.items():
                assert torch.equal(seen[term], spec.read(env.backend).to(torch.float32)), term
    assert "not replayed" not in caplog.text


# Snapshots of an environment: what goes on from one is what would have gone on.

BEFORE = 7


@pytest.mark.parametrize("name", ["close_drawer", *FLOOR_ENVIRONMENTS])
def test_training_goes_on_from_a_snapshot_as_if_nothing_had_happened(name):
    env, other = built(name), built(name)
    actions = random_actions(env, BEFORE + STEPS)
    start(env)
    # An env slot that ends within the steps after the snapshot, and one that rests.
    env._length[0] = env.max_episode_length - BEFORE - 5
    env._length[2] = env.max_episode_length - 2
    last = [env.step(action) for action in actions[:BEFORE]][-1]
    snapshot = env.snapshot()
    assert snapshot is not None
    kept = {key: value.clone() for key, value in snapshot.items()}
    expected = given(env, actions[BEFORE:])
    assert any(seen["truncated"][0] or seen["terminated"][0] for seen in expected if "truncated" in seen)
    observation = flat(other.restore_snapshot(kept))
    assert all(torch.equal(observation[key], value) for key, value in flat(last.observation).items())
    assert_the_same(given(other, actions[BEFORE:]), expected)


def test_cameras_and_variations_take_no_snapshots():
    assert build("reach", **SEEING).snapshot() is None
    assert build_varied("reach", {"light.intensity.enabled": True}).snapshot() is None


@pytest.fixture
def objects():
    """The catalog of objects; what a test registers is gone after it."""
    with OBJECTS.restored_afterwards() as catalog:
        yield catalog


@pytest.mark.parametrize("object_name", ["cylnder", None, 3, ["cube"]])
def test_all_unknown_names_are_reported_at_once_with_suggestions(object_name):
    problems = refusal("lift_object", embodiment="pandda", object=object_name, action_mode="ee_dleta").problems
    assert [problem.key for problem in problems] == ["embodiment", "object", "action_mode"]
    assert "'panda'" in problems[0].message
    assert ("'cylinder'" in problems[1].message.partition(";")[2]) == (object_name == "cylnder")


@pytest.mark.parametrize(
    ("task", "changes", "size"),
    [("lift_object", {"grasp_width": 0.2}, "0.072 m"), ("pick_and_place", {"footprint_radius": 0.2}, "0.40 m across")],
)
def test_an_object_too_large_for_the_gripper_or_the_bin_is_refused_with_the_reason(objects, task, changes, size):
    objects.register("crate", dataclasses.replace(CUBE, name="crate", **changes))
    (problem,) = refusal(task, object="crate").problems
    assert problem.key == "object"
    assert size in problem.message


def test_a_users_own_object_can_be_lifted(objects):
    objects.register("brick", dataclasses.replace(CUBE, name="brick", words="small brick"))
    env = build("lift_object", object="brick")
    assert env.task_description == "pick up the small brick and lift it"
    assert set(env.state()["rigid_object"]) == {"brick"}


def test_build_checks_too():
    builder = ENVIRONMENTS.get("reach")
    with pytest.raises(ConfigError, match="no embodiment called 'sawyer'"):
        builder.build(builder.config_class(embodiment="sawyer"), num_envs=1, device=torch.device("cpu"), num_threads=1)


ALL = pytest.mark.parametrize("name", FLOOR_ENVIRONMENTS)


@ALL
def test_an_env_slot_is_the_same_to_the_last_bit_in_any_batch_and_on_any_number_of_threads(name):
    alone, many = build_on_the_floor(name), build_on_the_floor(name, num_envs=9, num_threads=2)
    start(many)
    alone.reset(torch.tensor([0]), [many.draw_conditions(episode(6).conditions_generator())])
    for action in random_actions(many, 20):
        seen = {name: value[6:7] for name, value in tensors_of(many.step(action)).items()}
        assert_the_same([seen], [tensors_of(alone.step(action[6:7]))])


@ALL
def test_an_environment_stepped_in_inference_mode_goes_on_outside_of_it(name):
    env = build(name, num_envs=2)
    still = torch.zeros(env.action_space.shape)
    with torch.inference_mode():
        start(env)
        step = env.step(still)
    snapshot = env.snapshot()
    assert snapshot is not None
    assert not step.reward.is_inference()
    env.step(still.clone().requires_grad_())
    start(env, [1])
    with torch.inference_mode():
        env.restore_snapshot(snapshot)
    start(env)
    assert not any(value.requires_grad for value in env.step(still).observation["policy"].values())


@pytest.mark.parametrize("name", [*ALL_ENVIRONMENTS, *FLOOR_ENVIRONMENTS])
def test_it_says_what_it_asks_for_and_when_it_is_solved_and_is_listed(name):
    summary, env = ENVIRONMENTS.get(name).summary(), build(name)
    assert summary.instruction
    assert summary.success.startswith("Solved when ")
    assert name in ALL_ENVIRONMENTS or "Lost when " in summary.success
    assert (summary.episode_length, summary.episode_s) == (
        env.max_episode_length,
        pytest.approx(env.max_episode_length * env.control_dt),
    )
    assert env.provenance()["embodiment"] in summary.embodiments
    assert name in catalog_text(ENVIRONMENTS)


def test_the_viewport_follows_a_robot_that_walks_away():
    env = build_on_the_floor("velocity_go1", viewport_width=48, viewport_height=36)
    assert env.filmable == (VIEWPORT,)
    start(env)
    here = env.film([0], [VIEWPORT])[VIEWPORT].astype(int)
    env.backend.qpos[0, 0] += 20.0
    there = env.film([0], [VIEWPORT])[VIEWPORT].astype(int)
    assert here.std() > 20
    assert np.abs(here[:, :20] - there[:, :20]).mean() < 3
    assert np.abs(here - there).mean() < 25


def test_only_objects_that_work_are_named():
    assert {"plate", "bin"}.isdisjoint(ENVIRONMENTS.get("lift_object").summary().objects)
    assert {"plate", "bin", "cube"} <= set(ENVIRONMENTS.get("push_to_goal").summary().objects)
    assert ENVIRONMENTS.get("reach").summary().objects == ()
