"""A small benchmark written for vla-eval, the real one or what stands in for it: a point is moved to one of two places.

An episode starts where its index, the process's generator and the number of resets of the same object before say. An
action counts ten times what its spec allows, so a client that clips it plays another episode.
"""

import importlib
import os

import numpy as np
from vla_eval.benchmarks.base import Benchmark, StepBenchmark, StepResult  # pyright: ignore  in other interpreters
from vla_eval.specs import DimSpec  # pyright: ignore  in other interpreters

GOALS = {"move left": -1.0, "move right": 1.0}


class PointBenchmark(StepBenchmark):
    render_backends = frozenset({"gpu", "cpu"})

    @classmethod
    def configure_render(cls, mode):
        os.environ["POINTS_ARE_DRAWN_ON"] = mode
        return {"POINTS_ARE_DRAWN_ON": mode}

    def __init__(self, offset=0.0, *, declares_actions=True, max_steps=6, fails_at=None):
        super().__init__()
        self.offset, self.declares_actions, self.max_steps, self.fails_at = (
            offset,
            declares_actions,
            max_steps,
            fails_at,
        )
        self.num_resets, self.clock, self.place = 0, 0, np.zeros(2)

    def get_tasks(self):
        return [{"name": name, "suite": "points", "goal": np.array([goal, 0.0])} for name, goal in GOALS.items()]

    def reset(self, task):
        drawn = 0.01 * np.random.default_rng(np.random.randint(1 << 30)).normal(size=2)
        self.place = drawn + np.array([self.offset + 0.1 * task["episode_idx"], self.num_resets])
        self.num_resets, self.clock = self.num_resets + 1, 0
        return self.place.copy()

    def step(self, action):
        self.clock += 1
        if self.clock == self.fails_at:
            raise OSError("the point was lost")
        self.place = self.place + 0.1 * action["actions"]
        distance = float(np.linalg.norm(self.place - self._task["goal"]))
        self._recorder.record_step(distance=distance)
        return StepResult(self.place.copy(), -distance, distance < 0.1, {})

    def make_obs(self, raw_obs, task):
        picture = np.full((4, 5, 3), int(1e4 * abs(raw_obs[0])) % 256, np.uint8)
        state = {"place": raw_obs, "clock": self.clock}
        return {"images": {"front": picture}, "task_description": f"{task['name']} now", "state": state, "note": "text"}

    def get_step_result(self, step_result):
        return {"success": step_result.done, "distance": -step_result.reward, "place": step_result.obs.tolist()}

    def get_metric_keys(self):
        return {"success": "mean", "distance": "mean"}

    def get_metadata(self):
        return {"max_steps": self.max_steps, "max_episodes_per_task": 5}

    def get_action_spec(self):
        return {"push": DimSpec("push", 2 if self.declares_actions else 0, "delta", (-1, 1))}

    def get_observation_spec(self):
        return {}

    def get_hold_action(self, last_action):
        return {"actions": np.zeros(2, np.float32)}


class LateBenchmark(PointBenchmark):
    """Imports its engine only when it is used, and draws where it likes, as vla-eval's own classes do."""

    @classmethod
    def configure_render(cls, mode):
        os.environ["MUJOCO_GL"] = "disabled"
        return {"MUJOCO_GL": "disabled"}

    def reset(self, task):
        importlib.import_module("mujoco")
        return super().reset(task)


class RealTimeBenchmark(Benchmark):
    """One task, asked through coroutines alone; it says nothing of its actions and is held by its last one."""

    def get_tasks(self):
        return [{"name": "wait"}]

    async def start_episode(self, task, recorder=None):
        self.clock = 0

    async def apply_action(self, action):
        self.clock += 1

    async def get_observation(self):
        return {"state": np.array([self.clock])}

    async def is_done(self):
        return self.clock == 2

    async def get_time(self):
        return 0.1 * self.clock

    async def get_result(self):
        return {"success": True}

    def get_hold_action(self, last_action):
        return last_action
