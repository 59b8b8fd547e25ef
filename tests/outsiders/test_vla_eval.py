"""vla-eval itself, in an interpreter of its own: its benchmark classes run here as its own runner runs them.

``VLA_EVAL_LIBERO_PYTHON`` names an interpreter that has vla-eval, torch and pip's package of LIBERO.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.environments import Environment
from tests.environments.gym.gym_running import build

PYTHON = os.environ.get("VLA_EVAL_PYTHON", "")
LIBERO_PYTHON = os.environ.get("VLA_EVAL_LIBERO_PYTHON", "")
ROOT = Path(__file__).parents[2]
POINTS = "tests.environments.gym.vla_eval_points:PointBenchmark"
LIBERO = "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark"
LIBERO_ARGUMENTS = {"suite": "libero_spatial", "send_state": True, "send_wrist_image": True}
LIBERO_REQUEST = {"class": LIBERO, "arguments": LIBERO_ARGUMENTS, "task": 4, "seed": None, "render": "cpu"}
ON_CPU = {"MUJOCO_GL": "osmesa"}  # as the requests below say
SEED = 77

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]
MISSING = "is missing: make test-benchmarks makes it"
needs_vla_eval = pytest.mark.skipif(not PYTHON, reason=f"vla-eval's interpreter {MISSING}")
needs_libero = pytest.mark.skipif(not LIBERO_PYTHON, reason=f"vla-eval's interpreter with LIBERO {MISSING}")


def plain_loop(python: str, variables: dict[str, str], request: dict[str, Any], actions: np.ndarray, directory: Path):
    """Return the observations and the ends of episodes in vla-eval's own runner, by name."""
    (directory / "request.json").write_text(json.dumps(request))
    np.save(directory / "actions.npy", actions)
    files = [str(directory / name) for name in ("request.json", "actions.npy", "plain.npz")]
    command = [python, str(Path(__file__).with_name("vla_eval_loop.py")), *files]
    subprocess.run(command, check=True, env={**os.environ, **variables}, capture_output=True)
    return dict(np.load(directory / "plain.npz"))


def assert_equal_episode(environment: Environment, episode: int, actions: np.ndarray, plain: dict[str, np.ndarray]):
    """Play an episode here; it shows the same numbers and pictures, bit for bit, and ends at the same step."""
    observation = environment.reset(torch.tensor([0]), [{"gym.seed": SEED, "gym.episode_index": episode}])
    num_steps = int(plain["steps"])
    for number in range(num_steps):
        for name, value in {**observation["policy"], **observation["camera_obs"]}.items():
            expected = plain[name][number]
            assert np.array_equal(value[0].numpy(), expected.astype(value.numpy().dtype)), (number, name)
        step = environment.step(torch.from_numpy(actions[number])[None])
        observation = step.observation
        assert bool(step.terminated | step.truncated) == (number == num_steps - 1)
        assert not step.diverged.any()
        if number == num_steps - 1:
            assert step.success is not None
            assert step.success.item() == bool(plain["success"])


def episodes_of(plain: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
    prefix = f"{number}/"
    return {name[len(prefix) :]: each for name, each in plain.items() if name.startswith(prefix)}


@needs_vla_eval
def test_a_small_benchmark_runs_as_vla_evals_own_runner_runs_it_without_gymnasium(tmp_path):
    actions = np.random.default_rng(3).uniform(-3, 3, (6, 2)).astype(np.float32)
    variables = {"PYTHONPATH": str(ROOT)}
    request = {"class": POINTS, "arguments": {}, "task": 1, "episodes": [0, 3], "seed": SEED, "render": "gpu"}
    plain = plain_loop(PYTHON, variables, request, actions, tmp_path)
    environment = build(f"vla_eval:{POINTS}", python=PYTHON, environment_variables=variables, task=1)
    for number, episode in enumerate(request["episodes"]):
        assert_equal_episode(environment, episode, actions, episodes_of(plain, number))
    told = environment.provenance()
    environment.close()
    assert told["vla_eval"] == "0.8.0"


@needs_libero
def test_libero_runs_as_vla_evals_own_runner_runs_it_whatever_was_played_before(tmp_path):
    actions = np.random.default_rng(1).uniform(-1, 1, (24, 7)).astype(np.float32)
    plain = plain_loop(LIBERO_PYTHON, ON_CPU, {**LIBERO_REQUEST, "episodes": [7]}, actions, tmp_path)
    options = {"python": LIBERO_PYTHON, "environment_variables": ON_CPU, "make_kwargs": LIBERO_ARGUMENTS}
    environment = build(f"vla_eval:{LIBERO}", task=4, max_episode_length=len(actions), **options)
    environment.reset(torch.tensor([0]), [{"gym.seed": 1, "gym.episode_index": 2}])
    assert_equal_episode(environment, 7, actions, episodes_of(plain, 0))
    told = environment.provenance()
    environment.close()
    assert {"vla_eval", "robosuite", "mujoco"} <= set(told)
    # The class imports its engine inside of its methods.
    assert (told["engine"], told["MUJOCO_GL"]) == (f"mujoco {told['mujoco']}", "osmesa")
    assert "llvmpipe" in told["renderer"]


@needs_libero
def test_libero_s_protocol_of_this_name_plays_what_vla_evals_own_runner_plays(tmp_path, monkeypatch):
    monkeypatch.delenv("LIBERO_PATH", raising=False)
    actions = np.random.default_rng(4).uniform(-1, 1, (30, 7)).astype(np.float32)
    request = {**LIBERO_REQUEST, "episodes": [0, 1, 2], "keep": True}
    told = plain_loop(LIBERO_PYTHON, ON_CPU, request, actions, tmp_path)
    options = {"python": LIBERO_PYTHON, "environment_variables": ON_CPU}
    environment = build("libero:libero_spatial/4", protocol="vla_eval", enable_cameras=True, **options)
    for episode in (2, 0, 1):
        plain = episodes_of(told, episode)
        conditions = {"libero.fixture_seed": 7, "libero.reset_index": episode, "libero.init_state": episode}
        observation, success = environment.reset(torch.tensor([0]), [conditions]), None
        for number in range(int(plain["steps"])):
            shown = observation["policy"]
            numbers = torch.cat([shown["robot0_eef_pos"][0], shown["robot0_gripper_qpos"][0]]).numpy()
            expected = plain["states"][number][[0, 1, 2, 6, 7]].astype(np.float32)
            assert np.array_equal(numbers, expected), (episode, number)
            for name, camera in (("agentview", "agentview_image"), ("wrist", "robot0_eye_in_hand_image")):
                picture = observation["camera_obs"][camera][0].numpy()
                assert np.array_equal(picture, plain[name][number]), (episode, number, name)
            step = environment.step(torch.from_numpy(actions[number])[None])
            observation, success = step.observation, step.success
        assert success is not None
        assert success.item() == bool(plain["success"])
    environment.close()
