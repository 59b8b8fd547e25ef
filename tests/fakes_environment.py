"""A small environment with a state, observations and images, whose episodes end as their conditions say."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from isaaclab_arena.evaluation.rollout import EnvGroup
from isaaclab_arena.interfaces.environment import Environment, Observation, StateTree, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.specs import ArraySpec

ENDINGS = ("success", "failure", "timeout", "error")


class ScriptedEnvironment(Environment):
    """A point that actions push, in episodes of 3 to 8 steps that end as scripted.

    Conditions hold ``script.length``, ``script.ending`` (one of `ENDINGS`) and ``point.start``; position, reward
    and images follow from the start and the actions alone. Errors leave NaN in position and reward.

    Args:
        num_envs: Number of env slots.
        action_dim: Coordinates of the point.
        endings: What episodes may end with.
        cameras: Whether there are images, (8, 8, 3).
        measures_success: Whether steps say what succeeded.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        action_dim: int = 3,
        endings: Sequence[str] = ENDINGS,
        cameras: bool = False,
        measures_success: bool = True,
    ) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.action_spec = ArraySpec(shape=(action_dim,), low=(-1.0,) * action_dim, high=(2.0,) * action_dim)
        pictures = {"camera_obs": {"front": ArraySpec(shape=(8, 8, 3), dtype=torch.uint8)}} if cameras else {}
        self.observation_spec = {"policy": {"position": ArraySpec(shape=(action_dim,))}, **pictures}
        self.task_description = "push the point"
        self.max_episode_length = 8
        self.control_dt = 0.05
        self._endings = tuple(endings)
        self._cameras = cameras
        self._measures_success = measures_success
        self._position = torch.zeros(num_envs, action_dim)
        self._clock = torch.zeros(num_envs, dtype=torch.int64)
        self._length = torch.zeros(num_envs, dtype=torch.int64)
        self._ending = [""] * num_envs
        self._running = torch.zeros(num_envs, dtype=torch.bool)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        return {
            "script.length": int(generator.integers(3, 9)),
            "script.ending": self._endings[int(generator.integers(len(self._endings)))],
            "point.start": tuple(generator.uniform(-1, 1, self.action_spec.shape[0]).tolist()),
        }

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        for env_id, condition in zip(env_ids.tolist(), conditions, strict=True):
            self._position[env_id] = torch.tensor(condition["point.start"])
            self._clock[env_id] = 0
            self._length[env_id] = int(str(condition["script.length"]))
            self._ending[env_id] = str(condition["script.ending"])
            self._running[env_id] = True
        return self._observe()

    def step(self, action: torch.Tensor) -> Step:
        running = self._running.clone()
        self._position[running] += 0.1 * action[running]
        self._clock += running
        over = running & (self._clock >= self._length)
        ends = {ending: over & torch.tensor([each == ending for each in self._ending]) for ending in ENDINGS}
        self._position[ends["error"]] = torch.nan
        self._running &= ~over
        return Step(
            observation=self._observe(),
            reward=torch.where(running, self._position.sum(dim=1), 0.0),
            terminated=ends["success"] | ends["failure"],
            truncated=ends["timeout"],
            success=ends["success"] if self._measures_success else None,
            diverged=ends["error"],
            metrics={"distance_m": self._position.norm(dim=1)},
        )

    def state(self) -> StateTree:
        return _state_at(self._position.clone())

    def episode_states(self, env_ids: Sequence[int]) -> Sequence[Mapping[str, np.ndarray]]:
        return [{"integration_state": self._position[env_id].double().numpy()} for env_id in env_ids]

    def restore(
        self, env_ids: torch.Tensor, conditions: Sequence[Conditions], states: Sequence[Mapping[str, np.ndarray]]
    ) -> Observation:
        self.reset(env_ids, conditions)
        for env_id, state in zip(env_ids.tolist(), states, strict=True):
            if state:
                self._position[env_id] = torch.from_numpy(state["integration_state"])
        return self._observe()

    def provenance(self) -> Mapping[str, str]:
        return {"model_hash": "abc"}

    def _observe(self) -> Observation:
        observation: Observation = {
            "policy": {"position": self._position.clone(), "clock": self._clock[:, None].clone()}
        }
        if self._cameras:
            grey = self._clock.to(torch.uint8)[:, None, None, None]
            observation["camera_obs"] = {"front": grey.expand(-1, 8, 8, 3).clone()}
        return observation


