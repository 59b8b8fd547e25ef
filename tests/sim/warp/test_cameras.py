"""Pictures that are ray-traced for a batch of worlds."""

from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from isaaclab_arena.sim.backend import StartState, VisibleWorld, moved_camera, painted
from isaaclab_arena.sim.scene import ScenePart, compose_scene
from isaaclab_arena.sim.warp_backend import WarpBackend
from isaaclab_arena.sim.warp_cameras import Backdrops, BatchCameras, Camera, RayTracer, RayTracers
from tests.sim.warp.test_kernels import Worker, between

# The ray tracer on a scene whose right picture is known.

# Number of lights, headlight, extent and sky are those of the table, so that its compiled kernel serves here too.
AS_THE_TABLE = """
  <statistic center="0.4 0 0.2" extent="1.2"/>
  <visual>
    <headlight ambient="0.3 0.3 0.3" diffuse="0.35 0.35 0.35" specular="0 0 0"/>
    <map znear="0.01" zfar="30"/>
  </visual>
  <asset><texture name="sky" type="skybox" builtin="flat" rgb1="0 0 0" rgb2="0 0 0" width="8" height="48"/></asset>
"""
SCENE = f"""
<mujoco>{AS_THE_TABLE}
  <worldbody>
    <light directional="true" dir="0 0 -1" diffuse="0.2 0.2 0.2" specular="0 0 0"/>
    <light directional="true" dir="0 0 -1" diffuse="0.2 0.2 0.2" specular="0 0 0"/>
    <camera name="front" pos="0 0 0" xyaxes="1 0 0 0 1 0" fovy="90"/>
    <body name="red" pos="0 0 -2"><freejoint/><geom type="box" size="0.5 0.5 0.5" rgba="1 0 0 1"/></body>
    <body name="above" pos="0 1.5 -2"><geom type="sphere" size="0.3" rgba="0 1 0 1"/></body>
  </worldbody>
</mujoco>
"""
WIDTH, HEIGHT = 48, 32


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


@pytest.fixture(scope="module")
def tracer(model) -> RayTracer:
    return RayTracer(model, [Camera(name="front", width=WIDTH, height=HEIGHT, depth=True, segmentation=True)])


def pictures_of(tracer, model, position=(0.0, 0.0, -2.0)):
    data = mujoco.MjData(model)
    data.qpos[:3] = position
    mujoco.mj_forward(model, data)
    return tracer.render(VisibleWorld.of(model, data))


