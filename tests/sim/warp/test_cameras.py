"""The ray tracer on a scene whose right picture is known."""

import mujoco
import numpy as np
import pytest

from isaaclab_arena.sim.backend import VisibleWorld
from isaaclab_arena.sim.warp_cameras import Camera, RayTracer

# Number of lights, headlight, extent and sky are those of the table, so that its compiled kernel serves here too.
SCENE = """
<mujoco>
  <statistic center="0.4 0 0.2" extent="1.2"/>
  <visual>
    <headlight ambient="0.3 0.3 0.3" diffuse="0.35 0.35 0.35" specular="0 0 0"/>
    <map znear="0.01" zfar="30"/>
  </visual>
  <asset><texture name="sky" type="skybox" builtin="flat" rgb1="0 0 0" rgb2="0 0 0" width="8" height="48"/></asset>
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


def picture_of(tracer, model, position=(0.0, 0.0, -2.0)):
    data = mujoco.MjData(model)
    data.qpos[:3] = position
    mujoco.mj_forward(model, data)
    return tracer.render(VisibleWorld.of(model, data))["front"]


def colour_in_the_middle(picture) -> str | None:
    """Return the only channel that is not dark."""
    bright = picture.rgb[HEIGHT // 2, WIDTH // 2] > 100
    return ("red", "green", "blue")[int(bright.argmax())] if bright.sum() == 1 else None


def test_a_picture_shows_what_stands_before_the_camera(tracer, model):
    picture = picture_of(tracer, model)
    assert (picture.rgb.shape, picture.rgb.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)
    assert colour_in_the_middle(picture) == "red"


def test_the_first_line_of_pixels_is_the_upper_one(tracer, model):
    green = picture_of(tracer, model).rgb[..., 1] > 50
    y, x = np.nonzero(green)
    assert 0 < y.max() < HEIGHT // 2
    assert abs(x.mean() - (WIDTH - 1) / 2) < 1


def test_depth_is_the_distance_along_the_axis_in_metres(tracer, model):
    depth = picture_of(tracer, model).depth
    face = depth[depth[..., 0] > 0]
    assert (depth.shape, depth.dtype) == ((HEIGHT, WIDTH, 1), np.float32)
    # The face of the box is flat and parallel to the picture: the same depth in its middle and at its edge.
    assert depth[HEIGHT // 2, WIDTH // 2, 0] == pytest.approx(1.5, abs=1e-4)
    assert depth[HEIGHT // 2, WIDTH // 2 + 4, 0] == pytest.approx(1.5, abs=1e-4)
    assert depth[0, 0, 0] == 0
    assert face.min() >= 1.49


def test_segmentation_names_the_body_behind_each_pixel(tracer, model):
    segmentation = picture_of(tracer, model).segmentation
    assert (segmentation.shape, segmentation.dtype) == ((HEIGHT, WIDTH, 1), np.int32)
    assert segmentation[HEIGHT // 2, WIDTH // 2, 0] == model.body("red").id
    assert set(np.unique(segmentation)) == {-1, model.body("red").id, model.body("above").id}


def test_what_was_rendered_before_leaves_no_trace(tracer, model):
    fresh = picture_of(tracer, model)
    elsewhere = picture_of(tracer, model, position=(0.6, -0.4, -2.0))
    again = picture_of(tracer, model)
    assert (elsewhere.rgb != fresh.rgb).any()
    assert (again.rgb == fresh.rgb).all()
    assert (again.depth == fresh.depth).all()
    assert (again.segmentation == fresh.segmentation).all()


def test_a_picture_is_kept_when_the_next_one_is_rendered(tracer, model):
    first = picture_of(tracer, model)
    before = first.rgb.copy()
    picture_of(tracer, model, position=(0.6, -0.4, -2.0))
    assert (first.rgb == before).all()


def test_a_world_with_its_own_colour_looks_otherwise(tracer, model):
    painted = mujoco.MjModel.from_xml_string(SCENE.replace("1 0 0 1", "0 0 1 1"))
    data = mujoco.MjData(painted)
    mujoco.mj_forward(painted, data)
    assert colour_in_the_middle(tracer.render(VisibleWorld.of(painted, data))["front"]) == "blue"
    assert colour_in_the_middle(picture_of(tracer, model)) == "red"
