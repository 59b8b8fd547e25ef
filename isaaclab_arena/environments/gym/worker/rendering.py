"""The pictures of robosuite's renderers: one OpenGL context for each, and no geoms that cannot be seen in them."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import typing
import warnings
import weakref

import numpy as np

# The renderer of this interpreter, and one OpenGL context for each of robosuite's renderers.

_PATCHED = (
    ("robosuite.utils.binding_utils", "MjRenderContext"),
    ("robosuite.renderers.context.osmesa_context", "OSMesaGLContext"),
    ("robosuite.renderers.context.egl_context", "EGLGLContext"),
    ("robosuite.renderers.context.glfw_context", "GLFWGLContext"),
)


def drawn_with() -> dict[str, str]:
    """Return ``opengl``, the value of MUJOCO_GL, and ``renderer``, OpenGL's own name, if they are known."""
    # An environment may have set it when it was made.
    chosen = os.environ.get("MUJOCO_GL")  # noqa: TID251  a worker's own

    # The renderer is that of the environment's own context.
    told: list[typing.Any] = []
    if "OpenGL" in sys.modules:
        gl = importlib.import_module("OpenGL.GL")
        with contextlib.suppress(gl.error.Error):  # there is no context yet
            told = [gl.glGetString(name) for name in (gl.GL_RENDERER, gl.GL_VERSION)]
    found = {"opengl": chosen, "renderer": ", ".join(each.decode(errors="replace") for each in told if each)}
    return {name: value for name, value in found.items() if value}


def keep_robosuite_apart() -> None:
    """Apply `OwnContexts`, and on a CPU renderer `leave_out_unseen`, to robosuite's loaded classes."""
    renderer, *contexts = (
        getattr(sys.modules[module], name) if module in sys.modules else None for module, name in _PATCHED
    )
    if renderer is not None:
        if os.environ.get("MUJOCO_GL") == "osmesa":  # noqa: TID251  a worker's own
            leave_out_unseen(renderer)
        _ROBOSUITE.keep_apart(renderer, [each for each in contexts if each is not None])


