"""The cameras of an environment: names, sizes, who sees them, and the worlds that render their pictures."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch

from isaaclab_arena.distributed.devices import on_cpu
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.specs import VIEWPORT, ArraySpec, DrawnPictures, Pictures
from isaaclab_arena.sim.backend import Backend, VisibleWorld
from isaaclab_arena.sim.backends import BackendChoice

if TYPE_CHECKING:
    from isaaclab_arena.sim.warp_cameras import Backdrops, RayTracer


# Define the options of the simulation and of its pictures, and select its backend.

_MIN_SIZE, _MAX_SIZE = 16, 2048


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Options of every environment that is simulated here.

    Attributes:
        backend: What simulates it: ``mujoco`` on the CPU, ``warp`` on the rank's device, or the faster one.
    """

    backend: BackendChoice = "auto"


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
        side = self.camera_size
        return (self.camera_width, self.camera_height) if side is None else (side, side)


def check_camera_options(options: CameraOptions) -> None:
    """Raise ConfigError, with the option as key, for pictures outside the size limits."""
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


# Film worlds on the CPU: copy the visible state at once, and draw it later on any thread.


class FilmRenderer:
    """The cameras of worlds that are used for films only."""

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
        """Copy an env slot's visible state; return a call that draws it: (height, width, 3), uint8, each."""
        if (world := self._backend.visible_copy(env_id)) is not None:
            # An env slot whose physics broke down keeps its last copy. Drawing gives the same bits on any thread.
            self._sound[env_id] = world
        return partial(self._draw, self._sound.get(env_id))

    def _draw(self, world: VisibleWorld | None) -> Mapping[str, np.ndarray]:
        if world is None:
            return {name: np.zeros((self._height, self._width, 3), np.uint8) for name in self._cameras}
        # pop and append are atomic, so threads can share the list.
        if self._idle:
            tracer = self._idle.pop()
        else:
            from isaaclab_arena.sim import warp_cameras  # noqa: PLC0415  Warp loads for seconds

            model, is_alone = self._backend.model, len(self._cameras) == 1
            cameras = [
                warp_cameras.Camera(name=name, width=self._width, height=self._height, depth=is_alone)
                for name in self._cameras.values()
            ]
            tracer = warp_cameras.RayTracer(model, cameras, shadows=self._shadows)
            with self._making:
                if is_alone and self._backdrops is None:
                    self._backdrops = warp_cameras.Backdrops(model, cameras[0])
        try:
            if self._backdrops is not None:
                return dict.fromkeys(self._cameras, self._backdrops.draw(tracer, world))
            pictures = tracer.render(world)
            return {name: pictures[camera] for name, camera in self._cameras.items()}
        finally:
            self._idle.append(tracer)


# Render the pictures of a batch of worlds, and keep the last ones of every env slot.


