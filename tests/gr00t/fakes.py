"""A robot whose joints stand in another order than a model has them, and a model that answers with a random network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from isaaclab_arena.interfaces.environment import Environment, Observation, StateTree, Step
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs, Dimensions, Modality
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import ClosedloopPolicy

JOINTS = ("hip", "knee", "elbow", "wrist")
FINGERS = ("left_finger", "right_finger")
ACTION = ("wrist", "hip", "grip", "elbow", "knee")
GROUPS = {
    "state": {"arm": ["wrist", "elbow"], "leg": ["knee", "hip"], "hand": ["right_finger", "left_finger"]},
    "action": {"leg": ["hip", "knee"], "arm": ["elbow", "wrist"], "hand": ["grip"]},
}
WORDS = ("red", "green", "blue")
HORIZON = 6


class LimbEnvironment(Environment):
    """Joints follow their targets by a tenth; episodes last 4 to 15 steps, and each has its own word."""

    def __init__(self, num_envs: int, *, cameras: Sequence[str] = ("front", "side")) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.action_spec = ArraySpec(shape=(5,), names=ACTION)
        self.observation_spec = {
            "policy": {
                "robot_joint_pos": ArraySpec(shape=(4,), names=JOINTS),
                "fingers": ArraySpec(shape=(2,), names=FINGERS),
                "nameless": ArraySpec(shape=(3,)),
            },
            "camera_obs": {name: ArraySpec(shape=(6, 8, 3), dtype=torch.uint8) for name in cameras},
        }
        self.task_description = "move"
        self.max_episode_length = 15
        self.control_dt = 0.1
        self.actions: list[torch.Tensor] = []
        self._joints = torch.zeros(num_envs, 5)
        self._clock = torch.zeros(num_envs, dtype=torch.int64)
        self._length = torch.ones(num_envs, dtype=torch.int64)
        self._running = torch.zeros(num_envs, dtype=torch.bool)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        return {
            "limb.length": int(generator.integers(4, 16)),
            "limb.word": WORDS[int(generator.integers(len(WORDS)))],
            "limb.start": tuple(generator.uniform(-1, 1, 5).tolist()),
        }

    def instruction(self, conditions: Conditions) -> str:
        return f"move to {conditions['limb.word']}"

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        for env_id, condition in zip(env_ids.tolist(), conditions, strict=True):
            self._joints[env_id] = torch.tensor(condition["limb.start"])
            self._clock[env_id] = 0
            self._length[env_id] = int(str(condition["limb.length"]))
            self._running[env_id] = True
        return self._observe()

    def step(self, action: torch.Tensor) -> Step:
        running = self._running.clone()
        self.actions.append(action.clone())
        self._joints += torch.where(running[:, None], 0.1 * (action - self._joints), 0.0)
        self._clock += running
        over = running & (self._clock >= self._length)
        self._running &= ~over
        never = torch.zeros_like(over)
        return Step(
            observation=self._observe(),
            reward=running.float(),
            terminated=over,
            truncated=never,
            success=over,
            diverged=never,
        )

    def state(self) -> StateTree:
        return {"articulation": {"limb": {"joint_position": self._joints.clone()}}}

    def _observe(self) -> Observation:
        by_name = dict(zip(ACTION, self._joints.T, strict=True))
        half = by_name["grip"] / 2
        grey = (self._joints.abs().sum(dim=1) * 20).to(torch.uint8)[:, None, None, None].expand(-1, 6, 8, 3)
        specs: Any = self.observation_spec["camera_obs"]
        return {
            "policy": {
                "robot_joint_pos": torch.stack([by_name[joint] for joint in JOINTS], dim=1),
                "fingers": torch.stack((half, -half), dim=1),
                "nameless": torch.ones(self.num_envs, 3),
            },
            "camera_obs": {name: (grey + place).clone() for place, name in enumerate(specs)},
        }


@dataclass
class FakeModality:
    """What a model package says of one modality."""

    delta_indices: list[int]
    modality_keys: list[str]


MODALITIES: dict[str, Modality] = {
    "video": FakeModality(delta_indices=[0], modality_keys=["ego", "aside"]),
    "state": FakeModality(delta_indices=[0], modality_keys=["arm", "leg", "hand"]),
    "action": FakeModality(delta_indices=list(range(HORIZON)), modality_keys=["leg", "arm", "hand"]),
    "language": FakeModality(delta_indices=[0], modality_keys=["annotation.human.task_description"]),
}
DIMENSIONS: Dimensions = {"state": {"arm": 2, "leg": 2, "hand": 2}, "action": {"leg": 2, "arm": 2, "hand": 1}}


@dataclass(frozen=True)
class Query:
    """What the model was asked."""

    observation: dict[str, Any]
    noise_seeds: list[int]

    @property
    def batch_size(self) -> int:
        return len(self.noise_seeds)

    @property
    def words(self) -> list[str]:
        return [text for (text,) in self.observation["language"]["annotation.human.task_description"]]


def network_answer(observation: Mapping[str, Any], noise_seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Output of a random network for pictures, state, words and noise. Its last digits depend on the batch."""
    batch_size = len(noise_seeds)
    pictures = [
        torch.from_numpy(video).float().reshape(batch_size, -1) / 255 for video in observation["video"].values()
    ]
    state = [torch.from_numpy(part)[:, 0] for part in observation["state"].values()]
    words = [text for (text,) in observation["language"]["annotation.human.task_description"]]
    letters = torch.tensor([[float(sum(map(ord, text)) % 97)] for text in words]) / 97
    noise = torch.stack([torch.randn(8, generator=torch.Generator().manual_seed(seed)) for seed in noise_seeds])
    seen = torch.cat([*pictures, *state, letters, noise], dim=1)
    generator = torch.Generator().manual_seed(3)
    first, second = (
        torch.randn(size, generator=generator) / size[0] ** 0.5 for size in ((seen.shape[1], 200), (200, HORIZON * 5))
    )
    out = (torch.tanh(seen @ first) @ second).reshape(batch_size, HORIZON, 5)
    return {"leg": out[..., :2].numpy(), "arm": out[..., 2:4].numpy(), "hand": out[..., 4:].numpy()}


