"""Other patterns on the table and on the floor show in pictures, each in its place, and nowhere else."""

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.variations.catalogue import NUM_PATTERNS, pattern_pixels
from tests.environments.building import hold_still, steps_of
from tests.environments.variations.varying import build_varied, conditions_of, fixed

HEAD = "robot_head_cam"
CAMERAS = {"enable_cameras": True, "camera_size": 48, "camera_segmentation": True}


def textured(key: str, *parts: int, backend: str = "mujoco"):
    """Return pictures of the same episode with more and more of a pattern, and what each pixel shows."""
    env = build_varied("lift_object", fixed(key, *parts), num_envs=len(parts), backend=backend, **CAMERAS)
    one = conditions_of(env, 0)
    same = [{**one, key: share} for share in parts]
    seen = env.reset(torch.arange(len(parts)), same)["camera_obs"]
    bodies = seen[f"{HEAD}_segmentation"].numpy()[0, ..., 0]
    model = env.backend.model
    return env, seen[f"{HEAD}_rgb"].numpy().astype(int), bodies == model.body("table").id, bodies == 0


@pytest.mark.parametrize("backend", ["mujoco", "warp"])
@pytest.mark.parametrize("key", ["table.texture", "background.texture"])
def test_a_texture_covers_its_surface_more_and_more_and_nothing_else(key, backend):
    _, pictures, shows_table, shows_floor = textured(key, 0, 1, 3, 5, backend=backend)
    covered = shows_table if key.startswith("table") else shows_floor
    assert covered.sum() > 100
    changes = [np.abs(picture - pictures[0]) for picture in pictures]
    assert all(change[~covered].max() == 0 for change in changes)
    means = [change[covered].mean() for change in changes]
    assert means[0] == 0 < means[1] < means[2] < means[3]


def test_a_world_without_a_texture_looks_as_if_there_were_none():
    _, pictures, *_ = textured("table.texture", 0, 5)
    plain = build_varied("lift_object", {}, **CAMERAS)
    seen = plain.reset(torch.tensor([0]), [conditions_of(plain, 0)])["camera_obs"][f"{HEAD}_rgb"].numpy()[0]
    assert np.array_equal(pictures[0], seen)


def test_the_next_episode_of_an_env_slot_has_its_own_surface_again():
    env, pictures, *_ = textured("table.texture", 5, 0)
    without, covered = ({**conditions_of(env, 0), "table.texture": parts} for parts in (0, 5))
    seen = env.reset(torch.arange(2), [without, covered])["camera_obs"][f"{HEAD}_rgb"].numpy()
    assert np.array_equal(seen[0], pictures[1])
    assert np.array_equal(seen[1], pictures[0])


def test_the_physics_does_not_know_of_it():
    env, *_ = textured("table.texture", 0, 5)
    steps_of(env, hold_still(env), 3)
    one, other = (state["integration_state"] for state in env.episode_states(range(2)))
    assert np.array_equal(one, other)


def test_films_show_the_surface_too():
    env, pictures, *_ = textured("table.texture", 0, 5)
    films = env.film([0, 1], [f"{HEAD}_rgb"])[f"{HEAD}_rgb"]
    assert np.array_equal(films[0], pictures[0])
    assert np.array_equal(films[1], pictures[1])


def test_an_episode_has_the_same_pattern_at_every_strength_and_episodes_have_different_ones():
    weak, strong = (build_varied("lift_object", fixed("table.texture", parts)) for parts in (1, 5))
    patterns = [conditions_of(weak, index)["table.pattern"] for index in range(20)]
    assert patterns == [conditions_of(strong, index)["table.pattern"] for index in range(20)]
    assert len(set(patterns)) > 3
    assert set(patterns) <= set(range(NUM_PATTERNS))


@pytest.mark.parametrize("pattern", range(NUM_PATTERNS))
def test_patterns_have_two_colours_and_none_that_a_task_names(pattern):
    colours = np.unique(pattern_pixels(pattern, 1).reshape(-1, 3), axis=0).astype(int)
    assert len(colours) == 2
    # Reds, greens, blues and yellows of objects have one channel far above another.
    assert all(colour.max() - colour.min() < 70 for colour in colours)
