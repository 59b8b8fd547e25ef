"""Draws films of a fixed camera faster: what does not move is drawn once, and then only pixels that may change."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from threading import Lock

import mujoco
import numpy as np

from isaaclab_arena.sim.changing_pixels import ChangingPixels, MovingGeoms
from isaaclab_arena.sim.visible_world import VisibleWorld
from isaaclab_arena.sim.warp.cameras import Camera, RayTracer

_REMEMBERED = 16
"""Backdrops that are kept: each env slot may have colours and lights of its own."""

_WORTH_IT = 0.6
"""Share of the pixels up to which drawing them alone is faster."""


@dataclass(frozen=True, kw_only=True)
class _Backdrop:
    """A scene without what moves.

    Attributes:
        rgb: Shape: (height, width, 3), uint8.
        changing: Which pixels of it can change.
    """

    rgb: np.ndarray
    changing: ChangingPixels


class Backdrops:
    """Draws pictures of one camera, bit for bit as a ray tracer does; for tracers of several threads.

    Args:
        model: The compiled model.
        camera: The camera, whose tracers show depth too.
    """

    def __init__(self, model: mujoco.MjModel, camera: Camera) -> None:
        self._camera = camera
        self._camera_id = model.camera(camera.name).id
        self._moving = MovingGeoms(model)
        casts = model.light_castshadow.astype(bool)
        are_directional = model.light_type[casts] == int(mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
        has_perspective = model.cam_projection[self._camera_id] == int(mujoco.mjtProjection.mjPROJ_PERSPECTIVE)
        self._lights = np.flatnonzero(casts)
        self._is_usable = self._moving.are_bounded and bool(are_directional.all() and has_perspective)
        self._known: OrderedDict[bytes, _Backdrop | None] = OrderedDict()
        self._changing = Lock()

    def draw(self, tracer: RayTracer, world: VisibleWorld) -> np.ndarray:
        """Return the colours of a world. Shape: (height, width, 3), uint8."""
        backdrop = self._backdrop(tracer, world) if self._is_usable else None
        mask = None if backdrop is None else backdrop.changing.of(self._moving.hulls(world))
        if backdrop is None or mask is None or mask.mean() > _WORTH_IT:
            return tracer.render(world)[self._camera.name].rgb
        rgb, pixels = backdrop.rgb.copy(), np.flatnonzero(mask)
        rgb.reshape(-1, 3)[pixels] = tracer.shoot_pixels(world, pixels)
        return rgb

    def _backdrop(self, tracer: RayTracer, world: VisibleWorld) -> _Backdrop | None:
        """Return what lies behind a world, None where it is seen for the first time: it may be the last one too."""
        still = self._still(world)
        key = b"".join(array.tobytes() for array in (*still.poses.values(), *still.fields.values()))
        is_new = key not in self._known
        backdrop = self._known.get(key)
        if backdrop is None and not is_new:
            backdrop = self._made(tracer, still, world)
        with self._changing:
            self._known[key] = backdrop
            self._known.move_to_end(key)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return backdrop

    def _still(self, world: VisibleWorld) -> VisibleWorld:
        """Return a world whose moving geoms are invisible, and in one place, as are all other cameras."""
        poses, fields = dict(world.poses), dict(world.fields)
        others = np.arange(len(poses["cam_xpos"])) != self._camera_id
        for name, moved in (
            ("geom_xpos", self._moving.ids),
            ("geom_xmat", self._moving.ids),
            ("cam_xpos", others),
            ("cam_xmat", others),
        ):
            poses[name] = poses[name].copy()
            poses[name][moved] = 0.0
        fields["geom_rgba"] = fields["geom_rgba"].copy()
        fields["geom_rgba"][self._moving.ids] = 0.0
        return replace(world, poses=poses, fields=fields)

    def _made(self, tracer: RayTracer, still: VisibleWorld, world: VisibleWorld) -> _Backdrop:
        invisible = replace(still, poses=world.poses)
        picture = tracer.render(invisible)[self._camera.name]
        if picture.depth is None:
            raise ValueError(f"the tracer of '{self._camera.name}' shows no depth")
        shape = (self._camera.height, self._camera.width)
        active = self._lights[world.fields["light_active"].astype(bool)[self._lights]]
        changing = ChangingPixels(
            world,
            self._camera_id,
            tracer.rays.reshape(*shape, 3),
            picture.depth[:, :, 0],
            world.poses["light_xdir"].reshape(-1, 3)[active],
            self._moving.hulls(world),
        )
        return _Backdrop(rgb=picture.rgb, changing=changing)
