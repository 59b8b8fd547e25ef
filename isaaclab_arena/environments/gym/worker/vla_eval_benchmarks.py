"""The benchmark classes of vla-eval, and spaces for interpreters without Gymnasium."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import importlib
import inspect
import os
import sys
import typing

import numpy as np

# Define spaces for interpreters that have NumPy, but not Gymnasium.


class Box:
    """Arrays of one shape and type, as Gymnasium's space of this name."""

    def __init__(self, low: float, high: float, shape: tuple[int, ...], dtype: typing.Any = np.float32) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.low, self.high = np.full(shape, low, self.dtype), np.full(shape, high, self.dtype)


class Dict(typing.NamedTuple):
    """Named spaces, as Gymnasium's space of this name."""

    spaces: typing.Mapping[str, typing.Any]


class Spec(typing.NamedTuple):
    """The used part of Gymnasium's registration of an environment."""

    max_episode_steps: int | None
    nondeterministic: bool = False


# Run a task of a vla-eval benchmark class, with the episodes of vla-eval's own loop.

DEFAULT_MAX_STEPS = 300  # control steps that vla-eval gives an episode of a class that does not say

RUNS_ON = (
    *("vla_eval", "libero", "robosuite", "robocasa", "mujoco", "dm_control", "bddl", "mani_skill"),
    *("mani_skill2_real2sim", "sapien", "simpler_env", "rlbench", "pyrep", "calvin_env", "pybullet", "kinetix"),
    *("jax", "omnigibson", "torch"),
)
"""Packages whose versions are recorded if imported: simulators of vla-eval's own benchmarks, and itself."""

LANGUAGE = "task_description"  # the name of the instruction in vla-eval's observations

_NUMBER_KINDS = "biuf"


def find(name: str, make_kwargs: dict) -> dict[str, object]:
    """Return the limits and tasks of class ``module:Class``, and its first wrong option; ImportError, LookupError."""
    tasks: list[str] = []
    metadata: dict[str, typing.Any] = {}
    wrong_option = None
    try:
        benchmark = _made(_class_of(name), make_kwargs)
    except _WrongOptionError as error:
        # A result, not an error: the job's check reports it with its key.
        wrong_option = error.args
    else:
        try:
            tasks = [str(task.get("name")) for task in benchmark.get_tasks()]
            metadata = benchmark.get_metadata()
        finally:
            benchmark.cleanup()
    return {
        "max_episode_length": metadata.get("max_steps", DEFAULT_MAX_STEPS),
        "modules": ["vla_eval", name.partition(":")[0]],
        "num_episodes": metadata.get("max_episodes_per_task"),
        "tasks": tasks,
        "wrong_option": wrong_option,
    }


def make(name: str, make_kwargs: dict, max_episode_length: int | None) -> BenchmarkTask:
    """Return a new environment of one task of class ``module:Class``."""
    # ``make_kwargs``: ``task`` (name, index, or None if there is one), ``arguments`` of the class, ``render`` (gpu,
    # cpu, or None for MUJOCO_GL), ``new_each_episode`` and ``action_dim``.
    return BenchmarkTask(_class_of(name), make_kwargs, max_episode_length)


