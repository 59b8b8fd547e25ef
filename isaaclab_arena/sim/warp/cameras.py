"""Pictures of a world by MuJoCo-Warp's ray tracer: no OpenGL, no display, the same pixels on every machine of a kind.

Importing Warp takes a second or more, so this module is imported where cameras are on and nowhere else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from threading import Lock
from typing import TypeAlias

import mujoco
import mujoco_warp
import numpy as np
import warp

from isaaclab_arena.sim.visible_world import VISIBLE_FIELDS, VISIBLE_POSES, VisibleWorld
from isaaclab_arena.sim.warp.kernels import cpu_turn, one_compiler_at_a_time, warp_turn

# One kernel that knows all of these serves every scene; by default each mix of shapes would be compiled anew.
_GEOM_TYPES = tuple(
    int(kind)
    for kind in (
        mujoco.mjtGeom.mjGEOM_PLANE,
        mujoco.mjtGeom.mjGEOM_SPHERE,
        mujoco.mjtGeom.mjGEOM_CAPSULE,
        mujoco.mjtGeom.mjGEOM_ELLIPSOID,
        mujoco.mjtGeom.mjGEOM_CYLINDER,
        mujoco.mjtGeom.mjGEOM_BOX,
        mujoco.mjtGeom.mjGEOM_MESH,
    )
)
LoadWorld: TypeAlias = Callable[[int], tuple[mujoco.MjModel, mujoco.MjData] | None]
"""Returns the model and the state of a world, with current poses of geoms, cameras and lights."""


@dataclass(frozen=True, kw_only=True)
class Camera:
    """A camera of the model, and what is wanted of it.

    Attributes:
        name: Its name in the model.
        width: Columns of the picture.
        height: Height of the picture in pixels.
        depth: Whether distances are wanted too.
        segmentation: Whether it is wanted what each pixel belongs to.
    """

    name: str
    width: int
    height: int
    depth: bool = False
    segmentation: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """What a camera sees. Axis 0 goes from top to bottom.

    Attributes:
        rgb: Shape: (height, width, 3), uint8.
        depth: Distance along the camera's axis [m], 0 where there is nothing. Shape: (height, width, 1), float32.
        segmentation: Index of the body that is seen, -1 where there is nothing. Shape: (height, width, 1), int32.
    """

    rgb: np.ndarray
    depth: np.ndarray | None = None
    segmentation: np.ndarray | None = None


def render_context(
    model: mujoco.MjModel, cameras: Sequence[Camera], *, num_worlds: int, shadows: bool
) -> mujoco_warp.RenderContext:
    """Return what MuJoCo-Warp renders with, on Warp's current device, the same for every number of worlds."""
    context = mujoco_warp.create_render_context(
        model,
        nworld=num_worlds,
        cam_active=[camera.name for camera in cameras],
        cam_res=[(camera.width, camera.height) for camera in cameras],
        render_rgb=True,
        render_depth=[camera.depth for camera in cameras],
        render_seg=[camera.segmentation for camera in cameras],
        use_shadows=shadows,
        render_skybox=True,
    )
    context.geom_ray_types = tuple(sorted({*_GEOM_TYPES, *context.geom_ray_types}))
    return context


