"""LeRobot itself, in an interpreter of its own: its policies act here as in LeRobot's own loop, bit for bit."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from isaaclab_arena import ConfigError
from isaaclab_arena.environments import ENVIRONMENTS, Environment, Episode, Observation
from isaaclab_arena.policies import EpisodeStart, PolicyBase, resolve_policy_class

PYTHON = os.environ.get("LEROBOT_PYTHON", "")
VARIABLES = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="LeRobot's interpreter is missing: make test-benchmarks makes it"),
]


NEEDED = {
    "smolvla": ("transformers", "num2words"),
    "xvla": ("transformers",),
    "pi0": ("transformers.models.siglip.check",),
    "pi05": ("transformers.models.siglip.check",),
}
"""Types that are made of models of the package transformers, and what they need: for the last two one with changes."""

PI_PACKAGES = os.environ.get("LEROBOT_PI_PACKAGES", "")
"""Where these changes are, and what makes the types small."""


def variables_for(kind: str) -> dict[str, str]:
    """Return the environment variables with which a policy runs."""
    here = Path(__file__).parent
    pi = [PI_PACKAGES, str(here / "lerobot_small_pi")]
    paths = {"recurrent": [str(here / "lerobot_recurrent")], "pi0": pi, "pi05": pi}
    return {**VARIABLES, **({"PYTHONPATH": os.pathsep.join(filter(None, paths[kind]))} if kind in paths else {})}


@cache
def lacks(kind: str, module: str) -> bool:
    found = "import importlib, sys; importlib.import_module(sys.argv[1])"
    variables = {**os.environ, **variables_for(kind)}
    tried = subprocess.run([PYTHON, "-c", found, module], check=False, env=variables, stderr=subprocess.DEVNULL)
    return tried.returncode != 0


def make(kind: str, directory: Path) -> Path:
    """Return the directory of a policy with weights of chance."""
    missing = [module for module in NEEDED.get(kind, ()) if lacks(kind, module)]
    if missing:
        pytest.skip(f"LeRobot's interpreter has no {' and '.join(missing)}: lerobot_interpreter.sh installs it")
    in_lerobot("make", kind, directory)
    return directory


def in_lerobot(word: str, *words: object, kind: str = "") -> None:
    command = [PYTHON, str(Path(__file__).with_name("lerobot_own_loop.py")), word, *map(str, words)]
    kind = kind or str(words[0])
    subprocess.run(command, check=True, env={**os.environ, **variables_for(kind)})


def lift_object(num_envs: int) -> Environment:
    builder = ENVIRONMENTS.get("lift_object")
    config = builder.config_class(enable_cameras=True, camera_size=64)
    return builder.build(config, num_envs=num_envs, device=torch.device("cpu"), num_threads=1)


def said_by(directory: Path) -> dict[str, Any]:
    """Return LeRobot's configuration of a policy."""
    return json.loads((directory / "config.json").read_text())


def policy_in(directory: Path) -> PolicyBase:
    said = said_by(directory)
    (picture,) = (name for name, feature in said["input_features"].items() if feature["type"] == "VISUAL")
    options = {
        "pretrained": str(directory),
        "python": PYTHON,
        "environment_variables": variables_for(said["type"]),
        "states": {"observation.state": ["robot_joint_pos", "gripper_pos"]},
        "images": {picture: "wrist_cam_rgb"},
    }
    return resolve_policy_class("lerobot").from_dict(options)


@dataclass
class Played:
    """What a policy was shown in an episode, and what it did."""

    number: int
    length: int
    words: str = "lift"
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

    def seeds(self, query_every: int) -> np.ndarray:
        """Return the seed of the noise of the query that each step belongs to."""
        stream = self.episode.policy_generator()
        seeds = [stream.integers(2**63 - 1, endpoint=True) for _ in range(self.length)]
        return np.repeat(seeds, query_every)[: self.length]


def begin(policy: PolicyBase, environment: Environment, env_id: int, played: Played) -> Observation:
    """Begin an episode in an env slot, and return what all of them show."""
    conditions = environment.draw_conditions(played.episode.conditions_generator())
    observation = environment.reset(torch.tensor([env_id]), [conditions])
    start = EpisodeStart(
        env_id=env_id, episode=played.episode, conditions=conditions, language_instruction=played.words
    )
    policy.start_episodes(environment, [start])
    return observation


