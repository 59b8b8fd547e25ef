"""Films of worlds whose pictures are drawn later, on another thread."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.interfaces.specs import VIEWPORT
from tests.environments.building import build, hold_still, start, steps_of

CAMERAS = (VIEWPORT, "wrist_cam_rgb")


def small(**options) -> TableEnvironment:
    return build("lift_object", viewport_width=48, viewport_height=32, camera_size=32, **options)


@pytest.mark.parametrize("cameras", [CAMERAS, CAMERAS[:1], CAMERAS[1:]])
def test_what_is_drawn_later_on_any_thread_is_what_was_to_be_seen(cameras):
    env = small(num_envs=2)
    start(env)
    moments = []
    for _ in range(3):
        moments.append((env.film([0, 1], cameras), env.film_later([0, 1], cameras)))
        steps_of(env, hold_still(env) + 0.4, 2)
    with ThreadPoolExecutor(3) as threads:
        drawn = [[threads.submit(draw) for draw in drawing] for _, drawing in reversed(moments)]
    for (expected, _), found in zip(reversed(moments), drawn, strict=True):
        for camera in cameras:
            pictures = np.stack([each.result()[camera] for each in found])
            np.testing.assert_array_equal(pictures, expected[camera])
    assert (moments[0][0][cameras[0]] != moments[-1][0][cameras[0]]).any()


def test_what_policies_see_is_copied_when_it_is_filmed():
    env = small(num_envs=2, enable_cameras=True)
    seen = start(env)["camera_obs"]["wrist_cam_rgb"].numpy().copy()
    drawing = env.film_later([1], CAMERAS)
    steps_of(env, hold_still(env), 5)
    assert (drawing[0]()["wrist_cam_rgb"] == seen[1]).all()


def test_drawing_later_is_no_time_of_the_loop():
    env = small()
    start(env)
    [draw] = env.film_later([0], [VIEWPORT])
    draw()
    assert env.render_s == 0.0
    env.film([0], [VIEWPORT])
    assert env.render_s > 0.0
