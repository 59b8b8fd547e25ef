"""Draw failed episodes for a person to look at: forty moments each, of the table and from beside the hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from benchmarks.harness.environments import CPU, make_policy
from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.variations.overrides import AXES, enabled_variations
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.sim.pictures import VisibleWorld
from isaaclab_arena.sim.threads import default_num_threads

NUM_MOMENTS = 40
_MOMENTS_PER_SHEET = 20
_COLUMNS = 5
_SIZE = (304, 190)
_LINE_PX = 14


@dataclass(frozen=True, kw_only=True)
class Views:
    """Where a person looks from: at the whole table, and at the tool centre point from beside it, in world axes [m]."""

    table_from: tuple[float, float, float]
    table_at: tuple[float, float, float]
    hand_from: tuple[float, float, float]


LOOSE = Views(table_from=(1.05, -0.70, 0.72), table_at=(0.47, 0.03, 0.03), hand_from=(0.27, -0.27, 0.16))
FURNITURE = Views(table_from=(0.10, -0.65, 0.75), table_at=(0.58, 0.02, 0.16), hand_from=(-0.26, -0.30, 0.20))
"""Cabinets and ovens open towards the robot, and hide the hand from the other side."""
_FURNISHED = frozenset({"open_drawer", "close_drawer", "open_microwave"})


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where failures come from.

    Attributes:
        environment: Name of the environment.
        policy: Name or class path of the policy.
        called: What the policy is called in the labels.
        policy_options: Its options.
        options: Options of the environment.
        axes: Axes of change that are on, each at its level.
        instruction: What the policy is told instead of the task's own words.
        tried: Episodes that are run.
        wanted: Failures that are taken of them at most, the first ones.
        num_envs: Number of env slots.
    """

    environment: str
    policy: str
    called: str
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, int] = field(default_factory=dict)
    instruction: str | None = None
    tried: int
    wanted: int
    num_envs: int = 8

    @property
    def changes(self) -> str:
        """What is changed, in words."""
        return " and ".join(f"{name} level {level}" for name, level in self.axes.items())


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An episode that failed, as a person may see it, and what was told of it.

    Attributes:
        source: Where it comes from.
        record: The episode, with its events.
        steps: Control steps of its pictures, 0 for the start.
        worlds: What is to be seen then.
        hands_m: Where the tool centre point was then [m]. Shape of each: (3,).
        draws: Draws a world from a camera of its own.
    """

    source: Source
    record: EpisodeRecord
    steps: Sequence[int]
    worlds: Sequence[VisibleWorld]
    hands_m: Sequence[np.ndarray]
    draws: "_Painter"

    def sheets(self, title: str) -> list[Image.Image]:
        """Return its pictures in order: lines of the whole table, each above a line from beside the hand."""
        moments = list(zip(self.steps, self.worlds, self.hands_m, strict=True))
        return [
            self._sheet(title, moments[first : first + _MOMENTS_PER_SHEET])
            for first in range(0, len(moments), _MOMENTS_PER_SHEET)
        ]

    def _sheet(self, title: str, moments: Sequence[tuple[int, VisibleWorld, np.ndarray]]) -> Image.Image:
        views, (width, height) = FURNITURE if self.source.environment in _FURNISHED else LOOSE, _SIZE
        lines = -(-len(moments) // _COLUMNS)
        sheet = Image.new("RGB", (_COLUMNS * width, lines * 2 * height + _LINE_PX), "white")
        pen = ImageDraw.Draw(sheet)
        pen.text((2, 1), title, fill="black")
        for number, (step, world, hand) in enumerate(moments):
            left, top = number % _COLUMNS * width, number // _COLUMNS * 2 * height + _LINE_PX
            sheet.paste(self.draws.picture(world, np.array(views.table_from), np.array(views.table_at)), (left, top))
            sheet.paste(self.draws.picture(world, hand + views.hand_from, hand), (left, top + height))
            pen.text((left + 3, top + 2), f"{step * 0.05:.1f} s", fill="white")
        return sheet


class _Painter:
    """Draws worlds from anywhere, with the lens of the viewport's camera."""

    def __init__(self, environment: TableEnvironment) -> None:
        from isaaclab_arena.sim.warp.cameras import Camera, RayTracer  # noqa: PLC0415  Warp loads for seconds

        model = environment.backend.model
        self._index = model.camera(VIEWPORT).id
        self._tracer = RayTracer(model, [Camera(name=VIEWPORT, width=_SIZE[0], height=_SIZE[1])])

    def picture(self, world: VisibleWorld, position: np.ndarray, target: np.ndarray) -> Image.Image:
        """Return what a world looks like from somewhere, looking at something [m]."""
        back = (position - target) / np.linalg.norm(position - target)
        right = np.cross((0.0, 0.0, 1.0), back)
        right /= np.linalg.norm(right)
        axes = np.stack((right, np.cross(back, right), back), axis=1)
        poses = {name: value.copy() for name, value in world.poses.items()}
        poses["cam_xpos"][self._index] = position
        poses["cam_xmat"][self._index] = axes.reshape(poses["cam_xmat"][self._index].shape)
        return Image.fromarray(self._tracer.render(replace(world, poses=poses))[VIEWPORT].rgb)


