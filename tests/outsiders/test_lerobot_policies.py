"""LeRobot itself, in an interpreter of its own: its policies act here as in LeRobot's own loop, bit for bit."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.policy.lerobot.policy import LeRobotPolicy

PYTHON = os.environ.get("LEROBOT_PYTHON", "")
VARIABLES = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="LeRobot's interpreter is missing: make test-benchmarks makes it"),
]


def in_lerobot(*words: object) -> None:
    command = [PYTHON, str(Path(__file__).with_name("lerobot_own_loop.py")), *map(str, words)]
    subprocess.run(command, check=True, env={**os.environ, **VARIABLES})


def lift_object(num_envs: int) -> Environment:
    builder = ENVIRONMENTS.get("lift_object")
    config = builder.config_class(enable_cameras=True, camera_size=64)
    return builder.build(config, num_envs=num_envs, device=torch.device("cpu"), num_threads=1)


def policy_in(directory: Path, picture: str = "") -> LeRobotPolicy:
    options = {
        "pretrained": str(directory),
        "python": PYTHON,
        "environment_variables": VARIABLES,
        "states": {"observation.state": ["robot_joint_pos", "gripper_pos"]},
        "images": {picture: "wrist_cam_rgb"} if picture else {},
    }
    return LeRobotPolicy.from_dict(options)


@dataclass
class Played:
    """What a policy was shown in an episode, and what it did."""

    number: int
    length: int
    pictures: list[np.ndarray] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)

    @property
    def episode(self) -> Episode:
        return Episode(job="lift", episode_index=self.number, seed=5)

    def see(self, observation: Observation, env_id: int) -> None:
        own = observation["policy"]
        self.pictures.append(observation["camera_obs"]["wrist_cam_rgb"][env_id].numpy().copy())
        self.states.append(torch.cat([own["robot_joint_pos"], own["gripper_pos"]], dim=1)[env_id].numpy())

    def write(self, path: Path, query_every: int) -> None:
        """Write what was shown, and the seed of the noise of the query that each step belongs to."""
        stream = self.episode.policy_generator()
        seeds = [stream.integers(2**63 - 1, endpoint=True) for _ in range(self.length)]
        repeated = np.repeat(seeds, query_every)[: self.length]
        np.savez(path, seeds=repeated, pictures=np.stack(self.pictures), states=np.stack(self.states))


def begin(policy: LeRobotPolicy, environment: Environment, env_id: int, episode: Episode) -> Observation:
    """Begin an episode in an env slot, and return what all of them show."""
    conditions = environment.draw_conditions(episode.conditions_generator())
    observation = environment.reset(torch.tensor([env_id]), [conditions])
    start = EpisodeStart(env_id=env_id, episode=episode, conditions=conditions, language_instruction="lift")
    policy.start_episodes(environment, [start])
    return observation


def played(policy: LeRobotPolicy, environment: Environment, lengths: Sequence[int]) -> list[Played]:
    """Return episodes of some lengths, each in the first env slot that is free."""
    episodes = [Played(number, length) for number, length in enumerate(lengths, start=3)]
    waiting, playing = list(episodes), dict[int, Played]()
    observation: Observation = {}
    while waiting or playing:
        for env_id in range(environment.num_envs):
            if env_id not in playing and waiting:
                playing[env_id] = waiting.pop(0)
                observation = begin(policy, environment, env_id, playing[env_id].episode)
        for env_id, episode in playing.items():
            episode.see(observation, env_id)
        action = policy.get_action(environment, observation)
        for env_id, episode in playing.items():
            episode.actions.append(action[env_id].numpy().copy())
        observation = environment.step(action).observation
        ended = [env_id for env_id, episode in playing.items() if len(episode.actions) == episode.length]
        policy.end_episodes(environment, ended)
        for env_id in ended:
            del playing[env_id]
    return episodes


def check_against_lerobot(directory: Path, episodes: Sequence[Played], query_every: int, workplace: Path) -> None:
    """Have LeRobot's own loop play the same observations, each episode alone, and compare what it does."""
    files = [(workplace / f"shown_{each.number}.npz", workplace / f"did_{each.number}.npy") for each in episodes]
    for episode, (shown, _) in zip(episodes, files, strict=True):
        episode.write(shown, query_every)
    in_lerobot("play", directory, *(name for pair in files for name in pair))
    for episode, (_, did) in zip(episodes, files, strict=True):
        actions = np.stack(episode.actions)
        assert np.array_equal(actions, np.load(did)), episode.number
        assert np.abs(np.diff(actions, axis=0)).max() > 0


@pytest.mark.parametrize(("kind", "num_actions"), [("act", 6), ("diffusion", 8), ("vqbet", 5), ("tdmpc", 2)])
def test_a_policy_acts_as_in_lerobots_own_loop(tmp_path, kind, num_actions):
    in_lerobot("make", kind, tmp_path / "policy")
    environment = lift_object(1)
    policy = policy_in(tmp_path / "policy", "observation.image" if kind == "tdmpc" else "")
    episodes = played(policy, environment, [20])
    policy.close()
    environment.close()
    check_against_lerobot(tmp_path / "policy", episodes, num_actions, tmp_path)


@pytest.mark.parametrize("kind", ["act_averaging", "tdmpc_planning"])
def test_a_policy_that_remembers_acts_in_any_number_of_env_slots_as_in_lerobots_own_loop(tmp_path, kind):
    directory = tmp_path / "policy"
    in_lerobot("make", kind, directory)
    policy = policy_in(directory, "observation.image" if kind.startswith("tdmpc") else "")
    for num_envs in (1, 3):
        environment = lift_object(num_envs)
        episodes = played(policy, environment, [14, 5, 9, 12, 3, 11])
        environment.close()
        policy.reset()
        check_against_lerobot(directory, episodes, 1, tmp_path)
    policy.close()
