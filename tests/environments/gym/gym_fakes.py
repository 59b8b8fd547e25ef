"""Small Gymnasium environments, one of which misbehaves when asked to; importing this registers them below ``Fake``.

Nothing is imported here that a worker's interpreter might not have.
"""

import os
import sys
import time
import typing

import gymnasium
import numpy as np
from gymnasium import spaces

ID = "tests.environments.gym.gym_fakes:Fake/Draw-v0"
CLOSED: list["DrawEnvironment"] = []


class DrawEnvironment(gymnasium.Env):
    """Draws a number and a length of 3 to 8 steps; ``info["success"]`` is true from step 3 on if the number is low.

    Observations are the number, the clock and the last action. ``misbehaviour`` happens at the given step, 0 for the
    reset, in episodes with an odd length if ``only_odd``.
    """

    metadata: dict[str, typing.Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012  as Gymnasium's

    def __init__(self, misbehaviour="", at_step=2, *, only_odd=False, endless=False, picture=False, render_mode=None):
        self.misbehaviour, self.at_step, self.only_odd = misbehaviour, at_step, only_odd
        self.endless, self.picture = endless, picture
        self.render_mode = render_mode
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        numbers = spaces.Box(-np.inf, np.inf, (4,), np.float64)
        image = spaces.Box(0, 255, (4, 5, 3), np.uint8)
        self.observation_space = (
            spaces.Dict({"numbers": numbers, "eye": spaces.Dict({"front": image})}) if picture else numbers
        )
        self.broken = False
        self.unseeded = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        generator = self.unseeded if self.misbehaviour == "unseeded" else self.np_random
        self.number, self.length, self.clock = generator.random(), int(generator.integers(3, 9)), 0
        if self.misbehaviour == "bad_reset" or self.broken:
            raise OSError("no floor")
        return self._misshown(self._observe(np.zeros(2)), self._misbehaves()), {}

    def step(self, action):
        self.clock += 1
        misbehaviour = self._misbehaves()
        if misbehaviour == "raise":
            self.broken = True
            raise OSError("the floor gave way")
        if misbehaviour == "look_up":
            raise KeyError("gripper")
        if misbehaviour == "die":
            sys.stderr.write("the roof came down\n")
            sys.stderr.flush()
            os._exit(3)
        if misbehaviour == "hang":
            time.sleep(60)
        observation: typing.Any = self._misshown(self._observe(action), misbehaviour)
        rewards = {"nan_reward": np.nan, "no_reward": None, "huge_reward": -1e300}
        reward = rewards.get(misbehaviour, self.number + float(action.sum()))
        solved = self.number < 0.5 and self.clock == 3
        over: typing.Any = self.clock >= self.length and not self.endless
        over = {"half_an_end": 0.5, "an_end_in_words": "False"}.get(misbehaviour, over)
        return observation, reward, over, False, {"success": solved, "clock": self.clock, "note": "hello", "half": 0.5}

    def render(self):
        return np.full((48, 64, 3), min(255, 40 * self.clock), np.uint8)

    def _misbehaves(self):
        is_time = self.clock == self.at_step and not (self.only_odd and self.length % 2 == 0)
        return self.misbehaviour if is_time else ""

    def close(self):
        CLOSED.append(self)
        if self.misbehaviour == "raise_at_close":
            raise OSError("the door is stuck")

    def _misshown(self, observation, misbehaviour):
        if misbehaviour == "nan_observation":
            return observation * np.nan
        if misbehaviour == "huge_observation":
            return observation + 1e300
        if misbehaviour == "other_shape":
            return observation[:2]
        if misbehaviour == "float_picture":
            return {**observation, "eye": {"front": np.full((4, 5, 3), 0.8, np.float32)}}
        return observation

    def _observe(self, action):
        numbers = np.array([self.number, self.clock, *action])
        if not self.picture:
            return numbers
        return {"numbers": numbers, "eye": {"front": np.full((4, 5, 3), self.clock, np.uint8)}}


class TaskSetEnvironment(gymnasium.Env):
    """Has a layout for each episode, says in words what to do in it, and lasts two steps.

    Observes the layout, and how many conditions it was told. ``words`` is what ``info`` holds as ``language``.
    """

    NOUNS = ("cube", "mug", "plate")
    attribute_words = "tidy up"

    def __init__(self, words="put away the {noun}"):
        self.words = words
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        told = options or {"episode_index": -1, "conditions": {}}
        self.layout, self.num_told, self.clock = told["episode_index"] % 3, len(told["conditions"]), 0
        info = {"language": self.words.format(noun=self.NOUNS[self.layout])} if self.words else {"language": 3}
        return np.array([self.layout, self.num_told]), info

    def step(self, action):
        self.clock += 1
        return np.array([self.layout, self.num_told]), 0.0, self.clock == 2, False, {}


class RatedEnvironment(gymnasium.Env):
    """Says how often it steps as asked for: ``render_fps`` in its metadata, everything else as attributes.

    Observes ``shown``, of which its space says -1 to 1.
    """

    shown = 0.0

    def __init__(self, *, render_fps=None, **said):
        self.metadata = {"render_modes": [], "render_fps": render_fps}
        self.__dict__.update(said)
        self.action_space = self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full(1, self.shown), {}


class CrowdedEnvironment(gymnasium.Env):
    """Counts the steps of all environments of its process."""

    steps_of_all = 0

    def __init__(self):
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        CrowdedEnvironment.steps_of_all = 0
        return np.zeros(1), {}

    def step(self, action):
        CrowdedEnvironment.steps_of_all += 1
        return np.array([CrowdedEnvironment.steps_of_all]), 0.0, False, False, {}


class HalfBoundedEnvironment(CrowdedEnvironment):
    """Takes numbers with two bounds, with one and with none."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(np.array([-1, -1, -np.inf]), np.array([1, np.inf, np.inf]), dtype=np.float32)


gymnasium.register("Fake/Rated-v0", entry_point=f"{__name__}:RatedEnvironment", max_episode_steps=5)
gymnasium.register("Fake/Crowded-v0", entry_point=f"{__name__}:CrowdedEnvironment", max_episode_steps=20)
gymnasium.register("Fake/HalfBounded-v0", entry_point=f"{__name__}:HalfBoundedEnvironment", max_episode_steps=5)
gymnasium.register("Fake/TaskSet-v0", entry_point=f"{__name__}:TaskSetEnvironment", max_episode_steps=5)
gymnasium.register("Fake/Draw-v0", entry_point=f"{__name__}:DrawEnvironment", max_episode_steps=20)
gymnasium.register("Fake/Limitless-v0", entry_point=f"{__name__}:DrawEnvironment")
gymnasium.register("Fake/Missing-v0", entry_point="no_such_package.no_module:Environment", max_episode_steps=5)


class Telling(gymnasium.Env):
    """Observes a number and a sentence; every second seed is solved where it starts, the others in their third step."""

    observation_space = spaces.Dict(
        {"number": spaces.Box(-9, 9, (2,)), "told": spaces.Dict({"task": spaces.Text(100)}), "note": spaces.Text(9)}
    )
    action_space = spaces.Dict({"gripper": spaces.Discrete(2), "arm": spaces.Box(-1, 1, (2,))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.clock, self.arm = int(seed or 0), 0, np.zeros(2)
        return self.observation(), self.info(solved=self.seed % 2 == 0)

    def step(self, action):
        self.clock += 1
        self.arm = action["arm"] + action["gripper"]
        return self.observation(), 0.0, False, False, self.info(solved=self.clock == 3)

    def observation(self) -> typing.Any:
        return {"number": self.arm, "told": {"task": f"sort {self.seed}"}, "note": "x"}

    def info(self, *, solved):
        return {"episode": {"success": solved, "r": {"mean": 0.5}}}


TELLING = f"gym:{__name__}:Telling/Nested-v0"

gymnasium.register("Telling/Nested-v0", entry_point=f"{__name__}:Telling", max_episode_steps=6)