class OwnContexts:
    """Lets each renderer draw, and free its resources, in its own OpenGL context only."""

    def __init__(self) -> None:
        # A reset of robosuite makes a new renderer. The old one lives until garbage collection, maybe many steps later.
        # It then frees its textures by number in the current context, where the same numbers are the new renderer's
        # textures: pictures would be dark from there on.
        self._changed: set[typing.Any] = set()
        # The current context; None if that is deleted or unknown.
        self._current: typing.Callable[[], typing.Any] = lambda: None

    def keep_apart(self, renderer_class: typing.Any, context_classes: typing.Sequence[typing.Any]) -> None:
        """Patch a renderer class and its context classes, each once."""
        if renderer_class not in self._changed:
            draw, free = renderer_class.render, renderer_class.__del__

            def render(renderer: typing.Any, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
                if self._current() is not renderer.gl_ctx:
                    renderer.gl_ctx.make_current()
                return draw(renderer, *args, **kwargs)

            def free_in_its_own(renderer: typing.Any) -> None:
                before, own = self._current(), renderer.gl_ctx
                own.make_current()
                free(renderer)
                self._current = lambda: None
                # The previous context may belong to a renderer that is being made.
                if before is not None and before is not own:
                    before.make_current()

            renderer_class.render, renderer_class.__del__ = render, free_in_its_own

        for context_class in set(context_classes) - self._changed:

            def followed(context: typing.Any, make: typing.Any = context_class.make_current) -> None:
                make(context)
                self._current = weakref.ref(context)

            context_class.make_current = followed
        self._changed.update((renderer_class, *context_classes))


_ROBOSUITE = OwnContexts()


# Decide by geometry which boxes a camera may see, directly or in a mirror. A visible box is never left out.

MARGIN_M = 1e-3  # faces that hide are taken for smaller and lower by this, and mirrors for larger and higher

_MARGIN_PX = 2
_LARGEST_SHIFT = 1e-9
_LARGEST_TURN = 1e-12


class Region(typing.NamedTuple):
    """A convex region with flat faces: the hull of points, extended along rays. Shape of each: (k, 3)."""

    points: np.ndarray  # corners
    rays: np.ndarray  # directions without an end; empty for a bounded region
    normals: np.ndarray  # of its faces, outwards
    edges: np.ndarray  # directions of the edges between faces


class Shape(typing.NamedTuple):
    """Boxes around geoms: centres (n, 3), axes as columns (n, 3, 3), half lengths along them (n, 3)."""

    centers: np.ndarray
    axes: np.ndarray
    halves: np.ndarray

    def mirrored(self, point: np.ndarray, normal: np.ndarray) -> Shape:
        """Return the boxes' mirror images in the plane through a point."""
        flip = np.eye(3) - 2.0 * np.outer(normal, normal)
        return Shape((self.centers - point) @ flip + point, flip @ self.axes, self.halves)

    def corners(self) -> np.ndarray:
        """Return the corners. Shape: (n, 8, 3)."""
        signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
        return self.centers[:, None] + np.einsum("nij,nkj->nki", self.axes, signs * self.halves[:, None])

    def meet(self, region: Region) -> np.ndarray:
        """True for boxes that no plane separates from a region. Shape: (n,), bool."""
        # Disjoint convex bodies with flat faces are separated by a plane along a face of one, or along an edge of each
        # (Gottschalk, Lin and Manocha, OBBTree, 1996).
        own = np.swapaxes(self.axes, 1, 2)
        along_edges = np.cross(region.edges[:, None], own[:, None]).reshape(len(own), -1, 3)
        across = np.concatenate([own, along_edges], axis=1)
        faces = np.broadcast_to(region.normals, (len(own), *region.normals.shape))
        outwards = np.concatenate([faces, across, -across], axis=1)
        farthest = ((region.points - region.points[0]) @ np.swapaxes(outwards, 1, 2)).max(axis=1)
        nearest = np.einsum("nki,ni->nk", outwards, self.centers - region.points[0])
        nearest -= np.einsum("nkj,nj->nk", np.abs(outwards @ self.axes), self.halves)
        parted = nearest > farthest + _LARGEST_SHIFT
        if len(region.rays):
            parted &= (region.rays @ np.swapaxes(outwards, 1, 2)).max(axis=1) <= _LARGEST_TURN
        return ~parted.any(axis=1)


class Eye(typing.NamedTuple):
    """A camera: its place, its axes (right, up, forward), and the edges of its picture at distance 1."""

    place: np.ndarray
    axes: np.ndarray
    left: float
    right: float
    bottom: float
    top: float

    def sight(self, floor: tuple[np.ndarray, np.ndarray] | None = None) -> Region:
        """Return the visible region, down to a ``floor`` (point, normal) that fills the picture; None for no floor."""
        rays = self._rays()
        sides = np.array([(-1, 0, self.left), (1, 0, -self.right), (0, -1, self.bottom), (0, 1, -self.top)])
        normals = np.concatenate([sides, [(0, 0, -1)]]) @ self.axes
        if floor is None:
            return Region(self.place[None], rays, normals, rays)
        point, normal = floor
        ends = self.place + rays * ((point - self.place) @ normal / (rays @ normal))[:, None]
        edges = np.concatenate([rays, ends[[1, 2, 1, 2]] - ends[[0, 0, 3, 3]]])
        return Region(np.concatenate([self.place[None], ends]), np.zeros((0, 3)), np.vstack([normals, -normal]), edges)

    def is_filled_by(self, face: np.ndarray, axes: np.ndarray, halves: np.ndarray) -> bool:
        """True if a rectangle fills the picture, seen from its upper side; its normal is the third of ``axes``."""
        rays = self._rays()
        height, falling = (self.place - face) @ axes[:, 2], -rays @ axes[:, 2]
        if height <= MARGIN_M or (falling <= 0).any():
            return False
        met = (self.place - face + rays * (height / falling)[:, None]) @ axes
        return bool((np.abs(met[:, :2]) <= halves).all())

    def through(self, face: np.ndarray, axes: np.ndarray, halves: np.ndarray) -> Region | None:
        """Return the region behind a rectangle; None if it is endless, or not seen from its upper side."""
        if (halves <= 0).any() or (self.place - face) @ axes[:, 2] <= 2 * MARGIN_M:
            return None
        wide, middle = halves + MARGIN_M, face + MARGIN_M * axes[:, 2]
        corners = middle + np.array([(-1, -1), (-1, 1), (1, 1), (1, -1)]) * wide @ axes[:, :2].T
        rays = corners - self.place
        normals = np.cross(rays, np.roll(rays, -1, axis=0))
        normals *= -np.sign(normals @ (face - self.place))[:, None]
        return Region(corners, rays, np.vstack([normals, axes[:, 2]]), np.vstack([rays, axes[:, :2].T]))

    def part(self, shape: Shape, width: int, height: int) -> tuple[int, int, int, int] | None:
        """Return the pixels around boxes: first column, first line from below, columns, lines; None if too near."""
        seen = (shape.corners().reshape(-1, 3) - self.place) @ self.axes.T
        if (seen[:, 2] < _MARGIN_PX * 1e-3).any():
            return None
        across = (seen[:, 0] / seen[:, 2] - self.left) / (self.right - self.left) * width
        upwards = (seen[:, 1] / seen[:, 2] - self.bottom) / (self.top - self.bottom) * height
        ends = []
        for values, size in ((across, width), (upwards, height)):
            low, high = np.floor(values.min()) - _MARGIN_PX, np.ceil(values.max()) + _MARGIN_PX
            ends.append(np.clip((low, high), 0, size).astype(int))
        (first, last), (lowest, highest) = ends
        return int(first), int(lowest), int(last - first), int(highest - lowest)

    def _rays(self) -> np.ndarray:
        """Return the rays through the picture's corners. Shape: (4, 3)."""
        corners = [(across, upwards, 1.0) for across in (self.left, self.right) for upwards in (self.bottom, self.top)]
        return np.array(corners) @ self.axes


# Draw the pictures of robosuite's renderers without invisible geoms, to the same bits.
#
# A box or a plane that reflects makes MuJoCo draw all of a scene once more, though few pixels may show it. So a picture
# is composed of two: one without reflections, and the rectangle around the mirrors, drawn with only the geoms that may
# be visible there, directly or in a mirror. This pays on a CPU renderer, whose cost grows with each corner of a mesh.
#
# The geometry is checked, not trusted: the first picture of each camera of each renderer is also drawn whole. If the
# two differ, everything is drawn from then on.

LARGEST_PART = 0.5  # largest part of a picture that mirrors may take; beyond it, the picture is drawn at once


class OpenGL:
    """Draws and reads parts of pictures: first column, first line from below, columns and lines."""

    def render(self, renderer: typing.Any, part: tuple[int, int, int, int]) -> None:
        """Draw the scene of a renderer."""
        mujoco = importlib.import_module("mujoco")
        mujoco.mjr_render(viewport=mujoco.MjrRect(*part), scn=renderer.scn, con=renderer.con)

    def read(self, renderer: typing.Any, part: tuple[int, int, int, int]) -> np.ndarray:
        """Return the drawn pixels. Shape: (lines, columns, 3), uint8."""
        mujoco = importlib.import_module("mujoco")
        picture = np.empty((part[3], part[2], 3), np.uint8)
        mujoco.mjr_readPixels(rgb=picture, depth=None, viewport=mujoco.MjrRect(*part), con=renderer.con)
        return picture


def leave_out_unseen(renderer_class: typing.Any, opengl: typing.Any = None) -> None:
    """Replace the drawing methods of a robosuite-like renderer class; other requests go to the originals."""
    if "leaves_out_unseen" in vars(renderer_class):
        return
    draw_all, read, opengl = renderer_class.render, renderer_class.read_pixels, opengl or OpenGL()
    differs = False

    def render(
        renderer: typing.Any,
        width: int,
        height: int,
        camera_id: int | None = None,
        segmentation: bool = False,  # noqa: FBT001, FBT002  as robosuite has it
    ) -> None:
        nonlocal differs
        asked = (width, height, camera_id, segmentation)
        renderer.picture_of_parts = None
        is_large = width > renderer.con.offWidth or height > renderer.con.offHeight
        if differs or segmentation or camera_id is None or camera_id < 0 or is_large:
            draw_all(renderer, *asked)
            return
        mujoco = importlib.import_module("mujoco")
        renderer.cam.type, renderer.cam.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, camera_id
        world = (renderer.model._model, renderer.data._data, renderer.vopt, renderer.pert, renderer.cam)
        mujoco.mjv_updateScene(*world, mujoco.mjtCatBit.mjCAT_ALL, renderer.scn)
        picture = draw(renderer, width, height, opengl)
        compared = getattr(renderer, "cameras_compared", frozenset())
        if camera_id not in compared:
            renderer.cameras_compared = compared | {camera_id}
            # The whole scene stays drawn; from a difference on, everything is.
            found = read(renderer, *asked[:2]) if picture is None else picture
            draw_all(renderer, *asked)
            differs = not np.array_equal(found, read(renderer, *asked[:2]))
            if differs:
                warnings.warn("pictures without unseen geoms differ from whole ones here: all is drawn", stacklevel=2)
        elif picture is not None:
            renderer.picture_of_parts = asked, picture

    def read_pixels(
        renderer: typing.Any,
        width: int,
        height: int,
        depth: bool = False,  # noqa: FBT001, FBT002  as robosuite has it
        segmentation: bool = False,  # noqa: FBT001, FBT002  as robosuite has it
    ) -> typing.Any:
        asked, picture = getattr(renderer, "picture_of_parts", None) or ((), None)
        if picture is not None and (width, height) == asked[:2] and not depth and not segmentation:
            return picture.copy()
        if picture is not None:
            # After the second drawing only a rectangle is valid.
            draw_all(renderer, *asked)
        return read(renderer, width, height, depth=depth, segmentation=segmentation)

    renderer_class.render, renderer_class.read_pixels = render, read_pixels
    renderer_class.leaves_out_unseen = True


def draw(renderer: typing.Any, width: int, height: int, opengl: typing.Any) -> np.ndarray | None:
    """Draw a renderer's updated scene; return the composed picture (height, width, 3), None if it is drawn whole."""
    mujoco = importlib.import_module("mujoco")
    scene, whole = renderer.scn, (0, 0, width, height)
    geoms = _Geoms(mujoco, renderer)
    camera, second = scene.camera[0], scene.camera[1]
    is_perspective = not (scene.enabletransform or getattr(camera, "orthographic", 0) or camera.frustum_near <= 0)
    if not is_perspective or geoms.cast_shadows:
        opengl.render(renderer, whole)
        return None

    # The eye of the scene's camera, between those of a stereo picture.
    forward, up = (np.array(getattr(camera, name), np.float64) for name in ("forward", "up"))
    place = (np.array(camera.pos, np.float64) + np.array(second.pos, np.float64)) / 2.0
    near, bottom, top = (float(getattr(camera, f"frustum_{name}")) for name in ("near", "bottom", "top"))
    half = float(getattr(camera, "frustum_width", 0.0)) or width / height * (top - bottom) / 2.0
    middle = float(camera.frustum_center)
    axes = np.array([np.cross(forward, up), up, forward])
    eye = Eye(place, axes, (middle - half) / near, (middle + half) / near, bottom / near, top / near)

    # The pixels around the mirrors; None if that may be the whole picture.
    mirrors = geoms.mirrors
    part: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    if len(mirrors.centers):
        is_endless = (mirrors.halves[:, :2] <= 0).any()
        part = None if is_endless else eye.part(mirrors, width, height)
    if part is None or part[2] * part[3] > LARGEST_PART * width * height:
        geoms.leave_out(~geoms.seen_by(eye, mirrors))
        opengl.render(renderer, whole)
        return None

    # Draw the picture without reflections.
    reflects = int(mujoco.mjtRndFlag.mjRND_REFLECTION)
    kept, scene.flags[reflects] = int(scene.flags[reflects]), 0
    shown = geoms.leave_out(~geoms.seen_by(eye))
    opengl.render(renderer, whole)
    scene.flags[reflects] = kept
    if not kept or 0 in part[2:]:
        return None

    # Draw the rectangle around the mirrors with reflections, and put it into the picture.
    picture = opengl.read(renderer, whole)
    for geom, kind in shown:
        geom.type = kind
    first, lowest, columns, lines = part
    across, upwards = (eye.right - eye.left) / width, (eye.top - eye.bottom) / height
    left, bottom = eye.left + first * across, eye.bottom + lowest * upwards
    sides = {"left": left, "right": left + columns * across, "bottom": bottom, "top": bottom + lines * upwards}
    geoms.leave_out(~geoms.seen_by(eye._replace(**sides), mirrors))
    opengl.render(renderer, whole)
    # Lines count from below, as in OpenGL.
    picture[lowest : lowest + lines, first : first + columns] = opengl.read(renderer, part)
    return picture


class _Geoms:
    """The geoms of a scene, and boxes around those that can be left out."""

    def __init__(self, mujoco: typing.Any, renderer: typing.Any) -> None:
        self._none = int(mujoco.mjtGeom.mjGEOM_NONE)
        self._box = int(mujoco.mjtGeom.mjGEOM_BOX)
        scene, model, data = renderer.scn, renderer.model._model, renderer.data._data
        endless = {int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_HFIELD)}
        of_model = int(mujoco.mjtObj.mjOBJ_GEOM)
        geoms = [scene.geoms[number] for number in range(scene.ngeom)]
        self._bounded = [each for each in geoms if each.objtype == of_model and int(each.type) not in endless]
        ids = [each.objid for each in self._bounded]
        axes = data.geom_xmat[ids].reshape(-1, 3, 3)
        middle, halves = model.geom_aabb[ids, :3], model.geom_aabb[ids, 3:]
        centers = data.geom_xpos[ids] + np.einsum("nij,nj->ni", axes, middle)
        self.boxes = Shape(centers, axes, halves)

        # The boxes and planes whose upper side reflects; planes have no thickness.
        flat = {int(mujoco.mjtGeom.mjGEOM_PLANE), self._box}
        found = [each for each in geoms if int(each.type) in flat and each.reflectance > 0 and not each.transparent]
        centers, axes, halves = (
            np.array([np.asarray(getattr(each, name), np.float64).reshape(shape) for each in found]).reshape(-1, *shape)
            for name, shape in (("pos", (3,)), ("mat", (3, 3)), ("size", (3,)))
        )
        halves[[int(each.type) != self._box for each in found], 2] = 0.0
        self.mirrors = Shape(centers, axes, halves)
        shadows = int(mujoco.mjtRndFlag.mjRND_SHADOW)
        lights = (scene.lights[number] for number in range(scene.nlight))
        self.cast_shadows = bool(scene.flags[shadows]) and any(each.castshadow for each in lights)

    def seen_by(self, eye: Eye, mirrors: Shape | None = None) -> np.ndarray:
        """True for boxes that may be visible, directly or in a mirror. Shape: (n,), bool."""
        # A point and the normal of an opaque box's upper face that fills the picture; None without one.
        floor = None
        for geom in self._bounded:
            if int(geom.type) != self._box or geom.transparent:
                continue
            axes, halves = np.array(geom.mat, np.float64).reshape(3, 3), np.array(geom.size, np.float64) - MARGIN_M
            face = np.array(geom.pos, np.float64) + halves[2] * axes[:, 2]
            if eye.is_filled_by(face, axes, halves[:2]):
                floor = face - MARGIN_M * axes[:, 2], axes[:, 2]
                break
        seen = self.boxes.meet(eye.sight(floor))
        for center, axes, halves in zip(*mirrors) if mirrors else ():  # noqa: B905  Python 3.9 has no strict
            face = center + halves[2] * axes[:, 2]
            image = self.boxes.mirrored(face, axes[:, 2])
            behind = eye.through(face, axes, halves[:2])
            shown = image.meet(eye.sight())
            seen |= shown if behind is None else shown & image.meet(behind)
        return seen

    def leave_out(self, unseen: np.ndarray) -> list[tuple[typing.Any, int]]:
        """Remove geoms from the scene, and return them with their types."""
        taken = [(self._bounded[number], int(self._bounded[number].type)) for number in np.flatnonzero(unseen)]
        for geom, _ in taken:
            geom.type = self._none
        return taken
