"""The axes along which an episode varies."""

import json
from fnmatch import fnmatch
from itertools import pairwise

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.catalog import ENVIRONMENTS, OBJECTS
from isaaclab_arena.environments.tasks.two_cubes import PickByColour
from isaaclab_arena.environments.variations.catalogue import NUM_PATTERNS, pattern_pixels, word_distance
from isaaclab_arena.environments.variations.overrides import (
    AXES,
    EDGE_LEVEL,
    differs_only_by,
    enabled_variations,
    with_moved_starts,
)
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, Stream, episode_generator, episode_seed
from isaaclab_arena.policy.scripted import scripts
from tests.environments.building import ALL_ENVIRONMENTS, build, hold_still, steps_of
from tests.environments.variations.varying import build_varied, catalogue_of, conditions_of, fixed

CAN = catalogue_of("lift_object", object="can")
BENIGN = build_varied("lift_object", {}, object="can")
TASKS = {"lift_object": {"object": "can"}, "push_to_goal": {}, "sort_two": {}, "open_drawer": {}}
PLAIN = {task: build_varied(task, {}, **options) for task, options in TASKS.items()}
DRAWN = {task: tuple(conditions_of(env, 0)) for task, env in PLAIN.items()}
"""What episodes of a task start from where nothing varies."""

COMPANIONS = (
    *(f"distractor_{number}.{what}" for number in range(1, 7) for what in ("position", "yaw")),
    *("action.noise_seed", "observation.noise_seed", "picture.noise_seed", "table.pattern", "background.pattern"),
)
SAYS = {
    "object_position": ("*.shift", "*.position"),
    "object_yaw": ("*.turn", "*.yaw"),
    "object_size": ("*.size", "*.position"),
    "object_mass": ("*.mass",),
    "object_friction": ("*.friction",),
    "object_color": ("*.color",),
    "light": ("light.*",),
    "camera_pose": ("*_cam.position", "*_cam.rotation"),
    "robot_start": ("robot.joint_shift", "robot.joint_position"),
    "table_height": ("table.height",),
    "table_texture": ("table.texture", "table.pattern"),
    "background_texture": ("background.texture", "background.pattern"),
    "distractors": ("distractors.count", "distractor_*"),
    "action_noise": ("action.noise", "action.noise_seed"),
    "sensor_noise": ("observation.noise", "observation.noise_seed"),
    "picture_noise": ("picture.noise", "picture.noise_seed"),
    "picture_blur": ("picture.blur",),
    "picture_exposure": ("picture.exposure",),
    "picture_compression": ("picture.jpeg_quality",),
    "delay": ("observation.delay",),
    "language": ("instruction.paraphrase",),
}
"""What each axis says that it changes, told apart from how it finds it."""


def episode_of(axis: str, level: int, index: int = 3) -> Conditions:
    """Start state of an episode of a level."""
    env = build_varied("lift_object", AXES[axis].settings(CAN, level), object="can")
    return conditions_of(env, index)


def numbers(value: ConditionValue) -> tuple[float, ...]:
    assert not isinstance(value, str)
    return tuple(map(float, value)) if isinstance(value, tuple) else (float(value),)


def own_axes() -> list[str]:
    return [name for name, axis in AXES.items() if axis.variations(CAN)]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("task", TASKS)
def test_an_axis_changes_what_it_says_and_nothing_else(task, axis):
    catalogue = catalogue_of(task, **TASKS[task])
    on = [variation.key for variation in AXES[axis].variations(catalogue)]
    says = {key for pattern in SAYS[axis] for key in (*on, *DRAWN[task], *COMPANIONS) if fnmatch(key, pattern)}
    for level in range(1, EDGE_LEVEL + 1) if on else ():
        env = build_varied(task, AXES[axis].settings(catalogue, level), **TASKS[task])
        for index in (0, 3, 8):
            benign, changed = conditions_of(PLAIN[task], index), conditions_of(env, index)
            differ = {key for key in benign.keys() | changed.keys() if benign.get(key) != changed.get(key)}
            assert set(on) <= differ <= says, (level, index)
            assert differs_only_by(benign, changed, on)
            others = [key for key in benign if key not in differ]
            assert others == [key for key in DRAWN[task] if key not in differ]


