"""LeRobot itself, in an interpreter of its own: its policies act here as in LeRobot's own loop, bit for bit."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.policy.lerobot.policy import LeRobotPolicy

PYTHON = os.environ.get("LEROBOT_PYTHON", "")
VARIABLES = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
NUM_STEPS = 20
EPISODE = Episode(job="lift", episode_index=3, seed=5)

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="LeRobot's interpreter is missing: make test-benchmarks makes it"),
]


def in_lerobot(*words: object) -> None:
    command = [PYTHON, str(Path(__file__).with_name("lerobot_own_loop.py")), *map(str, words)]
    subprocess.run(command, check=True, env={**os.environ, **VARIABLES})


def lift_object() -> Environment:
    builder = ENVIRONMENTS.get("lift_object")
    config = builder.config_class(enable_cameras=True, camera_size=64)
    return builder.build(config, num_envs=1, device=torch.device("cpu"), num_threads=1)


def played(policy: LeRobotPolicy, environment: Environment) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return what a policy is shown in the first steps of an episode, and what it does."""
    conditions = environment.draw_conditions(EPISODE.conditions_generator())
    observation = environment.reset(torch.tensor([0]), [conditions])
    start = EpisodeStart(env_id=0, episode=EPISODE, conditions=conditions, language_instruction="lift")
    policy.start_episodes(environment, [start])
    pictures, states, actions = [], [], []
    for _ in range(NUM_STEPS):
        own = observation["policy"]
        pictures.append(observation["camera_obs"]["wrist_cam_rgb"][0].numpy().copy())
        states.append(torch.cat([own["robot_joint_pos"], own["gripper_pos"]], dim=1)[0].numpy())
        action = policy.get_action(environment, observation)
        actions.append(action[0].numpy())
        observation = environment.step(action).observation
    return {"pictures": np.stack(pictures), "states": np.stack(states)}, np.stack(actions)


@pytest.mark.parametrize(("kind", "num_actions"), [("act", 6), ("diffusion", 8), ("vqbet", 5), ("tdmpc", 2)])
def test_a_policy_acts_as_in_lerobots_own_loop(tmp_path, kind, num_actions):
    in_lerobot("make", kind, tmp_path / "policy")
    options = {
        "pretrained": str(tmp_path / "policy"),
        "python": PYTHON,
        "environment_variables": VARIABLES,
        "states": {"observation.state": ["robot_joint_pos", "gripper_pos"]},
        "images": {"observation.image": "wrist_cam_rgb"} if kind == "tdmpc" else {},
    }
    environment, policy = lift_object(), LeRobotPolicy.from_dict(options)
    shown, actions = played(policy, environment)
    policy.close()
    environment.close()
    stream = EPISODE.policy_generator()
    seeds = np.repeat([stream.integers(2**63 - 1, endpoint=True) for _ in range(NUM_STEPS)], num_actions)[:NUM_STEPS]
    np.savez(tmp_path / "shown.npz", seeds=seeds, pictures=shown["pictures"], states=shown["states"])
    in_lerobot("play", tmp_path / "policy", tmp_path / "shown.npz", tmp_path / "actions.npy")
    assert np.array_equal(actions, np.load(tmp_path / "actions.npy"))
    assert np.abs(np.diff(actions, axis=0)).max() > 0
