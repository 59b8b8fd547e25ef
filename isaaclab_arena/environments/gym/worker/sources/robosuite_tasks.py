"""The tasks of robosuite 1.5.2, as robomimic plays them: controllers, horizons and pictures."""

from __future__ import annotations

import difflib
import importlib
import typing

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration

VERSION = "1.5.2"
CONTROL_FREQUENCY_HZ = 20
HORIZONS = {"Lift": 400, "PickPlaceCan": 400, "NutAssemblySquare": 400, "TwoArmTransport": 700, "ToolHang": 700}
"""Control steps that robomimic gives an episode of its tasks."""

OTHER_HORIZON = 1000
"""Control steps that robosuite itself gives."""


def find(name: str, make_kwargs: dict) -> dict[str, object]:
    """Return a task's limit, its deciding module and all robots; LookupError for no such task, else ImportError."""
    del make_kwargs
    robosuite = _robosuite()
    if name not in robosuite.ALL_ENVIRONMENTS:
        known = sorted(robosuite.ALL_ENVIRONMENTS)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise LookupError(f"robosuite has no task '{name}'{hint} It has {', '.join(known)}")
    robots = sorted(robosuite.ALL_ROBOTS)
    return {"max_episode_length": HORIZONS.get(name, OTHER_HORIZON), "modules": ["robosuite"], "robots": robots}


def make(name: str, make_kwargs: dict, max_episode_length: int | None) -> gymnasium.Env:
    """Return a new environment of a task; ``make_kwargs`` may have ``robots``, ``cameras`` and ``camera_size``."""
    robosuite = _robosuite()
    # The other keyword arguments are those of robosuite.make.
    kwargs = dict(make_kwargs)
    robots = kwargs.pop("robots", None) or (["Panda", "Panda"] if name.startswith("TwoArm") else ["Panda"])
    cameras, size = list(kwargs.pop("cameras", ())), kwargs.pop("camera_size", 84)
    # A robot's default controller has OSC_POSE for each of its arms.
    controllers = [robosuite.load_composite_controller_config(controller=None, robot=robot) for robot in robots]
    settings = {
        "robots": robots,
        "controller_configs": controllers,
        "control_freq": CONTROL_FREQUENCY_HZ,
        "has_renderer": False,
        "has_offscreen_renderer": bool(cameras),
        "use_camera_obs": bool(cameras),
        "use_object_obs": True,
        # The time limit ends episodes, as in robomimic.
        "ignore_done": True,
        "seed": 0,
        **({"camera_names": cameras, "camera_heights": size, "camera_widths": size} if cameras else {}),
    }
    task = robosuite.make(name, **{**settings, **kwargs})
    limit = max_episode_length or HORIZONS.get(name, OTHER_HORIZON)
    environment = RobosuiteTask(task, cameras)
    environment.spec = registration.EnvSpec(f"robosuite/{name}")
    return gymnasium.wrappers.TimeLimit(environment, limit)


class RobosuiteTask(gymnasium.Env):
    """A robosuite task behind Gymnasium's interface, with robosuite's own names of observables."""

    def __init__(self, task: typing.Any, cameras: typing.Sequence[str]) -> None:
        self.task = task
        # Its package's version is recorded.
        self.made_by = type(task)
        self.control_timestep = 1.0 / task.control_freq
        low, high = task.action_spec
        self.action_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self._pictures = [f"{camera}_image" for camera in cameras]
        self.observation_space = spaces.Dict(
            {
                name: spaces.Box(0, 255, value.shape, np.uint8)
                if name in self._pictures
                else spaces.Box(-np.inf, np.inf, value.shape)
                for name, value in self._shown(task.reset()).items()
            }
        )

    def robosuite_cameras(self) -> tuple[typing.Any, list[str]]:
        """Return the environment whose cameras draw on demand, and its picture observables."""
        return self.task, self._pictures

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Start an episode, which depends on its seed alone."""
        del options
        if seed is not None:
            # robosuite passes its generator object on to its parts, so the object itself has to change.
            self.task.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        return self._shown(self.task.reset()), {"success": bool(self.task._check_success())}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Make one control step."""
        observation, reward, _, _ = self.task.step(np.asarray(action, np.float64))
        return self._shown(observation), float(reward), False, False, {"success": bool(self.task._check_success())}

    def close(self) -> None:
        """Close the environment."""
        self.task.close()

    def _shown(self, observation: typing.Mapping[str, typing.Any]) -> dict[str, np.ndarray]:
        shown = {name: np.atleast_1d(value) for name, value in observation.items() if not name.endswith("-state")}
        # OpenGL's pictures begin at the bottom.
        shown.update({name: shown[name][::-1] for name in self._pictures})
        # All objects together, under robomimic's name.
        if "object-state" in observation:
            shown["object"] = np.asarray(observation["object-state"])
        return shown


def _robosuite() -> typing.Any:
    robosuite = importlib.import_module("robosuite")
    if robosuite.__version__ != VERSION:
        raise ImportError(f"robosuite {robosuite.__version__} is installed, and {VERSION} is needed")
    return robosuite
