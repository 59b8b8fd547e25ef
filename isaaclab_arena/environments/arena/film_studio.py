"""Films worlds on the CPU: what is to be seen is copied at once, and drawn later on any thread."""

from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from isaaclab_arena.sim.backend import Backend
from isaaclab_arena.sim.visible_world import VisibleWorld

if TYPE_CHECKING:
    from isaaclab_arena.sim.warp.backdrops import Backdrops
    from isaaclab_arena.sim.warp.cameras import RayTracer


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
        from isaaclab_arena.sim.warp.backdrops import Backdrops  # noqa: PLC0415  Warp loads for seconds
        from isaaclab_arena.sim.warp.cameras import Camera, RayTracer  # noqa: PLC0415  Warp loads for seconds

        model, is_alone = self._backend.model, len(self._cameras) == 1
        cameras = [
            Camera(name=name, width=self._width, height=self._height, depth=is_alone) for name in self._cameras.values()
        ]
        tracer = RayTracer(model, cameras, shadows=self._shadows)
        with self._making:
            if is_alone and self._backdrops is None:
                self._backdrops = Backdrops(model, cameras[0])
        return tracer
