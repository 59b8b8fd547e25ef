"""Pictures by MuJoCo-Warp's ray tracer: of one world, of a few, or of all at once."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count, repeat
from threading import Lock
from typing import TypeAlias

import mujoco
import mujoco_warp
import numpy as np
import torch
import warp

from isaaclab_arena.sim.pictures import VISIBLE_FIELDS, VISIBLE_POSES, ChangingPixels, MovingGeoms, VisibleWorld
from isaaclab_arena.sim.warp.backend import WarpBackend
from isaaclab_arena.sim.warp.kernels import cpu_turn, one_compiler_at_a_time, warp_turn

# Pictures of a world by MuJoCo-Warp's ray tracer: no OpenGL, no display, the same pixels on every machine of a kind.
#
# Importing Warp takes a second or more, so this module is imported where cameras are on and nowhere else.

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


# A few worlds out of thousands, as a renderer sees them: a film of four episodes must not render four thousand.


class FewWorlds:
    """Copies of what is visible of some worlds, on their device.

    Args:
        backend: All worlds.
        num_worlds: How many can be shown at once.
    """

    def __init__(self, backend: WarpBackend, num_worlds: int) -> None:
        self._backend = backend
        self.num_worlds = num_worlds
        with backend.launcher.compiling():
            # Nothing ever touches there, and room for contacts would be most of it.
            self._data = mujoco_warp.make_data(backend.model, nworld=num_worlds, nconmax=1, njmax=1)
        self._own: dict[str, warp.array] = {}

    def show(self, env_ids: torch.Tensor) -> tuple[mujoco_warp.Model, mujoco_warp.Data]:
        """Return worlds as they are now, good until the next call; those behind them are of no interest.

        They are in the same memory each time, as a graph that renders them needs it.

        Args:
            env_ids: At most ``num_worlds`` of them. Shape: (n,), int64.
        """
        model, data = self._backend.warp_worlds
        for name in VISIBLE_POSES:
            warp.to_torch(getattr(self._data, name))[: len(env_ids)] = warp.to_torch(getattr(data, name))[env_ids]
        shown = copy.copy(model)
        for name in VISIBLE_FIELDS:
            array = getattr(model, name)
            if array.shape[0] > 1:
                if name not in self._own:
                    shape = (self.num_worlds, *array.shape[1:])
                    self._own[name] = warp.zeros(shape, dtype=array.dtype, device=array.device)
                warp.to_torch(self._own[name])[: len(env_ids)] = warp.to_torch(array)[env_ids]
                setattr(shown, name, self._own[name])
        return shown, self._data


# Pictures of many worlds of a `WarpBackend` at once: rendered where they live, and left there as tensors.

_BYTES_PER_PIXEL = 4
_NUMBERS = count()
"""Tells the graphs of several `BatchCameras` of one backend apart."""


class BatchCameras:
    """Renders worlds with the ray tracer that `RayTracers` uses for worlds on the CPU.

    Args:
        backend: The worlds, whose own colours, lights and camera poses show.
        cameras: Which cameras are rendered, and how.
        shadows: Whether lights cast shadows.
        at_once: Worlds that are rendered at once, which decides how much memory it takes; by default all.
    """

    def __init__(
        self, backend: WarpBackend, cameras: Sequence[Camera], *, shadows: bool = False, at_once: int | None = None
    ) -> None:
        self._backend = backend
        self._cameras = tuple(cameras)
        self._kind = f"pictures {next(_NUMBERS)}"
        self._few = None if at_once is None or at_once >= backend.num_envs else FewWorlds(backend, at_once)
        num_worlds = backend.num_envs if self._few is None else self._few.num_worlds
        with backend.launcher.compiling():
            self._context = context = render_context(backend.model, cameras, num_worlds=num_worlds, shadows=shadows)
        # Where each camera's pixels begin, read once: to read it back for every picture would be to wait for the GPU.
        self._starts = [
            tuple(map(int, starts))
            for starts in zip(context.rgb_adr.numpy(), context.depth_adr.numpy(), context.seg_adr.numpy(), strict=True)
        ]
        self._geom_body = torch.tensor(backend.model.geom_bodyid, dtype=torch.int32, device=backend.device)
        # The first pictures compile what takes them.
        with one_compiler_at_a_time():
            self.render(torch.arange(num_worlds, device=backend.device))

    def render(self, env_ids: torch.Tensor | None = None) -> Mapping[str, torch.Tensor]:
        """Render worlds as they are.

        Args:
            env_ids: Which ones, None for all. Shape: (n,), int64.

        Returns:
            ``<camera>`` to colours, uint8, shape (n, height, width, 3); and where they were asked for
            ``<camera>:depth`` [m], float32, and ``<camera>:segmentation``, index of the body that is seen, -1 for none,
            int32, both of shape (n, height, width, 1). On the backend's device.
        """
        if self._few is None:
            return self._shot(*self._backend.warp_worlds, slice(None) if env_ids is None else env_ids)
        if env_ids is None:
            env_ids = torch.arange(self._backend.num_envs, device=self._backend.device)
        parts: dict[str, list[torch.Tensor]] = {}
        for part in env_ids.split(self._few.num_worlds):
            for name, each in self._shot(*self._few.show(part), slice(len(part))).items():
                parts.setdefault(name, []).append(each)
        return {name: torch.cat(each) for name, each in parts.items()}

    def _shot(
        self, model: mujoco_warp.Model, data: mujoco_warp.Data, wanted: torch.Tensor | slice
    ) -> Mapping[str, torch.Tensor]:
        """Take pictures of all worlds that there is memory for, and return those of some of them.

        Args:
            model: The model of these worlds.
            data: Their state.
            wanted: Which of them are returned; no others are copied.
        """
        context = self._context

        def launch() -> None:
            mujoco_warp.refit_bvh(model, data, context)
            mujoco_warp.render(model, data, context)

        self._backend.launcher.replay(self._kind, launch)
        colours = warp.to_torch(context.rgb_data.view(warp.int32))[wanted].view(torch.uint8)
        num_worlds = len(colours)
        pictures = {}
        for camera, (rgb_start, depth_start, seen_start) in zip(self._cameras, self._starts, strict=True):
            shape, pixels = (num_worlds, camera.height, camera.width), camera.height * camera.width
            # A pixel is one number, 0xAARRGGBB, which lies in memory from blue to alpha.
            first = rgb_start * _BYTES_PER_PIXEL
            packed = colours[:, first : first + pixels * _BYTES_PER_PIXEL].reshape(*shape, _BYTES_PER_PIXEL)
            pictures[camera.name] = packed[..., :3].flip(-1)
            if camera.depth:
                depth = warp.to_torch(context.depth_data)[wanted, depth_start : depth_start + pixels]
                pictures[f"{camera.name}:depth"] = depth.reshape(*shape, 1).clone()
            if camera.segmentation:
                geoms = warp.to_torch(context.seg_data)[wanted, seen_start : seen_start + pixels, 0]
                bodies = torch.where(geoms >= 0, self._geom_body[geoms.clamp(min=0).long()], -1)
                pictures[f"{camera.name}:segmentation"] = bodies.reshape(*shape, 1).to(torch.int32)
        return pictures


# Draws films of a fixed camera faster: what does not move is drawn once, and then only pixels that may change.

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