class _Watcher(Observer):
    """Copies what is to be seen in every control step, and keeps some of it of the episodes that failed."""

    sees_pictures = False

    def __init__(self, source: Source, painter: _Painter) -> None:
        self._source, self._painter = source, painter
        self._seen: dict[int, list[tuple[VisibleWorld, np.ndarray]]] = {}
        self.failures: list[Failure] = []

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Begin to watch."""
        del observation
        for start in starts:
            self._seen[start.env_id] = []
            self._look(environment, start.env_id)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Look once more."""
        for env_id in torch.nonzero(transition.running).flatten().tolist():
            self._look(environment, env_id)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Keep a few moments of a failure, and forget a success."""
        del environment
        seen = self._seen.pop(record.env_id)
        if record.success is False and record.events is not None:
            steps = np.linspace(0, len(seen) - 1, min(NUM_MOMENTS, len(seen))).round().astype(int).tolist()
            kept = [seen[step] for step in steps]
            self.failures.append(
                Failure(
                    source=self._source,
                    record=record,
                    steps=steps,
                    worlds=[world for world, _ in kept],
                    hands_m=[hand for _, hand in kept],
                    draws=self._painter,
                )
            )

    def _look(self, environment: Environment, env_id: int) -> None:
        assert isinstance(environment, TableEnvironment)
        world = VisibleWorld.of(*environment.backend.visible_world(env_id))
        hand = environment.backend.site_position(environment.robot.tcp_site)[env_id].double().numpy().copy()
        self._seen[env_id].append((world, hand))


def failures_of(source: Source, seed: int) -> list[Failure]:
    """Run the episodes of a source, and return its first failures, by episode."""
    builder = ENVIRONMENTS.get(source.environment)
    config = builder.config_class(**source.options)
    catalogue = builder.variations(config)
    settings = {
        key: value
        for name, level in source.axes.items()
        for key, value in AXES[name].settings(catalogue, level).items()
    }
    environment = builder.build(
        config,
        num_envs=source.num_envs,
        device=CPU,
        num_threads=default_num_threads(),
        variations=enabled_variations(catalogue, settings),
    )
    watcher = _Watcher(source, _Painter(environment))
    policy = make_policy(source.policy, source.policy_options)
    episodes = [Episode(job=source.environment, episode_index=index, seed=seed) for index in range(source.tried)]
    rollout(environment, policy, episodes, [watcher], language_instruction=source.instruction)
    policy.close()
    return sorted(watcher.failures, key=lambda failure: failure.record.episode.episode_index)[: source.wanted]
