"""The cameras of an environment: what they are called, how large their pictures are, and who gets to see them."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch

from isaaclab_arena.environments.arena.film_studio import FilmStudio
from isaaclab_arena.environments.arena.simulation import SimulationOptions
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.environment import VIEWPORT
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import Backend

if TYPE_CHECKING:
    from isaaclab_arena.sim.warp.cameras import Picture

HEAD_CAMERA = "robot_head_cam"
"""The camera of the scene that policies see; they see every camera on the robot too."""

_ROBOT_PREFIX = "robot/"
_FILMED_AT_ONCE = 16
"""Worlds of a `WarpBackend` that are rendered at once where nobody but a film wants to see them."""
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
    """

    def __init__(self, backend: Backend, options: CameraOptions, device: torch.device, *, num_threads: int = 1) -> None:
        self._backend = backend
        self._num_threads = num_threads
        self._options = options
        self._device = device
        names = [backend.model.camera(index).name for index in range(backend.model.ncam)]
        self._observed = tuple(name for name in names if name == HEAD_CAMERA or name.startswith(_ROBOT_PREFIX))
        self._viewport = tuple(name for name in names if name == VIEWPORT)
        self._studios: dict[str, _Studio] = {}
        self._film_studios: dict[str, FilmStudio] = {}
        self._film_s = 0.0

    @property
    def enabled(self) -> bool:
        """Whether policies see the pictures."""
        return self._options.enable_cameras

    @property
    def filmable(self) -> tuple[str, ...]:
        """Names that `film` takes: one per picture that policies would see, and the viewport."""
        return (*(_rgb_term(name) for name in self._observed), *self._viewport)

    @property
    def render_s(self) -> float:
        """Seconds spent on rendering so far."""
        return self._film_s + sum(studio.render_s for studio in self._studios.values())

    def spec(self) -> dict[str, ArraySpec]:
        """Return what the observation group ``camera_obs`` looks like."""
        width, height = self._options.resolution
        spec = {}
        for name in self._observed:
            spec[_rgb_term(name)] = ArraySpec(shape=(height, width, 3), dtype=torch.uint8)
            if self._options.camera_depth:
                spec[_term(name, "depth")] = ArraySpec(shape=(height, width, 1), dtype=torch.float32, unit="m")
            if self._options.camera_segmentation:
                spec[_term(name, "segmentation")] = ArraySpec(shape=(height, width, 1), dtype=torch.int32)
        return spec

    def observe(self, env_ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Render the named env slots; return the pictures of all env slots, those of the others being their last ones.

        Shape of each: (num_envs, height, width, channels).
        """
        studio = self._studio(HEAD_CAMERA)
        studio.render(env_ids)
        return {name: studio.pictures[name].to(self._device, copy=True) for name in self.spec()}

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
        if not is_seen and not self._backend.renders:
            film_studio = self._film_studio(place)
            return [film_studio.film_later(env_id) for env_id in env_ids]
        studio = self._studio(place)
        # What policies see has just been rendered for them.
        if not is_seen:
            studio.render(env_ids)
        names = [name for name in studio.pictures if name in self.filmable]
        pictures = {name: studio.pictures[name][list(env_ids)].cpu().numpy() for name in names}
        return [partial(_shown, pictures, number) for number in range(len(env_ids))]

    def _film_studio(self, place: str) -> FilmStudio:
        if place not in self._film_studios:
            names = self._viewport if place == VIEWPORT else self._observed
            self._film_studios[place] = FilmStudio(
                self._backend,
                {_rgb_term(name): name for name in names},
                size=self._viewport_size if place == VIEWPORT else self._options.resolution,
                shadows=place == VIEWPORT,
            )
        return self._film_studios[place]

    def _studio(self, place: str) -> "_Studio":
        if place not in self._studios:
            self._studios[place] = self._viewport_studio() if place == VIEWPORT else self._policy_studio()
        return self._studios[place]

    def _policy_studio(self) -> "_Studio":
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

    def _viewport_studio(self) -> "_Studio":
        width, height = self._viewport_size
        return self._made_studio(self._viewport, only_films=True, shadows=True, width=width, height=height)

    @property
    def _viewport_size(self) -> tuple[int, int]:
        return self._options.viewport_width, self._options.viewport_height

    def _made_studio(self, names: Sequence[str], *, only_films: bool, **wanted: Any) -> "_Studio":
        if self._backend.renders:
            return _BatchStudio(self._backend, names, only_films=only_films, **wanted)
        return _ThreadStudio(self._backend, names, num_threads=self._num_threads, **wanted)


class _Studio(ABC):
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
            self.pictures[_rgb_term(name)] = colours.to(device)
            if depth:
                self.pictures[_term(name, "depth")] = torch.zeros((*shape, 1), device=device)
            if segmentation:
                seen = torch.full((*shape, 1), -1, dtype=torch.int32, device=device)
                self.pictures[_term(name, "segmentation")] = seen
        self.render_s = 0.0

    def render(self, env_ids: Sequence[int]) -> None:
        """Take new pictures of the named env slots; an env slot whose physics broke down keeps its last ones."""
        begin = time.perf_counter()
        self._render(env_ids)
        self.render_s += time.perf_counter() - begin

    @abstractmethod
    def _render(self, env_ids: Sequence[int]) -> None:
        """Take new pictures of env slots."""


class _ThreadStudio(_Studio):
    """Renders worlds one by one, on threads."""

    def __init__(
        self, backend: Backend, names: Sequence[str], *, num_threads: int, shadows: bool, **wanted: Any
    ) -> None:
        from isaaclab_arena.sim.warp.cameras import RayTracers  # noqa: PLC0415  see `_Studio`

        begin = time.perf_counter()
        super().__init__(backend, names, device=backend.device, **wanted)
        num_threads = min(num_threads, backend.num_envs)
        self._tracers = RayTracers(backend.model, self._cameras, shadows=shadows, num_threads=num_threads)
        self.render_s = time.perf_counter() - begin

    def _render(self, env_ids: Sequence[int]) -> None:
        for env_id, pictures in self._tracers.render(env_ids, self._load).items():
            for name, picture in pictures.items():
                self._keep(env_id, name, picture)

    def _load(self, env_id: int) -> tuple[mujoco.MjModel, mujoco.MjData] | None:
        model, data = self._backend.visible_world(env_id)
        return (model, data) if np.isfinite(data.qpos).all() else None

    def _keep(self, env_id: int, camera: str, picture: "Picture") -> None:
        self.pictures[_rgb_term(camera)][env_id] = torch.from_numpy(picture.rgb)
        if picture.depth is not None:
            self.pictures[_term(camera, "depth")][env_id] = torch.from_numpy(picture.depth)
        if picture.segmentation is not None:
            self.pictures[_term(camera, "segmentation")][env_id] = torch.from_numpy(picture.segmentation)


class _BatchStudio(_Studio):
    """Renders many worlds at once, where they live; for films a few at once, whose pictures are kept on the CPU."""

    def __init__(
        self, backend: Backend, names: Sequence[str], *, only_films: bool, shadows: bool, **wanted: Any
    ) -> None:
        from isaaclab_arena.sim.warp.backend import WarpBackend  # noqa: PLC0415  see `_Studio`
        from isaaclab_arena.sim.warp.batch_cameras import BatchCameras  # noqa: PLC0415  see `_Studio`

        begin = time.perf_counter()
        device = torch.device("cpu") if only_films else backend.device
        super().__init__(backend, names, device=device, **wanted)
        if not isinstance(backend, WarpBackend):
            raise TypeError(f"'{backend.engine()}' does not render its worlds itself")
        at_once = _FILMED_AT_ONCE if only_films else None
        self._batch = BatchCameras(backend, self._cameras, shadows=shadows, at_once=at_once)
        self.render_s = time.perf_counter() - begin

    def _render(self, env_ids: Sequence[int]) -> None:
        slots = torch.tensor(list(env_ids), device=self._backend.device)
        slots = slots[~self._backend.diverged[slots]]
        if not len(slots):
            return
        for camera, pictures in self._batch.render(slots).items():
            name, _, kind = camera.partition(":")
            kept = self.pictures[_term(name, kind) if kind else _rgb_term(name)]
            kept[slots.to(kept.device)] = pictures.to(kept.device)


def _together(
    drawing: Sequence[Callable[[], Mapping[str, np.ndarray]]], cameras: Sequence[str]
) -> Mapping[str, np.ndarray]:
    """Draw what several studios see of an env slot."""
    pictures = {name: picture for draw in drawing for name, picture in draw().items()}
    return {name: pictures[name] for name in cameras}


def _shown(pictures: Mapping[str, np.ndarray], number: int) -> Mapping[str, np.ndarray]:
    """Return what was drawn of one of several env slots."""
    return {name: each[number] for name, each in pictures.items()}


def _term(camera: str, kind: str) -> str:
    """Return ``wrist_cam_depth`` for camera ``robot/wrist_cam``."""
    return f"{camera.removeprefix(_ROBOT_PREFIX)}_{kind}"


def _rgb_term(camera: str) -> str:
    """Return the observation of a camera's colours; the viewport is no observation and keeps its name."""
    return camera if camera == VIEWPORT else _term(camera, "rgb")
