"""Renders the pictures of a batch of worlds, and keeps the last ones of every env slot."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.interfaces.environment import VIEWPORT
from isaaclab_arena.sim.backend import Backend

if TYPE_CHECKING:
    from isaaclab_arena.sim.warp.batch_cameras import BatchCameras
    from isaaclab_arena.sim.warp.cameras import Picture

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
        from isaaclab_arena.sim.warp.batch_cameras import BatchCameras  # noqa: PLC0415  see `Studio`

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
