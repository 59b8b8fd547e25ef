"""Environments of Gymnasium's registry, Meta-World, robosuite 1.5.2 as robomimic plays its tasks, and LIBERO."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib
import importlib.util
import io
import itertools
import json
import math
import os
import pathlib
import pickletools
import sys
import tempfile
import types
import typing
import warnings
import zipfile

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration


class Registered:
    """Environments of Gymnasium's registry: ``Ant-v5``, ``my_package.my_module:MyTask-v0``."""

    @staticmethod
    def find(name: str, _make_kwargs: dict) -> dict[str, object]:
        """Return an environment's limit and its deciding modules; LookupError if it is unknown, else ImportError."""
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
    def find(name: str, _make_kwargs: dict) -> dict[str, object]:
        """Return a task's limit and its deciding module; LookupError for no such task, else ImportError."""
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
    def find(name: str, _make_kwargs: dict) -> dict[str, object]:
        """Return a task's limit, its deciding module and all robots; LookupError for no such task, else ImportError."""
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
        self._cameras = RobosuiteCameras(task, self._pictures)
        self._pictures_wanted = True

    def draw_pictures(self, wanted: bool) -> None:  # noqa: FBT001  as the hook has it
        """Set if the pictures of the next reset or step are wanted."""
        self._pictures_wanted = wanted

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Start an episode, which depends on its seed alone."""
        del options
        if seed is not None:
            # robosuite passes its generator object on to its parts, so the object itself has to change.
            self.task.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        with self._cameras.drawing(self._pictures_wanted):
            observation = self.task.reset()
        return self._shown(observation), {"success": self._is_solved()}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Make one control step."""
        with self._cameras.drawing(self._pictures_wanted):
            observation, reward, _, _ = self.task.step(np.asarray(action, np.float64))
        return self._shown(observation), float(reward), False, False, {"success": self._is_solved()}

    def observed_again(self) -> dict[str, np.ndarray]:
        """Return the observation of the present state; the clocks of robosuite's sensors stand still meanwhile."""
        environment = getattr(self.task, "env", self.task)
        names = "_time_since_last_sample", "_sampled", "_current_delay"
        clocks = [(each, {name: getattr(each, name) for name in names}) for each in environment._observables.values()]
        with self._cameras.drawing(self._pictures_wanted):
            observation = environment._get_observations(force_update=True)
        for observable, clock in clocks:
            vars(observable).update(clock)
        return self._shown(observation)

    def robot_moved(self) -> None:
        """Let the controllers start from the pose that the robots have now."""
        for robot in getattr(self.task, "env", self.task).robots:
            # robosuite 1.4 has a controller, or one for each arm, and 1.5 a composite one.
            composite = getattr(robot, "composite_controller", None)
            found = robot.controller if composite is None else composite.part_controllers
            for controller in found.values() if isinstance(found, dict) else [found]:
                controller.update(force=True)
                controller.reset_goal()

    def close(self) -> None:
        """Close the environment."""
        self.task.close()

    def _is_solved(self) -> bool:
        return bool(self.task._check_success())

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


