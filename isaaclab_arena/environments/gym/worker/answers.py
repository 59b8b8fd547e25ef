"""The answers of a worker: the facts of an environment, and the steps of its env slots, which go into shared memory."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import mmap
import os
import pathlib
import platform
import subprocess
import sys
import time
import types
import typing
from importlib import metadata

import numpy as np

from . import env_slot, model_changes, rendering  # noqa: TID252  beside this file, whatever package imports it

if typing.TYPE_CHECKING:
    import gymnasium

SOURCES = {
    "gym": "gymnasium_tasks:Registered",
    "metaworld": "gymnasium_tasks:MetaWorld",
    "robosuite": "gymnasium_tasks:Robosuite",
    "libero": "gymnasium_tasks:Libero",
    "vla_eval": "vla_eval_benchmarks",
}
"""The kind that a name begins with, to the module or class beside this file that finds and makes environments."""


def source_of(kind: str) -> typing.Any:
    """Return the source of a kind, imported at its first use, because each needs other packages."""
    module, _, name = SOURCES[kind].partition(":")
    found = importlib.import_module(f"{__package__}.{module}")
    return getattr(found, name) if name else found


# Share the steps of a worker's environments with the program that started it, in memory.

NO_SLOT = -1  # the number for no env slot

REST, MOVE, MOVE_AND_LOOK = range(3)
"""The tasks of an env slot in a step: rest, move, or move and observe with pictures."""

REWARD, TERMINATED, TRUNCATED, FIRST_ENTRY = range(4)
"""Columns of the results of a step. Each entry of ``info`` has two from there on: its presence and its value."""


class SharedArrays:
    """Arrays in a file that two readers have mapped."""

    def __init__(self, descriptor: int, description: typing.Mapping[str, typing.Any], num_slots: int) -> None:
        terms = description["observation"]
        layout: list[tuple[typing.Any, tuple[int, ...]]] = [
            (np.int32, (1,)),  # moving: the env slot that is reset or stepped, else `NO_SLOT`; the culprit of a death
            (np.uint8, (num_slots,)),  # asked
            (np.float32, (num_slots, len(description["action_low"]))),  # actions
            (np.float64, (num_slots, num_results(description))),  # results
            *((np.uint8 if term["image"] else np.float32, (num_slots, *term["shape"])) for term in terms.values()),
        ]
        sizes = [int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for dtype, shape in layout]
        *begins, num_bytes = itertools.accumulate((-(-size // 64) * 64 for size in sizes), initial=0)
        # The first of the two readers makes the file large enough.
        if os.fstat(descriptor).st_size < num_bytes:
            os.ftruncate(descriptor, num_bytes)
        memory, places = mmap.mmap(descriptor, num_bytes), zip(layout, begins)  # noqa: B905  Python 3.9 has no strict
        arrays = [np.ndarray(shape, dtype, memory, begin) for (dtype, shape), begin in places]
        self.moving, self.asked, self.actions, self.results, *shown = arrays
        # Observations by term.
        self.arrays: dict[str, np.ndarray] = dict(zip(terms, shown))  # noqa: B905  Python 3.9 has no strict

    def put(self, slot: int, observation: typing.Mapping[str, np.ndarray]) -> None:
        """Write an env slot's observation of a step or a reset; missing terms keep their values."""
        for name, value in observation.items():
            self.arrays[name][slot] = value


def num_results(description: typing.Mapping[str, typing.Any]) -> int:
    """Return the number of numbers in the results of a step."""
    return FIRST_ENTRY + 2 * len(description["info_keys"])


# Answer the requests of the program that started the worker.

_SLOW_RESET_S = 0.05  # resets that take longer make a scene anew [s]; a collection of garbage after them costs little


