"""Benchmark classes of vla-eval run in workers; a stand-in has vla-eval's names."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.environments.catalog import ENVIRONMENTS, SUITES
from isaaclab_arena.environments.gym.environment import GymEnvironment
from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.zero_action_policy import ZeroActionPolicy
from tests.environments.gym.gym_running import build, problems, run

ROOT = Path(__file__).parents[3]
MODULE = "tests.environments.gym.vla_eval_points"
POINTS = f"vla_eval:{MODULE}:PointBenchmark"
ELSEWHERE = ROOT / "tests/environments/elsewhere"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """Makes vla-eval importable, and gone again afterwards."""
    monkeypatch.syspath_prepend(str(ELSEWHERE))
    state = np.random.get_state()
    yield
    np.random.set_state(state)
    for name in [name for name in sys.modules if name.partition(".")[0] == "vla_eval" or name == MODULE]:
        del sys.modules[name]


def points(**options: Any) -> GymEnvironment:
    return build(POINTS, **{"task": "move right", **options})


def conditions(episode_index: int, seed: int = 5) -> dict[str, Any]:
    return {"gym.seed": seed, "gym.episode_index": episode_index}


def start(environment: GymEnvironment, episode_index: int, seed: int = 5) -> np.ndarray:
    observation = environment.reset(torch.tensor([0]), [conditions(episode_index, seed)])
    return observation["policy"]["state.place"][0].numpy()


def test_a_task_has_the_classes_limit_observations_action_and_hold_action_without_gymnasium(tmp_path):
    (tmp_path / "gymnasium.py").write_text("raise ImportError('there is no Gymnasium')\n")
    variables = {"PYTHONPATH": f"{tmp_path}:{ROOT}:{ELSEWHERE}"}
    environment = points(python=sys.executable, environment_variables=variables)
    observation = environment.reset(torch.tensor([0]), [conditions(3)])
    assert environment.max_episode_length == 6
    assert set(observation["policy"]) == {"state.place", "state.clock"}
    assert observation["camera_obs"]["front"].shape == (1, 4, 5, 3)
    assert (environment.action_spec.shape, environment.action_spec.low) == ((2,), None)
    assert environment.hold_action == (0.0, 0.0)
    assert environment.instruction(conditions(3)) == "move right now"
    environment.close()


def test_an_episode_is_the_one_of_its_index_whatever_was_played_before_unless_one_object_is_kept():
    environment = points()
    first, other, again, elsewhere = (start(environment, *each) for each in ((3,), (4,), (3,), (3, 6)))
    assert np.array_equal(first, again)
    assert 0.05 < other[0] - first[0] < 0.15
    assert 0 < np.abs(elsewhere - first).max() < 0.1
    kept = points(new_each_episode=False, seeded=False)
    assert [round(float(start(kept, 0)[1])) for _ in range(2)] == [1, 2]
    with pytest.raises(ArenaError, match="differently"):
        points(new_each_episode=False)


def test_actions_are_passed_on_as_they_are_and_the_result_is_that_of_the_last_step():
    environment = points()
    place = start(environment, 0)
    for number in range(1, 6):
        step = environment.step(torch.tensor([[0.5, 0.0]]))
        assert not step.truncated.any()
        assert torch.isnan(step.metrics["distance"]).all(), number
    # Ten times what the spec allows.
    step = environment.step(torch.tensor([[10.0 * (1 - place[0]) - 2.5, -10.0 * place[1]]]))
    assert step.success is not None
    assert (step.terminated.item(), step.success.item()) == (True, True)
    assert step.metrics["distance"].item() < 1e-5
    environment.close()


def test_every_episode_has_its_task_its_index_and_its_instruction_whatever_env_slot_plays_it():
    alone, together = (
        run(POINTS, policy=ZeroActionPolicy(), num_envs=num_envs, num_episodes=4, task=1) for num_envs in (1, 3)
    )
    shown = [
        {index: (each.conditions, each.outcome, each.length, each.metrics) for index, each in records.items()}
        for records in (alone, together)
    ]
    assert shown[0] == shown[1]
    assert {each.outcome for each in alone.values()} == {Outcome.TIMEOUT}
    told = [(each.conditions["vla_eval.task"], each.conditions["gym.episode_index"]) for each in alone.values()]
    assert sorted(told) == [("move right", index) for index in range(4)]
    assert alone[0].language_instruction == "move right now"


def test_a_benchmark_that_fails_costs_its_episode_and_one_that_has_no_such_episode_is_told():
    records = run(POINTS, num_episodes=2, task=0, make_kwargs={"fails_at": 2})
    assert {each.error for each in records.values()} == {"OSError: the point was lost"}
    with pytest.raises(ValueError, match="episode 5 does not exist"):
        start(points(), 5)


def test_a_class_of_coroutines_runs_and_its_action_dim_can_be_given():
    name = f"vla_eval:{MODULE}:RealTimeBenchmark"
    environment = build(name, action_dim=3)
    assert (environment.max_episode_length, environment.hold_action) == (300, "last")
    environment.close()
    records = run(name, num_episodes=1, action_dim=3)
    assert (records[0].outcome, records[0].length, records[0].language_instruction) == (Outcome.SUCCESS, 2, "wait")
    with pytest.raises(ArenaError, match="give action_dim"):
        build(name)


def test_results_name_the_task_an_engine_that_the_class_imports_late_and_what_it_draws_with():
    variables = {"PYTHONPATH": f"{ROOT}:{ELSEWHERE}", "MUJOCO_GL": "egl"}
    name = f"vla_eval:{MODULE}:LateBenchmark"
    environment = build(name, task=0, python=sys.executable, environment_variables=variables)
    told = environment.provenance()
    environment.close()
    assert (told["engine"], told["MUJOCO_GL"]) == (f"mujoco {mujoco.__version__}", "disabled")
    builder = ENVIRONMENTS.get(POINTS)
    names = [builder.task_name(builder.config_class(**options)) for options in ({"task": "move left"}, {"task": 1}, {})]
    assert names == ["move left", "PointBenchmark/1", "PointBenchmark"]


@pytest.mark.parametrize(
    ("class_name", "options", "told"),
    [
        ("PointBenchmrk", {}, "environment: .*did you mean 'PointBenchmark'"),
        ("PointBenchmark", {}, "task: .*'move left', 'move right'"),
        ("PointBenchmark", {"task": "move rihgt"}, "task: .*'move rihgt'; did you mean 'move right'"),
        ("PointBenchmark", {"task": 2}, "task: .*no task 2"),
        ("PointBenchmark", {"task": 0, "make_kwargs": {"ofset": 1}}, "make_kwargs: .*'ofset'"),
        ("RealTimeBenchmark", {"render": "cpu"}, "render: 'cpu'"),
        ("np", {}, "class 'np'"),
        ("PointBenchmark", {"task": 0, "tasks": 3}, "tasks: is 3, .* has 2"),
    ],
)
def test_what_a_class_does_not_have_or_take_is_told_before_anything_starts(class_name, options, told):
    assert re.search(told, problems(f"vla_eval:{MODULE}:{class_name}", **options))


@pytest.mark.parametrize(
    ("mujoco_gl", "render", "mode"), [("osmesa", None, "cpu"), ("egl", None, "gpu"), ("egl", "cpu", "cpu")]
)
def test_the_class_is_told_where_to_draw(mujoco_gl, render, mode, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", mujoco_gl)
    monkeypatch.setenv("POINTS_ARE_DRAWN_ON", "")
    assert problems(POINTS, render=render, task=9).startswith("task: ")
    assert os.environ["POINTS_ARE_DRAWN_ON"] == mode


def test_more_episodes_than_the_class_has_are_refused_before_anything_starts():
    def planned(name: str, **asked: int) -> list[int | None]:
        job = {"name": "points", "policy_type": "zero_action", **asked}
        job["arena_env_args"] = {"environment": f"vla_eval:{MODULE}:{name}", "task": 0, "action_dim": 2}
        jobs = read_jobs({"jobs": [job]}, source="jobs.yaml").jobs
        return [each.config.num_episodes for each in resolve_jobs(jobs, file="jobs.yaml")]

    assert planned("PointBenchmark") == planned("PointBenchmark", num_episodes=5) == [5]
    with pytest.raises(ConfigError, match=r"jobs\.yaml: job 'points': num_episodes: is 6"):
        planned("PointBenchmark", num_episodes=6)
    assert planned("RealTimeBenchmark", num_episodes=6) == [6]


def test_vla_eval_missing_is_told_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(ELSEWHERE)])
    told = problems("vla_eval:vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark")
    assert "No module named 'vla_eval'" in told
    assert "pip install vla-eval==0.8.0" in told


def suite(**options: Any) -> list[str]:
    job = {"name": "points", "suite": POINTS, "policy_type": "zero_action", "arena_env_args": options}
    jobs = read_jobs({"jobs": [job]}, source="jobs.yaml", suites=SUITES).jobs
    return [f"{job.name} {job.environment} {job.environment_args['task']}" for job in jobs]


def test_a_suite_is_one_job_for_each_task_of_the_class_called_by_its_index():
    assert suite(tasks=2) == [f"points-{task} {POINTS} {task}" for task in (0, 1)]
    environment = points(task=1, tasks=2)
    start(environment, 0)
    assert environment.instruction(conditions(0)) == "move right now"


@pytest.mark.parametrize(
    ("options", "key"), [({}, "tasks"), ({"tasks": 10**9}, "tasks"), ({"tasks": 2, "task": 1}, "task")]
)
def test_a_suite_has_to_say_how_many_tasks_there_are_and_names_none(options, key):
    with pytest.raises(ConfigError, match=rf"arena_env_args\.{key}: "):
        suite(**options)
