"""A world with variations on: draws them for an episode, and puts them into effect when the episode starts."""

from collections.abc import Mapping, Sequence

import torch

from isaaclab_arena.environments.mdp.task import Task
from isaaclab_arena.environments.variations import catalogue
from isaaclab_arena.environments.variations.disturbances import (
    NO_COMPRESSION,
    ActionNoise,
    Disturbance,
    Disturbances,
    ObservationDelay,
)
from isaaclab_arena.environments.variations.overrides import with_moved_starts
from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.interfaces.environment_builder import Variation
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, Episode, number, point
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import Backend, ModelChange, lit, moved_camera, painted, resized, shifted_body, slippery

_SEEDS = {
    catalogue.ACTION_NOISE: catalogue.ACTION_NOISE_SEED,
    catalogue.OBSERVATION_NOISE: catalogue.OBSERVATION_NOISE_SEED,
    catalogue.PICTURE_NOISE: catalogue.PICTURE_NOISE_SEED,
}
"""Conditions that are strengths of noise, and where its seed stands."""


class VariedWorld:
    """The variations of one environment; an episode's conditions hold all of them, so recorded ones reproduce it."""

    def __init__(
        self,
        *,
        backend: Backend,
        base_body: str,
        task: Task,
        action_spec: ArraySpec,
        variations: Sequence[Variation],
        distractors: catalogue.Distractors,
        device: torch.device,
    ) -> None:
        self._backend = backend
        self._model = backend.model
        # The robot's base, which a lower or higher table shifts.
        self._base_body = base_body
        self._variations = tuple(variations)
        self._distractors = distractors
        self._footprints = catalogue.footprints(self._model, task) if distractors.things else ()
        self._objects = catalogue.object_bodies(self._model, task)
        self._cameras = catalogue.camera_assets(self._model)
        self._noise = ActionNoise(action_spec, backend.num_envs, device=backend.device)
        self._delay = ObservationDelay(backend.num_envs, device)
        blurs = (max(each.sampler.numbers) for each in variations if each.key == catalogue.PICTURE_BLUR)
        self._disturbances = Disturbances(backend.num_envs, device, most_blur=max(blurs, default=0.0))
        self.base_shift = torch.zeros(backend.num_envs, 3, dtype=backend.qpos.dtype, device=backend.device)

    @property
    def rigid_objects(self) -> Mapping[str, str]:
        """Name in recordings to free joint, for objects beside the task's."""
        return self._distractors.rigid_objects

    def vary(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Return an episode's conditions with its variations drawn; see `Environment.vary_conditions`."""
        varied: dict[str, ConditionValue] = dict(conditions)
        for variation in self._variations:
            stream = episode.variation_generator(variation.key)
            value, before = variation.draw(stream, episode.episode_index), varied.get(variation.key)
            if isinstance(value, tuple) and isinstance(before, tuple) and len(value) < len(before):
                # A position without a height keeps the task's height.
                value = (*value, *before[len(value) :])
            varied[variation.key] = value
        varied = with_moved_starts(varied, [variation.key for variation in self._variations])
        for noise, seed in _SEEDS.items():
            if noise in varied:
                varied[seed] = episode.noise_seed
        varied |= catalogue.drawn_patterns(varied, episode)
        if catalogue.DISTRACTOR_COUNT in varied:
            stream = episode.variation_generator("distractors.position")
            varied |= self._distractors.placed(self._footprints, varied, stream)
        return varied

    def begin(self, env_ids: torch.Tensor, slots: Sequence[int], conditions: Sequence[Conditions]) -> None:
        """Apply variations to env slots (n,), int64, before the backend resets them."""
        self._backend.vary(env_ids, [self._changes(own) for own in conditions])
        # ``slots`` are the same numbers on the host: a read of ``env_ids`` would wait for the GPU.
        strengths = [number(own.get(catalogue.ACTION_NOISE, 0.0)) for own in conditions]
        seeds = [round(number(own.get(catalogue.ACTION_NOISE_SEED, 0))) for own in conditions]
        self._noise.begin(slots, strengths, seeds)
        self._delay.begin(env_ids, [round(number(own.get(catalogue.OBSERVATION_DELAY, 0))) for own in conditions])
        disturbances = []
        for own in conditions:
            seed = own.get(catalogue.OBSERVATION_NOISE_SEED, own.get(catalogue.PICTURE_NOISE_SEED, 0))
            disturbance = Disturbance(
                # A float would lose the last digits of the seed.
                seed=seed if isinstance(seed, int) else round(number(seed)),
                state_noise=number(own.get(catalogue.OBSERVATION_NOISE, 0.0)),
                picture_noise=number(own.get(catalogue.PICTURE_NOISE, 0.0)),
                blur=number(own.get(catalogue.PICTURE_BLUR, 0.0)),
                exposure=number(own.get(catalogue.PICTURE_EXPOSURE, 0.0)),
                quality=round(number(own.get(catalogue.PICTURE_QUALITY, NO_COMPRESSION))),
            )
            disturbances.append(disturbance)
        self._disturbances.begin(env_ids, disturbances)
        shifts = [-number(own.get(catalogue.TABLE_HEIGHT, 0.0)) for own in conditions]
        shifted = torch.tensor(shifts, dtype=self.base_shift.dtype)
        self.base_shift[env_ids, 2] = shifted.to(self.base_shift.device, non_blocking=True)

    def joint_positions(self, conditions: Conditions) -> Mapping[str, Sequence[float]]:
        """Return the start poses of the distractors."""
        return self._distractors.joint_positions(conditions)

    def executed(self, action: torch.Tensor, running: torch.Tensor) -> torch.Tensor:
        """Return the actions that the robot receives. Shape: (num_envs, action_dim)."""
        return self._noise.added(action, running)

    @property
    def delays_observations(self) -> bool:
        """True if policies see an env slot of some control steps ago."""
        return not self._delay.is_none

    def seen(self, observation: Observation, moved: torch.Tensor) -> Observation:
        """Return the policies' view of an observation; ``moved`` (num_envs,), bool, began or made a step."""
        return self._delay.delayed(self._disturbances.disturbed(observation, moved), moved)

    def _changes(self, conditions: Conditions) -> list[ModelChange]:
        """Return the changes of an episode's model: objects, light, cameras, table, surfaces."""
        model = self._model
        changes: list[ModelChange] = []
        for name, body in self._objects.items():
            mass = conditions.get(f"{name}.mass")
            scale = number(conditions.get(f"{name}.size", 1.0))
            changes += resized(model, body, mass=None if mass is None else number(mass), scale=scale)
            if f"{name}.friction" in conditions:
                changes += slippery(model, body, number(conditions[f"{name}.friction"]))
            if f"{name}.color" in conditions:
                changes += painted(model, body, point(conditions[f"{name}.color"]))
        direction, intensity, tint = (
            conditions.get(key) for key in (catalogue.LIGHT_DIRECTION, catalogue.LIGHT_INTENSITY, catalogue.LIGHT_COLOR)
        )
        changes += lit(
            model,
            direction=None if direction is None else point(direction),
            intensity=None if intensity is None else number(intensity),
            tint=None if tint is None else point(tint),
        )
        nowhere = (0.0, 0.0, 0.0)
        for asset, camera in self._cameras.items():
            shift, turn = conditions.get(f"{asset}.position"), conditions.get(f"{asset}.rotation")
            if shift is not None or turn is not None:
                changes += moved_camera(model, camera, shift=point(shift or nowhere), turn=point(turn or nowhere))
        if catalogue.TABLE_HEIGHT in conditions:
            # A higher table is a lower base of the robot.
            changes += shifted_body(model, self._base_body, (0.0, 0.0, -number(conditions[catalogue.TABLE_HEIGHT])))
        return [*changes, *catalogue.surface_changes(model, conditions)]
