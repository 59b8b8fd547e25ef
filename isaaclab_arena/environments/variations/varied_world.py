"""A world with variations on: draws them for an episode, and applies them."""

from collections.abc import Sequence

import mujoco
import numpy as np
import torch

from isaaclab_arena.environments.mdp.task import Task
from isaaclab_arena.environments.variations import catalogue
from isaaclab_arena.environments.variations.overrides import DRAWN_WITH, with_moved_starts
from isaaclab_arena.environments.variations.senses import drawn
from isaaclab_arena.interfaces.environment_builder import Variation
from isaaclab_arena.interfaces.episode import Conditions, Episode, number, point
from isaaclab_arena.sim.backend import Backend, ModelChange, changed, moved_camera, painted, resized, slippery
from isaaclab_arena.sim.scene import Robot


class VariedWorld:
    """The variations of one environment that are on, after the `catalogue` has declared them.

    `vary` draws them and adds them to the conditions that the task has drawn, which recordings hold. `begin` applies
    them: those that change a world's model in `_changes`, or by a variation's own ``changes``.
    """

    def __init__(
        self,
        backend: Backend,
        robot: Robot,
        task: Task,
        variations: Sequence[Variation],
        distractors: catalogue.Distractors,
    ) -> None:
        self._backend = backend
        self._model = backend.model
        # The robot's base, which a lower or higher table shifts.
        self._base_body = robot.base_body
        self._variations = tuple(variations)
        self.distractors = distractors
        self._footprints = catalogue.footprints(self._model, task) if distractors.things else ()
        self._objects = catalogue.object_bodies(self._model, task)
        self._cameras = catalogue.camera_assets(self._model)
        self.base_shift = torch.zeros(backend.num_envs, 3, dtype=backend.qpos.dtype, device=backend.device)

    def vary(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Return an episode's conditions with its variations drawn; see `Environment.vary_conditions`."""
        varied = drawn(self._variations, conditions, episode)
        varied = with_moved_starts(varied, [variation.key for variation in self._variations])
        for surface in catalogue.SURFACES:
            # A surface's pattern is drawn independently of its mixture.
            if f"{surface}.texture" in varied:
                key = DRAWN_WITH[f"{surface}.texture"]
                varied[key] = int(catalogue.NUM_PATTERNS * episode.variation_generator(key).random())
        if "distractors.count" in varied:
            stream = episode.variation_generator("distractors.position")
            varied |= self.distractors.placed(self._footprints, varied, stream)
        return varied

    def begin(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        """Apply variations to env slots (n,), int64, before the backend resets them."""
        self._backend.vary(env_ids, [self._changes(own) for own in conditions])
        shifts = [-number(own.get("table.height", 0.0)) for own in conditions]
        shifted = torch.tensor(shifts, dtype=self.base_shift.dtype)
        self.base_shift[env_ids, 2] = shifted.to(self.base_shift.device, non_blocking=True)

    def _changes(self, conditions: Conditions) -> list[ModelChange]:
        """Return the changes of an episode's model: its task's own, then objects, light, cameras, table, surfaces."""
        model = self._model
        changes = [
            changed(field, entry, value)
            for each in self._variations
            if each.changes is not None and each.key in conditions
            for (field, entry), value in each.changes(model, conditions[each.key]).items()
        ]
        for name, body in self._objects.items():
            mass = conditions.get(f"{name}.mass")
            scale = number(conditions.get(f"{name}.size", 1.0))
            changes += resized(model, body, mass=None if mass is None else number(mass), scale=scale)
            if f"{name}.friction" in conditions:
                changes += slippery(model, body, number(conditions[f"{name}.friction"]))
            if f"{name}.color" in conditions:
                changes += painted(model, body, point(conditions[f"{name}.color"]))
        if "light.direction" in conditions:
            # The first light is the sun.
            vector = np.asarray(point(conditions["light.direction"]), float)
            changes.append(changed("light_dir", 0, vector / np.sqrt((vector * vector).sum())))
        if "light.intensity" in conditions or "light.color" in conditions:
            tint = point(conditions.get("light.color", (1.0, 1.0, 1.0)))
            factor = number(conditions.get("light.intensity", 1.0)) * np.asarray(tint, float)
            changes += [
                changed(field, index, np.minimum(getattr(model, field)[index] * factor, 1.0))
                for index in range(model.nlight)
                for field in ("light_diffuse", "light_specular", "light_ambient")
            ]
        nowhere = (0.0, 0.0, 0.0)
        for asset, camera in self._cameras.items():
            shift, turn = conditions.get(f"{asset}.position"), conditions.get(f"{asset}.rotation")
            if shift is not None or turn is not None:
                changes += moved_camera(model, camera, shift=point(shift or nowhere), turn=point(turn or nowhere))
        if "table.height" in conditions:
            # A higher table is a lower base of the robot.
            base, shift = model.body(self._base_body).id, (0.0, 0.0, -number(conditions["table.height"]))
            changes.append(changed("body_pos", base, model.body_pos[base] + np.asarray(shift, float)))
        for asset, material in catalogue.SURFACES.items():
            # The mixtures of a surface's texture with each pattern are in the model; a mixture of 0 is its own.
            parts = round(number(conditions.get(f"{asset}.texture", 0)))
            if parts > 0:
                pattern, index = round(number(conditions[f"{asset}.pattern"])), model.material(material).id
                textures = np.array(model.mat_texid[index])
                mixture = model.texture(f"{asset}_texture_{pattern}_{parts}").id
                textures[int(mujoco.mjtTextureRole.mjTEXROLE_RGB)] = mixture
                changes.append(changed("mat_texid", index, textures))
        return changes