class RobosuiteCameras:
    """The cameras of a robosuite environment, whose sensors draw only wanted pictures."""

    def __init__(
        self, environment: typing.Any, names: typing.Sequence[str], trusted: typing.Sequence[str] = ()
    ) -> None:
        # robosuite reads a camera at a physics step inside a control step, so a picture cannot be drawn afterwards.
        # Switching an observable off would reset its clock and change later pictures. So observables stay on, and their
        # sensors repeat the last picture.
        allowed = {"robosuite", *trusted}
        self._environment, self._wanted = environment, True
        self._sensors: dict[str, typing.Any] = {}
        self._last: dict[str, typing.Any] = {}  # newest pictures
        self._skipped: set[str] = set()  # cameras whose newest reading drew nothing
        self.names: list[str] = []
        for name in names:
            observables = environment._observables
            if name not in observables or name.replace("_image", "_depth") in observables.keys() - {name}:
                continue
            # Nothing but the picture depends on its sensor, and each control step has to read it.
            if all(each._sensor.__module__.partition(".")[0] in allowed for each in observables.values()):
                off_s = observables[name]._sampling_timestep - environment.control_timestep
                if abs(off_s) < 1e-9:
                    self.names.append(name)
                    self._last[name] = observables[name].obs

        # A hard reset makes new sensors, and reads each several times.
        make = getattr(environment, "_create_camera_sensors", None)
        if make is not None:

            def make_on_demand(*args: typing.Any, **kwargs: typing.Any) -> tuple[list, list[str]]:
                sensors, made = make(*args, **kwargs)
                named = zip(made, sensors)  # noqa: B905  Python 3.9 has no strict
                return [self._on_demand(*each) if each[0] in self.names else each[1] for each in named], made

            environment._create_camera_sensors = make_on_demand

    @contextlib.contextmanager
    def drawing(self, wanted: bool) -> typing.Iterator[None]:  # noqa: FBT001  its only argument
        """Set if the pictures of the block's reset or step are wanted; RuntimeError if a camera was read too early."""
        # robosuite calls a new sensor once; that call needs no picture, and the last one is kept.
        self._wanted = False
        for name in self.names:
            observable = self._environment._observables[name]
            if observable._sensor is not self._sensors.get(name):
                self._last[name] = observable.obs
                self._environment.modify_observable(name, "sensor", self._on_demand(name, observable._sensor))
                self._skipped.discard(name)
        self._wanted = wanted
        yield
        # A control step without a reading shows the last picture, which has to be one that was drawn.
        for name in self.names if wanted else ():
            if name in self._skipped and self._environment._observables[name]._sensor is self._sensors[name]:
                raise RuntimeError(
                    f"robosuite did not read '{name}' in this step; --eager_pictures draws every picture"
                )

    def _on_demand(self, name: str, sensor: typing.Any) -> typing.Any:
        @functools.wraps(sensor)
        def draw_if_wanted(cache: dict) -> typing.Any:
            if self._wanted:
                self._last[name] = sensor(cache)
                self._skipped.discard(name)
            else:
                self._skipped.add(name)
            return self._last[name]

        self._sensors[name] = draw_if_wanted
        return draw_if_wanted


# Read LIBERO's initial states, without torch and without unpickling them.

MAX_BYTES = 1 << 28  # larger files are refused; LIBERO's own have 45 kB

_PICKLED = "data.pkl"
_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "GLOBAL"}
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_STRUCTURE = frozenset(
    {"PROTO", "FRAME", "STOP", "MARK", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "REDUCE", "BUILD"}
)
_MOST_INSTRUCTIONS = 200  # an array needs 64


class InitStatesError(ValueError):
    """A file that does not hold one array of initial states."""


def read_init_states(path: str) -> np.ndarray:
    """Return a task's initial states (num_states, state_dim), float64; InitStatesError for any other content."""
    try:
        found = _read_array(path)
    except Exception as error:  # a hostile file breaks readers of archives in many ways
        what = str(error) if isinstance(error, (ValueError, TypeError)) else "it is torn, or of another kind"
        message = f"'{path}' holds no array of initial states: {what}; fetch the file again"
        raise InitStatesError(message) from error
    states = np.atleast_2d(found).astype(np.float64)
    if states.ndim != 2 or 0 in states.shape or not np.isfinite(states).all():
        raise InitStatesError(f"'{path}' holds an array of shape {states.shape} or with NaN, and no initial states")
    return states


def _read_array(path: str) -> np.ndarray:
    """Return the array of numbers in torch's archive or bare pickle, or in NumPy's archive, as pip's package has."""
    is_pickle = not path.endswith(".npz")
    wanted = _PICKLED if is_pickle else "states.npy"
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            parts = [each for each in archive.infolist() if each.filename.rpartition("/")[2] == wanted]
            if len(parts) != 1 or parts[0].file_size > MAX_BYTES:
                raise ValueError(f"it is an archive without one {wanted} of at most {MAX_BYTES} bytes")
            data = archive.read(parts[0])
    else:
        with pathlib.Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES)

    # A pickle is a list of instructions: only those that describe an array of numbers are followed, and none is
    # executed.
    found = _array(data) if is_pickle else np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    if found.dtype.kind not in "fiu":
        raise ValueError(f"it holds {found.dtype}, and no numbers")
    return found