class BenchmarkTask:
    """One task of a benchmark class with the interface of `gymnasium.Env`, called in the order of vla-eval's runner."""

    metadata: typing.ClassVar[dict[str, typing.Any]] = {}
    render_mode: str | None = None

    def __init__(self, benchmark_class: type, settings: dict, max_episode_length: int | None) -> None:
        # An episode is start_episode and get_observation; a step is apply_action, is_done and get_observation. ``info``
        # holds the class's result at the last step of an episode.
        self.made_by = benchmark_class  # its package's version is recorded
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._wait = self._loop.run_until_complete
        self._benchmark: typing.Any = None
        self._task: dict = {}
        self._num_steps = 0
        shown = self._observed(self._started(0))
        metadata = self._benchmark.get_metadata()
        self._limit = max_episode_length or metadata.get("max_steps", DEFAULT_MAX_STEPS)
        self.spec = Spec(max_episode_steps=self._limit)
        self.metric_keys = tuple(key for key in self._benchmark.get_metric_keys() if key != "success")

        action_dim = settings["action_dim"] or metadata.get("action_dim")
        if action_dim is None:
            try:
                dims = [part.dims for part in self._benchmark.get_action_spec().values()]
            except NotImplementedError:
                dims = []
            if not dims or 0 in dims:
                message = "does not say how many numbers an action has; give action_dim"
                raise TypeError(f"{benchmark_class.__name__} {message}")
            action_dim = sum(dims)
        action_dim = int(action_dim)
        last = np.arange(1.0, action_dim + 1, dtype=np.float32)
        self.hold_action: list[float] | str | None = None
        with contextlib.suppress(NotImplementedError):
            held = np.asarray(self._benchmark.get_hold_action({"actions": last})["actions"], np.float32)
            self.hold_action = "last" if np.array_equal(held, last) else held.reshape(-1).tolist()
        # The declared ranges are no limits: vla-eval passes actions on unchanged.
        self.action_space = Box(-np.inf, np.inf, (action_dim,))
        self.observation_space = Dict(
            {
                name: Box(0, 255, value.shape, np.uint8)
                if value.dtype == np.uint8 and value.ndim >= 2
                else Box(-np.inf, np.inf, value.shape)
                for name, value in shown.items()
            }
        )
        self.stated_conditions = {"vla_eval.task": str(self._task.get("name"))}
        self.runs_on = tuple(name for name in RUNS_ON if name in sys.modules)

    @property
    def unwrapped(self) -> BenchmarkTask:
        """This environment: there are no wrappers."""
        return self

    def reset(self, *, seed: int, options: typing.Mapping[str, typing.Any]) -> tuple[dict, dict]:
        """Start the episode ``options["episode_index"]``; ValueError if the task has no such episode."""
        del seed  # it seeds the process-wide generators, from which benchmarks draw
        observation = self._started(options["episode_index"])
        return self._observed(observation), {LANGUAGE: observation.get(LANGUAGE) or self._task.get("name")}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Make one control step."""
        benchmark = self._benchmark
        self._wait(benchmark.apply_action({"actions": action}))
        self._num_steps += 1
        done = bool(self._wait(benchmark.is_done()))
        over = done or self._num_steps >= self._limit
        info: dict[str, float] = {}
        if over:
            arrays = dict(_arrays(self._wait(benchmark.get_result())))
            info = {name: float(array.reshape(())) for name, array in arrays.items() if array.size == 1}
        # Only step-based benchmark classes have a reward.
        reward = getattr(getattr(benchmark, "_last_result", None), "reward", 0.0)
        return self._observed(self._wait(benchmark.get_observation())), reward, done, over and not done, info

    def close(self) -> None:
        """Release the benchmark's resources."""
        if self._benchmark is not None:
            self._benchmark.cleanup()
        self._loop.close()

    def _started(self, episode_index: int) -> typing.Any:
        # Take a new benchmark object per episode if the settings ask for it.
        if self._benchmark is not None and self._settings["new_each_episode"]:
            self._benchmark.cleanup()
            self._benchmark = None
        if self._benchmark is None:
            self._benchmark = _made(self.made_by, self._settings)
            tasks, wanted = self._benchmark.get_tasks(), self._settings["task"]
            by_name = {task.get("name"): task for task in tasks}
            self._task = by_name[wanted] if isinstance(wanted, str) else tasks[wanted or 0]

        benchmark = self._benchmark
        num_episodes = benchmark.get_metadata().get("max_episodes_per_task")
        if num_episodes is not None and episode_index >= num_episodes:
            raise ValueError(f"episode {episode_index} does not exist: this task has {num_episodes}, counted from 0")
        recorder = importlib.import_module("vla_eval.recording").NullEpisodeRecorder()
        self._num_steps = 0
        self._wait(benchmark.start_episode({**self._task, "episode_idx": episode_index}, recorder))
        return self._wait(benchmark.get_observation())

    def _observed(self, observation: typing.Mapping[str, typing.Any]) -> dict[str, np.ndarray]:
        pictures = observation.get("images") or {}
        rest = {name: value for name, value in observation.items() if name != "images"}
        return {**dict(_arrays(rest)), **{name: np.asarray(picture) for name, picture in pictures.items()}}


class _WrongOptionError(Exception):
    """A wrong job option: its key and the problem."""


def _class_of(name: str) -> type:
    module_name, _, class_name = name.partition(":")
    if not class_name:
        raise LookupError(f"'{name}' is no benchmark class; write vla_eval:<module>:<Class>")
    base = importlib.import_module("vla_eval.benchmarks.base").Benchmark
    module = importlib.import_module(module_name)
    found = getattr(module, class_name, None)
    if inspect.isclass(found) and issubclass(found, base):
        return found
    classes = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, base)]
    known = sorted(each.__name__ for each in classes if not inspect.isabstract(each))
    near = difflib.get_close_matches(class_name, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    raise LookupError(
        f"'{module_name}' has no benchmark class '{class_name}'{hint} It has {', '.join(known) or 'none'}"
    )


def _made(benchmark_class: typing.Any, settings: dict) -> typing.Any:
    """Return a new object of a class with its render mode set; _WrongOptionError for wrong arguments or mode."""
    arguments, backends = settings["arguments"], sorted(benchmark_class.render_backends)
    by_software = os.environ.get("MUJOCO_GL") == "osmesa" and "cpu" in backends  # noqa: TID251  the worker's own
    mode = settings["render"] or ("cpu" if by_software else "gpu")
    if mode not in backends:
        raise _WrongOptionError("render", f"'{mode}' is not supported: this class draws on {', '.join(backends)}")
    # The simulator, which the class imports next, reads the mode.
    benchmark_class.configure_render(mode)
    try:
        inspect.signature(benchmark_class).bind(**arguments)
    except TypeError as error:
        takes = ", ".join(inspect.signature(benchmark_class).parameters) or "none"
        raise _WrongOptionError("make_kwargs", f"{error}; {benchmark_class.__name__} takes {takes}") from error
    return benchmark_class(**arguments)


def _arrays(values: typing.Mapping[str, typing.Any], prefix: str = "") -> typing.Iterator[tuple[str, np.ndarray]]:
    """Yield an observation's arrays and numbers, with nested names joined with dots."""
    for name, value in values.items():
        if isinstance(value, typing.Mapping):
            yield from _arrays(value, f"{prefix}{name}.")
        elif not isinstance(value, (str, bytes)) and value is not None:
            array = np.asarray(value)
            if array.dtype.kind in _NUMBER_KINDS:
                yield f"{prefix}{name}", array
