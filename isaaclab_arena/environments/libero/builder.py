"""Build the tasks of LIBERO, ``libero:<suite>/<task>``, from a checkout of the user's own, in workers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch

from isaaclab_arena.config.options import Count, NotNegative
from isaaclab_arena.environments.gym.builder import STEPS_OF_A_SLOW_RESET, GymBuilder, GymConfig
from isaaclab_arena.environments.gym.env_slots import EnvSlots, SlotReset, SlotSource
from isaaclab_arena.environments.gym.environment import GymEnvironment, GymTraits
from isaaclab_arena.environments.gym.worker.sources.libero_tasks import InitStatesError, read_init_states
from isaaclab_arena.environments.libero.checkout import LiberoCheckout, LiberoTask, checkout_at, missing_assets
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.content import ContentSources
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.workers.worker_process import REMEMBERED

# How harnesses play LIBERO: steps, waiting, seeds, pictures, gripper and number of episodes.


class Seeding(StrEnum):
    """From what the places of fixtures are drawn.

    ``ONCE``: the generator is seeded when the environment is made, and every episode takes its next reset.
    ``EVERY_RESET``: it is seeded before each reset, with a number that counts the episodes.
    ``EPISODE``: it is seeded before each reset, with a number that belongs to the episode, and nothing else matters.
    """

    ONCE = "once"
    EVERY_RESET = "every reset"
    EPISODE = "episode"


class Gripper(StrEnum):
    """How the last number of an action becomes what LIBERO takes: -1 opens, 1 closes.

    ``RAW``: as it is. ``SIGN``: -1 below zero, else 1. ``OPEN_IS_ONE``: 0 closes and 1 opens, rounded to either.
    """

    RAW = "raw"
    SIGN = "sign"
    OPEN_IS_ONE = "open is one"


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What a harness decides of an episode.

    Attributes:
        max_steps: Control steps that a policy has, by suite.
        other_max_steps: The same in suites that the harness does not know.
        num_episodes: Episodes of a task, of which no more than there are initial states.
        seeding: From what the places of fixtures are drawn.
        seed: What the generator is seeded with; for ``EVERY_RESET`` in the first episode.
        resets_before: Resets that the harness makes before that of its first episode.
        camera_size: Width and height that pictures are drawn in [pixels].
        picture_size: Width and height that they are shrunk to, None for none [pixels].
        wait_steps: Control steps in which the arm holds still before a policy is asked.
        gripper: How the last number of an action is meant.
    """

    max_steps: Mapping[str, int]
    other_max_steps: int = 520
    num_episodes: int = 50
    seeding: Seeding = Seeding.ONCE
    seed: int = 7
    resets_before: int = 0
    camera_size: int = 256
    picture_size: int | None = None
    wait_steps: int = 10
    gripper: Gripper = Gripper.RAW

    def steps_in(self, suite: str) -> int:
        """Return how many control steps a policy has in a suite; ``libero_goal_task`` has those of ``libero_goal``."""
        known = (each for each in self.max_steps if f"{suite}_".startswith(f"{each}_"))
        return self.max_steps.get(next(known, ""), self.other_max_steps)


_LONGEST_DEMONSTRATIONS = MappingProxyType(
    {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
)

# docs/how_to/libero.md names the file and the commit that each value was read from.
PROTOCOLS: Mapping[str, Protocol] = {
    "strict": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, seeding=Seeding.EPISODE),
    "openpi": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, picture_size=224),
    "openvla": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, seed=0, gripper=Gripper.OPEN_IS_ONE),
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
        gripper=Gripper.OPEN_IS_ONE,
    ),
    "vla_eval": Protocol(max_steps=_LONGEST_DEMONSTRATIONS, other_max_steps=300, gripper=Gripper.SIGN),
}


# LIBERO's tasks as an environment whose episodes are described by their conditions.

FIXTURE_SEED = "libero.fixture_seed"
RESET_INDEX = "libero.reset_index"
INIT_STATE = "libero.init_state"