def _parts(data: bytes) -> list[typing.Any]:
    """Return the names and values in a pickle, in order and without their structure; nothing is called."""
    parts: list[typing.Any] = []
    memo: dict[int, list[typing.Any]] = {}
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if number >= _MOST_INSTRUCTIONS:
            raise ValueError(f"it has more than {_MOST_INSTRUCTIONS} instructions, which no array of numbers needs")
        name = opcode.name
        if name in _VALUES:
            parts.append(argument)
        elif name in _CONSTANTS:
            parts.append(_CONSTANTS[name])
        elif name == "STACK_GLOBAL":
            parts[-2:] = [" ".join(parts[-2:])]
        elif name in {"BINPUT", "LONG_BINPUT", "MEMOIZE"}:
            # Pickles of arrays repeat names and values only.
            memo[len(memo) if name == "MEMOIZE" else typing.cast(int, argument)] = parts[-1:]
        elif name in {"BINGET", "LONG_BINGET"}:
            parts += memo[typing.cast(int, argument)]
        elif name not in _STRUCTURE:
            raise ValueError(f"it has a {name}, which no array of numbers needs")
    return parts


def _array(data: bytes) -> np.ndarray:
    """Return the array that a pickle describes: all of its parts have fixed places, but the shape has any length."""
    parts = _parts(data)
    if parts[0] not in ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"):
        raise ValueError(f"it calls for {parts[0] if isinstance(parts[0], str) else f'a {type(parts[0]).__name__}'}")
    # Pickle protocol 2 has no bytes, and writes them as text with its encoding.
    is_text, number_type = parts[3] == "_codecs encode", parts.index("numpy dtype")
    shape = parts[7 if is_text else 5 : number_type]
    dtype = np.dtype(str(parts[number_type + 1]))
    if parts[number_type + 5] == ">":
        dtype = dtype.newbyteorder(">")
    in_fortran_order, *written = parts[number_type + 12 :]
    if is_text and written[2] != "latin1":
        raise ValueError(f"its values are text in {written[2]}")
    values = written[1].encode("latin1") if is_text else written[0]
    order: typing.Literal["F", "C"] = "F" if in_fortran_order else "C"
    return np.frombuffer(values, dtype).reshape(shape, order=order)


# Play LIBERO's resets so that each is independent of the resets before it.


class ResetSequence:
    """The resets of one newly made environment after a seed, each available at any time."""

    def __init__(self, task: typing.Any, *, seeds_every_reset: bool) -> None:
        # LIBERO draws fixture poses from NumPy's global generator, and each reset extends a list of samplers. So a
        # reset depends on the seed and on the number of earlier resets; both are restored before it.
        self._task = task
        self._seeds_every_reset = seeds_every_reset
        self._first: list[typing.Any] = list(task.env.object_property_initializers)
        self._seed: int | None = None
        # Of each reset, NumPy's generator state before it, and the samplers of the fixtures' joints.
        self._starts: list[tuple[typing.Any, list[typing.Any]]] = []

    def play(self, seed: int, index: int) -> None:
        """Reset the environment as its reset number ``index`` after ``seed``."""
        if self._seeds_every_reset:
            self._reset(np.random.RandomState(seed).get_state(), self._first * (index + 1))
            return
        if seed != self._seed:
            self._seed, self._starts = seed, [(np.random.RandomState(seed).get_state(), self._first)]
        # The generator's state before a reset is known only after the resets before it were played.
        for number in (*range(len(self._starts) - 1, index), index):
            self._reset(*self._starts[number])
            if number == len(self._starts) - 1:
                self._starts.append((np.random.get_state(), list(self._task.env.object_property_initializers)))

    def _reset(self, generator_state: typing.Any, drawn: list[typing.Any]) -> None:
        np.random.set_state(generator_state)
        self._task.env.object_property_initializers[:] = drawn
        self._task.reset()


# Provide the tasks of LIBERO from a checkout, with episodes that start as a benchmark's protocol says.

ROBOSUITE = "1.4."  # the versions of robosuite that LIBERO's code works with begin like this

PACKAGES = ("bddl", "cloudpickle", "easydict", "matplotlib", "mujoco")
"""The packages that LIBERO's environments import beside robosuite; LIBERO itself imports gym, and LIBERO-plus more."""

HOLD = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)  # the action while objects come to rest: no motion, with the gripper open

CONTROL_FREQUENCY_HZ = 20