def play(policy: PolicyBase, episodes: Sequence[Played], num_envs: int, killed_after: int = -1) -> None:
    """Play episodes, each in the first env slot that is free, and perhaps kill the policy's process after a step."""
    environment = lift_object(num_envs)
    waiting, playing = list(episodes), dict[int, Played]()
    observation: Observation = {}
    while waiting or playing:
        for env_id in range(num_envs):
            if env_id not in playing and waiting:
                playing[env_id] = waiting.pop(0)
                observation = begin(policy, environment, env_id, playing[env_id])
        for env_id, episode in playing.items():
            episode.see(observation, env_id)
        action = policy.get_action(environment, observation)
        for env_id, episode in playing.items():
            episode.actions.append(action[env_id].numpy().copy())
        observation = environment.step(action).observation
        if len(episodes[0].actions) == killed_after:
            playing_itself: Any = policy
            os.kill(playing_itself._network._worker.pid, signal.SIGKILL)
        ended = [env_id for env_id, episode in playing.items() if len(episode.actions) == episode.length]
        policy.end_episodes(environment, ended)
        for env_id in ended:
            del playing[env_id]
    environment.close()
    policy.reset()


def check_against_lerobot(directory: Path, batches: Sequence[Sequence[Played]], query_every: int) -> None:
    """Have LeRobot's own loop play the same observations, the episodes of each batch together, and compare."""
    files = [directory / f"{number}_{what}" for number in range(len(batches)) for what in ("shown.npz", "did.npy")]
    for episodes, file in zip(batches, files[::2], strict=True):
        np.savez(
            file,
            words=[each.words for each in episodes],
            seeds=np.stack([each.seeds(query_every) for each in episodes], axis=1),
            pictures=np.stack([each.pictures for each in episodes], axis=1),
            states=np.stack([each.states for each in episodes], axis=1),
        )
    in_lerobot("play", directory, *files, kind=said_by(directory)["type"])
    for episodes, file in zip(batches, files[1::2], strict=True):
        actions = np.stack([each.actions for each in episodes], axis=1)
        assert np.array_equal(actions, np.load(file)), episodes[0].number
        assert np.abs(np.diff(actions, axis=0)).max(axis=(0, 2)).min() > 0


TYPES = {"act": 6, "diffusion": 8, "vqbet": 5, "tdmpc": 2, "sac": 1, "smolvla": 6, "xvla": 6, "pi0": 6, "pi05": 6}
"""Types, and how many actions they play before they look again."""


@pytest.mark.parametrize("kind", TYPES)
def test_a_policy_acts_as_in_lerobots_own_loop(tmp_path, kind):
    directory = make(kind, tmp_path / "policy")
    policy, episode = policy_in(directory), Played(3, 20)
    play(policy, [episode], num_envs=1)
    policy.close()
    check_against_lerobot(directory, [[episode]], TYPES[kind])


@pytest.mark.parametrize("kind", ["act", "diffusion", *NEEDED])
def test_env_slots_share_calls_that_are_those_of_lerobots_own_loop_for_a_batch(tmp_path, kind):
    directory = make(kind, tmp_path / "policy")
    policy, episodes = policy_in(directory), [Played(number, 14) for number in range(3)]
    play(policy, episodes, num_envs=3)
    policy.close()
    check_against_lerobot(directory, [episodes], TYPES[kind])


@pytest.mark.parametrize("kind", NEEDED)
def test_an_episode_does_not_depend_on_the_words_of_those_that_share_its_calls(tmp_path, kind):
    directory = make(kind, tmp_path / "policy")
    policy, found = policy_in(directory), list[np.ndarray]()
    for others in ("lift", "lift it up"):
        episodes = [Played(0, 14), Played(1, 14, others), Played(2, 14, others)]
        play(policy, episodes, num_envs=3)
        found.append(np.stack([each.actions for each in episodes]))
    policy.close()
    assert np.array_equal(found[0][0], found[1][0])
    assert not np.array_equal(found[0][1], found[1][1])


@pytest.mark.parametrize("kind", ["act_averaging", "tdmpc_planning", "recurrent"])
def test_a_policy_that_remembers_acts_in_any_number_of_env_slots_as_in_lerobots_own_loop(tmp_path, kind):
    directory = make(kind, tmp_path / "policy")
    policy = policy_in(directory)
    for num_envs in (1, 3):
        episodes = [Played(number, length) for number, length in enumerate([14, 5, 9, 12, 3, 11])]
        play(policy, episodes, num_envs)
        check_against_lerobot(directory, [[each] for each in episodes], 1)
    episodes = [Played(number, 9) for number in range(2)]
    play(policy, episodes, num_envs=2, killed_after=5)
    check_against_lerobot(directory, [[each] for each in episodes], 1)
    policy.close()


def test_a_policy_to_which_lerobot_leaves_weights_by_chance_is_refused(tmp_path):
    directory = make("act", tmp_path / "policy")
    weights = load_file(directory / "model.safetensors")
    save_file(
        {name: value for name, value in weights.items() if name != "model.action_head.weight"},
        directory / "model.safetensors",
    )
    with pytest.raises(ConfigError, match=r"LeRobot leaves 1 of \d+ weights to chance, .*: model\.action_head\.weight"):
        policy_in(directory)