def colour_in_the_middle(pictures) -> str | None:
    """Return the only channel that is not dark."""
    bright = pictures["front"][HEIGHT // 2, WIDTH // 2] > 100
    return ("red", "green", "blue")[int(bright.argmax())] if bright.sum() == 1 else None


def test_a_picture_shows_what_stands_before_the_camera_its_upper_line_first(tracer, model):
    pictures = pictures_of(tracer, model)
    assert (pictures["front"].shape, pictures["front"].dtype) == ((HEIGHT, WIDTH, 3), np.uint8)
    assert colour_in_the_middle(pictures) == "red"
    y, x = np.nonzero(pictures["front"][..., 1] > 50)
    assert 0 < y.max() < HEIGHT // 2
    assert abs(x.mean() - (WIDTH - 1) / 2) < 1


def test_depth_is_the_distance_along_the_axis_in_metres(tracer, model):
    depth = pictures_of(tracer, model)["front:depth"]
    face = depth[depth[..., 0] > 0]
    assert (depth.shape, depth.dtype) == ((HEIGHT, WIDTH, 1), np.float32)
    # The face of the box is flat and parallel to the picture: the same depth in its middle and at its edge.
    assert depth[HEIGHT // 2, WIDTH // 2, 0] == pytest.approx(1.5, abs=1e-4)
    assert depth[HEIGHT // 2, WIDTH // 2 + 4, 0] == pytest.approx(1.5, abs=1e-4)
    assert depth[0, 0, 0] == 0
    assert face.min() >= 1.49


def test_segmentation_names_the_body_behind_each_pixel(tracer, model):
    segmentation = pictures_of(tracer, model)["front:segmentation"]
    assert (segmentation.shape, segmentation.dtype) == ((HEIGHT, WIDTH, 1), np.int32)
    assert segmentation[HEIGHT // 2, WIDTH // 2, 0] == model.body("red").id
    assert set(np.unique(segmentation)) == {-1, model.body("red").id, model.body("above").id}


def test_what_was_rendered_before_stays_and_leaves_no_trace(tracer, model):
    fresh = pictures_of(tracer, model)
    kept = {name: picture.copy() for name, picture in fresh.items()}
    elsewhere = pictures_of(tracer, model, position=(0.6, -0.4, -2.0))
    again = pictures_of(tracer, model)
    assert (elsewhere["front"] != fresh["front"]).any()
    for name, picture in kept.items():
        assert (fresh[name] == picture).all()
        assert (again[name] == picture).all()


def test_a_world_with_its_own_colour_looks_otherwise(tracer, model):
    painted = mujoco.MjModel.from_xml_string(SCENE.replace("1 0 0 1", "0 0 1 1"))
    data = mujoco.MjData(painted)
    mujoco.mj_forward(painted, data)
    assert colour_in_the_middle(tracer.render(VisibleWorld.of(painted, data))) == "blue"
    assert colour_in_the_middle(pictures_of(tracer, model)) == "red"


# Pictures of all worlds at once, held to those that are rendered one by one.

PARTS = (
    ScenePart(prefix="robot", asset="robots/panda.xml"),
    ScenePart(prefix="object", asset="objects/cube.xml", position=(0.5, 0.0, 0.025)),
)

# Poses in single precision move an edge by a hair, which a pixel on it shows; a pixel inside a surface does not.
SAME_PIXELS, CLOSE = 0.99, 2


@pytest.fixture(scope="module")
def batch_cameras_model():
    return compose_scene("scenes/table.xml", PARTS)


@pytest.fixture(scope="module")
def cameras(batch_cameras_model):
    names = [batch_cameras_model.camera(index).name for index in range(batch_cameras_model.ncam)]
    return [Camera(name=name, width=WIDTH, height=HEIGHT, depth=True, segmentation=True) for name in names]


@pytest.fixture(scope="module")
def backend(batch_cameras_model, cameras):
    backend = WarpBackend(batch_cameras_model, num_envs=2, device=torch.device("cpu"))
    changes = [
        [],
        [
            *painted(batch_cameras_model, "object/body", (0.0, 0.0, 1.0)),
            *moved_camera(batch_cameras_model, cameras[0].name, shift=(0.05, 0.0, 0.0), turn=(0.0, 0.0, 0.0)),
        ],
    ]
    backend.vary(torch.arange(2), changes)
    starts = [
        StartState(joint_positions={"object/free": (0.4 + 0.1 * env_id, 0.0, 0.03, 1, 0, 0, 0)}) for env_id in range(2)
    ]
    backend.reset(torch.arange(2), starts)
    return backend


def test_all_worlds_at_once_look_as_they_do_one_by_one(backend, cameras):
    together = BatchCameras(backend, cameras).render()
    alone = RayTracers(backend.model, cameras).render(
        {world: VisibleWorld.of(*backend.visible_world(world)) for world in (0, 1)}
    )
    for camera in cameras:
        for env_id in range(2):
            own = alone[env_id]
            colours = together[camera.name][env_id].numpy().astype(int)
            assert (np.abs(colours - own[camera.name]) <= CLOSE).all(axis=-1).mean() > SAME_PIXELS
            depth = together[f"{camera.name}:depth"][env_id].numpy()
            assert np.isclose(depth, own[f"{camera.name}:depth"], atol=1e-3).mean() > SAME_PIXELS
            seen = together[f"{camera.name}:segmentation"][env_id].numpy()
            assert (seen == own[f"{camera.name}:segmentation"]).mean() > SAME_PIXELS


def test_each_world_shows_its_own_colours_and_camera(backend, cameras):
    pictures = BatchCameras(backend, cameras).render()
    colours = pictures[cameras[0].name]
    assert colours.shape == (2, HEIGHT, WIDTH, 3)
    assert colours.dtype == torch.uint8
    assert not torch.equal(colours[0], colours[1])


@pytest.fixture(scope="module")
def three_worlds(batch_cameras_model, cameras):
    """Worlds of which one has another colour, and one another camera."""
    backend = WarpBackend(batch_cameras_model, num_envs=3, device=torch.device("cpu"))
    blue = [*painted(batch_cameras_model, "object/body", (0.0, 0.0, 1.0))]
    shifted = [*moved_camera(batch_cameras_model, cameras[0].name, shift=(0.05, 0.0, 0.0), turn=(0.0, 0.0, 0.0))]
    backend.vary(torch.arange(3), [[], blue, shifted])
    backend.reset(torch.arange(3), [StartState()] * 3)
    return backend


def test_a_few_worlds_at_a_time_look_as_they_do_together(three_worlds, cameras):
    together, in_twos = (BatchCameras(three_worlds, cameras, shadows=True, at_once=number) for number in (None, 2))
    for env_ids in ([0, 1, 2], [2], [1, 2]):
        expected, few = (each.render(torch.tensor(env_ids)) for each in (together, in_twos))
        assert few.keys() == expected.keys()
        for name, pictures in expected.items():
            assert torch.equal(few[name], pictures), (name, env_ids)
        if len(env_ids) == 3:
            shown = few[cameras[0].name]
            assert not torch.equal(shown[0], shown[1])
            assert not torch.equal(shown[0], shown[2])


@pytest.mark.parametrize("at_once", [None, 1])
def test_replayed_pictures_have_the_bits_of_launches(batch_cameras_model, cameras, at_once):
    replaying, launching = (WarpBackend(batch_cameras_model, num_envs=2, device=torch.device("cpu")) for _ in range(2))
    drawers = [BatchCameras(each, cameras, at_once=at_once) for each in (replaying, launching)]
    for number in range(3):
        changes = [[], painted(batch_cameras_model, "object/body", (0.0, 0.5 * number, 1.0))]
        place = StartState(joint_positions={"object/free": (0.4 + 0.05 * number, 0.0, 0.1 * number, 1, 0, 0, 0)})
        for each in (replaying, launching):
            each.vary(torch.arange(2), changes)
            each.reset(torch.arange(2), [place, place])
        launching.launcher.forget_graphs()
        replayed, launched = (each.render() for each in drawers)
        assert replayed.keys() == launched.keys()
        for name, pictures in replayed.items():
            assert torch.equal(pictures, launched[name]), name


def test_pictures_are_drawn_in_a_stream_in_which_no_other_thread_is_in_their_way(batch_cameras_model, cameras):
    backend, worker = WarpBackend(batch_cameras_model, num_envs=2, device=torch.device("cpu")), Worker()
    backend.launcher = worker.launcher
    pictures = BatchCameras(backend, cameras[:1])
    for _ in range(2):
        assert worker.noted(lambda: pictures.render(torch.tensor([1]))) == between("independent")


class CopiedColours(TorchDispatchMode):
    """Counts worlds whose colours are put in order, which copies them."""

    num_worlds = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.flip.default:
            self.num_worlds += len(args[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("at_once", [None, 2])
def test_only_worlds_that_are_wanted_are_copied(three_worlds, cameras, at_once):
    pictures = BatchCameras(three_worlds, cameras[:1], at_once=at_once)
    with CopiedColours() as copied:
        pictures.render(torch.tensor([1]))
    assert copied.num_worlds == 1


# Films of a fixed camera: only what may change is drawn anew, and no pixel is another one by it.

BACKDROPS_WIDTH, BACKDROPS_HEIGHT = 64, 48
SHAPES = {
    "ball": 'type="sphere" size="0.1"',
    "egg": 'type="ellipsoid" size="0.05 0.1 0.2"',
    "box": 'type="box" size="0.05 0.1 0.15"',
    "stick": 'type="capsule" size="0.04 0.25"',
    "tin": 'type="cylinder" size="0.1 0.2"',
    "wedge": 'type="mesh" mesh="wedge"',
}


def scene(shapes, light='directional="true" dir="0.3 0.2 -1"') -> mujoco.MjModel:
    bodies = "".join(
        f'<body name="{name}"><freejoint/><geom {SHAPES[name]} rgba="0.{number + 2} 0.5 0.4 1"/></body>'
        for number, name in enumerate(shapes)
    )
    return mujoco.MjModel.from_xml_string(f"""
        <mujoco>{AS_THE_TABLE}
          <asset><mesh name="wedge" vertex="0 0 0  0.3 0 0  0 0.2 0  0 0 0.25"/></asset>
          <worldbody>
            <light pos="0 0 3" {light} castshadow="true"/>
            <light directional="true" dir="0 0 -1" diffuse="0.2 0.2 0.2" castshadow="false"/>
            <camera name="beside" pos="0 -1.6 1" xyaxes="1 0 0 0 0.5 0.85"/>
            <geom type="plane" size="2 2 0.1" rgba="0.5 0.6 0.5 1"/>
            <geom type="box" size="0.3 0.3 0.1" pos="0.2 0 0.1" rgba="0.7 0.5 0.3 1"/>
            {bodies}
          </worldbody>
        </mujoco>""")


def camera(name: str = "beside") -> Camera:
    return Camera(name=name, width=BACKDROPS_WIDTH, height=BACKDROPS_HEIGHT, depth=True)


def worlds(model: mujoco.MjModel, number: int, *, seed: int = 0):
    """Yield worlds whose bodies are anywhere: in the picture, at its edge, far above it, behind the camera."""
    generator, data = np.random.default_rng(seed), mujoco.MjData(model)
    for _ in range(number):
        for body in range(model.nq // 7):
            place = generator.uniform((-1.5, -1.2, 0.0), (1.5, 1.5, 1.6))
            turn = generator.normal(size=4)
            data.qpos[7 * body : 7 * body + 7] = (*place, *(turn / np.linalg.norm(turn)))
        mujoco.mj_forward(model, data)
        yield VisibleWorld.of(model, data)


class CountingTracer(RayTracer):
    """Counts the pixels that are drawn."""

    num_pixels = 0

    def render(self, world):
        self.num_pixels += BACKDROPS_WIDTH * BACKDROPS_HEIGHT
        return super().render(world)

    def shoot_pixels(self, world, pixels):
        self.num_pixels += len(pixels)
        return super().shoot_pixels(world, pixels)


class Drawn:
    """A scene, its backdrops, and a tracer that draws every picture whole."""

    def __init__(self, shapes: tuple[str, ...], shadows: bool = True) -> None:
        self.model = scene(shapes)
        self.tracer = CountingTracer(self.model, [camera()], shadows=shadows)
        self.whole = RayTracer(self.model, [camera()], shadows=shadows)
        self.backdrops = Backdrops(self.model, camera())
        self.tracer.num_pixels = 0

    def compare(self, world: VisibleWorld) -> None:
        drawn = self.backdrops.draw(self.tracer, world)
        np.testing.assert_array_equal(drawn, self.whole.render(world)["beside"])

    def share(self, number: int) -> float:
        """Return the part of the pixels of so many pictures that was drawn."""
        return self.tracer.num_pixels / (number * BACKDROPS_WIDTH * BACKDROPS_HEIGHT)


@pytest.mark.parametrize("shapes", [tuple(SHAPES), *((name,) for name in SHAPES)])
def test_every_pixel_is_the_one_of_a_whole_picture(shapes):
    drawn, number = Drawn(shapes=shapes), 30 if len(shapes) > 1 else 10
    for world in worlds(drawn.model, number):
        drawn.compare(world)
    assert drawn.share(number) < (0.8 if len(shapes) > 1 else 0.45)


def test_a_world_of_another_colour_has_its_own_backdrop():
    drawn = Drawn(shapes=("ball",))
    for number, world in enumerate(worlds(drawn.model, 7)):
        world.fields["geom_rgba"][:2, 0] = (0.2, 0.9)[number % 2]
        world.fields["light_diffuse"][:] = (0.9, 0.3, 0.6)[number % 3]
        drawn.compare(world)


def test_a_camera_that_moves_sees_every_pixel_anew():
    drawn = Drawn(shapes=("ball",), shadows=False)
    for number, world in enumerate(worlds(drawn.model, 5)):
        world.poses["cam_xpos"][0, 2] += 0.05 * number
        drawn.compare(world)
    assert drawn.share(5) == 1


def test_with_a_lamp_whose_shadows_spread_every_picture_is_drawn_whole():
    drawn = Drawn(shapes=("ball",))
    # The lamp is in the scene that decides alone: another kind of light needs another kernel.
    drawn.backdrops = Backdrops(scene(("ball",), light='dir="0 0 -1"'), camera())
    for world in worlds(drawn.model, 4):
        drawn.compare(world)
    assert drawn.share(4) == 1