GRIPPERS: dict[str, typing.Callable[[float], float]] = {
    "raw": lambda value: value,
    "sign": lambda value: -1.0 if value < 0 else 1.0,
    "open is one": lambda value: float(np.sign(1.0 - 2.0 * value)),  # 0 closes and 1 opens, rounded to either
}
"""The meaning of an action's last number, to its conversion for LIBERO: -1 opens, 1 closes."""


class Libero:
    """The tasks of LIBERO, from a checkout; `LiberoBuilder` fills ``make_kwargs``."""

    @staticmethod
    def find(_name: str, make_kwargs: dict) -> dict[str, object]:
        """Return the module that determines the tasks' behaviour; ImportError if a package is missing or another."""
        # The checkout determines the tasks.
        envs = pathlib.Path(make_kwargs["package_directory"], "libero", "envs")

        # The packages that these files import at their top level are needed, except LIBERO's own.
        imported: list[str] = []
        wrappers = [path for path in (envs / "env_wrapper.py", envs / "venv.py") if path.is_file()]
        for statement in itertools.chain(*(ast.parse(path.read_text()).body for path in wrappers)):
            if isinstance(statement, ast.Import):
                imported += [each.name for each in statement.names]
            elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
                imported.append(statement.module)
        packages = [module.partition(".")[0] for module in imported]
        needed = dict.fromkeys((*PACKAGES, *(package for package in packages if package != "libero")))
        missing = [package for package in needed if importlib.util.find_spec(package) is None]
        wrong = [f"LIBERO needs {', '.join(missing)}"] if missing else []
        try:
            version = importlib.import_module("robosuite").__version__
        except ImportError:
            # robosuite's own import may fail because of the missing packages.
            if not missing:
                raise
            version = ROBOSUITE
        if not version.startswith(ROBOSUITE):
            wrong.append(f"robosuite {version} is installed, and LIBERO needs 1.4.0")
        if wrong:
            raise ImportError("; ".join(wrong))
        return {"max_episode_length": None, "modules": ["robosuite"]}

    @staticmethod
    def make(_name: str, make_kwargs: dict, max_episode_length: int | None) -> gymnasium.Env:
        """Return a new environment of the task in ``make_kwargs``, which `LiberoBuilder` has filled."""
        states = read_init_states(make_kwargs["init_states_file"])

        # Import LIBERO's environments from the checkout. The outer package has no __init__, so another installed LIBERO
        # would win; it is made here instead.
        directory = make_kwargs["package_directory"]
        outer = types.ModuleType("libero")
        outer.__path__ = [directory]
        sys.modules["libero"] = outer
        # LIBERO's first import asks on standard input for the paths of its files, unless a config file has them.
        with tempfile.TemporaryDirectory() as answers:
            inside = pathlib.Path(directory, "libero")
            parts = {"benchmark_root": "", "bddl_files": "bddl_files", "init_states": "init_files"}
            paths = {key: str(inside / part) for key, part in parts.items()}
            paths |= {"assets": make_kwargs["assets_directory"], "datasets": str(inside.with_name("datasets"))}
            pathlib.Path(answers, "config.yaml").write_text(json.dumps(paths))
            os.environ["LIBERO_CONFIG_PATH"] = answers
            libero: typing.Any = importlib.import_module("libero.libero")
        # Later it looks for the file again, at each reset.
        libero.get_libero_path = paths.__getitem__
        envs = importlib.import_module("libero.libero.envs")
        importlib.import_module("libero.libero.envs.env_wrapper")

        cameras, size = list(make_kwargs["cameras"]), make_kwargs["camera_size"]
        task = envs.env_wrapper.ControlEnv(
            bddl_file_name=make_kwargs["bddl_file"],
            use_camera_obs=bool(cameras),
            has_offscreen_renderer=bool(cameras),
            control_freq=CONTROL_FREQUENCY_HZ,
            # The time limit ends episodes.
            ignore_done=True,
            **({"camera_names": cameras, "camera_heights": size, "camera_widths": size} if cameras else {}),
        )
        environment = LiberoTask(task, states, make_kwargs)
        environment.spec = registration.EnvSpec("libero/task")
        return gymnasium.wrappers.TimeLimit(environment, max_episode_length or 1)


