"""Pictures by MuJoCo-Warp's ray tracer: of one world, of a few, or of all at once."""

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from threading import Lock
from typing import TypeAlias

import mujoco
import mujoco_warp
import numpy as np
import torch
import warp

from isaaclab_arena.sim.backend import VISIBLE_FIELDS, VISIBLE_POSES, VisibleWorld
from isaaclab_arena.sim.warp_backend import WarpBackend
from isaaclab_arena.sim.warp_kernels import cpu_turn, one_compiler_at_a_time, warp_turn

# Render worlds with MuJoCo-Warp's ray tracer: no OpenGL, no display, the same pixels on every machine of a kind.
#
# Importing Warp takes a second or more, so only jobs with cameras import this module.

# One kernel for all these shapes serves every scene; by default each mix of shapes compiles anew.
_GEOM_TYPES = tuple(
    int(getattr(mujoco.mjtGeom, f"mjGEOM_{kind}"))
    for kind in ("PLANE", "SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX", "MESH")
)


_BYTES_PER_PIXEL = 4


@dataclass(frozen=True, kw_only=True)
class Camera:
    """A camera of the model, and its wanted outputs."""

    name: str
    width: int  # [pixels]
    height: int  # [pixels]
    depth: bool = False
    segmentation: bool = False


WorldPictures: TypeAlias = Mapping[str, np.ndarray]
"""``<camera>``: colours (height, width, 3), uint8, from top to bottom. On request there are two more.

``<camera>:depth`` is along the camera's axis [m], 0 for nothing, (height, width, 1), float32. ``<camera>:segmentation``
is the index of the visible body, -1 for none, (height, width, 1), int32."""


def render_context(
    model: mujoco.MjModel, cameras: Sequence[Camera], *, num_worlds: int, shadows: bool
) -> mujoco_warp.RenderContext:
    """Return MuJoCo-Warp's render context on Warp's current device, with one kernel for any number of worlds."""
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


class _Pixels:
    """The pictures of a render context's worlds, read from its arrays of pixels."""

    def __init__(
        self,
        context: mujoco_warp.RenderContext,
        cameras: Sequence[Camera],
        model: mujoco.MjModel,
        device: torch.device | str,
    ) -> None:
        self._cameras = tuple(cameras)
        # The first pixel of each camera, read once: a read for every picture would wait for the GPU.
        addresses = (context.rgb_adr, context.depth_adr, context.seg_adr)
        self._starts = np.stack([address.numpy() for address in addresses], axis=1).tolist()
        self._context = context
        self._geom_body = torch.tensor(model.geom_bodyid, dtype=torch.int32, device=device)

    def of(self, worlds: torch.Tensor | slice) -> dict[str, torch.Tensor]:
        """Return `WorldPictures` of worlds as tensors (n, ...); no others are copied."""
        context = self._context
        colours = warp.to_torch(context.rgb_data.view(warp.int32))[worlds].view(torch.uint8)
        num_worlds = len(colours)
        pictures = {}
        for camera, (rgb_start, depth_start, seen_start) in zip(self._cameras, self._starts, strict=True):
            shape, pixels = (num_worlds, camera.height, camera.width), camera.height * camera.width
            # A pixel is one number, 0xAARRGGBB, which lies in memory from blue to alpha.
            first = rgb_start * _BYTES_PER_PIXEL
            packed = colours[:, first : first + pixels * _BYTES_PER_PIXEL].reshape(*shape, _BYTES_PER_PIXEL)
            pictures[camera.name] = packed[..., :3].flip(-1)
            if camera.depth:
                depth = warp.to_torch(context.depth_data)[worlds, depth_start : depth_start + pixels]
                pictures[f"{camera.name}:depth"] = depth.reshape(*shape, 1).clone()
            if camera.segmentation:
                geoms = warp.to_torch(context.seg_data)[worlds, seen_start : seen_start + pixels, 0]
                bodies = torch.where(geoms >= 0, self._geom_body[geoms.clamp(min=0).long()], -1)
                pictures[f"{camera.name}:segmentation"] = bodies.reshape(*shape, 1).to(torch.int32)
        return pictures


