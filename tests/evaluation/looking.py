"""A Gymnasium environment whose task is seen and heard, a policy that looks and listens, and a suite of both tasks."""

import typing

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from isaaclab_arena.environments import SuiteTask
from isaaclab_arena.observers import EpisodeStart
from isaaclab_arena.policies import PolicyBase

GO, STAY = "go where the lamp is", "stay"


class Lamp(gymnasium.Env):
    """A lamp is bright on the left or dark on the right; the front camera sees it, and the side camera does not."""

    metadata: dict[str, typing.Any] = {"render_modes": [], "render_fps": 20}  # noqa: RUF012  as Gymnasium's

    def __init__(self, wide=False, render_mode=None):
        self.side = (4, 6 if wide else 5, 3)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        cameras = {name: spaces.Box(0, 255, shape, np.uint8) for name, shape in self.shapes().items()}
        self.observation_space = spaces.Dict({"clock": spaces.Box(0.0, 9.0, (1,), np.float64), **cameras})

    def shapes(self):
        return {"front": (4, 5, 3), "side": self.side}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.goal, self.clock = float(self.np_random.choice([-1.0, 1.0])), 0
        return self.observe(), {}

    def step(self, action):
        self.clock += 1
        return self.observe(), 0.0, self.clock == 2, False, {"solved": float(action[0]) * self.goal > 0.4}

    def observe(self):
        front = np.full((4, 5, 3), 200 if self.goal > 0 else 120, np.uint8)
        return {"clock": np.array([self.clock], float), "front": front, "side": np.full(self.side, 90, np.uint8)}


class OneCamera(Lamp):
    def shapes(self):
        return {"front": (4, 5, 3)}

    def observe(self):
        return {name: value for name, value in super().observe().items() if name != "side"}


class Attentive(PolicyBase):
    """Goes where the lamp is if it is told to, and left without a bright lamp."""

    def start_episodes(self, env, starts: typing.Sequence[EpisodeStart]) -> None:
        self.goes = torch.ones(env.num_envs)
        for start in starts:
            self.goes[start.env_id] = start.language_instruction == GO

    def get_action(self, env, observation) -> torch.Tensor:
        bright = torch.as_tensor(observation["camera_obs"]["front"]).float().mean(dim=(1, 2, 3)) > 150
        return (self.goes * (2.0 * bright.float() - 1.0))[:, None]


class Lamps:
    """The suite of both tasks."""

    def tasks(self, options):
        del options
        return [
            SuiteTask(label=label, environment=LAMP, options={"task_description": words})
            for label, words in (("go", GO), ("stay", STAY))
        ]


gymnasium.register("Fake/Lamp-v0", entry_point=f"{__name__}:Lamp", max_episode_steps=5)
gymnasium.register("Fake/OneCamera-v0", entry_point=f"{__name__}:OneCamera", max_episode_steps=5)
LAMP = f"gym:{__name__}:Fake/Lamp-v0"
POLICY = f"{__name__}:Attentive"
