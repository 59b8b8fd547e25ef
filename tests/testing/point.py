"""An environment that keeps every rule and offers everything, for tests that break one rule at a time."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.specs import VIEWPORT, ArraySpec, StateTree


class PointEnvironment(Environment):
    """A point that actions push, for 4 steps or until it is far away."""

    returns_own_tensors = True
    filmable = (VIEWPORT,)

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.action_spec = ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0), names=("x", "y"))
        self.observation_spec = {"policy": {"position": ArraySpec(shape=(2,))}}
        self.task_description = "push the point"
        self.max_episode_length = 4
        self.control_dt = 0.1
        self.position = torch.zeros(num_envs, 2)
        self.clock = torch.zeros(num_envs, dtype=torch.int64)
        self.running = torch.zeros(num_envs, dtype=torch.bool)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        return {"point.start": tuple(generator.uniform(-1, 1, 2).tolist())}

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        for env_id, condition in zip(env_ids.tolist(), conditions, strict=True):
            self.position[env_id] = torch.tensor(condition["point.start"])
        self.clock[env_ids] = 0
        self.running[env_ids] = True
        return self.observe()

    def step(self, action: torch.Tensor) -> Step:
        running = self.running.clone()
        self.position[running] += 0.1 * action[running]
        self.clock += running
        terminated = running & (self.position.norm(dim=1) > 9)
        truncated = running & ~terminated & (self.clock >= self.max_episode_length)
        self.running &= ~(terminated | truncated)
        return Step(
            observation=self.observe(),
            reward=torch.where(running, self.position[:, 0], 0.0),
            terminated=terminated,
            truncated=truncated,
            success=terminated.clone(),
            diverged=torch.zeros_like(running),
            metrics={"distance_m": self.position.norm(dim=1)},
        )

    def observe(self) -> Observation:
        return {"policy": {"position": self.position.clone()}}

    def state(self) -> StateTree:
        return {"rigid_object": {"point": {"root_pose": self.position.clone()}}}

    def state_parts(self) -> Sequence[torch.Tensor]:
        return (self.position,)

    def state_of(self, parts: np.ndarray) -> StateTree:
        return {"rigid_object": {"point": {"root_pose": parts}}}

    def episode_states(self, env_ids: Sequence[int]) -> Sequence[Mapping[str, np.ndarray]]:
        return [{"position": self.position[env_id].numpy().copy()} for env_id in env_ids]

    def restore(
        self, env_ids: torch.Tensor, conditions: Sequence[Conditions], states: Sequence[Mapping[str, np.ndarray]]
    ) -> Observation:
        self.reset(env_ids, conditions)
        for env_id, state in zip(env_ids.tolist(), states, strict=True):
            self.position[env_id] = torch.from_numpy(state["position"])
        return self.observe()

    def snapshot(self) -> Mapping[str, torch.Tensor] | None:
        return {"position": self.position.clone(), "clock": self.clock.clone(), "running": self.running.clone()}

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor]) -> Observation:
        for name, values in snapshot.items():
            getattr(self, name).copy_(values)
        return self.observe()

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> Mapping[str, np.ndarray]:
        if set(cameras) - {VIEWPORT}:
            raise KeyError(f"no cameras {', '.join(cameras)}")
        greys = (self.position[list(env_ids), 0] * 1000).long().remainder(256).numpy().astype(np.uint8)
        return {VIEWPORT: np.broadcast_to(greys[:, None, None, None], (len(env_ids), 4, 4, 3))}

    def film_later(
        self, env_ids: Sequence[int], cameras: Sequence[str]
    ) -> Sequence[Callable[[], Mapping[str, np.ndarray]]]:
        pictures = self.film(env_ids, cameras)
        return [partial(dict, {VIEWPORT: pictures[VIEWPORT][number]}) for number in range(len(env_ids))]


class SeenPoint(PointEnvironment):
    """The same, with a camera that sees how far the point is to the right, and draws always all pictures."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        picture = ArraySpec(shape=(4, 4, 3), dtype=torch.uint8)
        self.observation_spec = {**self.observation_spec, "camera_obs": {"eye": picture}}

    def observe(self) -> Observation:
        greys = (self.position[:, 0] * 1000).long().remainder(256).to(torch.uint8)
        return {**super().observe(), "camera_obs": {"eye": greys[:, None, None, None].repeat(1, 4, 4, 3)}}
