"""Environments of Gymnasium's registry, of Meta-World, and of robosuite 1.5.2 as robomimic plays its tasks."""

from __future__ import annotations

import difflib
import importlib
import typing
import warnings

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration


class Registered:
    """Environments of Gymnasium's registry: ``Ant-v5``, ``my_package.my_module:MyTask-v0``."""

    @staticmethod
    def find(name: str, make_kwargs: dict) -> dict[str, object]:
        """Return an environment's limit and its deciding modules; LookupError if it is unknown, else ImportError."""
        del make_kwargs
        module, _, identifier = name.rpartition(":")
        if module:
            _import(module)
        try:
            spec = gymnasium.spec(identifier)
        except gymnasium.error.NamespaceNotFound as error:
            raise LookupError(
                f"{error} The module that registers it stands before a colon: my_package:{identifier}"
            ) from error
        except gymnasium.error.Error as error:
            raise LookupError(str(error)) from error
        made_by = spec.entry_point
        if made_by is None:
            raise LookupError(f"'{identifier}' exists as a vector environment only, and single ones are needed")
        # The import of the environment's own module reveals a missing package at the job's check.
        made_by = made_by.partition(":")[0] if isinstance(made_by, str) else made_by.__module__
        _import(made_by)
        return {"max_episode_length": spec.max_episode_steps, "modules": [each for each in (module, made_by) if each]}

    @staticmethod
    def make(name: str, make_kwargs: dict, max_episode_length: int | None) -> gymnasium.Env:
        """Return a new environment; Gymnasium first imports the module in front of its id."""
        return gymnasium.make(name, max_episode_steps=max_episode_length, disable_env_checker=True, **make_kwargs)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        raise
    except (Exception, SystemExit) as error:
        raise ImportError(f"{module}: {type(error).__name__}: {error}") from error


class MetaWorld:
    """The tasks of Meta-World, on the MuJoCo it was made for and on later ones."""

    EPISODE_LENGTH = 500

    @staticmethod
    def find(name: str, make_kwargs: dict) -> dict[str, object]:
        """Return a task's limit and its deciding module; LookupError for no such task, else ImportError."""
        del make_kwargs
        tasks = MetaWorld.task_names()
        if name not in tasks:
            raise LookupError(f"Meta-World has no task '{name}'; it has {', '.join(tasks)}")
        return {"max_episode_length": MetaWorld.EPISODE_LENGTH, "modules": ["metaworld"]}

    @staticmethod
    def task_names() -> list[str]:
        """Return the sorted names of all tasks, such as ``reach-v3``; ImportError without Meta-World."""
        return sorted(importlib.import_module("metaworld.env_dict").ALL_V3_ENVIRONMENTS)

    @staticmethod
    def make(name: str, make_kwargs: dict, max_episode_length: int | None) -> gymnasium.Env:
        """Return a new environment of a task, with the goal in its observation."""
        metaworld = importlib.import_module("metaworld")
        # Meta-World 3.1 writes eleven numbers into a vector that has twelve since MuJoCo 3.16.
        if importlib.import_module("mujoco").mjNEQDATA > 11:
            metaworld.sawyer_xyz_env.SawyerMocapBase.reset_mocap_welds = _reset_mocap_welds
        makers = metaworld.ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
        task: typing.Any = makers[f"{name}-goal-observable"](seed=0, **make_kwargs)
        # A task made with a seed freezes its random vector: every episode would start from the same positions.
        task._freeze_rand_vec = False
        task.seeded_rand_vec = True
        task.spec = registration.EnvSpec(f"Meta-World/{name}")
        return gymnasium.wrappers.TimeLimit(_Seeded(task), max_episode_length or MetaWorld.EPISODE_LENGTH)

    @staticmethod
    def expert_actions(task: str, observations: np.ndarray) -> np.ndarray:
        """Return the scripted expert's actions (n, 4), float32, -1 to 1, for observations (n, 39); or LookupError."""
        experts = importlib.import_module("metaworld.policies").ENV_POLICY_MAP
        if task not in experts:
            raise LookupError(f"Meta-World has no expert for '{task}'; it has some for {', '.join(sorted(experts))}")
        # Experts keep nothing between steps, so one serves all env slots.
        expert = experts[task]()
        with warnings.catch_warnings():
            # Experts exceed the action range, and warn of it at every step.
            warnings.simplefilter("ignore")
            actions = [expert.get_action(each) for each in observations.astype(np.float64)]
        return np.clip(np.stack(actions).astype(np.float32), -1.0, 1.0)


class _Seeded(gymnasium.Wrapper):
    """Passes the seed of ``reset`` to Meta-World's own method."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[typing.Any, dict]:
        task: typing.Any = self.unwrapped
        if seed is not None:
            task.seed(seed)
        return self.env.reset(options=options)


def _reset_mocap_welds(environment: typing.Any) -> None:
    """Replace Meta-World's method of this name, for vectors of any length."""
    weld = int(importlib.import_module("mujoco").mjtEq.mjEQ_WELD)
    model = environment.model
    for index in range(model.neq if model.nmocap > 0 else 0):
        if int(model.eq_type[index]) == weld:
            model.eq_data[index] = 0.0
            model.eq_data[index, 6] = -1.0
            model.eq_data[index, 10] = 5.0


_ROBOSUITE_VERSION = "1.5.2"
_HORIZONS = {"Lift": 400, "PickPlaceCan": 400, "NutAssemblySquare": 400, "TwoArmTransport": 700, "ToolHang": 700}
"""Control steps that robomimic gives an episode of its tasks; robosuite itself gives 1,000."""


class Robosuite:
    """The tasks of robosuite, with the controllers, horizons and pictures of robomimic."""

    @staticmethod
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
        return {"max_episode_length": _HORIZONS.get(name, 1000), "modules": ["robosuite"], "robots": robots}

    @staticmethod
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
            "control_freq": 20,
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
        limit = max_episode_length or _HORIZONS.get(name, 1000)
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
    if robosuite.__version__ != _ROBOSUITE_VERSION:
        raise ImportError(f"robosuite {robosuite.__version__} is installed, and {_ROBOSUITE_VERSION} is needed")
    return robosuite
