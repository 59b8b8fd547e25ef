"""The cameras of an environment: what they are called, how large their pictures are, and who gets to see them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.environments.arena.film_studio import FilmStudio
from isaaclab_arena.environments.arena.simulation import SimulationOptions
from isaaclab_arena.environments.arena.studios import ROBOT_PREFIX, BatchStudio, Studio, ThreadStudio, rgb_term, term
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.environment import VIEWPORT
from isaaclab_arena.interfaces.pictures import SomePictures
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.sim.backend import Backend

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