class Answers:
    """The environments of a worker, and its answers to requests; observations go into shared memory."""

    def __init__(self, memory: int, told: typing.Callable[[BaseException], dict], *, alone: bool = True) -> None:
        # ``told`` converts an environment's exception to a message. ``alone``: nothing else is done in this process.
        self._memory, self._told, self._alone = memory, told, alone
        self._caught = (Exception,) if alone else (Exception, SystemExit)
        self._shared: typing.Any = None
        self._slots: dict[int, env_slot.EnvSlot] = {}
        self._recipe: dict = {}  # the request by which environments are made

    def answer(self, message: dict, arrays: dict) -> tuple[dict, dict]:
        """Return the message and arrays of the answer to a request."""
        request = message.get("request")
        try:
            if not message:
                # The shared memory requests the steps, and takes most of their results. The answer has further notes.
                asked = self._shared.asked.tolist()
                notes = {slot: self._step(slot, what) for slot, what in enumerate(asked) if what != REST}
                return {slot: note for slot, note in notes.items() if note}, {}
            if request == "reset":
                told = zip(message["slots"], message["starts"], message["pictures"])  # noqa: B905  Python 3.9 has none
                return {"starts": [self._reset(slot, start, pictures=seen) for slot, start, seen in told]}, {}
            if request == "render":
                return {}, {"picture": self._slots[message["slot"]].render()}
            if request == "expert":
                actions = source_of("metaworld").expert_actions(message["task"], arrays["observations"])
                return {}, {"actions": actions}
            if request == "find":
                found = source_of(message["kind"]).find(message["name"], message["make_kwargs"])
                return {**found, "origins": {name: origin(name) for name in found["modules"]}}, {}
            if request == "variations":
                with contextlib.closing(self._environment(message, env_slot.OwnGenerators())) as environment:
                    return {"variations": model_changes.offered(environment)}, {}
            if request == "make":
                self._recipe = message
                self._slots = {slot: self._made() for slot in range(message["num_made"])}
                if not self._slots:
                    return {}, {}
                told = versions_of(self._slots[0].environment, alone=self._alone)
                drawn_with = rendering.drawn_with() if self._alone else {}
                return {**self._slots[0].description(), "versions": told, **drawn_with}, {}
            if request == "forget":
                self.close()
                gc.unfreeze()
                gc.collect()
                return {}, {}
            raise ValueError(f"there is no request '{request}'")
        finally:
            if self._shared is not None:
                self._shared.moving[0] = NO_SLOT

    def close(self) -> None:
        """Close all environments, also if one of them raises."""
        with contextlib.ExitStack() as closings:
            for slot in self._slots.values():
                closings.callback(slot.environment.close)
            self._slots, self._shared = {}, None

    def _made(self) -> env_slot.EnvSlot:
        recipe, generators = self._recipe, env_slot.OwnGenerators()
        environment = self._environment(recipe, generators)
        told = recipe["info_keys"], recipe["instruction_key"], generators
        made = env_slot.EnvSlot(environment, *told, checks_ranges=recipe["checks_ranges"])
        if self._alone:
            rendering.keep_robosuite_apart()
            # Imported objects never become garbage, and a scan of them takes as long as many steps.
            gc.freeze()
        if self._shared is None:
            self._shared = SharedArrays(self._memory, made.description(), recipe["num_slots"])
        return made

    def _environment(self, recipe: dict, generators: env_slot.OwnGenerators) -> gymnasium.Env:
        with generators:
            make, kwargs = source_of(recipe["kind"]).make, dict(recipe["make_kwargs"])
            return make(recipe["name"], kwargs, recipe["max_episode_length"])

    def _reset(self, slot: int, start: dict, *, pictures: bool) -> dict:
        if slot not in self._slots:
            self._slots[slot] = self._made()
        began_s = time.perf_counter()
        observation, words = self._moving(slot).reset(**start, pictures=pictures)
        self._shared.put(slot, observation)
        if self._alone and time.perf_counter() - began_s > _SLOW_RESET_S:
            # A new scene leaves the old one as garbage: in robosuite some hundred megabytes. Python triggers its
            # collection by the number of objects, not by their size.
            gc.collect()
        return words

    def _step(self, slot: int, asked: int) -> dict:
        """Make a step, show its results, and return further notes on it."""
        environment = self._moving(slot)
        try:
            observation, results, names = environment.step(self._shared.actions[slot], pictures=asked == MOVE_AND_LOOK)
        except self._caught as error:
            # The other env slots go on. The state is unknown after an error, so the environment is not closed either.
            del self._slots[slot]
            return self._told(error)
        self._shared.put(slot, observation)
        self._shared.results[slot] = results
        return {} if names is None else {"info_names": names}

    def _moving(self, slot: int) -> env_slot.EnvSlot:
        """Mark an env slot as moving, and return its environment."""
        self._shared.moving[0] = slot
        return self._slots[slot]


# The packages, their revision and the physics engine that an environment runs on.

