"""The cameras of an environment: names, sizes, who sees them, and the worlds that render their pictures."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.environment import VIEWPORT
from isaaclab_arena.interfaces.pictures import SomePictures
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.backends import BackendChoice
from isaaclab_arena.sim.pictures import VisibleWorld

if TYPE_CHECKING:
    from isaaclab_arena.sim.warp.cameras import Backdrops, BatchCameras, Picture, RayTracer


# Make the simulation that an environment's options ask for.


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Options of every environment that is simulated here.

    Attributes:
        backend: What simulates it: ``mujoco`` on the CPU, ``warp`` on the rank's device, or the faster one.
    """

    backend: BackendChoice = "auto"


def on_the_cpu(config: Any) -> Any:
    """Return the same options with the simulation on the CPU."""
    return replace(config, backend="mujoco") if isinstance(config, SimulationOptions) else config


def backend_choice(config: object) -> BackendChoice:
    """Return what is to simulate an environment: MuJoCo for options of another kind, where nobody can say it."""
    return config.backend if isinstance(config, SimulationOptions) else "mujoco"


# Films worlds on the CPU: what is to be seen is copied at once, and drawn later on any thread.


class FilmStudio:
    """The cameras of worlds that nobody but a film looks through.

    Args:
        backend: The worlds.
        cameras: What each camera's pictures are called, to the camera's name in the model.
        size: Width and height of a picture in pixels.
        shadows: Whether lights cast shadows.
    """

    def __init__(self, backend: Backend, cameras: Mapping[str, str], *, size: tuple[int, int], shadows: bool) -> None:
        self._backend = backend
        self._cameras = dict(cameras)
        self._width, self._height = size
        self._shadows = shadows
        self._sound: dict[int, VisibleWorld] = {}
        self._idle: list[RayTracer] = []
        self._backdrops: Backdrops | None = None
        self._making = Lock()

    def film_later(self, env_id: int) -> Callable[[], Mapping[str, np.ndarray]]:
        """Copy what is to be seen of an env slot; of one whose physics broke down, what was copied last.

        Returns:
            What draws the pictures, by what they are called, to the same bits on any thread. Shape of each:
            (height, width, 3), uint8.
        """
        model, data = self._backend.visible_world(env_id)
        if np.isfinite(data.qpos).all():
            self._sound[env_id] = VisibleWorld.of(model, data)
        return partial(self._draw, self._sound.get(env_id))

    def _draw(self, world: VisibleWorld | None) -> Mapping[str, np.ndarray]:
        if world is None:
            return {name: np.zeros((self._height, self._width, 3), np.uint8) for name in self._cameras}
        # Taken from a list and put back in one step each, which threads may do at once.
        tracer = self._idle.pop() if self._idle else self._new_tracer()
        try:
            if self._backdrops is not None:
                return dict.fromkeys(self._cameras, self._backdrops.draw(tracer, world))
            pictures = tracer.render(world)
            return {name: pictures[camera].rgb for name, camera in self._cameras.items()}
        finally:
            self._idle.append(tracer)

    def _new_tracer(self) -> "RayTracer":
        from isaaclab_arena.sim.warp.cameras import (  # noqa: PLC0415  Warp loads for seconds
            Backdrops,
            Camera,
            RayTracer,
        )

        model, is_alone = self._backend.model, len(self._cameras) == 1
        cameras = [
            Camera(name=name, width=self._width, height=self._height, depth=is_alone) for name in self._cameras.values()
        ]
        tracer = RayTracer(model, cameras, shadows=self._shadows)
        with self._making:
            if is_alone and self._backdrops is None:
                self._backdrops = Backdrops(model, cameras[0])
        return tracer


# Renders the pictures of a batch of worlds, and keeps the last ones of every env slot.