SOLVED_LENGTHS = (3, 4)


class SolvedEnvironment(ScriptedEnvironment):
    """The same, of which episodes that would take `SOLVED_LENGTHS` are solved where they start."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self._solved = [False] * num_envs

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        for env_id, condition in zip(env_ids.tolist(), conditions, strict=True):
            self._solved[env_id] = condition["script.length"] in SOLVED_LENGTHS
        return super().reset(env_ids, conditions)

    def solved_at_start(self, env_ids: Sequence[int]) -> Sequence[bool]:
        return [self._solved[env_id] for env_id in env_ids]


class OwnTensorsEnvironment(ScriptedEnvironment):
    """Gives tensors of its own away, which nothing changes afterwards."""

    returns_own_tensors = True


class PartsEnvironment(ScriptedEnvironment):
    """The same, of which a recorder keeps parts of the state and makes the whole later."""

    def state_parts(self) -> Sequence[torch.Tensor]:
        return (self._position,)

    def state_of(self, parts: np.ndarray) -> StateTree:
        state = _state_at(torch.from_numpy(parts))
        return {kind: {name: _arrays(fields) for name, fields in things.items()} for kind, things in state.items()}


def _state_at(position: torch.Tensor) -> StateTree:
    pose = torch.cat([position[:, :1].expand(-1, 3), torch.zeros(len(position), 4)], dim=1)
    return {
        "articulation": {"robot": {"joint_position": position, "joint_velocity": torch.zeros_like(position)}},
        "rigid_object": {"point": {"root_pose": pose}},
    }


def _arrays(fields: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: values.numpy() for name, values in fields.items()}


class PushPolicy(PolicyBase[None]):
    """Pushes by an amount that depends on what it sees, so that a wrong observation shows in the actions."""

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return torch.sin(observation["policy"]["position"] * 3 + observation["policy"]["clock"])


class ActionLog(Observer):
    """Keeps the actions of every finished episode, by its index."""

    def __init__(self) -> None:
        self.actions: dict[int, torch.Tensor] = {}
        self._underway: dict[tuple[Environment, int], list[torch.Tensor]] = {}

    def on_episode_start(self, environment, starts, observation) -> None:
        self._underway.update({(environment, start.env_id): [] for start in starts})

    def on_step(self, environment, transition) -> None:
        for env_id in torch.nonzero(transition.running).flatten().tolist():
            self._underway[environment, env_id].append(transition.action[env_id].clone())

    def on_episode_end(self, environment, record) -> None:
        made = self._underway.pop((environment, record.env_id))
        self.actions[record.episode.episode_index] = torch.stack(made) if made else torch.empty(0, 3)


class BlindLog(ActionLog):
    """The same, which looks at no picture."""

    sees_pictures = False


class BoldPolicy(PushPolicy):
    """Asks for up to three times what `ScriptedEnvironment` takes."""

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return 3 * super().get_action(env, observation)


def groups_of(environments: Iterable[Environment], policy: Callable[[], PolicyBase]) -> list[EnvGroup]:
    """Return groups of env slots, each with an environment and a policy of its own."""
    return [EnvGroup(environment=each, policy=policy()) for each in environments]


def episodes(number: int, *, job: str = "push", seed: int = 7) -> list[Episode]:
    """Return the first episodes of a job."""
    return [Episode(job=job, episode_index=index, seed=seed) for index in range(number)]


def files_below(directory: Path) -> set[str]:
    """Return the names of all files below a directory, relative to it."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
