"""Films of a fixed camera: only what may change is drawn anew, and no pixel is another one by it."""

import mujoco
import numpy as np
import pytest

from isaaclab_arena.sim.backend import VisibleWorld
from isaaclab_arena.sim.warp_cameras import Backdrops, Camera, RayTracer

WIDTH, HEIGHT = 64, 48
SHAPES = {
    "ball": 'type="sphere" size="0.1"',
    "egg": 'type="ellipsoid" size="0.05 0.1 0.2"',
    "box": 'type="box" size="0.05 0.1 0.15"',
    "stick": 'type="capsule" size="0.04 0.25"',
    "tin": 'type="cylinder" size="0.1 0.2"',
    "wedge": 'type="mesh" mesh="wedge"',
}


def scene(shapes=tuple(SHAPES), light='directional="true" dir="0.3 0.2 -1"') -> mujoco.MjModel:
    bodies = "".join(
        f'<body name="{name}"><freejoint/><geom {SHAPES[name]} rgba="0.{number + 2} 0.5 0.4 1"/></body>'
        for number, name in enumerate(shapes)
    )
    return mujoco.MjModel.from_xml_string(f"""
        <mujoco>
          <asset><mesh name="wedge" vertex="0 0 0  0.3 0 0  0 0.2 0  0 0 0.25"/></asset>
          <worldbody>
            <light pos="0 0 3" {light} castshadow="true"/>
            <camera name="beside" pos="0 -1.6 1" xyaxes="1 0 0 0 0.5 0.85"/>
            <geom type="plane" size="2 2 0.1" rgba="0.5 0.6 0.5 1"/>
            <geom type="box" size="0.3 0.3 0.1" pos="0.2 0 0.1" rgba="0.7 0.5 0.3 1"/>
            {bodies}
          </worldbody>
        </mujoco>""")


def camera(name: str = "beside") -> Camera:
    return Camera(name=name, width=WIDTH, height=HEIGHT, depth=True)


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
        self.num_pixels += WIDTH * HEIGHT
        return super().render(world)

    def shoot_pixels(self, world, pixels):
        self.num_pixels += len(pixels)
        return super().shoot_pixels(world, pixels)


@pytest.mark.parametrize("shapes", [tuple(SHAPES), *((name,) for name in SHAPES)])
def test_every_pixel_is_the_one_of_a_whole_picture(shapes):
    model = scene(shapes)
    tracer, whole = CountingTracer(model, [camera()], shadows=True), RayTracer(model, [camera()], shadows=True)
    backdrops, number = Backdrops(model, camera()), 60
    tracer.num_pixels = 0
    for world in worlds(model, number):
        np.testing.assert_array_equal(backdrops.draw(tracer, world), whole.render(world)["beside"].rgb)
    share = tracer.num_pixels / (number * WIDTH * HEIGHT)
    assert share < (0.75 if len(shapes) > 1 else 0.4)


def test_a_world_of_another_colour_has_its_own_backdrop():
    model = scene(("ball",))
    tracer, whole = RayTracer(model, [camera()], shadows=True), RayTracer(model, [camera()], shadows=True)
    backdrops = Backdrops(model, camera())
    for number, world in enumerate(worlds(model, 12)):
        world.fields["geom_rgba"][:2, 0] = (0.2, 0.9)[number % 2]
        world.fields["light_diffuse"][:] = (0.9, 0.3, 0.6)[number % 3]
        np.testing.assert_array_equal(backdrops.draw(tracer, world), whole.render(world)["beside"].rgb)


def test_a_camera_that_moves_sees_every_pixel_anew():
    model = scene(("ball",))
    tracer, whole = CountingTracer(model, [camera()]), RayTracer(model, [camera()])
    backdrops = Backdrops(model, camera())
    tracer.num_pixels = 0
    for number, world in enumerate(worlds(model, 5)):
        world.poses["cam_xpos"][0, 2] += 0.05 * number
        np.testing.assert_array_equal(backdrops.draw(tracer, world), whole.render(world)["beside"].rgb)
    assert tracer.num_pixels == 5 * WIDTH * HEIGHT


def test_with_a_lamp_whose_shadows_spread_every_picture_is_drawn_whole():
    model = scene(("ball",), light='dir="0 0 -1"')
    tracer, whole = CountingTracer(model, [camera()], shadows=True), RayTracer(model, [camera()], shadows=True)
    backdrops = Backdrops(model, camera())
    tracer.num_pixels = 0
    for world in worlds(model, 4):
        np.testing.assert_array_equal(backdrops.draw(tracer, world), whole.render(world)["beside"].rgb)
    assert tracer.num_pixels == 4 * WIDTH * HEIGHT