@pytest.mark.parametrize("axis", own_axes())
def test_a_change_only_grows_from_level_to_level(axis):
    nominal = {variation.key: variation.nominal for variation in AXES[axis].variations(CAN)}
    episodes = [episode_of(axis, level) for level in (1, 3, 5)]
    for key, middle in nominal.items():
        ways = [
            tuple(value - start for value, start in zip(numbers(each[key]), middle, strict=True)) for each in episodes
        ]
        for component in zip(*ways, strict=True):
            assert abs(component[0]) <= abs(component[1]) <= abs(component[2])
            assert component[0] * component[2] >= 0


def test_a_start_is_moved_from_where_the_task_puts_it():
    benign, moved, turned = conditions_of(BENIGN, 3), episode_of("object_position", 5), episode_of("object_yaw", 5)
    shift = numbers(moved["can.shift"])
    before, now = numbers(benign["can.position"]), numbers(moved["can.position"])
    assert now == (before[0] + shift[0], before[1] + shift[1], before[2])
    assert turned["can.yaw"] == numbers(benign["can.yaw"])[0] + numbers(turned["can.turn"])[0]
    started = episode_of("robot_start", 5)
    sums = zip(numbers(benign["robot.joint_position"]), numbers(started["robot.joint_shift"]), strict=True)
    assert started["robot.joint_position"] == tuple(start + more for start, more in sums)


def test_a_level_is_as_far_from_nothing_as_it_says():
    quality, texture, words = (
        [AXES[axis].settings(CAN, level)[f"{key}.sampler_cfg.low"] for level in range(1, 6)]
        for axis, key in (
            ("picture_compression", "picture.jpeg_quality"),
            ("table_texture", "table.texture"),
            ("language", "instruction.paraphrase"),
        )
    )
    assert quality == [82, 64, 46, 28, 10]
    assert texture == words == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("axis", ["picture_compression", "table_texture", "background_texture", "language"])
def test_there_is_nothing_beyond_the_edge_of_what_is_whole(axis):
    enabled_variations(CAN, AXES[axis].settings(CAN, EDGE_LEVEL))
    with pytest.raises(ConfigError, match="must be"):
        enabled_variations(CAN, AXES[axis].settings(CAN, EDGE_LEVEL + 1))


def test_no_axis_of_colour_where_a_thing_is_called_by_its_colour():
    assert not AXES["object_color"].variations(catalogue_of("pick_by_colour"))
    assert AXES["object_color"].variations(CAN)


@pytest.mark.parametrize(("axis", "asset"), [("camera_pose", "wrist_cam"), ("object_position", "can")])
def test_cameras_and_things_are_told_apart_by_what_is_nominal(axis, asset):
    assert asset in {variation.asset for variation in AXES[axis].variations(CAN)}
    assert len({variation.asset for variation in AXES[axis].variations(CAN)} & {"can", "wrist_cam"}) == 1


@pytest.mark.parametrize(
    ("axis", "other"),
    [
        ("object_color", "light"),
        ("light", "object_color"),
        ("camera_pose", "object_yaw"),
        ("object_mass", "distractors"),
    ],
)
def test_an_axis_owns_no_variation_of_another(axis, other):
    assert all(AXES[axis].owns(variation.key) for variation in AXES[axis].variations(CAN))
    assert not any(AXES[axis].owns(variation.key) for variation in AXES[other].variations(CAN))


def test_a_joint_near_its_limit_goes_to_it_and_takes_no_level_from_the_others():
    so101 = catalogue_of("lift_object", embodiment="so101")
    edge = AXES["robot_start"].settings(so101, EDGE_LEVEL)
    high = edge["robot.joint_shift.sampler_cfg.high"]
    assert high[3] < high[0] == high[1] == high[2]
    (variation,) = enabled_variations(so101, edge)
    assert variation.sampler.high[3] == variation.highest[3]
    with pytest.raises(ConfigError, match="for no joint goes beyond its limits"):
        enabled_variations(so101, AXES["robot_start"].settings(so101, 10))


