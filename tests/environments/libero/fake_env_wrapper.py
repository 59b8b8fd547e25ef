"""Stands in for ``libero/libero/envs/env_wrapper.py``: an arm that moves a bowl beside a cabinet.

Like LIBERO it draws the cabinet's place from numpy's global generator, and draws more at every reset than at the one
before. robosuite's observables and their clock are those of `tests.environments.gym.worker.robosuite_fakes`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from tests.environments.gym.worker.robosuite_fakes import SUBSTEPS, Observable, Observed

GOAL_M = 0.5


class Domain(Observed):
    """In its place LIBERO has a class below robosuite's environments."""

    control_freq = 20

    def __init__(self, *, camera_names=(), camera_heights=0, camera_widths=0, **settings):
        self.settings = settings
        self.cameras, self.size = camera_names, (camera_heights, camera_widths)
        self.object_property_initializers = []
        self.renders = 0
        self.load()
        self._observables = {name: Observable(name, sensor, 0.05) for name, sensor in self.sensors().items()}
        self.read({}, force=True)

    def load(self):
        self.object_property_initializers.append("drawer")
        drawn = np.random.uniform(size=len(self.object_property_initializers))
        self.cabinet_m, self.time_s, self.bowl_m, self.opening = 0.01 * float(drawn[-1]), 0.0, 0.0, 0.0

    def sensors(self):
        readings: dict[str, Any] = {
            "robot0_eef_pos": lambda _: np.array([self.bowl_m, 0.0, 1.0]),
            "robot0_gripper_qpos": lambda _: np.array([self.opening, -self.opening]),
            "cabinet_1_pos": lambda _: np.array([self.cabinet_m, 0.0, 0.0]),
        }
        for camera in self.cameras:
            made, names = self._create_camera_sensors(camera)
            readings.update(zip(names, made, strict=True))
        for reading in readings.values():
            reading.__module__ = "libero.libero.envs.bddl_base_domain"
        return readings

    def _create_camera_sensors(self, camera):
        def picture(cache):
            self.renders += 1
            shown = np.zeros((*self.size, 3), np.uint8)
            shown[0, 0] = int(1e4 * abs(self.bowl_m + self.cabinet_m)) % 256  # the lowest line, as OpenGL has it
            return shown

        picture.__dict__["__modality__"] = "image"
        return [picture], [f"{camera}_image"]

    def reset(self):
        self.load()
        self.renew()
        return self._get_observations()

    def step(self, action):
        if len(action) != 7:
            raise ValueError(f"an action has seven numbers, and {len(action)} came")
        cache = {}
        for _ in range(SUBSTEPS):
            self.bowl_m += 0.01 * float(np.clip(action[0], -1, 1))
            self.opening = -0.04 * float(action[6])
            self.read(cache)
        self.time_s += self.control_timestep
        return self._get_observations(), float(self._check_success()), self._check_success(), {}

    def _get_observations(self):
        shown = self.shown()
        return {**shown, "robot0_proprio-state": np.concatenate([shown["robot0_eef_pos"], [0.0]])}

    def _check_success(self):
        return self.bowl_m > GOAL_M


class ControlEnv:
    """LIBERO's environment around robosuite's."""

    def __init__(self, *, bddl_file_name, **settings):
        if not Path(bddl_file_name).is_file():
            raise AssertionError(f"[error] {bddl_file_name} does not exist!")
        self.env = Domain(**settings)

    def seed(self, seed):
        np.random.seed(seed)

    def reset(self):
        return self.env.reset()

    def set_init_state(self, state):
        self.env.bowl_m = float(state[0])
        self.env.read({}, force=True)
        return self.env._get_observations()

    def step(self, action):
        return self.env.step(action)

    def check_success(self):
        return self.env._check_success()

    def close(self):
        pass
