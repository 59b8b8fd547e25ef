"""The cameras of an environment: what they are called, how large their pictures are, and who gets to see them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mujoco
import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.environment import VIEWPORT
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.mujoco_backend import MujocoBackend

if TYPE_CHECKING:
    from isaaclab_arena.sim.cameras import Picture

HEAD_CAMERA = "robot_head_cam"
"""The camera of the scene that policies see; they see every camera on the robot too."""

_ROBOT_PREFIX = "robot/"
_MIN_SIZE, _MAX_SIZE = 16, 2048


@dataclass(frozen=True, kw_only=True)
class ViewportOptions:
    """Options of every environment that a person may watch.

    Attributes:
        viewport_width: Columns of the viewport's videos.
        viewport_height: Rows of the viewport's videos.
    """

    viewport_width: int = 320
    viewport_height: int = 240


@dataclass(frozen=True, kw_only=True)
class CameraOptions(ViewportOptions):
    """Options of every environment whose cameras policies may see.

    Attributes:
        enable_cameras: Whether policies observe the pictures, as group ``camera_obs``.
        camera_width: Columns of a picture.
        camera_height: Rows of a picture.
        camera_size: Columns and rows at once, instead of both.
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
        """Columns and rows of a picture."""
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

    def __init__(
        self, backend: MujocoBackend, options: CameraOptions, device: torch.device, *, num_threads: int = 1
    ) -> None:
        self._backend = backend
        self._num_threads = num_threads
        self._options = options
        self._device = device
        names = [backend.model.camera(index).name for index in range(backend.model.ncam)]
        self._observed = tuple(name for name in names if name == HEAD_CAMERA or name.startswith(_ROBOT_PREFIX))
        self._viewport = tuple(name for name in names if name == VIEWPORT)
        self._studios: dict[str, _Studio] = {}

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
        return sum(studio.render_s for studio in self._studios.values())

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
        """Render the named rows; return the pictures of all rows, those of the others being their last ones.

        Shape of each: (num_envs, height, width, channels).
        """
        studio = self._studio(HEAD_CAMERA)
        studio.render(env_ids)
        return {name: torch.from_numpy(studio.pictures[name]).to(self._device, copy=True) for name in self.spec()}

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> dict[str, np.ndarray]:
        """Return what cameras see of the named rows as they are now, whether or not policies see it.

        Args:
            env_ids: The rows.
            cameras: Names out of ``filmable``.

        Returns:
            By name. Shape of each: (len(env_ids), height, width, 3), uint8.
        """
        unknown = sorted(set(cameras) - set(self.filmable))
        if unknown:
            raise ConfigError(f"no camera called '{unknown[0]}'; there are {', '.join(self.filmable) or 'none'}")
        pictures: dict[str, np.ndarray] = {}
        for place in (HEAD_CAMERA, VIEWPORT):
            wanted = [name for name in cameras if (name == VIEWPORT) == (place == VIEWPORT)]
            if wanted:
                studio = self._studio(place)
                # What policies see has just been rendered for them.
                if place == VIEWPORT or not self.enabled:
                    studio.render(env_ids)
                pictures |= {name: studio.pictures[name][list(env_ids)] for name in wanted}
        return pictures

    def _studio(self, place: str) -> "_Studio":
        if place not in self._studios:
            self._studios[place] = self._viewport_studio() if place == VIEWPORT else self._policy_studio()
        return self._studios[place]

    def _policy_studio(self) -> "_Studio":
        options = self._options
        width, height = options.resolution
        return _Studio(
            self._backend,
            self._observed,
            num_threads=self._num_threads,
            width=width,
            height=height,
            depth=options.enable_cameras and options.camera_depth,
            segmentation=options.enable_cameras and options.camera_segmentation,
        )

    def _viewport_studio(self) -> "_Studio":
        width, height = self._options.viewport_width, self._options.viewport_height
        return _Studio(
            self._backend, self._viewport, num_threads=self._num_threads, width=width, height=height, shadows=True
        )


class _Studio:
    """One renderer, and the last picture of every row."""

    def __init__(
        self,
        backend: MujocoBackend,
        cameras: Sequence[str],
        *,
        num_threads: int,
        width: int,
        height: int,
        depth: bool = False,
        segmentation: bool = False,
        shadows: bool = False,
    ) -> None:
        # Warp takes seconds to load and is of no use to jobs without cameras.
        from isaaclab_arena.sim.cameras import Camera, RayTracers  # noqa: PLC0415

        self._backend = backend
        begin = time.perf_counter()
        wanted = [
            Camera(name=name, width=width, height=height, depth=depth, segmentation=segmentation) for name in cameras
        ]
        num_threads = min(num_threads, backend.num_envs)
        self._tracers = RayTracers(backend.model, wanted, shadows=shadows, num_threads=num_threads)
        shape = (backend.num_envs, height, width)
        self.pictures: dict[str, np.ndarray] = {}
        for name in cameras:
            self.pictures[_rgb_term(name)] = np.zeros((*shape, 3), np.uint8)
            if depth:
                self.pictures[_term(name, "depth")] = np.zeros((*shape, 1), np.float32)
            if segmentation:
                self.pictures[_term(name, "segmentation")] = np.full((*shape, 1), -1, np.int32)
        self.render_s = time.perf_counter() - begin

    def render(self, env_ids: Sequence[int]) -> None:
        """Take new pictures of the named rows; a row whose physics broke down keeps its last ones."""
        begin = time.perf_counter()
        for env_id, pictures in self._tracers.render(env_ids, self._load).items():
            for name, picture in pictures.items():
                self._keep(env_id, name, picture)
        self.render_s += time.perf_counter() - begin

    def _load(self, env_id: int) -> tuple[mujoco.MjModel, mujoco.MjData] | None:
        model, data = self._backend.visible_world(env_id)
        return (model, data) if np.isfinite(data.qpos).all() else None

    def _keep(self, env_id: int, camera: str, picture: "Picture") -> None:
        self.pictures[_rgb_term(camera)][env_id] = picture.rgb
        if picture.depth is not None:
            self.pictures[_term(camera, "depth")][env_id] = picture.depth
        if picture.segmentation is not None:
            self.pictures[_term(camera, "segmentation")][env_id] = picture.segmentation


def _term(camera: str, kind: str) -> str:
    """Return ``wrist_cam_depth`` for camera ``robot/wrist_cam``."""
    return f"{camera.removeprefix(_ROBOT_PREFIX)}_{kind}"


def _rgb_term(camera: str) -> str:
    """Return the observation of a camera's colours; the viewport is no observation and keeps its name."""
    return camera if camera == VIEWPORT else _term(camera, "rgb")
