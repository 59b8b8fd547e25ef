"""A checkout of LIBERO: its suites, their tasks, and the files of each."""

import ast
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from isaaclab_arena.config.expansion.suites import SuiteTask
from isaaclab_arena.environments.gym.worker.versions import commit_at
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.paths import given_path
from isaaclab_arena.sim.scene.scene import ContentKey, stamps

# Find a checkout of LIBERO through its environment variable.


def libero_root(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the directory of a LIBERO checkout, None if LIBERO_PATH is not set."""
    return environ.get("LIBERO_PATH") or None


# Find the mesh and texture files that a LIBERO task needs, and report those that a checkout lacks.

_SECTIONS = re.compile(r"\(:(objects|fixtures)\b([^)]*)\)")
_CATEGORY = re.compile(r"-\s+([\w-]+)")
_PROBLEM = re.compile(r"\(\s*problem\s+(\w+)")
_CLASS = re.compile(r"^class (\w+)\(\s*(\w+)[^)]*\):", re.MULTILINE)
_WORD = re.compile(r"([A-Z0-9])")
_MODEL = re.compile(r"[\"'](assets/[^\"'{}]+\.xml)[\"']")
_SCENE_FILE = re.compile(r"[\"'](scenes/[^\"'{}]+\.xml)[\"']")
_STYLE = re.compile(r"[\"'](?:floor|wall)_style[\"']\s*:\s*[\"']([\w-]+)[\"']")


def missing_assets(inside: Path, description: str) -> list[Path]:
    """Return the missing files of a task's scene and objects, sorted; ``description`` is the task's BDDL text."""
    seen: set[Path] = set()
    for path in [*_models(inside, description), *_scene(inside, description)]:
        _add_with_references(path, seen)
    return sorted(path for path in seen if not path.is_file())


def _models(inside: Path, description: str) -> Iterator[Path]:
    """Yield the models of objects and fixtures, found as LIBERO's classes find them."""
    assets = inside / "assets"
    named = _named_models(inside / "envs" / "objects")
    for section, text in _SECTIONS.findall(description):
        for category in _CATEGORY.findall(text):
            if category in named:
                yield inside / named[category]
                continue
            models = [*assets.glob(f"*/{category}.xml"), *assets.glob(f"*/{category}/{category}.xml")]
            # Some fixtures are part of the scene; every object has its own model.
            yield from models or ([assets / f"{category}.xml"] if section == "objects" else [])


def _scene(inside: Path, description: str) -> Iterator[Path]:
    """Yield the scene of the task's problem, and the textures of its floor and walls."""
    problem = _PROBLEM.search(description)
    name = problem.group(1).lower() if problem else ""
    classes = _problems(inside / "envs" / "problems")
    scenes: list[str] = []
    styles: list[str] = []
    # A class without its own scenes or styles inherits those of its base class.
    while name in classes and not (scenes and styles):
        scenes = scenes or classes[name].scenes
        styles = styles or classes[name].styles
        name = classes[name].base
    yield from (inside / "assets" / scene for scene in scenes)
    source = inside / "envs" / "arenas" / "style.py"
    known = source.read_text() if source.is_file() else ""
    for style in styles:
        textures = re.findall(rf"\"{re.escape(style)}\":\s*\"([^\"]+)\"", known)
        yield from (inside / "assets" / "textures" / texture for texture in textures)


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """A problem class's base class in lower case, its scenes, and its styles of floor and walls."""

    base: str
    scenes: list[str]
    styles: list[str]


def _named_models(directory: Path) -> Mapping[str, str]:
    """Map the category of each object class to the model file that its code names."""
    return {
        category: model
        for path in sorted(directory.glob("*.py"))
        for category, model in _models_in(path, stamps([path])).items()
    }


def _problems(directory: Path) -> Mapping[str, _Problem]:
    """Map the lower-case name of each problem class to its parts."""
    return {
        name: problem
        for path in sorted(directory.glob("*.py"))
        for name, problem in _problems_in(path, stamps([path])).items()
    }


# LIBERO-plus files hold thousands of classes, so each file is read once for all tasks, and again after a change.
@cache
def _models_in(path: Path, key: ContentKey) -> Mapping[str, str]:
    del key
    found = {name: _MODEL.findall(body) for name, _, body in _classes(path)}
    return {"_".join(_WORD.sub(r" \1", name).split()).lower(): models[0] for name, models in found.items() if models}


@cache
def _problems_in(path: Path, key: ContentKey) -> Mapping[str, _Problem]:
    del key
    return {
        name.lower(): _Problem(base=base.lower(), scenes=_SCENE_FILE.findall(body), styles=_STYLE.findall(body))
        for name, base, body in _classes(path)
    }


def _classes(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name, first base class and body of each class in a file."""
    parts = _CLASS.split(path.read_text())
    yield from zip(parts[1::3], parts[2::3], parts[3::3], strict=True)


def _add_with_references(path: Path, seen: set[Path]) -> None:
    """Add a file, and if it is a model, all files that it refers to."""
    if path in seen:
        return
    seen.add(path)
    if path.suffix != ".xml" or not path.is_file():
        return
    root = ET.parse(path).getroot()  # noqa: S314  a file of the checkout, which is run anyway
    compiler = root.find("compiler")
    directories = {} if compiler is None else {"mesh": compiler.get("meshdir"), "texture": compiler.get("texturedir")}
    for element in root.iter():
        name = element.get("file")
        if name:
            below = path.parent / (directories.get(element.tag) or "")
            _add_with_references(Path(re.sub(r"[^/]+/\.\./", "", str(below / name))), seen)


# Read the content of a LIBERO checkout: its suites, their tasks, and the files of each.

_TASK_MAP = "benchmark/libero_suite_task_map.py"
_OF_LIBERO = frozenset({"libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"})
_PARTS = (_TASK_MAP, "envs/env_wrapper.py", "bddl_files", "init_files", "assets")

# LIBERO-plus appends its change to the task's name; the files are those of the original task.
_CHANGED = re.compile(r"_(?:language|view|light)_.*|_(?:table|tb)_\d+")
_SEEN_OTHERWISE = re.compile(r"_view_.*")
_SCENE = re.compile(r"^[A-Z].*?SCENE(?:10|\d)_")


@dataclass(frozen=True, kw_only=True)
class LiberoTask:
    """A task of a suite."""

    suite: str
    index: int  # in the suite
    name: str
    # From the task's name, as in LIBERO's own list. A repository derived from LIBERO may use the words of the
    # description.
    instruction: str
    bddl_file: Path  # input of LIBERO's environment
    described_in: Path  # file with the description; LIBERO-plus appends settings to the name of bddl_file
    init_states_file: Path


class LiberoCheckout:
    """A checkout of LIBERO, or of a repository derived from it; ConfigError if ``root`` is none."""

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
        """Return a task by ``<suite>/<name or index>``; ConfigError if there is no such suite or task."""
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
        """Return the commit of the checkout, None if it is unknown."""
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
        # A task to which LIBERO-plus added objects has its own states.
        candidates = [own, states / "libero_newobj" / suite / own.name]
        candidates.append(own.with_name(f"{_CHANGED.sub('', name)}.pruned_init"))
        return next((path for path in candidates if path.is_file()), own)


def checkout_at(path: str | None) -> LiberoCheckout:
    """Return the checkout at a path, else at LIBERO_PATH; ConfigError if neither is one."""
    named = path or libero_root()
    if named is None:
        message = "is missing: name a checkout of LIBERO here or in LIBERO_PATH; docs/how_to/libero.md says which"
        raise ConfigError(Problem(message, key="libero_path"))
    return LiberoCheckout(given_path(named))


@cache
def _task_map(path: Path, key: ContentKey) -> Mapping[str, tuple[str, ...]]:
    """Return the tasks of each suite, parsed from the dict in LIBERO's own file, which is not executed."""
    del key
    try:
        statement = ast.parse(path.read_text()).body[0]
        tasks = ast.literal_eval(statement.value) if isinstance(statement, ast.Assign) else {}
        return {str(suite): tuple(map(str, names)) for suite, names in tasks.items()}
    except (OSError, SyntaxError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(Problem(f"'{path}' lists no tasks: {error}", key="libero_path")) from error


def _instruction(suite: str, name: str, described: Path) -> str:
    """Return a task's instruction, from its name or from the words of its description."""
    # LIBERO-plus rewords tasks whose names say so. LIBERO-PRO does it in its own suites, under LIBERO's task names.
    if suite in _OF_LIBERO and "_language_" not in name:
        return " ".join(_SCENE.sub("", name).split("_"))
    try:
        words = re.search(r"\(:language([^)]*)\)", described.read_text())
    except OSError:
        words = None
    # LIBERO's own reader converts descriptions to lower case.
    return " ".join(words.group(1).lower().split()) if words else ""


def _unknown(message: str) -> ConfigError:
    return ConfigError(Problem(message, key="environment"))


# Provide LIBERO's suites, as the user's own checkout lists them.


@dataclass(frozen=True, kw_only=True)
class LiberoSuite:
    """A suite of a checkout, with tasks called by index: their names are too long for job names."""

    name: str

    @property
    def words(self) -> str:
        """Description for the list of suites."""
        return f"The tasks of {self.name}, of the checkout that libero_path or LIBERO_PATH names."

    def tasks(self, options: Mapping[str, Any]) -> Sequence[SuiteTask]:
        """Return the tasks; see `Suite`."""
        path = options.get("libero_path")
        if path is not None and not isinstance(path, str):
            raise ConfigError(Problem("is not the path of a checkout", key="libero_path"))
        suites = checkout_at(path).suites
        if self.name not in suites:
            message = f"this checkout has no suite '{self.name}'{did_you_mean(self.name, suites)}"
            raise ConfigError(Problem(message, key="suite"))
        numbers = range(len(suites[self.name]))
        return [SuiteTask(label=str(number), environment=f"libero:{self.name}/{number}") for number in numbers]


def libero_suite(name: str) -> LiberoSuite:
    """Return the suite of ``libero:<name>``."""
    return LiberoSuite(name=name)


LIBERO_SPATIAL, LIBERO_OBJECT, LIBERO_GOAL, LIBERO_10, LIBERO_90 = (
    LiberoSuite(name=f"libero_{which}") for which in ("spatial", "object", "goal", "10", "90")
)
