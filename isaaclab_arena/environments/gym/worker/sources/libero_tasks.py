"""The tasks of LIBERO, from a checkout, each episode started as a benchmark's protocol says."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import math
import os
import pathlib
import sys
import tempfile
import types
import typing

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration

# Beside this file, whatever package a worker or this program imports it as.
from .libero_cameras import Cameras  # noqa: TID252
from .libero_init_states import read_init_states  # noqa: TID252
from .libero_resets import ResetSequence  # noqa: TID252

ROBOSUITE = "1.4."
"""The versions of robosuite that LIBERO's code works with begin like this."""

PACKAGES = ("bddl", "cloudpickle", "easydict", "gym", "matplotlib", "mujoco")
"""What LIBERO's environments import beside robosuite; LIBERO-plus needs more, which its wrapper imports."""

HOLD = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""What the arm does while objects come to rest: nothing, with the gripper open."""

CONTROL_FREQUENCY_HZ = 20

GRIPPERS: dict[str, typing.Callable[[float], float]] = {
    "raw": lambda value: value,
    "sign": lambda value: -1.0 if value < 0 else 1.0,
    "open is one": lambda value: float(np.sign(1.0 - 2.0 * value)),
}
"""What the last number of an action means, to what LIBERO takes: -1 opens, 1 closes."""


def find(name: str, make_kwargs: dict) -> dict[str, object]:
    """Return the module that decides what tasks do.

    Raises:
        ImportError: If robosuite is not installed or in another version, or if a package is missing.
    """
    # The checkout says which tasks there are.
    del name
    wrapper = pathlib.Path(make_kwargs["package_directory"], "libero", "envs", "env_wrapper.py")
    needed = dict.fromkeys((*PACKAGES, *_imported_by(wrapper)))
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    wrong = [f"LIBERO needs {', '.join(missing)}"] if missing else []
    try:
        version = importlib.import_module("robosuite").__version__
    except ImportError:
        # robosuite itself may lack what is missing.
        if not missing:
            raise
        version = ROBOSUITE
    if not version.startswith(ROBOSUITE):
        wrong.append(f"robosuite {version} is installed, and LIBERO needs 1.4.0")
    if wrong:
        raise ImportError("; ".join(wrong))
    return {"max_episode_length": None, "modules": ["robosuite"]}


def make(name: str, make_kwargs: dict, max_episode_length: int | None) -> gymnasium.Env:
    """Return a new environment of a task.

    Args:
        name: Not used: the files of the task say all.
        make_kwargs: What `isaaclab_arena.environments.libero.builder.LiberoBuilder` has found out of it.
        max_episode_length: Control steps that a policy has.

    Raises:
        ImportError: If LIBERO cannot be imported from the checkout.
        InitStatesError: If the file of initial states holds none.
    """
    del name
    states = read_init_states(make_kwargs["init_states_file"])
    envs = _libero(make_kwargs["package_directory"])
    cameras = list(make_kwargs["cameras"])
    task = envs.env_wrapper.ControlEnv(
        bddl_file_name=make_kwargs["bddl_file"],
        use_camera_obs=bool(cameras),
        has_offscreen_renderer=bool(cameras),
        control_freq=CONTROL_FREQUENCY_HZ,
        # Episodes are ended from outside.
        ignore_done=True,
        **_camera_arguments(cameras, make_kwargs["camera_size"]),
    )
    environment = LiberoTask(task, states, make_kwargs)
    environment.spec = registration.EnvSpec("libero/task")
    return gymnasium.wrappers.TimeLimit(environment, max_episode_length or 1)


class LiberoTask(gymnasium.Env):
    """A task of LIBERO behind Gymnasium's interface.

    It observes each of LIBERO's observables by its own name, and ``robot0_eef_axis_angle``. ``info["success"]`` is what
    the task says of itself.

    Attributes:
        task: LIBERO's own environment.
        made_by: The class below it, whose packages are told.
        runs_on: Packages whose versions are told beside those of its class.
        control_timestep: Time between two control steps [s].

    Args:
        task: LIBERO's own environment.
        states: The initial states of the task. Shape: (num_states, state_dim).
        settings: See `make`.
    """

    runs_on = ("robosuite", "bddl")

    def __init__(self, task: typing.Any, states: np.ndarray, settings: typing.Mapping[str, typing.Any]) -> None:
        self.task = task
        self.made_by = type(task.env)
        self.control_timestep = 1.0 / CONTROL_FREQUENCY_HZ
        self._states = states
        self._settings = settings
        self._resets = ResetSequence(task, seeds_every_reset=settings["seeds_every_reset"])
        cameras = settings["cameras"]
        sizes = {"size": settings["camera_size"], "shown_size": settings["picture_size"]}
        self._cameras = Cameras(task.env, cameras, **sizes) if cameras else None
        self._pictures_wanted = True
        self.action_space = spaces.Box(-1.0, 1.0, (len(HOLD),), np.float32)
        shown = _states(task.env._get_observations())
        size = settings["picture_size"] or settings["camera_size"]
        self.observation_space = spaces.Dict(
            {
                **{name: spaces.Box(-np.inf, np.inf, value.shape) for name, value in shown.items()},
                **{f"{camera}_image": spaces.Box(0, 255, (size, size, 3), np.uint8) for camera in cameras},
            }
        )

    def draw_pictures(self, wanted: bool) -> None:  # noqa: FBT001  as the hook has it
        """Say whether the pictures of the next reset or step are wanted."""
        self._pictures_wanted = wanted

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Start the episode that its conditions describe.

        Args:
            seed: Not used: the conditions say what is drawn from.
            options: ``conditions``, with ``libero.fixture_seed``, ``libero.reset_index`` and ``libero.init_state``.
        """
        del seed
        conditions = (options or {})["conditions"]
        waits = self._settings["wait_steps"]
        self._draw_next(last=False)
        self._resets.play(conditions["libero.fixture_seed"], conditions["libero.reset_index"])
        self._draw_next(last=waits == 0)
        observation = self.task.set_init_state(self._states[conditions["libero.init_state"]])
        for number in range(waits):
            self._draw_next(last=number == waits - 1)
            observation = self.task.step(list(HOLD))[0]
        return self._shown(observation), {"success": bool(self.task.check_success())}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Make one control step."""
        self._draw_next(last=True)
        native = np.asarray(action, np.float64).copy()
        native[-1] = GRIPPERS[self._settings["gripper"]](native[-1])
        observation, reward, _, _ = self.task.step(native)
        return self._shown(observation), float(reward), False, False, {"success": bool(self.task.check_success())}

    def close(self) -> None:
        """Close the environment."""
        self.task.close()

    def _draw_next(self, *, last: bool) -> None:
        """Say whether what is read next is shown: the last of a reset is, what comes before it is not."""
        if self._cameras is not None:
            self._cameras.wanted = last and self._pictures_wanted
            self._cameras.forget()

    def _shown(self, observation: typing.Mapping[str, typing.Any]) -> dict[str, np.ndarray]:
        pictures = {} if self._cameras is None else self._cameras.shown(observation)
        return {**_states(observation), **pictures}


def _states(observation: typing.Mapping[str, typing.Any]) -> dict[str, np.ndarray]:
    """Return what is no picture, and no repetition of several of robosuite's observables as one.

    ``robot0_eef_axis_angle`` is the hand's orientation as policies trained on LIBERO are given it.
    """
    shown = {
        name: np.atleast_1d(value) for name, value in observation.items() if not name.endswith(("-state", "_image"))
    }
    if "robot0_eef_quat" in shown:
        shown["robot0_eef_axis_angle"] = axis_angle(shown["robot0_eef_quat"])
    return shown


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """Return a rotation as axis times angle, 0 to 2 pi, as openpi and OpenVLA do it.

    Args:
        quaternion: Its scalar part is the last. Shape: (4,).
    """
    scalar = min(max(float(quaternion[3]), -1.0), 1.0)
    sine = np.sqrt(1.0 - scalar * scalar)
    if math.isclose(sine, 0.0):
        return np.zeros(3)
    return quaternion[:3] * 2.0 * math.acos(scalar) / sine


def _camera_arguments(cameras: list[str], size: int) -> dict[str, typing.Any]:
    return {"camera_names": cameras, "camera_heights": size, "camera_widths": size} if cameras else {}


def _imported_by(file: pathlib.Path) -> list[str]:
    """Return the packages that a file imports where it begins, LIBERO's own left out."""
    names: list[str] = []
    for statement in ast.parse(file.read_text()).body:
        if isinstance(statement, ast.Import):
            names += [each.name for each in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names.append(statement.module)
    packages = [name.partition(".")[0] for name in names]
    return [package for package in packages if package != "libero"]


def _libero(directory: str) -> typing.Any:
    """Import LIBERO's environments from a checkout and return their package.

    Args:
        directory: What holds the inner package ``libero``, whose outer package has no ``__init__``. So another LIBERO
            that is installed would come first, and the outer package is made here.
    """
    outer = types.ModuleType("libero")
    outer.__path__ = [directory]
    sys.modules["libero"] = outer
    # LIBERO asks on the standard input where its files are, unless it finds its answers written down.
    with tempfile.TemporaryDirectory() as answers:
        inside = pathlib.Path(directory, "libero")
        names = {"benchmark_root": ".", "bddl_files": "bddl_files", "init_states": "init_files", "assets": "assets"}
        lines = [f"{name}: {json.dumps(str(inside / part))}" for name, part in names.items()]
        lines.append(f"datasets: {json.dumps(str(inside.with_name('datasets')))}")
        pathlib.Path(answers, "config.yaml").write_text("\n".join(lines))
        os.environ["LIBERO_CONFIG_PATH"] = answers
        envs = importlib.import_module("libero.libero.envs")
        importlib.import_module("libero.libero.envs.env_wrapper")
    return envs
