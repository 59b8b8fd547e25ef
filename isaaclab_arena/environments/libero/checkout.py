"""Reads what a checkout of LIBERO holds: its suites, their tasks, and the files of each."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from isaaclab_arena.environments.gym.worker.versions import commit_at
from isaaclab_arena.environments.libero.libero_root import libero_root
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.paths import given_path
from isaaclab_arena.sim.scene.mjcf_files import ContentKey, stamps

_TASK_MAP = "benchmark/libero_suite_task_map.py"
_OF_LIBERO = frozenset({"libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"})
_PARTS = (_TASK_MAP, "envs/env_wrapper.py", "bddl_files", "init_files", "assets")

# LIBERO-plus writes what it changed behind the name of a task, whose files are those of the task itself.
_CHANGED = re.compile(r"_(?:language|view|light)_.*|_(?:table|tb)_\d+")
_SEEN_OTHERWISE = re.compile(r"_view_.*")
_SCENE = re.compile(r"^[A-Z].*?SCENE(?:10|\d)_")


@dataclass(frozen=True, kw_only=True)
class LiberoTask:
    """A task of a suite.

    Attributes:
        suite: Its suite.
        index: Its place in the suite.
        name: Its name.
        instruction: What a policy is told: what LIBERO's own list of tasks makes of the name, except where a repository
            that was made from LIBERO has other words in the description.
        bddl_file: What LIBERO's environment is made from.
        described_in: The file that holds the description; LIBERO-plus puts settings behind the name of ``bddl_file``.
        init_states_file: The file of its initial states.
    """

    suite: str
    index: int
    name: str
    instruction: str
    bddl_file: Path
    described_in: Path
    init_states_file: Path


class LiberoCheckout:
    """A checkout of LIBERO, or of a repository that was made from it.

    Args:
        root: Its directory, which holds ``libero/libero``.

    Attributes:
        package_directory: What holds LIBERO's inner package.

    Raises:
        ConfigError: If it is none; ``key`` is ``libero_path``.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package_directory = root / "libero"
        self.inside = self.package_directory / "libero"
        missing = [part for part in _PARTS if not (self.inside / part).exists()]
        if missing:
            what = f"'{root}' is no checkout of LIBERO: it has no libero/libero/{missing[0]}"
            raise ConfigError(Problem(f"{what}; docs/how_to/libero.md says how to get one", key="libero_path"))
        task_map = self.inside / _TASK_MAP
        self.suites = _task_map(task_map, stamps([task_map]))

    def task(self, name: str) -> LiberoTask:
        """Return a task by ``<suite>/<name or index>``.

        Raises:
            ConfigError: If there is no such suite or task; ``key`` is ``environment``.
        """
        suite, slash, wanted = name.partition("/")
        if suite not in self.suites:
            raise _unknown(f"this checkout has no suite '{suite}'{did_you_mean(suite, self.suites)}")
        tasks = self.suites[suite]
        if not slash or not wanted:
            raise _unknown(f"'{name}' names no task: libero:{suite}/0 is the first of {len(tasks)}")
        if wanted.isdecimal():
            if int(wanted) >= len(tasks):
                raise _unknown(f"suite '{suite}' has tasks 0 to {len(tasks) - 1}, and no task {wanted}")
            return self._task(suite, int(wanted))
        if wanted not in tasks:
            raise _unknown(f"suite '{suite}' has no task '{wanted}'{did_you_mean(wanted, tasks)}")
        return self._task(suite, tasks.index(wanted))

    def revision(self) -> str | None:
        """Return the commit that the checkout stands at, None if nothing tells."""
        return commit_at(self.root)

    def _task(self, suite: str, index: int) -> LiberoTask:
        name = self.suites[suite][index]
        described = self.inside / "bddl_files" / suite / f"{_SEEN_OTHERWISE.sub('', name)}.bddl"
        return LiberoTask(
            suite=suite,
            index=index,
            name=name,
            instruction=_instruction(suite, name, described),
            bddl_file=described.with_name(f"{name}.bddl"),
            described_in=described,
            init_states_file=self._init_states_file(suite, name),
        )

    def _init_states_file(self, suite: str, name: str) -> Path:
        states = self.inside / "init_files"
        own = states / suite / f"{name}.pruned_init"
        # Where LIBERO-plus added objects, the task has states of its own.
        candidates = [own, states / "libero_newobj" / suite / own.name]
        candidates.append(own.with_name(f"{_CHANGED.sub('', name)}.pruned_init"))
        return next((path for path in candidates if path.is_file()), own)


def checkout_at(path: str | None) -> LiberoCheckout:
    """Return the checkout that is meant: the one of a path, or else of LIBERO_PATH.

    Raises:
        ConfigError: If none is named, or if it is none; ``key`` is ``libero_path``.
    """
    named = path or libero_root()
    if named is None:
        message = "is missing: name a checkout of LIBERO here or in LIBERO_PATH; docs/how_to/libero.md says which"
        raise ConfigError(Problem(message, key="libero_path"))
    return LiberoCheckout(given_path(named))


@cache
def _task_map(path: Path, key: ContentKey) -> Mapping[str, tuple[str, ...]]:
    """Return the tasks of each suite, read from the dict in LIBERO's own file, which is not run.

    Args:
        path: The file.
        key: What changes with it, so that it is read again after that.
    """
    del key
    try:
        statement = ast.parse(path.read_text()).body[0]
        tasks = ast.literal_eval(statement.value) if isinstance(statement, ast.Assign) else {}
        return {str(suite): tuple(map(str, names)) for suite, names in tasks.items()}
    except (OSError, SyntaxError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(Problem(f"'{path}' lists no tasks: {error}", key="libero_path")) from error


def _instruction(suite: str, name: str, described: Path) -> str:
    """Return what LIBERO's own list of tasks makes of a task's name, or the words of the description.

    LIBERO-plus rewords tasks whose names say so. LIBERO-PRO does it in suites of its own, under the names of LIBERO's
    tasks.
    """
    if suite in _OF_LIBERO and "_language_" not in name:
        return " ".join(_SCENE.sub("", name).split("_"))
    try:
        words = re.search(r"\(:language([^)]*)\)", described.read_text())
    except OSError:
        words = None
    # LIBERO's own reader of descriptions makes everything lower case.
    return " ".join(words.group(1).lower().split()) if words else ""


def _unknown(message: str) -> ConfigError:
    return ConfigError(Problem(message, key="environment"))