BEFORE = {"cube.position": (0.5, 0.1, 0.02), "cube.yaw": 0.3, "robot.joint_position": (0.0, -0.4)}


def changed(**own):
    """Return an episode with variations on, and their keys."""
    values = {key.replace("__", "."): value for key, value in own.items()}
    return with_moved_starts({**BEFORE, **values}, values), values.keys()


def test_a_start_is_what_the_task_draws_and_what_is_added_to_it():
    now, _ = changed(cube__shift=(0.01, -0.02), cube__turn=0.5, cube__size=2.0, robot__joint_shift=(0.1, 0.2))
    assert now["cube.position"] == (0.51, 0.1 - 0.02, 0.04)
    assert now["cube.yaw"] == 0.8
    assert now["robot.joint_position"] == (0.1, -0.4 + 0.2)


def test_an_episode_with_moved_starts_is_the_same_in_everything_else_also_from_json():
    now, keys = changed(cube__shift=(0.01, -0.02), cube__turn=0.5, cube__size=1.1, cube__mass=0.2)
    assert differs_only_by(BEFORE, now, keys)
    assert differs_only_by(json.loads(json.dumps(BEFORE)), json.loads(json.dumps(now)), keys)


@pytest.mark.parametrize(
    "other",
    [
        {"cube.position": (0.5, 0.1, 0.021)},
        {"cube.yaw": 0.31},
        {"robot.joint_position": (0.0, -0.41)},
        {"bin.position": (0.5, 0.3, 0.0)},
        {"distractor_1.position": (0.4, 0.3, 0.02)},
        {"light.color": (1.0, 1.0, 0.9)},
        {"picture.noise_seed": 5},
    ],
)
def test_an_episode_that_differs_in_anything_else_is_another_one(other):
    now, keys = changed(cube__mass=0.2)
    assert differs_only_by(BEFORE, now, keys)
    assert not differs_only_by(BEFORE, {**now, **other}, keys)


def test_a_start_may_be_moved_by_no_more_than_what_was_drawn():
    now, keys = changed(cube__shift=(0.01, -0.02))
    assert now["cube.position"] == (0.51, 0.1 - 0.02, 0.02)
    assert not differs_only_by(BEFORE, {**now, "cube.position": (0.51 + 1e-9, 0.1 - 0.02, 0.02)}, keys)


def test_a_variation_that_was_on_before_or_is_not_on_now_changes_nothing():
    assert not differs_only_by({**BEFORE, "cube.mass": 0.1}, {**BEFORE, "cube.mass": 0.2}, ["cube.mass"])
    assert not differs_only_by(BEFORE, BEFORE, ["cube.mass"])


def test_what_cannot_have_been_moved_was_not():
    now = {**BEFORE, "bin.shift": (0.1, 0.0)}
    assert not differs_only_by(BEFORE, now, ["bin.shift"])
    assert not differs_only_by({**BEFORE, "bin.position": "left"}, {**now, "bin.position": "right"}, ["bin.shift"])


@pytest.mark.parametrize(
    ("key", "drawn"),
    [
        ("action.noise", "action.noise_seed"),
        ("table.texture", "table.pattern"),
        ("distractors.count", "distractor_2.yaw"),
    ],
)
def test_what_a_variation_draws_besides_belongs_to_it_alone(key, drawn):
    assert differs_only_by(BEFORE, {**BEFORE, key: 1, drawn: 7}, [key])
    assert not differs_only_by(BEFORE, {**BEFORE, "cube.mass": 1, drawn: 7}, ["cube.mass"])


# Other patterns on the table and on the floor show in pictures, each in its place, and nowhere else.


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


# What varies in an episode is drawn from streams of the episode, by reference.


RANGE = {"enabled": True, "sampler_cfg": {"low": 0.0, "high": 1.0}}