class LiberoEnvironment(GymEnvironment):
    """A batch of LIBERO's environments.

    The conditions of an episode are its initial state, and where fixtures stand: a seed, and how many resets come
    before. They follow from the index of the episode as the protocol says.

    Args:
        slots: The single environments.
        num_envs: How many.
        traits: What they do not say themselves.
        device: Where observations live and actions are expected.
        protocol: How episodes are played.
        facts: What decides the numbers beside the versions of packages, for the provenance.
    """

    def __init__(
        self,
        slots: EnvSlots,
        num_envs: int,
        traits: GymTraits,
        device: torch.device,
        *,
        protocol: Protocol,
        facts: Mapping[str, str],
    ) -> None:
        super().__init__(slots, num_envs, traits, device)
        self._protocol = protocol
        self._facts = facts

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Draw the seed of the fixtures, where it belongs to the episode."""
        if self._protocol.seeding is not Seeding.EPISODE:
            return {FIXTURE_SEED: self._protocol.seed}
        return {FIXTURE_SEED: int(generator.integers(0, 2**32, dtype=np.uint64))}

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """Return the conditions with what follows from the index of the episode."""
        index, seeding = episode.episode_index, self._protocol.seeding
        seed = int(str(conditions[FIXTURE_SEED])) + (index if seeding is Seeding.EVERY_RESET else 0)
        resets = 0 if seeding is Seeding.EPISODE else self._protocol.resets_before + index
        return {**conditions, FIXTURE_SEED: seed, RESET_INDEX: resets, INIT_STATE: index}

    def slot_reset(self, conditions: Conditions) -> SlotReset:
        """Return what a single environment starts from: all of the conditions."""
        plain = {key: int(str(conditions[key])) for key in (FIXTURE_SEED, RESET_INDEX, INIT_STATE)}
        return SlotReset(seed=plain[FIXTURE_SEED], options={"conditions": plain})

    def provenance(self) -> Mapping[str, str]:
        """Return what simulated an episode, by which protocol."""
        return {**super().provenance(), **self._facts}


# Build the tasks of LIBERO, ``libero:<suite>/<task>``, from a checkout of the user's own, in workers.

INSTALLATION = "pip install mujoco==3.3.2 gymnasium numpy==1.26.4 … and robosuite==1.4.0; docs/how_to/libero.md has all"

_MOST_NAMED = 5

_NOISE, _NOISY_CAMERA = "_noise_", "agentview"
"""How LIBERO-plus names tasks that disturb pictures in every step, and the camera whose pictures it disturbs."""

_DECIDING = ("end_on_success", "success_key", "success_reward_threshold", "task_description", "instruction_key")
"""Options of all environments made elsewhere that decide what comes out of an episode."""


@dataclass(frozen=True, kw_only=True)
class LiberoConfig(GymConfig):
    """Options of LIBERO's tasks.

    Attributes:
        libero_path: A checkout of LIBERO; LIBERO_PATH by default.
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
    def played_by(self) -> Protocol:
        """How episodes are played."""
        return PROTOCOLS[self.protocol]

    def protocol_in(self, suite: str) -> str:
        """Return the protocol as results name it: with what the options change of it, ``openpi, changed: camera_size``.

        Args:
            suite: The suite of the task.
        """
        protocol, default = self.played_by, LiberoConfig()
        drawn = protocol.camera_size if protocol.picture_size is None else None
        differs = {
            "max_episode_length": self.max_episode_length not in (None, protocol.steps_in(suite)),
            "camera_size": self.enable_cameras and self.camera_size not in (None, drawn),
            **{name: getattr(self, name) != getattr(default, name) for name in _DECIDING},
        }
        changed = ", ".join(name for name, it_differs in differs.items() if it_differs)
        return f"{self.protocol}, changed: {changed}" if changed else self.protocol


