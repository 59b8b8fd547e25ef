"""Colour, light and cameras vary in the picture, and nowhere else."""

import numpy as np
import torch

from tests.environments.building import hold_still, steps_of
from tests.environments.variations.varying import begin, build_varied, conditions_of, fixed, simulation

HEAD = "robot_head_cam_rgb"


def test_pictures_show_colour_light_and_camera_and_the_physics_does_not():
    overrides = {
        **fixed("cube.position", [0.5, 0.0]),
        **fixed("cube.yaw", 0.0),
        **fixed("robot.joint_position", [0.0, -0.4, 0.0, -2.4, 0.0, 2.0, 0.8]),
        **fixed("cube.color", [0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1], [0.8, 0.1, 0.1]),
        **fixed("light.intensity", 1.0, 1.0, 0.3, 1.0),
        **fixed("robot_head_cam.position", [0, 0, 0], [0, 0, 0], [0, 0, 0], [0.2, 0, 0]),
    }
    env = build_varied(
        "lift_object", overrides, num_envs=4, enable_cameras=True, camera_size=64, camera_segmentation=True
    )
    begin(env)
    seen = steps_of(env, hold_still(env), 1)[0].observation["camera_obs"]
    pictures = seen[HEAD].numpy().astype(float)
    cube = simulation(env).model.body("object/body").id
    shows_cube = seen["robot_head_cam_segmentation"].numpy()[..., 0] == cube
    colours = np.array([pictures[env_id][shows_cube[env_id]].mean(axis=0) for env_id in range(4)])
    assert colours[0, 0] > 2 * colours[0, 2]
    assert colours[1, 2] > 2 * colours[1, 0]
    assert pictures[2].mean() < 0.85 * pictures[0].mean()
    assert np.array_equal(shows_cube[0], shows_cube[2])
    assert not np.array_equal(shows_cube[0], shows_cube[3])
    states = [state["integration_state"] for state in env.episode_states(range(4))]
    assert all(np.array_equal(state, states[0]) for state in states)


def test_policies_are_shown_disturbed_pictures_and_films_what_is_there():
    overrides = {**fixed("picture.noise", 12.0), **fixed("picture.exposure", 1.0), **fixed("picture.blur", 1.0)}
    plain, disturbed = (
        build_varied("lift_object", own, num_envs=2, enable_cameras=True, camera_size=32)
        for own in (fixed("cube.yaw", 0.5), {**fixed("cube.yaw", 0.5), **overrides})
    )
    seen = [env.reset(torch.arange(2), [conditions_of(env, index) for index in range(2)]) for env in (plain, disturbed)]
    one, other = (each["camera_obs"][HEAD].numpy().astype(float) for each in seen)
    assert other.mean() > one.mean() + 20
    filmed = [env.film([0, 1], [HEAD])[HEAD] for env in (plain, disturbed)]
    assert np.array_equal(filmed[0], filmed[1])
    for name, value in seen[0]["policy"].items():
        assert torch.equal(value, seen[1]["policy"][name])