class RayTracer:
    """Renders one world at a time, so other worlds cannot change its pictures; for one thread."""

    def __init__(self, model: mujoco.MjModel, cameras: Sequence[Camera], *, shadows: bool = False) -> None:
        # Shadows cost about half as much again.
        with one_compiler_at_a_time(), warp_turn("cpu"):
            self._model = mujoco_warp.put_model(model)
            self._data = mujoco_warp.make_data(model, nworld=1)
            self._context = render_context(model, cameras, num_worlds=1, shadows=shadows)
            self._pixels = _Pixels(self._context, cameras, model, "cpu")
            # CPU arrays are shared with NumPy: the tracer reads values that are written here.
            self._poses = {name: getattr(self._data, name).numpy()[0] for name in VISIBLE_POSES}
            self._fields = {name: getattr(self._model, name).numpy() for name in VISIBLE_FIELDS}
            self.rays = self._context.ray.numpy()  # unit ray per pixel in its camera's frame, (num_pixels, 3)
            start = mujoco.MjData(model)
            mujoco.mj_forward(model, start)
            self.render(VisibleWorld.of(model, start))

    def render(self, world: VisibleWorld) -> WorldPictures:
        """Render a world that may differ from the model in `VISIBLE_FIELDS`."""
        with cpu_turn():
            return self.shoot(world)

    def shoot(self, world: VisibleWorld) -> WorldPictures:
        """Render a world as `render` does. Warp's current device must be the CPU."""
        self._trace(world)
        return {name: pictures[0].numpy() for name, pictures in self._pixels.of(slice(1)).items()}

    def shoot_pixels(self, world: VisibleWorld, pixels: np.ndarray) -> np.ndarray:
        """Return colours of flat pixel indices (n,), int64, bit-equal to `render`, for one camera: (n, 3), uint8."""
        context, number = self._context, len(pixels)
        if number == 0:
            return np.zeros((0, 3), np.uint8)
        all_rays, num_rays = context.ray, context.total_rays
        # The hit of a ray depends on the ray alone, so a subset of rays makes a smaller picture of one line.
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


class RayTracers:
    """Renders many worlds on threads, one tracer each, with the same bits for any number of threads."""

    def __init__(
        self, model: mujoco.MjModel, cameras: Sequence[Camera], *, shadows: bool = False, num_threads: int = 1
    ) -> None:
        self._tracers = [RayTracer(model, cameras, shadows=shadows) for _ in range(num_threads)]

    def render(self, worlds: Mapping[int, VisibleWorld]) -> Mapping[int, WorldPictures]:
        """Render worlds by their env slots; any of them may differ from the model in `VISIBLE_FIELDS`."""
        slots = list(worlds)
        shares = [slots[index :: len(self._tracers)] for index in range(min(len(self._tracers), len(slots)))]

        def render_share(tracer: RayTracer, share: Sequence[int]) -> list[tuple[int, WorldPictures]]:
            return [(env_id, tracer.shoot(worlds[env_id])) for env_id in share]

        # These threads run inside the turn of this one, which waits for them.
        with cpu_turn(), ThreadPoolExecutor(max(1, len(shares))) as threads:
            done = list(threads.map(render_share, self._tracers, shares))
        return dict(pair for share in done for pair in share)


# Render many worlds at once: all of a batch, or a few out of thousands, since a film of four must not render all.

_NUMBERS = count()  # tells the graphs of several `BatchCameras` of one backend apart