_ENGINES = frozenset({"mujoco", "mujoco_py", "pymunk", "pybullet", "Box2D", "sapien"})

# Wrappers of an engine, which environments import in its place.
_AROUND_ENGINES = {"dm_control": "mujoco"}


def versions_of(environment: gymnasium.Env, *, alone: bool = False) -> dict[str, str]:
    """Return versions by package, and ``revision`` and ``engine`` if known; packages not installed are left out."""
    inner = environment.unwrapped
    # A wrapper environment names the class of the wrapped one in ``made_by``.
    made_by = getattr(inner, "made_by", type(inner))
    package = made_by.__module__.partition(".")[0]
    names = "gymnasium", "numpy", "mujoco", package, *getattr(inner, "runs_on", ())
    versions = {"python": platform.python_version(), **{name: _version(name) for name in names}}

    # An engine counts if a module imports it that defines the class or a base class, or that is in the same package.
    # Gymnasium has environments on several engines, so there only the classes count. MuJoCo adds a class to Python's
    # built-in names.
    modules = {each.__module__ for each in made_by.__mro__} - {"builtins"}
    if package != "gymnasium":
        modules |= {name for name in list(sys.modules) if name.partition(".")[0] == package}

    # A module imports an engine if it holds a module, a class or a function of it.
    used = set()
    for module in modules:
        for value in list(vars(sys.modules.get(module) or types.ModuleType("none")).values()):
            name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            top = name.partition(".")[0] if isinstance(name, str) else ""
            used.add(_AROUND_ENGINES.get(top, top))
    engines = used & _ENGINES
    if alone and not engines:
        # No other code in this process uses an engine, so the loaded ones count.
        engines = {name.partition(".")[0] for name in list(sys.modules)} & _ENGINES
    engine = ", ".join(f"{name} {_version(name) or 'of unknown version'}" for name in sorted(engines))
    found = {**versions, "revision": revision(package), "engine": engine}
    return {name: value for name, value in found.items() if value}


def origin(module: str) -> dict[str, str | None]:
    """Return the file of an imported module, and the versions of its distributions if installed."""
    versions = [f"{name} {metadata.version(name)}" for name in _providers(module.partition(".")[0])]
    return {"file": getattr(sys.modules[module], "__file__", None), "versions": ", ".join(versions) or None}


def revision(package: str) -> str | None:
    """Return the commit of a package's installation or checkout; None if it is unknown."""
    for distribution in _distributions(package):
        told = distribution.read_text("direct_url.json")
        commit = json.loads(told).get("vcs_info", {}).get("commit_id") if told else None
        if commit:
            return str(commit)
    file = getattr(sys.modules.get(package), "__file__", None)
    if file is None or {"site-packages", "dist-packages"} & set(pathlib.Path(file).parts):
        return None
    checkouts = [each for each in pathlib.Path(file).resolve().parents if (each / ".git").exists()]
    return commit_at(checkouts[0]) if checkouts else None


def commit_at(checkout: pathlib.Path, *, timeout_s: float = 5.0) -> str | None:
    """Return the commit of a checkout, worktree or submodule, without later changes; None if Git does not know it."""
    # Its own repository is named, because Git would else take one around it, or that of GIT_DIR, and refuse that of
    # another user. To name its commit runs nothing of it, but its settings may include a file that never ends.
    command = ["git", f"--git-dir={checkout / '.git'}", "rev-parse", "--quiet", "--verify", "HEAD"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return answer.stdout.strip() or None
    return None


def _version(package: str) -> str | None:
    return next((each.version for each in _distributions(package)), None)


def _distributions(package: str) -> list[metadata.Distribution]:
    """Return the distribution with a package's own name, or else those that provide it."""
    try:
        return [metadata.distribution(package)]
    except metadata.PackageNotFoundError:
        return [metadata.distribution(name) for name in _providers(package)]


def _providers(package: str) -> list[str]:
    """Return the distributions that provide a package."""
    found = set()
    for distribution in metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        if declared:
            is_provider = package in declared
        else:
            # Read as text: one object per installed file would take half a second, in every worker.
            installed = (distribution.read_text("RECORD") or "").splitlines()
            is_provider = any(line.startswith((f"{package}/", f"{package}.py,")) for line in installed)
        if is_provider:
            found.add(distribution.metadata["Name"])
    return sorted(found)
