"""A small Gymnasium environment that counts the pictures it draws; importing this registers it as ``Fake/Seen-v0``.

Nothing is imported here that a worker's interpreter might not have.
"""

import typing

import gymnasium
import numpy as np
from gymnasium import spaces


class SeenEnvironment(gymnasium.Env):
    """A point that actions push in episodes of 5 to 9 steps; the picture shows where it is.

    ``info["drawn"]`` counts the pictures of the episode, ``info["rendered"]`` those of the viewport.
    """

    metadata: dict[str, typing.Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  as Gymnasium's

    def __init__(self, at_step=None, render_mode=None):
        self.at_step, self.render_mode = at_step, render_mode
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {"place": spaces.Box(-np.inf, np.inf, (2,), np.float64), "front": spaces.Box(0, 255, (6, 8, 3), np.uint8)}
        )
        self.wanted = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.length = self.np_random.uniform(-1, 1, 2), int(self.np_random.integers(5, 10))
        self.clock = self.drawn = self.rendered = 0
        return self.observe(), {}

    def step(self, action):
        self.clock += 1
        if self.clock == self.at_step:
            raise OSError("the floor gave way")
        self.place = self.place + action
        observation = self.observe()
        near = float(np.linalg.norm(self.place)) < 1.5
        over = self.clock >= self.length
        info = {"drawn": self.drawn, "rendered": self.rendered, "near": near}
        return observation, -float(np.linalg.norm(self.place)), over, False, info

    def render(self):
        self.rendered += 1
        return np.full((48, 64, 3), min(255, 20 * self.clock), np.uint8)

    def observe(self):
        return {"place": self.place, "front": self.draw()}

    def draw(self):
        self.drawn += 1
        noise = np.random.default_rng(int(1e6 * abs(self.place[0]))).integers(0, 32, (6, 8, 3))
        return (noise + int(100 * abs(np.tanh(self.place[1])))).astype(np.uint8)


class SparingEnvironment(SeenEnvironment):
    """Leaves out the pictures that are not wanted."""

    def draw_pictures(self, wanted):
        self.wanted = wanted

    def observe(self):
        return super().observe() if self.wanted else {"place": self.place}


class LaidEnvironment(gymnasium.Env):
    """Observes and renders one picture, as it lies."""

    metadata: dict[str, typing.Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  as Gymnasium's

    def __init__(self, picture, render_mode="rgb_array"):
        self.picture, self.render_mode = np.array(picture, np.uint8), render_mode
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Box(0, 255, self.picture.shape, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.picture, {}

    def render(self):
        return self.picture


class Remembering(gymnasium.Wrapper):
    """Shows the picture of the step before."""

    def reset(self, *, seed=None, options=None):
        observation, info = self.env.reset(seed=seed, options=options)
        self.kept = observation["front"]
        return observation, info

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.kept, shown = observation["front"], self.kept
        return {**observation, "front": shown}, reward, terminated, truncated, info


class PassingOn(gymnasium.Wrapper):
    """Says itself what is wanted, and keeps no picture."""

    def draw_pictures(self, wanted):
        sparing: typing.Any = self.unwrapped
        sparing.draw_pictures(wanted)


def remembering(**options):
    return Remembering(SparingEnvironment(**options))


def passing_on(**options):
    return PassingOn(SparingEnvironment(**options))


gymnasium.register("Fake/Laid-v0", entry_point=f"{__name__}:LaidEnvironment", max_episode_steps=5)
gymnasium.register("Fake/Seen-v0", entry_point=f"{__name__}:SeenEnvironment", max_episode_steps=20)
gymnasium.register("Fake/Sparing-v0", entry_point=f"{__name__}:SparingEnvironment", max_episode_steps=20)
gymnasium.register("Fake/Remembering-v0", entry_point=f"{__name__}:remembering", max_episode_steps=20)
gymnasium.register("Fake/PassingOn-v0", entry_point=f"{__name__}:passing_on", max_episode_steps=20)