@dataclass(frozen=True, kw_only=True)
class LiberoBuilder(GymBuilder[LiberoConfig]):
    """Builds one task of LIBERO."""

    def check(self, config: LiberoConfig) -> None:
        """Refuse what the checkout does not have, and options that contradict each other.

        Raises:
            ConfigError: With every problem.
        """
        if without_effect := list(_without_effect(config)):
            raise ConfigError(without_effect)
        checkout = _checkout(config)
        task = checkout.task(self.name)
        missing = [path for path in (task.described_in, task.init_states_file) if not path.is_file()]
        missing = missing or missing_assets(checkout.inside, task.described_in.read_text())
        if missing:
            named = ", ".join(str(path.relative_to(checkout.inside)) for path in missing[:_MOST_NAMED])
            more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            message = f"'{checkout.root}' is half a checkout: '{self.name}' needs {named}{more} in its libero/libero"
            message += "; fetch it again, with all of its files"
            raise ConfigError(Problem(message, key="libero_path"))
        try:
            read_init_states(str(task.init_states_file))
        except InitStatesError as error:
            raise ConfigError(Problem(str(error), key="libero_path")) from error
        if _NOISE in task.name and not (config.enable_cameras and _NOISY_CAMERA in config.cameras):
            message = f"is needed, with '{_NOISY_CAMERA}' among cameras: '{self.name}' has noise in its pictures"
            raise ConfigError(Problem(message, key="enable_cameras"))
        super().check(config)

    def content_sources(self, config: LiberoConfig) -> ContentSources:
        """Return the files of the checkout that decide what the environment does; see `ContentBuilder`."""
        checkout = _checkout(config)
        task = checkout.task(self.name)
        found = super().content_sources(config)
        own = {
            "LIBERO code": checkout.inside / "envs",
            "LIBERO assets": checkout.inside / "assets",
            "LIBERO task": task.described_in,
            "LIBERO initial states": task.init_states_file,
        }
        if config.libero_path is not None:
            # The checkout may hold demonstrations too, of which nothing counts.
            own[f"libero_path {Path(config.libero_path).name}"] = checkout.inside / "benchmark"
        return replace(found, files={**found.files, **own})

    def task_name(self, config: LiberoConfig) -> str:
        """Return what a policy is told: LIBERO's own words; see `TaskBuilder`."""
        return config.task_description or self._task(config).instruction

    def _environment(
        self, config: LiberoConfig, slots: EnvSlots, traits: GymTraits, *, num_envs: int, device: torch.device
    ) -> LiberoEnvironment:
        facts = {"protocol": config.protocol_in(self._task(config).suite)}
        revision = _checkout(config).revision()
        return LiberoEnvironment(
            slots,
            num_envs,
            traits,
            device,
            protocol=config.played_by,
            facts={**facts, **({"libero": revision} if revision else {})},
        )

    def _seeding_trial(self, config: LiberoConfig) -> Conditions:
        return {FIXTURE_SEED: config.played_by.seed, RESET_INDEX: config.played_by.resets_before, INIT_STATE: 0}

    def _traits(self, config: LiberoConfig, description: Mapping[str, Any]) -> GymTraits:
        return replace(super()._traits(config, description), task_name=self._task(config).name)

    def num_episodes(self, config: LiberoConfig) -> int:
        """Return how many episodes the protocol has, of which no more than there are initial states."""
        return min(config.played_by.num_episodes, len(read_init_states(str(self._task(config).init_states_file))))

    def _find(self, config: LiberoConfig) -> Mapping[str, Any]:
        # An interpreter is asked once, and not for every task of a suite.
        asked = ("libero", config.python, _checkout(config).root, *sorted(config.environment_variables.items()))
        if asked not in REMEMBERED:
            REMEMBERED[asked] = super()._find(config)
        return {**REMEMBERED[asked], "max_episode_length": self._limit(config)}

    def _limit(self, config: LiberoConfig) -> int:
        return config.max_episode_length or config.played_by.steps_in(self._task(config).suite)

    def _source(self, config: LiberoConfig) -> SlotSource:
        task, protocol = self._task(config), config.played_by
        settings = {
            "package_directory": str(_checkout(config).package_directory.absolute()),
            "bddl_file": str(task.bddl_file.absolute()),
            "init_states_file": str(task.init_states_file.absolute()),
            "cameras": list(config.cameras) if config.enable_cameras else [],
            "camera_size": config.camera_size or protocol.camera_size,
            "picture_size": None if config.camera_size else protocol.picture_size,
            "wait_steps": protocol.wait_steps,
            "gripper": protocol.gripper.value,
            "seeds_every_reset": protocol.seeding is not Seeding.ONCE,
        }
        source = super()._source(config)
        code = settings["package_directory"]
        return replace(source, make_kwargs=settings, max_episode_length=self._limit(config), code=code)

    def _task(self, config: LiberoConfig) -> LiberoTask:
        return _checkout(config).task(self.name)


def _without_effect(config: LiberoConfig) -> Iterator[Problem]:
    """Yield the options that would change nothing, though they are set."""
    if config.make_kwargs:
        message = f"{', '.join(config.make_kwargs)}: LIBERO's environments are made as protocol says, and take no more"
        yield Problem(f"{message}; leave it out", key="make_kwargs")
    if config.tell_episode:
        message = "has no effect: LIBERO is told the conditions of every episode anyway; leave it out"
        yield Problem(message, key="tell_episode")
    if config.seed_bits != LiberoConfig.seed_bits:
        message = "has no effect: seeds of LIBERO's fixtures have 32 bits; leave it out"
        yield Problem(message, key="seed_bits")
    if config.control_dt is not None:
        yield Problem("has no effect: LIBERO's control steps take 0.05 s; leave it out", key="control_dt")


def libero_environment(name: str) -> LiberoBuilder:
    """Return the builder of ``libero:<suite>/<name or index of a task>``."""
    return LiberoBuilder(
        config_class=LiberoConfig,
        kind="libero",
        name=name,
        install_hint=f"LIBERO needs an older MuJoCo, so name an interpreter with python; there {INSTALLATION}",
        worker_install_hint=INSTALLATION,
    )


def _checkout(config: LiberoConfig) -> LiberoCheckout:
    """Return the checkout that is meant.

    Raises:
        ConfigError: If none is named, or if it is none.
    """
    return checkout_at(config.libero_path)