class LiberoTask(RobosuiteTask):
    """A LIBERO task behind Gymnasium's interface, with LIBERO's own names of observables."""

    runs_on = ("robosuite", "bddl")

    def __init__(self, task: typing.Any, states: np.ndarray, settings: typing.Mapping[str, typing.Any]) -> None:
        # ``made_by`` and ``runs_on`` name the packages whose versions are recorded. ``states`` is (num_states,
        # state_dim).
        self.task = task
        self.made_by = type(task.env)
        self.control_timestep = 1.0 / CONTROL_FREQUENCY_HZ
        self._states = states
        self._settings = settings
        self._resets = ResetSequence(task, seeds_every_reset=settings["seeds_every_reset"])
        self._pictures = [f"{camera}_image" for camera in settings["cameras"]]
        # LIBERO's own observables do not depend on pictures.
        self._cameras = RobosuiteCameras(task.env, self._pictures, trusted=["libero"])
        self._pictures_wanted = True
        self.before_waiting: typing.Callable[[], object] | None = None  # called once, in the next reset
        self.action_space = spaces.Box(-1.0, 1.0, (len(HOLD),), np.float32)
        shown = _states(task.env._get_observations())
        size = settings["picture_size"] or settings["camera_size"]
        self.observation_space = spaces.Dict(
            {
                **{name: spaces.Box(-np.inf, np.inf, value.shape) for name, value in shown.items()},
                **{name: spaces.Box(0, 255, (size, size, 3), np.uint8) for name in self._pictures},
            }
        )

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Start the episode that ``options["conditions"]`` describe; ``seed`` is not used."""
        del seed
        conditions = (options or {})["conditions"]
        waits = self._settings["wait_steps"]
        # The conditions hold libero.fixture_seed, libero.reset_index and libero.init_state. Only the last observation
        # of the reset is shown, so only its pictures are drawn.
        wanted = self._pictures_wanted
        with self._cameras.drawing(wanted=False):
            self._resets.play(conditions["libero.fixture_seed"], conditions["libero.reset_index"])
        with self._cameras.drawing(wanted and waits == 0):
            observation = self.task.set_init_state(self._states[conditions["libero.init_state"]])
        before_waiting, self.before_waiting = self.before_waiting, None
        if before_waiting is not None:
            before_waiting()
            if not waits:
                return self.observed_again(), {"success": self._is_solved()}
        for number in range(waits):
            with self._cameras.drawing(wanted and number == waits - 1):
                observation = self.task.step(list(HOLD))[0]
        return self._shown(observation), {"success": self._is_solved()}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Make one control step."""
        native = np.asarray(action, np.float64).copy()
        native[-1] = GRIPPERS[self._settings["gripper"]](native[-1])
        return super().step(native)

    def _is_solved(self) -> bool:
        return bool(self.task.check_success())

    def _shown(self, observation: typing.Mapping[str, typing.Any]) -> dict[str, np.ndarray]:
        shown, size = _states(observation), self._settings["picture_size"]
        for name in self._pictures if self._pictures_wanted else ():
            # OpenGL's pictures begin at the bottom, and policies see them turned by 180 degrees.
            shown[name] = np.ascontiguousarray(observation[name][::-1, ::-1])
            if size not in (None, self._settings["camera_size"]):
                # As openpi_client.image_tools.resize_with_pad; square pictures need no border.
                image = importlib.import_module("PIL.Image")
                smaller = image.fromarray(shown[name]).resize((size, size), resample=image.BILINEAR)
                shown[name] = np.asarray(smaller)
        return shown


def _states(observation: typing.Mapping[str, typing.Any]) -> dict[str, np.ndarray]:
    """Return the observables that are neither pictures nor joint copies of others."""
    shown = {
        name: np.atleast_1d(value) for name, value in observation.items() if not name.endswith(("-state", "_image"))
    }
    # The hand's orientation in the form that policies trained on LIBERO expect.
    if "robot0_eef_quat" in shown:
        shown["robot0_eef_axis_angle"] = axis_angle(shown["robot0_eef_quat"])
    return shown


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """Convert a quaternion (4,), scalar last, to axis times angle, 0 to 2 pi, as openpi and OpenVLA do."""
    scalar = min(max(float(quaternion[3]), -1.0), 1.0)
    sine = np.sqrt(1.0 - scalar * scalar)
    if math.isclose(sine, 0.0):
        return np.zeros(3)
    return quaternion[:3] * 2.0 * math.acos(scalar) / sine
