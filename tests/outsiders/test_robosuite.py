"""robosuite itself, in an interpreter of its own: what runs here is what a plain loop there gives, bit for bit."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.environments.gym.gym_running import build
from tests.environments.gym.test_builder import problems
from tests.outsiders.opengl import opengl_variables

PYTHON = os.environ.get("ROBOSUITE_PYTHON", "")
NUM_STEPS, PERIOD, SEED = 200, 8, 77
CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
VARIABLES = opengl_variables()

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="robosuite's interpreter is missing: make test-benchmarks makes it"),
]


def in_workers(task: str, *, num_envs: int = 1, enable_cameras: bool = False):
    options = {"python": PYTHON, "environment_variables": VARIABLES, "enable_cameras": enable_cameras}
    return build(f"robosuite:{task}", num_envs=num_envs, **options)


def bare(task: str, actions: np.ndarray, directory: Path) -> dict[str, np.ndarray]:
    """Return the observations of a plain loop, by name."""
    np.save(directory / "actions.npy", actions)
    script, out = Path(__file__).with_name("bare_robosuite.py"), directory / "bare.npz"
    command = [PYTHON, str(script), task, str(SEED), str(directory / "actions.npy"), str(out)]
    subprocess.run(command, check=True, env={**os.environ, **VARIABLES}, capture_output=True)
    return dict(np.load(out))


@pytest.mark.parametrize("task", ["Lift", "PickPlaceCan"])
def test_states_and_pictures_are_those_of_a_plain_loop(task, tmp_path):
    actions = np.random.default_rng(1).uniform(-1, 1, (NUM_STEPS, 7)).astype(np.float32)
    expected = bare(task, actions, tmp_path)
    environment = in_workers(task, enable_cameras=True)
    # An episode of another seed comes first: what ran before must not matter.
    environment.reset(torch.tensor([0]), [{"gym.seed": 1}])
    environment.step(torch.ones(1, 7))
    observation = environment.reset(torch.tensor([0]), [{"gym.seed": SEED}])
    states: dict[str, np.ndarray] = {}
    for number in range(NUM_STEPS + 1):
        if number > 0:
            environment.draw_pictures_of([0] if number % PERIOD == 0 else [])
            observation = environment.step(torch.from_numpy(actions[number - 1])[None]).observation
        states = {name: term[0].numpy() for name, term in observation["policy"].items()}
        for name, value in states.items():
            plain = expected["object-state" if name == "object" else name][number]
            assert np.array_equal(value, plain.astype(np.float32)), (number, name)
        for name in CAMERAS if number % PERIOD == 0 else ():
            picture = observation["camera_obs"][name][0].numpy()
            assert np.array_equal(picture, expected[name][number][::-1]), (number, name)
    environment.close()
    assert len(states) == len(expected) - len(CAMERAS) - 1


def test_two_arms_and_their_cameras():
    environment = in_workers("TwoArmLift", enable_cameras=True)
    observation = environment.reset(torch.tensor([0]), [{"gym.seed": 1}])
    assert environment.action_spec.shape == (14,)
    assert all(observation["camera_obs"][name][0].any() for name in CAMERAS)
    environment.close()


def test_what_simulated_is_told():
    environment = in_workers("Lift")
    told = environment.provenance()
    assert told["robosuite"] == "1.5.2"
    assert told["engine"] == f"mujoco {told['mujoco']}"
    environment.close()


def test_tasks_and_robots_that_do_not_exist_are_told():
    assert "did you mean 'Lift'?" in problems("robosuite:Lfit", python=PYTHON)
    assert "robots: robosuite has no robot 'Pander'" in problems("robosuite:Lift", python=PYTHON, robots=["Pander"])


@pytest.mark.parametrize(
    ("task", "robots", "num_actions", "horizon"),
    [
        ("NutAssemblySquare", [], 7, 400),
        ("TwoArmTransport", [], 14, 700),
        ("ToolHang", [], 7, 700),
        ("Lift", ["Sawyer"], 7, 400),
        ("Lift", ["IIWA"], 7, 400),
        ("Lift", ["UR5e"], 7, 400),
    ],
)
def test_robomimic_s_other_tasks_and_other_robots_are_made_and_step(task, robots, num_actions, horizon):
    options = {"python": PYTHON, "environment_variables": VARIABLES, "robots": robots}
    environment = build(f"robosuite:{task}", **options)
    environment.reset(torch.tensor([0]), [{"gym.seed": 1}])
    assert (environment.action_spec.shape, environment.max_episode_length) == ((num_actions,), horizon)
    step, *_ = [environment.step(torch.full((1, num_actions), 0.1)) for _ in range(3)][::-1]
    assert not step.diverged.any()
    assert all(torch.isfinite(term).all() for term in step.observation["policy"].values())
    environment.close()