class BatchCameras:
    """Renders worlds with the ray tracer that `RayTracers` uses for worlds on the CPU."""

    def __init__(
        self, backend: WarpBackend, cameras: Sequence[Camera], *, shadows: bool = False, at_once: int | None = None
    ) -> None:
        self._backend = backend
        self._cameras = tuple(cameras)
        self._kind = f"pictures {next(_NUMBERS)}"
        # ``at_once`` limits the memory; by default all worlds are rendered at once. Otherwise the visible parts of some
        # are copied, without contacts, whose buffers would take most of the memory.
        num_worlds = backend.num_envs if at_once is None else min(at_once, backend.num_envs)
        self._copies: mujoco_warp.Data | None = None
        with backend.launcher.compiling():
            if num_worlds < backend.num_envs:
                self._copies = mujoco_warp.make_data(backend.model, nworld=num_worlds, nconmax=1, njmax=1)
            self._context = render_context(backend.model, cameras, num_worlds=num_worlds, shadows=shadows)
            self._pixels = _Pixels(self._context, cameras, backend.model, backend.device)
        self._copied_fields: dict[str, warp.array] = {}
        # The first render compiles the kernels.
        with one_compiler_at_a_time():
            self.render(torch.arange(num_worlds, device=backend.device))

    def render(self, env_ids: torch.Tensor | None = None) -> Mapping[str, torch.Tensor]:
        """Render worlds ``env_ids`` (n,), int64, None for all; return `WorldPictures` as tensors (n, ...)."""
        if self._copies is None:
            return self._shot(*self._backend.warp_worlds, slice(None) if env_ids is None else env_ids)
        if env_ids is None:
            env_ids = torch.arange(self._backend.num_envs, device=self._backend.device)
        (model, data), copies = self._backend.warp_worlds, self._copies
        parts: dict[str, list[torch.Tensor]] = {}
        for part in env_ids.split(copies.nworld):
            # The visible parts of some worlds are copied for one picture. The addresses stay the same, because a
            # captured graph renders them. The rest of the copies is stale.
            for name in VISIBLE_POSES:
                warp.to_torch(getattr(copies, name))[: len(part)] = warp.to_torch(getattr(data, name))[part]
            shown = copy.copy(model)
            for name in VISIBLE_FIELDS:
                array = getattr(model, name)
                if array.shape[0] > 1:
                    if name not in self._copied_fields:
                        shape = (copies.nworld, *array.shape[1:])
                        self._copied_fields[name] = warp.zeros(shape, dtype=array.dtype, device=array.device)
                    warp.to_torch(self._copied_fields[name])[: len(part)] = warp.to_torch(array)[part]
                    setattr(shown, name, self._copied_fields[name])
            for name, each in self._shot(shown, copies, slice(len(part))).items():
                parts.setdefault(name, []).append(each)
        return {name: torch.cat(each) for name, each in parts.items()}

    def _shot(
        self, model: mujoco_warp.Model, data: mujoco_warp.Data, wanted: torch.Tensor | slice
    ) -> Mapping[str, torch.Tensor]:
        """Render all worlds of ``data``, and return the pictures of the ``wanted`` ones; no others are copied."""
        context = self._context

        def launch() -> None:
            mujoco_warp.refit_bvh(model, data, context)
            mujoco_warp.render(model, data, context)

        self._backend.launcher.replay(self._kind, launch)
        return self._pixels.of(wanted)


# Find the pixels of a fixed camera that moving geoms can change, directly or by their shadows.

_MARGIN_M = 1e-3  # margin around things, larger than any rounding error
_CELLS = 512
_REACH_M = 2.0
"""Half the width of the map of shadows, around the moving geoms; points farther away share the cells at its edge."""

_CELL_M = 2 * _REACH_M / _CELLS  # length of a side of a cell
_FAR_M = 1e6  # farther away than anything is
_SLOPES = np.tan(np.pi / 8 * np.arange(-3, 4))
_DIRECTIONS = np.stack([np.append(np.ones(7), 0.0), np.append(_SLOPES, 1.0)], axis=1)
"""Directions in a plane, each with the two ends of an outline; the last is along the second axis."""

_LENGTHS = np.linalg.norm(_DIRECTIONS, axis=1)

_CORNERS = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float64)
_ENDS = np.array([(0, 0, -1), (0, 0, 1)], np.float64)
_EIGHTHS = np.pi / 4 * np.arange(8)
_RIMS = np.array(
    [(x, y, z) for x, y in np.stack([np.cos(_EIGHTHS), np.sin(_EIGHTHS)], 1) / np.cos(np.pi / 8) for z in (-1, 1)]
)
"""Corners of a prism of eight sides that holds a cylinder of radius 1 and height 2."""


@dataclass(frozen=True, kw_only=True)
class Hulls:
    """Convex hulls that enclose geoms; each hull is spanned by some balls."""

    centres: np.ndarray  # of all balls, hull by hull, in the world [m], (n, 3)
    radii: np.ndarray  # of all balls [m], (n,)
    starts: np.ndarray  # index of each hull's first ball, (num_hulls,)


