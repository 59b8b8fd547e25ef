"""An environment as Gymnasium shows it, vectorised or single, for users who bring a loop of their own."""

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.specs import VIEWPORT, ArraySpec, ObservationSpec
from isaaclab_arena.nested import leaves, with_leaves
from isaaclab_arena.storage.dataset import flat_array

# Show observations in the forms of Gymnasium's users: nested groups, one dict of terms, or one vector.

_POLICY, _CAMERAS = "policy", "camera_obs"


class ObservationForm(StrEnum):
    """The form of an observation for Gymnasium's users."""

    NESTED = "nested"  # groups of terms, as in `isaaclab_arena.interfaces.environment.Environment`
    # All terms in one dict; those of groups other than policy and camera_obs have their group's name in front.
    DICT = "dict"
    # The terms of group policy in one vector, in alphabetical order of their names.
    FLAT = "flat"


def formed_space(spec: ObservationSpec, form: ObservationForm, batch: tuple[int, ...]) -> gymnasium.Space[Any]:
    """Return the space of a form, with leading dimensions ``batch``; ConfigError if no group can be shown."""
    if form is ObservationForm.NESTED:
        return _space(spec, batch)
    if form is ObservationForm.DICT:
        return gymnasium.spaces.Dict({name: _space(part, batch, least_dims=1) for name, part in _terms(spec)})
    group = spec.get(_POLICY)
    if not isinstance(group, Mapping):
        raise ConfigError("flat shows group policy, which this environment does not have", key="observations")
    size = sum(int(np.prod(part.shape)) for _, part in _terms({_POLICY: group}))
    return gymnasium.spaces.Box(-np.inf, np.inf, (*batch, size), np.float32)