class Renderer:
    """One renderer, and the last picture of every env slot."""

    def __init__(
        self,
        backend: Backend,
        names: Sequence[str],
        size: tuple[int, int],
        num_threads: int,
        seen: CameraOptions | None,
    ) -> None:
        # Policies see the pictures, by the options ``seen``, or films alone need them: None. A backend that renders its
        # worlds itself does it on its device, for films a few at once, with pictures kept on the CPU. The worlds of
        # others are rendered one by one, on threads.
        begin = time.perf_counter()
        from isaaclab_arena.sim.warp_backend import WarpBackend  # noqa: PLC0415  Warp loads for seconds
        from isaaclab_arena.sim.warp_cameras import BatchCameras, Camera, RayTracers  # noqa: PLC0415

        self._backend, (width, height), only_films = backend, size, seen is None
        depth, segmentation = (seen.camera_depth, seen.camera_segmentation) if seen is not None else (False, False)
        shadows = VIEWPORT in names
        cameras = [
            Camera(name=name, width=width, height=height, depth=depth, segmentation=segmentation) for name in names
        ]
        self._keeps_on_cpu = only_films
        device = torch.device("cpu") if only_films else backend.device
        shape = (backend.num_envs, height, width)
        self.pictures: dict[str, torch.Tensor] = {}  # by term, each (num_envs, height, width, channels)
        for name in names:
            # NumPy's zeros use no memory until written, and a film may show few of many env slots.
            colours = torch.from_numpy(np.zeros((*shape, 3), np.uint8))
            self.pictures[term(name)] = colours.to(device)
            if depth:
                self.pictures[term(f"{name}:depth")] = torch.zeros((*shape, 1), device=device)
            if segmentation:
                nothing = torch.full((*shape, 1), -1, dtype=torch.int32, device=device)
                self.pictures[term(f"{name}:segmentation")] = nothing

        self._tracers = self._all = self._some = None
        # Worlds of a `WarpBackend` that are rendered at once for films, or where policies want to see a part of them.
        self._at_once = 16 if only_films else max(8, backend.num_envs // 8)
        if isinstance(backend, WarpBackend):
            self._made = partial(BatchCameras, backend, cameras, shadows=shadows)
            if only_films:
                self._some = self._made(at_once=self._at_once)
            else:
                self._all = self._made()
        else:
            num_threads = min(num_threads, backend.num_envs)
            self._tracers = RayTracers(backend.model, cameras, shadows=shadows, num_threads=num_threads)
        self.render_s = time.perf_counter() - begin

    def render(self, env_ids: Sequence[int]) -> None:
        """Render new pictures of env slots; one whose physics broke down keeps its last pictures."""
        begin = time.perf_counter()
        if self._tracers is not None:
            arrays = {name: pictures.numpy() for name, pictures in self.pictures.items()}
            copies = {env_id: self._backend.visible_copy(env_id) for env_id in env_ids}
            sound = {env_id: world for env_id, world in copies.items() if world is not None}
            for env_id, pictures in self._tracers.render(sound).items():
                for name, picture in pictures.items():
                    arrays[term(name)][env_id] = picture
        else:
            slots = torch.tensor(list(env_ids))
            there = slots.to(self._backend.device, non_blocking=True)
            # The renderer with the least work is the one of all worlds, or the one of a few at a time.
            rendered = -(-len(slots) // self._at_once) * self._at_once
            if self._all is not None and rendered >= self._backend.num_envs:
                renderer = self._all
            else:
                renderer = self._some = self._some or self._made(at_once=self._at_once)
            drawn = renderer.render(there)
            broken, pictures = self._backend.diverged[there], list(drawn.values())
            if self._keeps_on_cpu:
                broken, *pictures = on_cpu([broken, *pictures])
            else:
                slots = there
            for name, picture in zip(drawn, pictures, strict=True):
                kept = self.pictures[term(name)]
                # The mask of broken worlds stays on the GPU, without a synchronisation.
                kept[slots] = torch.where(broken[:, None, None, None], kept[slots], picture)
        self.render_s += time.perf_counter() - begin


def term(picture: str) -> str:
    """Return the term of a picture, such as ``wrist_cam_depth`` for ``robot/wrist_cam:depth``."""
    if picture == VIEWPORT:
        # It is no observation and keeps its name.
        return picture
    camera, _, kind = picture.rpartition(":")
    camera, kind = (camera, kind) if kind in {"depth", "segmentation"} else (picture, "rgb")
    return f"{camera.removeprefix('robot/')}_{kind}"


# Define the cameras of an environment: their names and their readers.

HEAD_CAMERA = "robot_head_cam"
"""The camera of the scene that policies see; they see every camera on the robot too."""


class EnvironmentCameras:
    """The cameras of a batch of worlds: for policies, if enabled, and for films."""

    def __init__(self, backend: Backend, options: CameraOptions, device: torch.device, *, num_threads: int = 1) -> None:
        self._backend = backend
        self._num_threads = num_threads
        self._options = options
        self._device = device
        names = [backend.model.camera(index).name for index in range(backend.model.ncam)]
        observed = tuple(name for name in names if name == HEAD_CAMERA or name.startswith("robot/"))
        viewport = tuple(name for name in names if name == VIEWPORT)
        # Names that `film` accepts: one per policy picture, and the viewport.
        self.filmable = (*(term(name) for name in observed), *viewport)
        self.enabled = options.enable_cameras  # policies see the pictures
        # Names and picture size (width, height) of the viewport, and of all cameras that policies may see.
        self._cameras_at: dict[str, tuple[tuple[str, ...], tuple[int, int]]] = {
            VIEWPORT: (viewport, (options.viewport_width, options.viewport_height)),
            HEAD_CAMERA: (observed, options.resolution),
        }
        self._renderers: dict[str, Renderer] = {}
        self._film_renderers: dict[str, FilmRenderer] = {}
        self._film_s = 0.0
        self.drawn = DrawnPictures(backend.num_envs)  # for policies
        self.before_observed = self.drawn.announced, self.drawn.num_drawn  # of `drawn`, before the last `observe`

    @property
    def render_s(self) -> float:
        """Time spent on rendering so far [s]."""
        if not self._renderers:
            # Read several times in each control step, usually with nothing rendered.
            return self._film_s
        return self._film_s + sum(renderer.render_s for renderer in self._renderers.values())

    def spec(self) -> dict[str, ArraySpec]:
        """Return the specification of the observation group ``camera_obs``."""
        names, (width, height) = self._cameras_at[HEAD_CAMERA]
        spec = {}
        for name in names:
            spec[term(name)] = ArraySpec(shape=(height, width, 3), dtype=torch.uint8)
            if self._options.camera_depth:
                spec[term(f"{name}:depth")] = ArraySpec(shape=(height, width, 1), dtype=torch.float32, unit="m")
            if self._options.camera_segmentation:
                spec[term(f"{name}:segmentation")] = ArraySpec(shape=(height, width, 1), dtype=torch.int32)
        return spec

    def observe(self) -> dict[str, torch.Tensor | Pictures]:
        """Render outdated pictures of announced env slots; return all, or only the current ones as `Pictures`."""
        drawn = self.drawn
        self.before_observed = drawn.announced, drawn.num_drawn
        self._bring_up_to_date(np.flatnonzero(drawn.named()).tolist())
        if drawn.outdated.all():
            # Without any picture no renderer is needed.
            kept = {
                name: torch.empty((0, *spec.shape), dtype=spec.dtype, device=self._device)
                for name, spec in self.spec().items()
            }
        else:
            pictures = self.renderer_of(HEAD_CAMERA).pictures
            kept = {name: pictures[name] for name in self.spec()}
        return drawn.shown(kept, self._device)

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> dict[str, np.ndarray]:
        """Return current pictures of env slots by camera name, each (len(env_ids), height, width, 3), uint8."""
        drawing = self.film_later(env_ids, cameras)
        began_s = time.perf_counter()
        drawn = [draw() for draw in drawing]
        self._film_s += time.perf_counter() - began_s
        return {name: np.stack([pictures[name] for pictures in drawn]) for name in cameras}

    def film_later(
        self, env_ids: Sequence[int], cameras: Sequence[str]
    ) -> list[Callable[[], Mapping[str, np.ndarray]]]:
        """Return a call per env slot that draws its current pictures; see `film`."""
        unknown = sorted(set(cameras) - set(self.filmable))
        if unknown:
            raise ConfigError(f"no camera called '{unknown[0]}'; there are {', '.join(self.filmable) or 'none'}")
        names = tuple(cameras)

        def drawn(calls: Sequence[Callable[[], Mapping[str, np.ndarray]]]) -> Mapping[str, np.ndarray]:
            pictures = {name: picture for draw in calls for name, picture in draw().items()}
            return {name: pictures[name] for name in names}

        wanted = {VIEWPORT if name == VIEWPORT else HEAD_CAMERA: None for name in names}
        places = [self._film_later(place, env_ids) for place in wanted]
        return [partial(drawn, calls) for calls in zip(*places, strict=True)]

    def _film_later(self, place: str, env_ids: Sequence[int]) -> list[Callable[[], Mapping[str, np.ndarray]]]:
        """Return a call per env slot that draws the current pictures of one place's cameras."""
        is_seen = place == HEAD_CAMERA and self.enabled
        # The policies' current pictures exist already.
        drawn = [env_id for env_id in env_ids if is_seen and not self.drawn.outdated[env_id]]
        if not self._backend.renders and len(drawn) < len(env_ids):
            if place not in self._film_renderers:
                names, size = self._cameras_at[place]
                self._film_renderers[place] = FilmRenderer(
                    self._backend, {term(name): name for name in names}, size=size, shadows=place == VIEWPORT
                )
            film_renderer = self._film_renderers[place]
            seen = dict(zip(drawn, self._film_later(place, drawn), strict=True)) if drawn else {}
            return [seen[env_id] if env_id in seen else film_renderer.film_later(env_id) for env_id in env_ids]
        renderer = self.renderer_of(place)
        if is_seen:
            self._bring_up_to_date(env_ids)
        else:
            renderer.render(env_ids)
        names = [name for name in renderer.pictures if name in self.filmable]
        slots = torch.tensor(list(env_ids))
        kept = [renderer.pictures[name] for name in names]
        read = on_cpu([pictures[slots.to(pictures.device, non_blocking=True)] for pictures in kept])
        pictures = {name: each.numpy() for name, each in zip(names, read, strict=True)}
        return [
            partial(dict, {name: each[number] for name, each in pictures.items()}) for number in range(len(env_ids))
        ]

    def _bring_up_to_date(self, env_ids: Sequence[int]) -> None:
        """Render the outdated pictures of these env slots for policies."""
        outdated = [env_id for env_id in env_ids if self.drawn.outdated[env_id]]
        if outdated:
            self.renderer_of(HEAD_CAMERA).render(outdated)
            self.drawn.outdated[outdated] = False
            self.drawn.num_drawn += len(outdated) * len(self.spec())

    def renderer_of(self, place: str) -> Renderer:
        """Return the renderer of a place's cameras, which is made at its first use."""
        if place not in self._renderers:
            names, size = self._cameras_at[place]
            seen = self._options if place != VIEWPORT and self.enabled else None
            self._renderers[place] = Renderer(self._backend, names, size, self._num_threads, seen)
        return self._renderers[place]