class MovingGeoms:
    """The geoms of a model that move."""

    def __init__(self, model: mujoco.MjModel) -> None:
        is_fixed = (model.body_weldid == 0)[model.geom_bodyid] & (model.body_mocapid < 0)[model.geom_bodyid]
        # Geoms fixed to the world do not move; geoms on mocap bodies do.
        self.ids = np.flatnonzero(~is_fixed)
        types = [mujoco.mjtGeom(int(kind)) for kind in model.geom_type[self.ids]]
        self.are_bounded = all(kind in _SHAPES for kind in types)  # False: some geom has no hull
        shapes = [_SHAPES.get(kind, _SHAPES[mujoco.mjtGeom.mjGEOM_SPHERE]) for kind in types]
        numbers = np.array([len(shape.points) for shape in shapes], int)
        self._starts = numbers.cumsum() - numbers
        self._geoms = np.repeat(self.ids, numbers)
        self._points = np.concatenate([np.zeros((0, 3)), *(shape.points for shape in shapes)])
        self._sizes = np.array([shape.sizes for shape in shapes], int).reshape(-1, 3).repeat(numbers, axis=0)
        self._is_round = np.array([shape.is_round for shape in shapes], bool).repeat(numbers)
        # A mesh is enclosed by its box, which is not around its centre and has no size that varies between worlds.
        self._is_mesh = np.array([kind == mujoco.mjtGeom.mjGEOM_MESH for kind in types], bool).repeat(numbers)
        boxes = model.geom_aabb.reshape(-1, 6)[self._geoms]
        self._corners = (boxes[:, :3] + self._points * boxes[:, 3:])[self._is_mesh]

    def hulls(self, world: VisibleWorld) -> Hulls:
        """Return a hull around each moving geom of a world."""
        sizes = world.fields["geom_size"].reshape(-1, 3)[self._geoms]
        points = self._points * np.take_along_axis(sizes, self._sizes, axis=1)
        points[self._is_mesh] = self._corners
        turns = world.poses["geom_xmat"].reshape(-1, 3, 3)[self._geoms]
        return Hulls(
            centres=world.poses["geom_xpos"].reshape(-1, 3)[self._geoms] + np.einsum("nij,nj->ni", turns, points),
            radii=sizes[:, 0] * self._is_round + _MARGIN_M,
            starts=self._starts,
        )


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """Balls that enclose geoms of one type: centres in units of the geom's sizes, by size index per axis."""

    points: np.ndarray
    sizes: tuple[int, int, int]
    is_round: bool = False


_SHAPES = {
    mujoco.mjtGeom.mjGEOM_SPHERE: _Shape(points=np.zeros((1, 3)), sizes=(0, 0, 0), is_round=True),
    mujoco.mjtGeom.mjGEOM_CAPSULE: _Shape(points=_ENDS, sizes=(0, 0, 1), is_round=True),
    mujoco.mjtGeom.mjGEOM_CYLINDER: _Shape(points=_RIMS, sizes=(0, 0, 1)),
    **dict.fromkeys(
        (mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_ELLIPSOID, mujoco.mjtGeom.mjGEOM_MESH),
        _Shape(points=_CORNERS, sizes=(0, 1, 2)),
    ),
}


class ChangingPixels:
    """The pixels of a fixed camera that moving geoms can change, with fixed lights and a fixed background."""

    def __init__(
        self, world: VisibleWorld, camera: int, rays: np.ndarray, depth: np.ndarray, lights: np.ndarray, around: Hulls
    ) -> None:
        # ``rays`` (height, width, 3) are unit vectors in the camera's frame. ``depth`` (height, width) is that of the
        # background along the camera's axis [m], 0 for nothing. ``lights`` (n, 3) are the directions of lights with
        # shadows; ``around`` sets the centre of the shadow maps.
        self._place = world.poses["cam_xpos"].reshape(-1, 3)[camera]
        # Axes: right, down, ahead.
        self._axes = world.poses["cam_xmat"].reshape(-1, 3, 3)[camera] * (1, -1, -1)
        rays = rays.astype(np.float64) * (1, -1, -1)
        flat = rays / rays[:, :, 2:]
        self._columns, self._lines = flat[0, :, 0], flat[:, 0, 1]
        hit = np.flatnonzero(depth > 0)
        points = self._place + (flat.reshape(-1, 3) * depth.reshape(-1, 1))[hit] @ self._axes.T
        self._maps = [_ShadowMap(direction, points, hit, around) for direction in lights]

    def of(self, hulls: Hulls) -> np.ndarray | None:
        """Return a mask (height, width), bool, of pixels that geoms in hulls can change; None if it may be any."""
        centres = (hulls.centres - self._place) @ self._axes
        nearest = hulls.radii + _MARGIN_M
        is_ahead = np.logical_and.reduceat(centres[:, 2] > nearest, hulls.starts)
        # A hull that is partly ahead and partly behind the camera has no bounded outline.
        if not (is_ahead | np.logical_and.reduceat(centres[:, 2] < -nearest, hulls.starts)).all():
            return None
        mask = np.zeros((len(self._lines), len(self._columns)), bool)

        # The outlines of the hulls ahead, projected onto a plane at distance 1. `touching` is the length of a tangent
        # to a ball, in the plane of the camera, the direction and the way ahead.
        radii = hulls.radii
        ahead = np.maximum(centres[:, 2], radii + _MARGIN_M)
        across = (_DIRECTIONS / _LENGTHS[:, None]) @ centres[:, :2].T
        touching = np.sqrt(across**2 + ahead**2 - radii**2)
        begin = (across * touching - ahead * radii) / (ahead * touching + across * radii)
        end = (across * touching + ahead * radii) / (ahead * touching - across * radii)
        line, left, right = _strips(begin, end, hulls.starts, self._lines, self._lines, is_ahead)
        first, last = np.searchsorted(self._columns, left), np.searchsorted(self._columns, right, side="right") - 1
        is_seen = first <= last
        top, covered = _covered(line[is_seen], first[is_seen], last[is_seen], len(self._columns))
        mask[top : top + len(covered)] = covered
        for shadows in self._maps:
            mask.ravel()[shadows.shadowed(hulls)] = True
        return mask