def test_each_variation_is_drawn_from_the_stream_of_its_key():
    env = build_varied("lift_object", {"cube.friction": RANGE, "light.intensity": RANGE})
    for index in (0, 3):
        conditions = conditions_of(env, index, seed=11)
        for key in ("cube.friction", "light.intensity"):
            assert conditions[key] == episode_generator(11, Stream.VARIATION, index, key).random()


def test_each_episode_has_action_noise_of_its_own_seed():
    env = build_varied("lift_object", {"action.noise": {"enabled": True}})
    seeds = [conditions_of(env, index, seed=11)["action.noise_seed"] for index in range(3)]
    assert seeds == [episode_seed(11, Stream.NOISE, index) for index in range(3)]


# An episode that varies its words is told a paraphrase of its task, and everything else stays as it is.


LANGUAGE = AXES["language"]


def told(name: str, level: int, index: int = 0) -> str:
    env = build_varied(name, LANGUAGE.settings(catalogue_of(name), level) if level else {})
    return env.instruction(conditions_of(env, index))


@pytest.mark.parametrize("name", ALL_ENVIRONMENTS)
def test_every_task_on_the_table_has_a_paraphrase_for_every_level_each_farther_than_the_one_before(name):
    said = [told(name, level) for level in range(EDGE_LEVEL + 1)]
    distances = [word_distance(said[0], each) for each in said]
    assert all(nearer < farther for nearer, farther in pairwise(distances)), distances


@pytest.mark.parametrize("name", ["lift_object", "pick_and_place", "push_to_goal"])
def test_paraphrases_name_the_object_whatever_it_is(name):
    builder = ENVIRONMENTS.get(name)
    for thing in builder.summary().objects:
        words = OBJECTS.get(thing).words
        env = build(name, object=thing)
        paraphrases = env.task.paraphrases_for({})
        assert builder.variations(builder.config_class(object=thing))
        assert all(words in said for said in paraphrases), paraphrases


def test_the_episodes_own_colour_is_in_its_paraphrases_where_the_scripted_policy_looks_for_it():
    env = build_varied("pick_by_colour", {})
    candidates = scripts(env.sizes)["pick_by_colour"].candidates
    for index in range(4):
        conditions = conditions_of(env, index)
        own = [role for role in candidates if role in env.instruction(conditions).split()]
        assert len(own) == 1
        for said in env.task.paraphrases_for(conditions):
            assert [role for role in candidates if role in said.split()] == own


def test_nothing_else_of_an_episode_depends_on_its_words():
    plain, varied = build("pick_by_colour"), build_varied("pick_by_colour", fixed("instruction.paraphrase", 4))
    before, now = conditions_of(plain, 2), conditions_of(varied, 2)
    assert now == {**before, "instruction.paraphrase": 4}
    assert plain.provenance() == varied.provenance()
    assert varied.instruction(now) != varied.instruction(before) == plain.instruction(before)


def test_conditions_without_a_paraphrase_are_told_in_the_tasks_own_words():
    env = build("open_drawer")
    conditions = env.draw_conditions(np.random.default_rng(0))
    assert env.instruction(conditions) == env.task_description == "open the drawer"


def test_a_paraphrase_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="must be 0 to 5, got 6"):
        build_varied("open_drawer", fixed("instruction.paraphrase", 6))


def test_the_words_of_every_draw_are_looked_at_and_not_those_of_one_only():
    class TellsOfBlue(PickByColour):
        def paraphrases_for(self, conditions):
            told = super().paraphrases_for(conditions)
            return [*told, "level 5"] if "blue" in self.instruction_for(conditions) else told

    class TellsOfRed(PickByColour):
        def paraphrases_for(self, conditions):
            told = super().paraphrases_for(conditions)
            return [*told, "level 5"] if "red" in self.instruction_for(conditions) else told

    for task in (TellsOfBlue, TellsOfRed):
        builder = TableTask(config_class=TableOptions, make_task=lambda _, embodiment, task=task: task(embodiment))
        with pytest.raises(ConfigError, match="'level 5' tells more than"):
            builder.variations(TableOptions())
