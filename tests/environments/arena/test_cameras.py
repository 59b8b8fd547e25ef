"""Cameras of a policy and of films."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.arena.cameras import CameraOptions, EnvironmentCameras
from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import ConfigError, UnannouncedPictureError
from isaaclab_arena.interfaces.specs import VIEWPORT, ArraySpec, Pictures
from isaaclab_arena.sim.backends import MujocoBackend
from tests.environments.building import ALL_ENVIRONMENTS, build, hold_still, start, steps_of
from tests.environments.variations.varying import begin, build_varied, fixed

# What policies and films see of the environments on the table.

RGB = ("robot_head_cam_rgb", "wrist_cam_rgb")


def seeing(name: str = "lift_object", *, num_envs: int = 1, **options) -> TableEnvironment:
    return build(name, num_envs=num_envs, enable_cameras=True, **{"camera_size": 32, **options})


def mujoco_backend(env: TableEnvironment) -> MujocoBackend:
    assert isinstance(env.backend, MujocoBackend)
    return env.backend


def test_a_side_of_a_square_goes_before_a_width_and_a_height():
    backend, options = seeing().backend, partial(CameraOptions, camera_width=40, camera_height=24)
    specs = [EnvironmentCameras(backend, options(camera_size=side), torch.device("cpu")).spec() for side in (None, 32)]
    assert [spec[name].shape for name in RGB for spec in specs] == [(24, 40, 3), (32, 32, 3)] * 2
    assert [options(camera_size=side).resolution for side in (None, 32)] == [(40, 24), (32, 32)]


@pytest.mark.parametrize("name", ALL_ENVIRONMENTS)
def test_policies_see_what_the_spec_and_a_sample_that_never_looks_promise(name):
    options = {"camera_width": 40, "camera_height": 24, "camera_depth": True, "camera_segmentation": True}
    builder, env = ENVIRONMENTS.get(name), seeing(name, camera_size=None, **options)
    sample = builder.sample(builder.config_class(enable_cameras=True, **options))
    assert sample.render_s == env.render_s == 0.0
    assert sample.observation_spec == env.observation_spec
    seen, group = start(env)["camera_obs"], env.observation_spec["camera_obs"]
    assert env.render_s > 0.0
    assert isinstance(group, dict)
    assert list(seen) == list(group)
    assert {*RGB, "wrist_cam_depth", "robot_head_cam_segmentation"} <= set(seen)
    for term, spec in group.items():
        assert isinstance(spec, ArraySpec)
        assert (tuple(seen[term].shape), seen[term].dtype) == ((1, *spec.shape), spec.dtype)
    assert seen[RGB[0]].shape == (1, 24, 40, 3)


@pytest.mark.parametrize("embodiment", ["panda", "so101"])
def test_nothing_stands_in_the_way_of_a_robots_cameras(embodiment):
    env = seeing(embodiment=embodiment, camera_size=64, camera_depth=True, camera_segmentation=True)
    seen = start(env)["camera_obs"]
    for camera in ("robot_head_cam", "wrist_cam"):
        assert float(seen[f"{camera}_depth"].median()) > 0.05
        assert (seen[f"{camera}_segmentation"] == env.backend.names.bodies[env.landmarks["object"]]).any()


def pictures_after(env: TableEnvironment, num_steps: int) -> dict[str, torch.Tensor]:
    start(env)
    return steps_of(env, hold_still(env), num_steps)[-1].observation["camera_obs"]


def test_an_env_slot_looks_the_same_to_the_last_bit_in_any_batch_and_on_any_number_of_threads():
    alone, *together = (
        pictures_after(seeing(num_envs=num_envs, num_threads=threads), 3)
        for num_envs, threads in ((1, 1), (4, 1), (4, 3))
    )
    for term in RGB:
        assert all(torch.equal(alone[term][0], each[term][0]) for each in together)
        assert torch.equal(together[0][term], together[1][term])
        assert not torch.equal(together[0][term][0], together[0][term][1])


def test_a_world_that_broke_down_keeps_its_last_picture():
    env = build("lift_object", camera_size=32)
    start(env)
    before = env.film([0], RGB)
    mujoco_backend(env).qpos[0, 2] = float("nan")
    after = env.film([0], RGB)
    assert all((before[term] == after[term]).all() for term in RGB)


def test_films_show_what_policies_would_see_the_viewport_in_its_own_size_and_tell_their_time():
    seen = start(seeing())["camera_obs"]
    env = build("lift_object", camera_size=32, viewport_width=48, viewport_height=32)
    start(env)
    [draw] = env.film_later([0], [VIEWPORT])
    draw()
    assert env.render_s == 0, "drawing later is no time of the loop"
    filmed = env.film([0], [*RGB, VIEWPORT])
    assert env.render_s > 0
    assert all((filmed[term] == seen[term].numpy()).all() for term in RGB)
    assert filmed[VIEWPORT].shape == (1, 32, 48, 3)
    assert filmed[VIEWPORT].std() > 20


@pytest.mark.parametrize(
    ("options", "key"),
    [
        *(({side: pixels}, side) for pixels in (0, 100_000) for side in ("camera_width", "viewport_height")),
        ({"camera_height": 0}, "camera_height"),
        ({"camera_size": 100_000}, "camera_size"),
        ({"viewport_width": 0}, "viewport_width"),
        ({"camera_size": 32, "camera_width": 64}, "camera_size"),
    ],
)
def test_pictures_of_absurd_sizes_and_two_ways_to_say_a_size_are_refused(options, key):
    with pytest.raises(ConfigError) as refused:
        build("reach", **options)
    assert refused.value.problems[0].key == key


def test_a_camera_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"'nose_cam'.*robot_head_cam_rgb"):
        build("reach").film([0], ["nose_cam"])


def step(env: TableEnvironment, *, draws: list[int] | None = None) -> dict[str, torch.Tensor | Pictures]:
    """Make a step, and return what is shown then; ``draws`` are the env slots that are looked at, None for all."""
    env.draw_pictures_of(draws)
    return env.step(hold_still(env)).observation["camera_obs"]


def test_pictures_on_demand_of_warp_are_those_that_are_always_drawn():
    """Conformance asks MuJoCo. Compiling a kernel or loading it takes most of the time."""
    options = {"camera_size": 16, "camera_depth": True, "camera_segmentation": True, "backend": "warp"}
    every, some = (seeing(num_envs=3, **options) for _ in range(2))
    start(every)
    some.draw_pictures_of([])
    start(some)
    assert some.pictures_drawn == 0
    for draws in ([], [0, 2], [0, 1, 2], [1]):
        expected, found = step(every), step(some, draws=draws)
        for term, pictures in expected.items():
            assert all(torch.equal(found[term][env_id], pictures[env_id]) for env_id in draws)
            assert isinstance(found[term], torch.Tensor if len(draws) == 3 else Pictures)
        for env_id in {0, 1, 2} - {*draws}:
            with pytest.raises(UnannouncedPictureError):
                found[RGB[0]][env_id]
    assert some.pictures_drawn == 6 * 6


def test_a_picture_lasts_until_its_env_slot_moves():
    env = seeing(num_envs=2)
    start(env)
    before = step(env, draws=[1])[RGB[0]][1]
    mujoco_backend(env).qpos[1, 0] += 0.5
    env.draw_pictures_of([0])
    shown = env.reset(torch.tensor([0]), [env.draw_conditions(np.random.default_rng(5))])["camera_obs"]
    assert torch.equal(shown[RGB[0]][1], before)
    assert env.pictures_drawn == (2 + 1 + 1) * len(RGB)


def test_pictures_that_are_shown_late_are_all_drawn():
    env = build_varied("lift_object", fixed("observation.delay", 2), num_envs=2, enable_cameras=True, camera_size=32)
    env.draw_pictures_of([])
    begin(env)
    assert isinstance(step(env, draws=[])[RGB[0]], torch.Tensor)


# Films of worlds whose pictures are drawn later, on another thread.

CAMERAS = (VIEWPORT, "wrist_cam_rgb")


def small(**options) -> TableEnvironment:
    return build("lift_object", viewport_width=48, viewport_height=32, camera_size=32, **options)


@pytest.mark.parametrize("cameras", [CAMERAS, CAMERAS[:1], CAMERAS[1:]])
def test_what_is_drawn_later_on_any_thread_is_what_was_to_be_seen(cameras):
    env = small(num_envs=2, enable_cameras=True)
    start(env)
    moments = []
    for _ in range(2):
        moments.append((env.film([0, 1], cameras), env.film_later([0, 1], cameras)))
        steps_of(env, hold_still(env) + 0.4, 2)
    with ThreadPoolExecutor(3) as threads:
        drawn = [[threads.submit(draw) for draw in drawing] for _, drawing in reversed(moments)]
    for (expected, _), found in zip(reversed(moments), drawn, strict=True):
        for camera in cameras:
            pictures = np.stack([each.result()[camera] for each in found])
            np.testing.assert_array_equal(pictures, expected[camera])
    assert (moments[0][0][cameras[0]] != moments[-1][0][cameras[0]]).any()