def _strips(
    first: np.ndarray, last: np.ndarray, starts: np.ndarray, lower: np.ndarray, upper: np.ndarray, are_there: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each strip that meets a hull's outline, with the outline's greatest extent there. Shape of each: (n,)."""
    # ``first`` and ``last`` (8, num_balls) are the ends of balls along directions of length 1. ``lower`` and ``upper``
    # (num_strips,) bound each strip on the second axis. Hulls outside of the mask ``are_there`` meet none.
    first, last = np.minimum.reduceat(first, starts, axis=1), np.maximum.reduceat(last, starts, axis=1)
    first, last = first * _LENGTHS[:, None], last * _LENGTHS[:, None]
    first[:, ~are_there] = np.inf
    outline, strip = np.nonzero((first[-1, :, None] <= upper) & (last[-1, :, None] >= lower))
    sides = np.multiply.outer(_SLOPES, lower), np.multiply.outer(_SLOPES, upper)
    first = first[:-1].take(outline, axis=1) - np.maximum(*sides).take(strip, axis=1)
    last = last[:-1].take(outline, axis=1) - np.minimum(*sides).take(strip, axis=1)
    return strip, first.max(axis=0), last.min(axis=0)


class _ShadowMap:
    """A light's shadow map: a grid across its direction, and the cell of every visible point."""

    def __init__(self, direction: np.ndarray, points: np.ndarray, pixels: np.ndarray, around: Hulls) -> None:
        # ``direction`` (3,) is a unit vector. ``points`` (n, 3) are visible in ``pixels`` (n,), in the world [m].
        first = np.cross(direction, np.eye(3)[np.abs(direction).argmin()])
        first /= np.linalg.norm(first)
        self._axes = np.stack([first, np.cross(direction, first)], axis=1)
        self._corner = around.centres.mean(axis=0) @ self._axes - _REACH_M
        # The index of a cell along each axis, from the map's corner.
        places = np.clip((points @ self._axes - self._corner) // _CELL_M, 0, _CELLS - 1).astype(np.int64)
        cells = places[:, 1] * _CELLS + places[:, 0]
        order = cells.argsort(kind="stable")
        self._cells, self._pixels = cells[order], pixels[order]
        # The cells at the edge also cover everything beyond.
        inner = np.arange(1, _CELLS) * _CELL_M
        self._lower, self._upper = np.append(-_FAR_M, inner), np.append(inner, _FAR_M)

    def shadowed(self, hulls: Hulls) -> np.ndarray:
        """Return the pixels of points that geoms in hulls can shadow. Shape: (n,)."""
        places = (hulls.centres @ self._axes - self._corner) @ (_DIRECTIONS / _LENGTHS[:, None]).T
        ends, are_there = (places.T - hulls.radii, places.T + hulls.radii), np.ones(len(hulls.starts), bool)
        line, left, right = _strips(*ends, hulls.starts, self._lower, self._upper, are_there)
        first, last = (np.clip(each // _CELL_M, 0, _CELLS - 1).astype(np.int64) for each in (left, right))
        top, covered = _covered(line, first, last, _CELLS)
        begin, end = np.searchsorted(self._cells, (top * _CELLS, (top + len(covered)) * _CELLS))
        return self._pixels[begin:end][covered.ravel()[self._cells[begin:end] - top * _CELLS]]


def _covered(line: np.ndarray, first: np.ndarray, last: np.ndarray, width: int) -> tuple[int, np.ndarray]:
    """Return the first line with spans, and the mask of covered cells from it to the last one."""
    if not len(line):
        return 0, np.zeros((0, width), bool)
    top, height = int(line.min()), int(np.ptp(line)) + 1
    # Inside a span, one more has begun than ended. A line has one entry more than cells, so no span crosses into the
    # next.
    size, starts = height * (width + 1), (line - top) * (width + 1)
    begun = np.bincount(starts + first, minlength=size) - np.bincount(starts + last + 1, minlength=size)
    return top, (begun.cumsum() > 0).reshape(height, width + 1)[:, :-1]


# Draw films of a fixed camera faster: the static scene once, and then only pixels that may change.

_REMEMBERED = 16  # backdrops that are kept: each env slot may have colours and lights of its own
_WORTH_IT = 0.6  # share of the pixels up to which drawing them alone is faster


class Backdrops:
    """Draws pictures of one camera, bit-equal to a ray tracer's; for tracers of several threads."""

    def __init__(self, model: mujoco.MjModel, camera: Camera) -> None:
        self._camera = camera
        self._camera_id = model.camera(camera.name).id
        self._moving = MovingGeoms(model)
        casts = model.light_castshadow.astype(bool)
        are_directional = model.light_type[casts] == int(mujoco.mjtLightType.mjLIGHT_DIRECTIONAL)
        has_perspective = model.cam_projection[self._camera_id] == int(mujoco.mjtProjection.mjPROJ_PERSPECTIVE)
        self._lights = np.flatnonzero(casts)
        # Only bounded geoms, directional lights and perspective cameras have bounds on the changing pixels.
        self._is_usable = self._moving.are_bounded and bool(are_directional.all() and has_perspective)
        # A scene without its moving geoms, (height, width, 3), uint8, and its pixels that can change.
        self._known: OrderedDict[bytes, tuple[np.ndarray, ChangingPixels] | None] = OrderedDict()
        self._changing = Lock()

    def draw(self, tracer: RayTracer, world: VisibleWorld) -> np.ndarray:
        """Return the colours of a world. Shape: (height, width, 3), uint8."""
        if not self._is_usable:
            return tracer.render(world)[self._camera.name]

        # The world with its moving geoms invisible and at the origin, and other cameras at the origin.
        poses, fields = dict(world.poses), dict(world.fields)
        others = np.arange(len(poses["cam_xpos"])) != self._camera_id
        for kind, moved in (("geom", self._moving.ids), ("cam", others)):
            for name in (f"{kind}_xpos", f"{kind}_xmat"):
                poses[name] = poses[name].copy()
                poses[name][moved] = 0.0
        fields["geom_rgba"] = fields["geom_rgba"].copy()
        fields["geom_rgba"][self._moving.ids] = 0.0

        key = b"".join(array.tobytes() for array in (*poses.values(), *fields.values()))
        is_new = key not in self._known
        backdrop = self._known.get(key)
        # A backdrop is made at its second use, because the first may be the last.
        if backdrop is None and not is_new:
            # Moving geoms keep their poses, and are invisible by colour alone.
            pictures, name = tracer.render(replace(world, fields=fields)), self._camera.name
            if f"{name}:depth" not in pictures:
                raise ValueError(f"the tracer of '{name}' shows no depth")
            active = self._lights[world.fields["light_active"].astype(bool)[self._lights]]
            changing = ChangingPixels(
                world,
                self._camera_id,
                tracer.rays.reshape(self._camera.height, self._camera.width, 3),
                pictures[f"{name}:depth"][:, :, 0],
                world.poses["light_xdir"].reshape(-1, 3)[active],
                self._moving.hulls(world),
            )
            backdrop = pictures[name], changing
        with self._changing:
            self._known[key] = backdrop
            self._known.move_to_end(key)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

        mask = None if backdrop is None else backdrop[1].of(self._moving.hulls(world))
        if backdrop is None or mask is None or mask.mean() > _WORTH_IT:
            return tracer.render(world)[self._camera.name]
        rgb, pixels = backdrop[0].copy(), np.flatnonzero(mask)
        rgb.reshape(-1, 3)[pixels] = tracer.shoot_pixels(world, pixels)
        return rgb
