"""Pictures that are ray-traced for a batch of worlds."""

from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.sim.backend import StartState, VisibleWorld, moved_camera, painted
from isaaclab_arena.sim.scene import ScenePart, compose_scene
from isaaclab_arena.sim.warp_backend import WarpBackend
from isaaclab_arena.sim.warp_cameras import Backdrops, BatchCameras, Camera, MovingGeoms, RayTracer, RayTracers
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


MIDDLE = HEIGHT // 2, WIDTH // 2


def test_a_picture_shows_what_stands_before_the_camera_its_upper_line_first(tracer, model):
    picture = pictures_of(tracer, model)["front"]
    assert (picture.shape, picture.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)
    assert (picture[MIDDLE] > 100).tolist() == [True, False, False]
    y, x = np.nonzero(picture[..., 1] > 50)
    assert 0 < y.max() < HEIGHT // 2
    assert abs(x.mean() - (WIDTH - 1) / 2) < 1
    blue = mujoco.MjModel.from_xml_string(SCENE.replace("1 0 0 1", "0 0 1 1"))
    assert (pictures_of(tracer, blue)["front"][MIDDLE] > 100).tolist() == [False, False, True]


def test_depth_is_the_distance_along_the_axis_in_metres_and_segmentation_names_bodies(tracer, model):
    pictures = pictures_of(tracer, model)
    depth, segmentation = pictures["front:depth"], pictures["front:segmentation"]
    assert (depth.shape, depth.dtype) == ((HEIGHT, WIDTH, 1), np.float32)
    # The face of the box is flat and parallel to the picture: the same depth in its middle and at its edge.
    assert depth[HEIGHT // 2, [WIDTH // 2, WIDTH // 2 + 4], 0] == pytest.approx([1.5, 1.5], abs=1e-4)
    assert depth[0, 0, 0] == 0
    assert (segmentation.shape, segmentation.dtype) == ((HEIGHT, WIDTH, 1), np.int32)
    assert segmentation[MIDDLE] == model.body("red").id
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
    """Worlds of which one has another colour, and one another camera."""
    backend = WarpBackend(batch_cameras_model, num_envs=3, device=torch.device("cpu"))
    blue = [*painted(batch_cameras_model, "object/body", (0.0, 0.0, 1.0))]
    shifted = [*moved_camera(batch_cameras_model, cameras[0].name, shift=(0.05, 0.0, 0.0), turn=(0.0, 0.0, 0.0))]
    backend.vary(torch.arange(3), [[], blue, shifted])
    backend.reset(torch.arange(3), [StartState(joint_positions={"object/free": (0.4, 0.0, 0.03, 1, 0, 0, 0)})] * 3)
    return backend


def test_all_worlds_at_once_look_as_they_do_one_by_one(backend, cameras):
    together = BatchCameras(backend, cameras).render()
    worlds = {world: VisibleWorld.of(*backend.visible_world(world)) for world in range(3)}
    for env_id, alone in RayTracers(backend.model, cameras).render(worlds).items():
        for camera in cameras:
            depth, segmentation = f"{camera.name}:depth", f"{camera.name}:segmentation"
            shown = {name: together[name][env_id].numpy() for name in (camera.name, depth, segmentation)}
            colours = np.abs(shown[camera.name].astype(int) - alone[camera.name])
            assert (colours <= CLOSE).all(axis=-1).mean() > SAME_PIXELS
            assert np.isclose(shown[depth], alone[depth], atol=1e-3).mean() > SAME_PIXELS
            assert (shown[segmentation] == alone[segmentation]).mean() > SAME_PIXELS
    first, *others = together[cameras[0].name]
    assert (first.shape, first.dtype) == ((HEIGHT, WIDTH, 3), torch.uint8)
    assert not any(torch.equal(first, other) for other in others)


def test_a_few_worlds_at_a_time_look_as_they_do_together(backend, cameras):
    together, in_twos = (BatchCameras(backend, cameras, shadows=True, at_once=number) for number in (None, 2))
    for env_ids in ([0, 1, 2], [2], [1, 2]):
        expected, few = (each.render(torch.tensor(env_ids)) for each in (together, in_twos))
        assert few.keys() == expected.keys()
        assert all(torch.equal(few[name], pictures) for name, pictures in expected.items()), env_ids


@pytest.mark.parametrize("at_once", [None, 1])
def test_replayed_pictures_have_the_bits_of_launches(batch_cameras_model, cameras, at_once):
    replaying, launching = (WarpBackend(batch_cameras_model, num_envs=2, device=torch.device("cpu")) for _ in range(2))
    drawers = [BatchCameras(each, cameras, at_once=at_once) for each in (replaying, launching)]
    for number in range(3):
        place = StartState(joint_positions={"object/free": (0.4 + 0.05 * number, 0.0, 0.1 * number, 1, 0, 0, 0)})
        for each in (replaying, launching):
            each.vary(torch.arange(2), [[], painted(batch_cameras_model, "object/body", (0.0, 0.5 * number, 1.0))])
            each.reset(torch.arange(2), [place, place])
        launching.launcher.forget_graphs()
        replayed, launched = (each.render() for each in drawers)
        assert replayed.keys() == launched.keys()
        assert all(torch.equal(pictures, launched[name]) for name, pictures in replayed.items())


def test_pictures_are_drawn_in_a_stream_in_which_no_other_thread_is_in_their_way(batch_cameras_model, cameras):
    backend, worker = WarpBackend(batch_cameras_model, num_envs=2, device=torch.device("cpu")), Worker()
    backend.launcher = worker.launcher
    pictures = BatchCameras(backend, cameras[:1])
    for _ in range(2):
        assert worker.noted(lambda: pictures.render(torch.tensor([1]))) == between("independent")


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


def moving(geom: str, *, joint: str = "<freejoint/>", attributes: str = "") -> str:
    return f"<body {attributes}>{joint}<geom {geom}/></body>"


@pytest.mark.parametrize(
    ("bodies", "ids", "are_bounded"),
    [
        # What hangs on the world does not move, and what a program places does.
        (
            (
                moving('size="0.1"', joint=""),
                moving('size="0.1"'),
                moving('size="0.1"', joint="", attributes='mocap="true"'),
            ),
            [1, 2],
            True,
        ),
        ((moving('type="plane" size="1 1 1"', joint="", attributes='mocap="true"'),), [0], False),
        ((moving('size="0.1"', joint=""),), [], True),
    ],
)
def test_what_moves_has_a_hull_unless_it_is_a_plane(bodies, ids, are_bounded):
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{''.join(bodies)}</worldbody></mujoco>")
    geoms = MovingGeoms(model)
    assert (geoms.ids.tolist(), geoms.are_bounded) == (ids, are_bounded)
    if are_bounded:
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        assert len(geoms.hulls(VisibleWorld.of(model, data)).starts) == len(ids)


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

    def __init__(self, *shapes: str, shadows: bool = True) -> None:
        self.model = scene(shapes)
        self.tracer = CountingTracer(self.model, [camera()], shadows=shadows)
        self.whole = RayTracer(self.model, [camera()], shadows=shadows)
        self.backdrops = Backdrops(self.model, camera())

    def share(self, number: int, change: Callable[[int, VisibleWorld], None] = lambda *_: None) -> float:
        """Compare so many pictures, and return the part of their pixels that was drawn."""
        self.tracer.num_pixels = 0
        for index, world in enumerate(worlds(self.model, number)):
            change(index, world)
            drawn = self.backdrops.draw(self.tracer, world)
            np.testing.assert_array_equal(drawn, self.whole.render(world)["beside"])
        return self.tracer.num_pixels / (number * BACKDROPS_WIDTH * BACKDROPS_HEIGHT)


@pytest.mark.parametrize("shapes", [tuple(SHAPES), *((name,) for name in SHAPES)])
def test_every_pixel_is_the_one_of_a_whole_picture(shapes):
    assert Drawn(*shapes).share(20) < (0.8 if len(shapes) > 1 else 0.45)


def test_what_changes_otherwise_than_by_moving_is_drawn_anew():
    def coloured(number: int, world: VisibleWorld) -> None:
        world.fields["geom_rgba"][:2, 0] = (0.2, 0.9)[number % 2]
        world.fields["light_diffuse"][:] = (0.9, 0.3, 0.6)[number % 3]

    def seen_from_elsewhere(number: int, world: VisibleWorld) -> None:
        world.poses["cam_xpos"][0, 2] += 0.05 * number

    Drawn("ball").share(7, coloured)
    assert Drawn("ball", shadows=False).share(5, seen_from_elsewhere) == 1
    drawn = Drawn("ball")
    # A lamp whose shadows spread is in the scene that decides alone: another kind of light needs another kernel.
    drawn.backdrops = Backdrops(scene(("ball",), light='dir="0 0 -1"'), camera())
    assert drawn.share(4) == 1