ROBOT_PREFIX = "robot/"
_FILMED_AT_ONCE = 16
"""Worlds of a `WarpBackend` that are rendered at once where nobody but a film wants to see them."""
_FEWEST_AT_ONCE = 8
"""Worlds of a `WarpBackend` that are rendered at once, at least, where policies want to see a part of them."""


class Studio(ABC):
    """One renderer, and the last picture of every env slot.

    Attributes:
        pictures: Observation to the last pictures. Shape of each: (num_envs, height, width, channels).
        render_s: Time spent on rendering so far [s].
    """

    def __init__(
        self,
        backend: Backend,
        names: Sequence[str],
        *,
        width: int,
        height: int,
        device: torch.device,
        depth: bool = False,
        segmentation: bool = False,
    ) -> None:
        from isaaclab_arena.sim.warp.cameras import Camera  # noqa: PLC0415  Warp loads for seconds, for cameras only

        self._backend = backend
        self._cameras = [
            Camera(name=name, width=width, height=height, depth=depth, segmentation=segmentation) for name in names
        ]
        shape = (backend.num_envs, height, width)
        self.pictures: dict[str, torch.Tensor] = {}
        for name in names:
            # NumPy's zeros take no memory until they are written, and of many env slots a few may be filmed.
            colours = torch.from_numpy(np.zeros((*shape, 3), np.uint8))
            self.pictures[rgb_term(name)] = colours.to(device)
            if depth:
                self.pictures[term(name, "depth")] = torch.zeros((*shape, 1), device=device)
            if segmentation:
                seen = torch.full((*shape, 1), -1, dtype=torch.int32, device=device)
                self.pictures[term(name, "segmentation")] = seen
        self.render_s = 0.0

    def render(self, env_ids: Sequence[int]) -> None:
        """Take new pictures of the named env slots; an env slot whose physics broke down keeps its last ones."""
        begin = time.perf_counter()
        self._render(env_ids)
        self.render_s += time.perf_counter() - begin

    @abstractmethod
    def _render(self, env_ids: Sequence[int]) -> None:
        """Take new pictures of env slots."""


class ThreadStudio(Studio):
    """Renders worlds one by one, on threads."""

    def __init__(
        self, backend: Backend, names: Sequence[str], *, num_threads: int, shadows: bool, **wanted: Any
    ) -> None:
        begin = time.perf_counter()
        from isaaclab_arena.sim.warp.cameras import RayTracers  # noqa: PLC0415  see `Studio`

        super().__init__(backend, names, device=backend.device, **wanted)
        num_threads = min(num_threads, backend.num_envs)
        self._tracers = RayTracers(backend.model, self._cameras, shadows=shadows, num_threads=num_threads)
        self._arrays = {name: pictures.numpy() for name, pictures in self.pictures.items()}
        self.render_s = time.perf_counter() - begin

    def _render(self, env_ids: Sequence[int]) -> None:
        for env_id, pictures in self._tracers.render(env_ids, self._load).items():
            for name, picture in pictures.items():
                self._keep(env_id, name, picture)

    def _load(self, env_id: int) -> tuple[mujoco.MjModel, mujoco.MjData] | None:
        model, data = self._backend.visible_world(env_id)
        return (model, data) if np.isfinite(data.qpos).all() else None

    def _keep(self, env_id: int, camera: str, picture: "Picture") -> None:
        self._arrays[rgb_term(camera)][env_id] = picture.rgb
        if picture.depth is not None:
            self._arrays[term(camera, "depth")][env_id] = picture.depth
        if picture.segmentation is not None:
            self._arrays[term(camera, "segmentation")][env_id] = picture.segmentation