class RayTracer:
    """Renders one world at a time, so that its pictures cannot depend on the worlds beside it; for one thread.

    Args:
        model: The compiled model.
        cameras: Which cameras are rendered, and how.
        shadows: Whether lights cast shadows, which takes about half as long again.

    Attributes:
        rays: Direction of each pixel's ray in its camera's frame, of length 1. Shape: (number of pixels, 3), float32.
    """

    def __init__(self, model: mujoco.MjModel, cameras: Sequence[Camera], *, shadows: bool = False) -> None:
        self._cameras = tuple(cameras)
        self._geom_body = model.geom_bodyid.astype(np.int32)
        with one_compiler_at_a_time(), warp_turn("cpu"):
            self._model = mujoco_warp.put_model(model)
            self._data = mujoco_warp.make_data(model, nworld=1)
            self._context = render_context(model, self._cameras, num_worlds=1, shadows=shadows)
            # Arrays on the CPU are shared with NumPy: what is written here is what the tracer reads.
            self._poses = {name: getattr(self._data, name).numpy()[0] for name in VISIBLE_POSES}
            self._fields = {name: getattr(self._model, name).numpy() for name in VISIBLE_FIELDS}
            self.rays = self._context.ray.numpy()
            start = mujoco.MjData(model)
            mujoco.mj_forward(model, start)
            self.render(VisibleWorld.of(model, start))

    def render(self, world: VisibleWorld) -> Mapping[str, Picture]:
        """Render a world of the model that the tracer was made with, or of one that differs in `VISIBLE_FIELDS`.

        Returns:
            A picture per camera, by the camera's name.
        """
        with cpu_turn():
            return self.shoot(world)

    def shoot(self, world: VisibleWorld) -> Mapping[str, Picture]:
        """Render a world as `render` does. Warp's current device must be the CPU."""
        self._trace(world)
        return dict(self._pictures())

    def shoot_pixels(self, world: VisibleWorld, pixels: np.ndarray) -> np.ndarray:
        """Return the colours of some pixels, bit for bit those of `render`, where there is one camera.

        Args:
            world: See `render`.
            pixels: Their positions, counted line by line from the upper left one. Shape: (n,), int64.

        Returns:
            Shape: (n, 3), uint8.
        """
        context, number = self._context, len(pixels)
        if number == 0:
            return np.zeros((0, 3), np.uint8)
        all_rays, num_rays = context.ray, context.total_rays
        # What a ray meets depends on the ray alone, so fewer of them make a smaller picture of one line.
        with cpu_turn():
            context.ray = warp.array(self.rays[pixels], dtype=warp.vec3, device="cpu")
            context.total_rays = number
            try:
                self._trace(world)
            finally:
                context.ray, context.total_rays = all_rays, num_rays
        return context.rgb_data.numpy()[0, :number].view(np.uint8).reshape(number, 4)[:, 2::-1].copy()

    def _trace(self, world: VisibleWorld) -> None:
        for name, poses in self._poses.items():
            poses[:] = world.poses[name].reshape(poses.shape)
        for name, values in self._fields.items():
            values[0] = world.fields[name].reshape(values[0].shape)
        mujoco_warp.refit_bvh(self._model, self._data, self._context)
        mujoco_warp.render(self._model, self._data, self._context)

    def _pictures(self) -> Iterator[tuple[str, Picture]]:
        context = self._context
        colours, depths, seen = (array.numpy()[0] for array in (context.rgb_data, context.depth_data, context.seg_data))
        starts = zip(context.rgb_adr.numpy(), context.depth_adr.numpy(), context.seg_adr.numpy(), strict=True)
        for camera, (rgb_start, depth_start, seen_start) in zip(self._cameras, starts, strict=True):
            shape = (camera.height, camera.width)
            pixels = camera.width * camera.height
            # A pixel is one number, 0xAARRGGBB, which lies in memory from blue to alpha.
            packed = colours[rgb_start : rgb_start + pixels].view(np.uint8).reshape(*shape, 4)
            depth, segmentation = None, None
            if camera.depth:
                depth = depths[depth_start : depth_start + pixels].reshape(*shape, 1).copy()
            if camera.segmentation:
                geoms = seen[seen_start : seen_start + pixels, 0].reshape(*shape, 1)
                segmentation = np.where(geoms >= 0, self._geom_body[geoms], np.int32(-1))
            yield camera.name, Picture(rgb=packed[..., 2::-1].copy(), depth=depth, segmentation=segmentation)


class RayTracers:
    """Renders many worlds on threads, to the same bits for any number of threads.

    Args:
        model: The compiled model.
        cameras: Which cameras are rendered, and how.
        shadows: Whether lights cast shadows.
        num_threads: Threads, each of which gets a tracer of its own.
    """

    def __init__(
        self, model: mujoco.MjModel, cameras: Sequence[Camera], *, shadows: bool = False, num_threads: int = 1
    ) -> None:
        self._tracers = [RayTracer(model, cameras, shadows=shadows) for _ in range(num_threads)]
        self._loading = Lock()

    def render(self, worlds: Sequence[int], load: LoadWorld) -> Mapping[int, Mapping[str, Picture]]:
        """Render worlds.

        Args:
            worlds: Which ones.
            load: Returns a world's model and state, None for one that has nothing to show; never called twice at a
                time, and what it returned is not used after the next call.

        Returns:
            For each world that has something to show, a picture per camera, by the camera's name.
        """
        shares = [worlds[index :: len(self._tracers)] for index in range(min(len(self._tracers), len(worlds)))]
        # These threads work in the turn of the one that waits for them.
        with cpu_turn(), ThreadPoolExecutor(max(1, len(shares))) as threads:
            done = list(threads.map(self._render_share, self._tracers, shares, repeat(load)))
        return dict(pair for share in done for pair in share)

    def _render_share(
        self, tracer: RayTracer, worlds: Sequence[int], load: LoadWorld
    ) -> list[tuple[int, Mapping[str, Picture]]]:
        pictures = []
        for world in worlds:
            with self._loading:
                loaded = load(world)
                if loaded is None:
                    continue
                visible = VisibleWorld.of(*loaded)
            pictures.append((world, tracer.shoot(visible)))
        return pictures