class RandomModel:
    """Stands for a model package: a random network, whose last digits change with the size of a call."""

    def __init__(self, *honoured: str) -> None:
        self.honoured_options = honoured
        self.sizes: list[int] = []

    def get_modality_config(self) -> Any:
        return MODALITIES

    def get_dimensions(self) -> Any:
        return DIMENSIONS

    def get_action(self, observation: Any, options: Any = None) -> Any:
        seeds = self.seeds(len(observation["state"]["arm"]), options)
        self.sizes.append(len(seeds))
        return network_answer(observation, seeds), {}

    def seeds(self, batch_size: int, options: Any) -> list[int]:
        """Seeds of the noise of each entry."""
        return options["noise_seeds"]


class LimbPolicy(ClosedloopPolicy[ClosedloopPolicyArgs]):
    """A closed loop around `network_answer` that remembers every query."""

    name = "limb"
    modalities: Mapping[str, Modality] = MODALITIES
    sizes: Dimensions | None = DIMENSIONS

    def __init__(self, config: ClosedloopPolicyArgs) -> None:
        super().__init__(config)
        self.queries: list[Query] = []

    def query(self, observation: dict[str, Any], noise_seeds: list[int]) -> Mapping[str, np.ndarray]:
        self.queries.append(Query(observation, noise_seeds))
        return self.answer(observation, noise_seeds)

    def answer(self, observation: dict[str, Any], noise_seeds: list[int]) -> dict[str, np.ndarray]:
        return network_answer(observation, noise_seeds)

    def modality_config(self) -> Mapping[str, Modality]:
        return self.modalities

    def dimensions(self) -> Dimensions | None:
        return self.sizes


class CountingPolicy(LimbPolicy):
    """Answers with numbers that say which query, step and joint they are: ``100 * query + 10 * step + joint``."""

    def answer(self, observation: dict[str, Any], noise_seeds: list[int]) -> dict[str, np.ndarray]:
        number = 100 * (len(self.queries) - 1)
        steps = np.arange(HORIZON)[None, :, None] * 10
        joints = {group: [ACTION.index(joint) for joint in names] for group, names in GROUPS["action"].items()}
        batch = np.zeros((len(noise_seeds), 1, 1))
        return {group: (batch + number + steps + np.array(place)).astype(np.float32) for group, place in joints.items()}


def write_yaml(path: Path, document: Any) -> str:
    """Write a YAML file and return its path."""
    path.write_text(yaml.safe_dump(document))
    return str(path)


def write_policy_yaml(directory: Path, groups: Any = GROUPS, **changes: Any) -> str:
    """Write the YAML file of `LimbPolicy` and what it names; return its path. A change to None leaves a key out."""
    write_yaml(directory / "groups.yaml", groups)
    document = {
        "action_horizon": HORIZON,
        "action_chunk_length": 4,
        "pov_cam_name_sim": {"ego": "front", "aside": "side"},
        "target_image_size": [4, 4, 3],
        "state_names_sim": ["robot_joint_pos", "fingers"],
        "policy_joints_config_path": "groups.yaml",
    }
    kept = {key: value for key, value in {**document, **changes}.items() if value is not None}
    return write_yaml(directory / "policy.yaml", kept)
