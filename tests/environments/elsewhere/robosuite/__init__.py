"""Stands in for robosuite where that is not installed: its names, and tasks in which a point grips a point.

``FAKE_ROBOSUITE_VERSION`` is the version that it claims to be.
"""

import os

import numpy as np

from tests.environments.gym.worker.robosuite_fakes import SUBSTEPS, Observable, Observed

__version__ = os.environ.get("FAKE_ROBOSUITE_VERSION", "1.5.2")
ALL_ROBOTS = {"Panda", "Sawyer"}
TABLE_M, HALF_M, OPEN_M = 0.8, 0.02, 0.08


def load_composite_controller_config(*, controller, robot):
    return {"controller": controller, "robot": robot}


def make(name, **settings):
    return ALL_ENVIRONMENTS[name](**settings)


class Lift(Observed):
    """Two cubes and a gripper; solved if the first cube is high."""

    control_freq = 20
    things = ("cube",)

    def __init__(self, *, robots, camera_names=(), camera_heights=0, camera_widths=0, seed, **settings):
        self.settings = settings
        self.num_arms, self.cameras, self.size = len(robots), camera_names, (camera_heights, camera_widths)
        self.rng = np.random.default_rng(seed)
        self.draw()
        self._observables = {name: Observable(name, sensor, 0.05) for name, sensor in self.sensors().items()}

    @property
    def action_spec(self):
        return -np.ones(7 * self.num_arms), np.ones(7 * self.num_arms)

    def draw(self):
        self.gripper, self.opening, self.speed = np.array([-0.1, 0.0, 1.0]), 0.04, 0.0
        self.places = {
            name: np.array([self.rng.uniform(-0.05, 0.05), 0.1 * number, TABLE_M + HALF_M])
            for number, name in enumerate(self.things)
        }

    def sensors(self):
        readings = {
            "robot0_eef_pos": lambda _: self.gripper,
            "robot0_eef_quat": lambda _: np.array([1.0, 0.0, 0.0, 0.0]),
            "robot0_gripper_qpos": lambda _: np.array([self.opening, -self.opening]) / 2,
            "robot0_gripper_qvel": lambda _: np.array([self.speed, -self.speed]),
        }
        for name in self.things:
            readings[f"{name}_pos"] = lambda _, name=name: self.places[name]
            readings[f"{name}_quat"] = lambda _: np.array([0.0, 0.0, 0.0, 1.0])
        readings.update({f"{camera}_image": self.picture for camera in self.cameras})
        return readings

    def picture(self, cache):
        picture = np.zeros((*self.size, 3), np.uint8)
        picture[0] = int(1e4 * abs(self.gripper[2])) % 256  # the lowest line, as OpenGL has it
        return picture

    def reset(self):
        self.draw()
        self.renew()
        return self.observations()

    def step(self, action):
        held, before = self.held(), self.gripper
        self.gripper = self.gripper + 0.03 * np.clip(action[:3], -1, 1)
        around = held or np.linalg.norm(self.gripper - self.places[self.things[0]]) < 0.02
        opening = np.clip(self.opening - 0.01 * np.sign(action[6]), 2 * HALF_M if around else 0.0, OPEN_M)
        self.opening, self.speed = opening, (opening - self.opening) / self.control_timestep
        if held and opening == 2 * HALF_M:
            self.places[self.things[0]] = self.places[self.things[0]] + self.gripper - before
        else:
            self.places[self.things[0]][2] = self.support()
        cache = {}
        for _ in range(SUBSTEPS):
            self.read(cache)
        return self.observations(), float(self._check_success()), False, {}

    def held(self):
        return self.opening == 2 * HALF_M and np.linalg.norm(self.gripper - self.places[self.things[0]]) < 0.03

    def support(self):
        return TABLE_M + HALF_M

    def observations(self):
        shown = self.shown()
        shown["robot0_proprio-state"] = np.concatenate([shown["robot0_eef_pos"], shown["robot0_gripper_qpos"]])
        shown["object-state"] = np.concatenate([shown[f"{name}_pos"] for name in self.things])
        return shown

    def _check_success(self):
        return self.places[self.things[0]][2] > TABLE_M + HALF_M + 0.04

    def close(self):
        pass


class Stack(Lift):
    """Solved if the first cube rests on the second and is not held."""

    things = ("cubeA", "cubeB")

    def support(self):
        on = np.linalg.norm(self.places["cubeA"][:2] - self.places["cubeB"][:2]) < HALF_M
        return TABLE_M + (3 if on else 1) * HALF_M

    def _check_success(self):
        return not self.held() and self.places["cubeA"][2] == TABLE_M + 3 * HALF_M


class PickPlaceCan(Lift):
    """Solved if the can is in its bin and is not held."""

    things = ("Can",)

    def _check_success(self):
        off = np.linalg.norm(self.places["Can"][:2] - [0.1975, 0.4025])
        return not self.held() and off < 0.05


class TwoArmLift(Lift):
    """Has two arms."""


ALL_ENVIRONMENTS = {each.__name__: each for each in (Lift, Stack, PickPlaceCan, TwoArmLift)}