class BatchStudio(Studio):
    """Renders many worlds at once, where they live; for films a few at once, whose pictures are kept on the CPU."""

    def __init__(
        self, backend: Backend, names: Sequence[str], *, only_films: bool, shadows: bool, **wanted: Any
    ) -> None:
        begin = time.perf_counter()
        from isaaclab_arena.sim.warp.backend import WarpBackend  # noqa: PLC0415  see `Studio`
        from isaaclab_arena.sim.warp.cameras import BatchCameras  # noqa: PLC0415  see `Studio`

        self._keeps_on_cpu = only_films
        device = torch.device("cpu") if only_films else backend.device
        super().__init__(backend, names, device=device, **wanted)
        if not isinstance(backend, WarpBackend):
            raise TypeError(f"'{backend.engine()}' does not render its worlds itself")
        self._made = partial(BatchCameras, backend, self._cameras, shadows=shadows)
        self._all = None if only_films else self._made()
        self._at_once = _FILMED_AT_ONCE if only_films else max(_FEWEST_AT_ONCE, backend.num_envs // 8)
        self._some = self._made(at_once=self._at_once) if only_films else None
        self.render_s = time.perf_counter() - begin

    def _render(self, env_ids: Sequence[int]) -> None:
        slots = torch.tensor(list(env_ids))
        there = slots.to(self._backend.device, non_blocking=True)
        drawn = self._renderer(len(slots)).render(there)
        broken, pictures = self._backend.diverged[there], list(drawn.values())
        if self._keeps_on_cpu:
            broken, *pictures = on_cpu([broken, *pictures])
        else:
            slots = there
        for camera, picture in zip(drawn, pictures, strict=True):
            name, _, kind = camera.partition(":")
            kept = self.pictures[term(name, kind) if kind else rgb_term(name)]
            # Only the GPU knows which worlds broke down, and it is not waited for.
            kept[slots] = torch.where(broken[:, None, None, None], kept[slots], picture)

    def _renderer(self, num_worlds: int) -> "BatchCameras":
        """Return what renders so many worlds in the least time: all at once, or a few at a time."""
        rendered = -(-num_worlds // self._at_once) * self._at_once
        if self._all is not None and rendered >= self._backend.num_envs:
            return self._all
        self._some = self._some or self._made(at_once=self._at_once)
        return self._some


def term(camera: str, kind: str) -> str:
    """Return ``wrist_cam_depth`` for camera ``robot/wrist_cam``."""
    return f"{camera.removeprefix(ROBOT_PREFIX)}_{kind}"


def rgb_term(camera: str) -> str:
    """Return the observation of a camera's colours; the viewport is no observation and keeps its name."""
    return camera if camera == VIEWPORT else term(camera, "rgb")


# The cameras of an environment: what they are called, how large their pictures are, and who gets to see them.

HEAD_CAMERA = "robot_head_cam"
"""The camera of the scene that policies see; they see every camera on the robot too."""

_MIN_SIZE, _MAX_SIZE = 16, 2048


@dataclass(frozen=True, kw_only=True)
class ViewportOptions(SimulationOptions):
    """Options of every environment that a person may watch.

    Attributes:
        viewport_width: Columns of the viewport's videos.
        viewport_height: Height of the viewport's videos in pixels.
    """

    viewport_width: int = 320
    viewport_height: int = 240


@dataclass(frozen=True, kw_only=True)
class CameraOptions(ViewportOptions):
    """Options of every environment whose cameras policies may see.

    Attributes:
        enable_cameras: Whether policies observe the pictures, as group ``camera_obs``.
        camera_width: Columns of a picture.
        camera_height: Height of a picture in pixels.
        camera_size: Width and height at once, instead of both.
        camera_depth: Whether there is ``<camera>_depth`` beside ``<camera>_rgb``.
        camera_segmentation: Whether there is ``<camera>_segmentation``.
    """

    enable_cameras: bool = False
    camera_width: int = 128
    camera_height: int = 128
    camera_size: int | None = None
    camera_depth: bool = False
    camera_segmentation: bool = False

    @property
    def resolution(self) -> tuple[int, int]:
        """Width and height of a picture in pixels."""
        if self.camera_size is not None:
            return self.camera_size, self.camera_size
        return self.camera_width, self.camera_height


def check_camera_options(options: CameraOptions) -> None:
    """Refuse pictures that are too small to show anything or too large to be meant.

    Raises:
        ConfigError: With ``key`` set to the option at fault.
    """
    problems = [
        Problem(f"must be {_MIN_SIZE} to {_MAX_SIZE} pixels, got {size}", key=key)
        for key in ("camera_width", "camera_height", "camera_size", "viewport_width", "viewport_height")
        if (size := getattr(options, key)) is not None and not _MIN_SIZE <= size <= _MAX_SIZE
    ]
    given = (options.camera_width, options.camera_height) != (CameraOptions.camera_width, CameraOptions.camera_height)
    if options.camera_size is not None and given:
        problems.append(Problem("is both at once; leave out camera_width and camera_height", key="camera_size"))
    if problems:
        raise ConfigError(problems)


class EnvironmentCameras:
    """What the cameras of a batch of worlds see: for policies, where they are enabled, and for films.

    Nothing is loaded or rendered before it is asked for.

    Args:
        backend: The worlds.
        options: What is asked for.
        device: Where observations live.
        num_threads: Threads that render.

    Attributes:
        num_drawn: Pictures for policies that were drawn, one for each env slot and each term of ``camera_obs``.
    """

    def __init__(self, backend: Backend, options: CameraOptions, device: torch.device, *, num_threads: int = 1) -> None:
        self._backend = backend
        self._num_threads = num_threads
        self._options = options
        self._device = device
        names = [backend.model.camera(index).name for index in range(backend.model.ncam)]
        self._observed = tuple(name for name in names if name == HEAD_CAMERA or name.startswith(ROBOT_PREFIX))
        self._viewport = tuple(name for name in names if name == VIEWPORT)
        self._studios: dict[str, Studio] = {}
        self._film_studios: dict[str, FilmStudio] = {}
        self._film_s = 0.0
        self._announced: Sequence[int] | None = None
        # Which env slots have moved since policies could see them last.
        self._outdated = np.ones(backend.num_envs, bool)
        self.num_drawn = 0
        self._before_observed = self._announced, self.num_drawn

    @property
    def enabled(self) -> bool:
        """Whether policies see the pictures."""
        return self._options.enable_cameras

    @property
    def filmable(self) -> tuple[str, ...]:
        """Names that `film` takes: one per picture that policies would see, and the viewport."""
        return (*(rgb_term(name) for name in self._observed), *self._viewport)

    @property
    def render_s(self) -> float:
        """Seconds spent on rendering so far."""
        if not self._studios:
            # Asked several times in each control step, mostly where nothing is rendered.
            return self._film_s
        return self._film_s + sum(studio.render_s for studio in self._studios.values())

    def spec(self) -> dict[str, ArraySpec]:
        """Return what the observation group ``camera_obs`` looks like."""
        width, height = self._options.resolution
        spec = {}
        for name in self._observed:
            spec[rgb_term(name)] = ArraySpec(shape=(height, width, 3), dtype=torch.uint8)
            if self._options.camera_depth:
                spec[term(name, "depth")] = ArraySpec(shape=(height, width, 1), dtype=torch.float32, unit="m")
            if self._options.camera_segmentation:
                spec[term(name, "segmentation")] = ArraySpec(shape=(height, width, 1), dtype=torch.int32)
        return spec

    def load(self) -> None:
        """Load what draws pictures for policies, where they see any. The first pictures compile kernels."""
        if self.enabled:
            self._studio(HEAD_CAMERA).render(range(self._backend.num_envs))

    def outdate(self, env_ids: Sequence[int] | None) -> None:
        """Say which env slots may look otherwise from now on, None for all."""
        self._outdated[slice(None) if env_ids is None else list(env_ids)] = True

    def announce(self, env_ids: Sequence[int] | None) -> None:
        """Say which env slots are looked at when `observe` is called next, None for all."""
        self._announced = env_ids

    def observe(self) -> dict[str, torch.Tensor | SomePictures]:
        """Render the env slots that were announced, unless their pictures are of the present; return what is shown now.

        Returns:
            The pictures of all env slots, shape (num_envs, height, width, channels), or those that are of the present.
        """
        self._before_observed = self._announced, self.num_drawn
        announced, self._announced = self._announced, None
        self._bring_up_to_date(range(self._backend.num_envs) if announced is None else announced)
        if not self._outdated.any():
            kept = self._studio(HEAD_CAMERA).pictures
            return {name: kept[name].to(self._device, copy=True) for name in self.spec()}
        env_ids = np.flatnonzero(~self._outdated)
        places = np.where(self._outdated, -1, np.cumsum(~self._outdated) - 1)
        if not len(env_ids):
            return {
                name: SomePictures(name, torch.empty((0, *spec.shape), dtype=spec.dtype, device=self._device), places)
                for name, spec in self.spec().items()
            }
        kept = self._studio(HEAD_CAMERA).pictures
        slots = torch.from_numpy(env_ids).to(self._backend.device, non_blocking=True)
        drawn = {name: kept[name][slots].to(self._device) for name in self.spec()}
        return {name: SomePictures(name, pictures, places) for name, pictures in drawn.items()}

    def observe_again(self) -> None:
        """Be as before `observe` was called last: its pictures are announced, and those that it drew do not count."""
        self._announced, self.num_drawn = self._before_observed

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> dict[str, np.ndarray]:
        """Return what cameras see of the named env slots as they are now, whether or not policies see it.

        Args:
            env_ids: The env slots.
            cameras: Names out of ``filmable``.

        Returns:
            By name. Shape of each: (len(env_ids), height, width, 3), uint8.
        """
        drawing = self.film_later(env_ids, cameras)
        began_s = time.perf_counter()
        drawn = [draw() for draw in drawing]
        self._film_s += time.perf_counter() - began_s
        return {name: np.stack([pictures[name] for pictures in drawn]) for name in cameras}

    def film_later(
        self, env_ids: Sequence[int], cameras: Sequence[str]
    ) -> list[Callable[[], Mapping[str, np.ndarray]]]:
        """Return what draws, for each env slot, what cameras see of it now; see `film` and `FilmableLater`."""
        unknown = sorted(set(cameras) - set(self.filmable))
        if unknown:
            raise ConfigError(f"no camera called '{unknown[0]}'; there are {', '.join(self.filmable) or 'none'}")
        wanted = {VIEWPORT if name == VIEWPORT else HEAD_CAMERA: None for name in cameras}
        places = [self._film_later(place, env_ids) for place in wanted]
        return [partial(_together, drawing, tuple(cameras)) for drawing in zip(*places, strict=True)]

    def _film_later(self, place: str, env_ids: Sequence[int]) -> list[Callable[[], Mapping[str, np.ndarray]]]:
        """Return what draws, for each env slot, what the cameras of a studio see of it now."""
        is_seen = place == HEAD_CAMERA and self.enabled
        # What policies see was rendered for them, and need not be drawn again.
        drawn = [env_id for env_id in env_ids if is_seen and not self._outdated[env_id]]
        if not self._backend.renders and len(drawn) < len(env_ids):
            film_studio = self._film_studio(place)
            seen = dict(zip(drawn, self._film_later(place, drawn), strict=True)) if drawn else {}
            return [seen[env_id] if env_id in seen else film_studio.film_later(env_id) for env_id in env_ids]
        studio = self._studio(place)
        if is_seen:
            self._bring_up_to_date(env_ids)
        else:
            studio.render(env_ids)
        names = [name for name in studio.pictures if name in self.filmable]
        slots = torch.tensor(list(env_ids))
        kept = [studio.pictures[name] for name in names]
        read = on_cpu([pictures[slots.to(pictures.device, non_blocking=True)] for pictures in kept])
        pictures = {name: each.numpy() for name, each in zip(names, read, strict=True)}
        return [partial(_shown, pictures, number) for number in range(len(env_ids))]

    def _film_studio(self, place: str) -> FilmStudio:
        if place not in self._film_studios:
            names = self._viewport if place == VIEWPORT else self._observed
            self._film_studios[place] = FilmStudio(
                self._backend,
                {rgb_term(name): name for name in names},
                size=self._viewport_size if place == VIEWPORT else self._options.resolution,
                shadows=place == VIEWPORT,
            )
        return self._film_studios[place]

    def _bring_up_to_date(self, env_ids: Sequence[int]) -> None:
        """Render, of these env slots, those whose pictures for policies are not of the present."""
        outdated = [env_id for env_id in env_ids if self._outdated[env_id]]
        if outdated:
            self._studio(HEAD_CAMERA).render(outdated)
            self._outdated[outdated] = False
            self.num_drawn += len(outdated) * len(self.spec())

    def _studio(self, place: str) -> Studio:
        if place not in self._studios:
            self._studios[place] = self._viewport_studio() if place == VIEWPORT else self._policy_studio()
        return self._studios[place]

    def _policy_studio(self) -> Studio:
        options = self._options
        width, height = options.resolution
        return self._made_studio(
            self._observed,
            only_films=not options.enable_cameras,
            shadows=False,
            width=width,
            height=height,
            depth=options.enable_cameras and options.camera_depth,
            segmentation=options.enable_cameras and options.camera_segmentation,
        )

    def _viewport_studio(self) -> Studio:
        width, height = self._viewport_size
        return self._made_studio(self._viewport, only_films=True, shadows=True, width=width, height=height)

    @property
    def _viewport_size(self) -> tuple[int, int]:
        return self._options.viewport_width, self._options.viewport_height

    def _made_studio(self, names: Sequence[str], *, only_films: bool, **wanted: Any) -> Studio:
        if self._backend.renders:
            return BatchStudio(self._backend, names, only_films=only_films, **wanted)
        return ThreadStudio(self._backend, names, num_threads=self._num_threads, **wanted)


class ShowsPictures:
    """An environment with cameras, as whoever wants its pictures sees it."""

    _cameras: EnvironmentCameras

    def draw_pictures_of(self, env_ids: Sequence[int] | None) -> None:
        """Say which env slots are looked at next; see `PicturesOnDemand`."""
        self._cameras.announce(env_ids)

    def load_renderer(self) -> None:
        """Load what draws pictures for policies; see `LoadsRenderer`."""
        self._cameras.load()

    @property
    def pictures_drawn(self) -> int:
        """Pictures for policies that were drawn so far."""
        return self._cameras.num_drawn

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return what cameras see of some env slots now; see `Filmable`."""
        return self._cameras.film(env_ids, cameras)

    def film_later(
        self, env_ids: Sequence[int], cameras: Sequence[str]
    ) -> Sequence[Callable[[], Mapping[str, np.ndarray]]]:
        """Keep what cameras see of some env slots now, to be drawn later; see `FilmableLater`."""
        return self._cameras.film_later(env_ids, cameras)

    @property
    def render_s(self) -> float:
        """Time spent on rendering so far [s]."""
        return self._cameras.render_s


def _together(
    drawing: Sequence[Callable[[], Mapping[str, np.ndarray]]], cameras: Sequence[str]
) -> Mapping[str, np.ndarray]:
    """Draw what several studios see of an env slot."""
    pictures = {name: picture for draw in drawing for name, picture in draw().items()}
    return {name: pictures[name] for name in cameras}


def _shown(pictures: Mapping[str, np.ndarray], number: int) -> Mapping[str, np.ndarray]:
    """Return what was drawn of one of several env slots."""
    return {name: each[number] for name, each in pictures.items()}
