"""The base classes of benchmarks, which vla-eval's runner asks through coroutines."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass
class StepResult:
    obs: object
    reward: float
    done: bool
    info: dict


class Benchmark(ABC):
    render_backends = frozenset({"gpu"})

    @classmethod
    def configure_render(cls, mode):
        return {}

    @abstractmethod
    def get_tasks(self): ...

    def get_action_spec(self):
        raise NotImplementedError

    def get_metric_keys(self):
        return {"success": "mean"}

    def get_metadata(self):
        return {}

    def get_hold_action(self, last_action):
        raise NotImplementedError

    def cleanup(self):
        pass


class StepBenchmark(Benchmark):
    def __init__(self):
        self._last_result, self._task = StepResult(None, 0.0, done=False, info={}), {}

    @abstractmethod
    def reset(self, task): ...

    @abstractmethod
    def step(self, action) -> StepResult: ...

    @abstractmethod
    def make_obs(self, raw_obs, task): ...

    @abstractmethod
    def get_step_result(self, step_result): ...

    async def start_episode(self, task, recorder=None):
        self._task, self._recorder = task, recorder
        self._last_result = StepResult(self.reset(task), 0.0, done=False, info={})

    async def apply_action(self, action):
        self._last_result = self.step(action)

    async def get_observation(self):
        return self.make_obs(self._last_result.obs, self._task)

    async def is_done(self):
        return self._last_result.done

    async def get_result(self):
        return self.get_step_result(self._last_result)
