"""What the conformance tests and the runner's probe share: requirements, episodes, deterministic actions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.environment_builder import EnvironmentWrapper
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.pictures import CAMERAS, DrawnPictures

# Define what the conformance tests and the runner's probe share: requirements, episodes, deterministic actions.

SEED = 20

Trace: TypeAlias = list[dict[str, bytes]]
"""What an episode showed, step by step: name to bytes."""


def require(condition: object, message: str) -> None:
    """Raise an AssertionError with a message unless a condition holds."""
    if not condition:
        raise AssertionError(message)


def episode(index: int) -> Episode:
    """Return an episode of the job that conformance tests play."""
    return Episode(job="conformance", episode_index=index, seed=SEED)


def conditions_of(environment: Environment, index: int) -> Conditions:
    """Return the start conditions of an episode, drawn as the loop draws them."""
    drawn = environment.draw_conditions(episode(index).conditions_generator())
    return environment.vary_conditions(drawn, episode(index))


def env_ids_of(environment: Environment, slots: Sequence[int]) -> torch.Tensor:
    """Return env slots as the contract has them. Shape: (len(slots),), int64."""
    return torch.tensor(sorted(slots), dtype=torch.int64, device=environment.device)


def start(environment: Environment, episodes: Mapping[int, int]) -> Observation:
    """Start episodes (env slot to the index of its episode), and return the observation."""
    conditions = [conditions_of(environment, episodes[slot]) for slot in sorted(episodes)]
    return environment.reset(env_ids_of(environment, list(episodes)), conditions)


def action_of(environment: Environment, episodes: Mapping[int, int], step: int) -> torch.Tensor:
    """Return an action that depends on episode and step alone, zero elsewhere: (num_envs, action_dim), float32."""
    # A number without bounds is within -1 to 1.
    spec = environment.action_spec
    low = np.full(spec.shape, -1.0) if spec.low is None else np.maximum(spec.low, -1e3)
    high = np.full(spec.shape, 1.0) if spec.high is None else np.minimum(spec.high, 1e3)
    action = np.zeros((environment.num_envs, *spec.shape), np.float32)
    for slot, index in episodes.items():
        action[slot] = np.random.default_rng([SEED, index, step]).uniform(low, high)
    return torch.from_numpy(action).to(environment.device)


def ended(step: Step) -> torch.Tensor:
    """Return the mask of env slots whose episode ended. Shape: (num_envs,), bool."""
    return step.terminated | step.truncated | step.diverged


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of every leaf of a nested dict."""
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}/")
        else:
            yield path, value


def shown_in(observation: Observation, slot: int) -> dict[str, bytes]:
    """Return the bytes that an observation shows of one env slot, by path."""
    return {path: bits(value[slot]) for path, value in leaves(observation)}


def bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor."""
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def trace(environment: Environment, slot: int, episodes: Mapping[int, int], num_steps: int) -> Trace:
    """Start and play episodes until the one in `slot` ends, at most `num_steps` steps, and return its trace."""
    return continued(environment, slot, episodes, [shown_in(start(environment, episodes), slot)], num_steps)


def continued(
    environment: Environment,
    slot: int,
    episodes: Mapping[int, int],
    shown: Trace,
    num_steps: int,
    *,
    first_step: int = 0,
) -> Trace:
    """Play episodes on until the one in `slot` ends, and return its trace, which begins with `shown`."""
    shown = list(shown)
    for number in range(first_step, num_steps):
        step = environment.step(action_of(environment, episodes, number))
        masks = (step.terminated, step.truncated, step.diverged, step.reward)
        outcome = {"outcome": b"".join(bits(each[slot]) for each in masks)}
        shown.append({**shown_in(step.observation, slot), **outcome})
        if bool(ended(step)[slot]):
            break
    return shown


def difference(expected: Trace, found: Trace) -> str:
    """Return the first difference of two traces in words, empty if there is none."""
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        for name in one:
            if one[name] != other.get(name):
                return f"'{name}' differs {f'in step {number}' if number else 'at the start'}"
    return (
        "" if len(expected) == len(found) else f"one ends after {len(expected) - 1} steps, one after {len(found) - 1}"
    )


# An environment that shows no picture but those that were announced, made of one that always shows all.


class DrawnOnDemand(EnvironmentWrapper):
    """Another environment, as one that draws pictures on demand: a policy or an observer sees what was announced."""

    # Recorded episodes are not started again.
    restore = None

    def __init__(self, real: Environment) -> None:
        # The group ``camera_obs`` of the real environment holds nothing but tensors.
        super().__init__(real)
        self._drawn = DrawnPictures(real.num_envs)
        self._kept: dict[str, torch.Tensor] = {}

    @property
    def pictures_drawn(self) -> int:
        """See `Environment.pictures_drawn`."""
        return self._drawn.num_drawn

    def draw_pictures_of(self, env_ids: Sequence[int] | None) -> None:
        """See `Environment.draw_pictures_of`."""
        self._drawn.announced = env_ids

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """See `Environment.reset`."""
        return self._shown(self.real.reset(env_ids, conditions), env_ids.tolist())

    def step(self, action: torch.Tensor) -> Step:
        """See `Environment.step`."""
        step = self.real.step(action)
        return replace(step, observation=self._shown(step.observation, range(self.num_envs)))

    def close(self) -> None:
        """See `Environment.close`."""
        self.real.close()

    def _shown(self, observation: Observation, moved: Sequence[int]) -> Observation:
        drawn = self._drawn
        drawn.outdated[list(moved)] = True
        due = np.flatnonzero(drawn.named() & drawn.outdated).tolist()
        for name, pictures in observation[CAMERAS].items():
            kept = self._kept.setdefault(name, torch.zeros_like(pictures))
            kept[due] = pictures[due]
        drawn.outdated[due] = False
        drawn.num_drawn += len(due) * len(self._kept)
        return {**observation, CAMERAS: drawn.shown(self._kept, self.device)}