def _terms(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of every term; names have no dots, which torch forbids in module names."""
    for (group, *names), part in leaves(tree):
        yield "_".join(names if names and group in (_POLICY, _CAMERAS) else (group, *names)), part


def _space(spec: ObservationSpec | ArraySpec, batch: tuple[int, ...], *, least_dims: int = 0) -> gymnasium.Space[Any]:
    if not isinstance(spec, ArraySpec):
        return gymnasium.spaces.Dict({name: _space(part, batch) for name, part in spec.items()})
    dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype
    is_whole = not np.issubdtype(dtype, np.floating)
    low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if is_whole else (-np.inf, np.inf)
    shape = spec.shape if len(spec.shape) >= least_dims else (1,)
    return gymnasium.spaces.Box(low=low, high=high, shape=(*batch, *shape), dtype=dtype.type)


class EnvironmentVectorEnv(VectorEnv):
    """Presents an environment as a `gymnasium.vector.VectorEnv` that never resets by itself.

    Env slots are reset with ``reset(options={"reset_mask": mask})``. ``info["success"]`` and ``info["diverged"]`` have
    shape (num_envs,); a diverged slot counts as truncated. The terminal observation is that of the last step.

    Args:
        environment: The environment; it closes with this.
        seed: Seed of the episodes until `reset` gets another.
        observations: The form of observations.
    """

    def __init__(
        self, environment: Environment, *, seed: int = 0, observations: ObservationForm = ObservationForm.NESTED
    ) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.environment = environment
        self.num_envs = environment.num_envs
        self.single_action_space = environment.single_action_space
        self.action_space = environment.action_space
        self.single_observation_space = formed_space(environment.observation_spec, observations, ())
        self.observation_space = formed_space(environment.observation_spec, observations, (environment.num_envs,))
        self._form = observations
        self._seed = seed
        self._next_episode = 0

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes in all env slots, or in those of ``options["reset_mask"]``.

        Args:
            seed: One number: the seed of a job, whose episodes 0, 1, 2 … the slots then take in turn, as in a job file.
                A list: the seed of each slot's episode 0; None takes the next episode in turn.
            options: ``reset_mask`` of shape (num_envs,), bool.

        Returns:
            The observation of all env slots, and ``info["conditions"]``, the conditions of each started slot.
        """
        mask = np.ones(self.num_envs, bool) if options is None else np.asarray(options["reset_mask"], bool)
        if isinstance(seed, int):
            self._seed, self._next_episode = seed, 0
        own = seed if isinstance(seed, Sequence) else [None] * self.num_envs
        conditions = {}
        for slot in np.flatnonzero(mask).tolist():
            own_seed = own[slot]
            if own_seed is not None:
                episode = Episode(job="vector", episode_index=0, seed=own_seed)
            else:
                episode = Episode(job="vector", episode_index=self._next_episode, seed=self._seed)
                self._next_episode += 1
            drawn = self.environment.draw_conditions(episode.conditions_generator())
            conditions[slot] = self.environment.vary_conditions(drawn, episode)
        slots = torch.tensor(list(conditions), dtype=torch.int64, device=self.environment.device)
        observation = self.environment.reset(slots, list(conditions.values()))
        return self._formed(observation), {"conditions": conditions}

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance every env slot that has not finished. Shape of ``actions``: (num_envs, action_dim)."""
        action = torch.as_tensor(np.asarray(actions), dtype=torch.float32, device=self.environment.device)
        step = self.environment.step(action)
        info = {"diverged": step.diverged.cpu().numpy(), **{name: v.cpu().numpy() for name, v in step.metrics.items()}}
        if step.success is not None:
            info["success"] = step.success.cpu().numpy()
        ended = step.terminated.cpu().numpy(), (step.truncated | step.diverged).cpu().numpy()
        return (self._formed(step.observation), step.reward.cpu().numpy(), *ended, info)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment."""
        del kwargs
        self.environment.close()

    def _formed(self, observation: Observation) -> Any:
        arrays = with_leaves(observation, lambda part: part.cpu().numpy())
        if self._form is ObservationForm.NESTED:
            return arrays
        if self._form is ObservationForm.DICT:
            return {name: part if part.ndim > 1 else part[..., None] for name, part in _terms(arrays)}
        return flat_array(dict(_terms({_POLICY: arrays[_POLICY]})), batch_dims=1)


_first = functools.partial(with_leaves, change=operator.itemgetter(0))  # an observation of the first env slot


class SingleEnv(gymnasium.Env):
    """Presents an environment with one env slot as a `gymnasium.Env`; ``info`` holds plain bools and numbers.

    A metric that the episode does not have yet is left out of it.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium declares it

    def __init__(self, vector_env: EnvironmentVectorEnv, *, render_mode: str | None = None) -> None:
        if vector_env.num_envs != 1:
            raise ValueError(f"one env slot is shown, and the environment has {vector_env.num_envs}")
        environment = self.environment = vector_env.environment
        self.render_mode = render_mode
        self._vector_env = vector_env
        self.observation_space = vector_env.single_observation_space
        self.action_space = vector_env.single_action_space
        self.metadata = {**type(self).metadata, "render_fps": round(1.0 / environment.control_dt)}

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode: the next one in turn, or with ``seed`` the first of a job of that seed."""
        super().reset(seed=seed)
        del options
        observation, info = self._vector_env.reset(seed=seed)
        return _first(observation), {"conditions": info["conditions"][0]}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Make one control step of ``action`` (action_dim,); an episode whose physics diverged counts as truncated."""
        observation, reward, terminated, truncated, info = self._vector_env.step(np.asarray(action, np.float32)[None])
        numbers = {name: values[0].item() for name, values in info.items()}
        # Gymnasium's checker compares `info` for equality, and NaN, a metric without a value yet, equals nothing.
        measured = {name: number for name, number in numbers.items() if not math.isnan(number)}
        return _first(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0]), measured

    def render(self) -> np.ndarray:
        """Return the viewport's picture (height, width, 3), uint8; KeyError if the environment cannot be filmed."""
        return self.environment.film([0], [VIEWPORT])[VIEWPORT][0]

    def close(self) -> None:
        """Close the environment."""
        self._vector_env.close()
