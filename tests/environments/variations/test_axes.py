"""The axes along which an episode varies."""

import json
import math
from fnmatch import fnmatch

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.arena.builder import TableOptions, TableTask
from isaaclab_arena.environments.catalog import ENVIRONMENTS, OBJECTS
from isaaclab_arena.environments.tasks.two_cubes import PickByColour
from isaaclab_arena.environments.variations.catalogue import NUM_PATTERNS, pattern_pixels
from isaaclab_arena.environments.variations.overrides import (
    AXES,
    EDGE_LEVEL,
    differs_only_by,
    enabled_variations,
    with_moved_starts,
)
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment_builder import Sampler, SamplerType, Variation, spelled
from isaaclab_arena.interfaces.episode import ConditionValue, Stream, episode_generator, episode_seed
from isaaclab_arena.policy.scripted import scripts
from tests.environments.building import build, hold_still, steps_of
from tests.environments.variations.varying import build_varied, catalogue_of, conditions_of, fixed

CAN = catalogue_of("lift_object", object="can")
TASKS = {"lift_object": {"object": "can"}, "push_to_goal": {}, "sort_two": {}, "open_drawer": {}}
PLAIN = {task: build_varied(task, {}, **options) for task, options in TASKS.items()}
LOOK_AT_THE_TASK = ("object_*", "robot_start", "camera_pose", "light", "table_height", "distractors", "language")
"""Axes whose changes depend on what a task has; the others are the same code and the same model for every task."""

ON_TASKS = [
    (task, axis)
    for task in TASKS
    for axis in AXES
    if task == "lift_object" or any(fnmatch(axis, pattern) for pattern in LOOK_AT_THE_TASK)
]

COMPANIONS = (
    *(f"distractor_{number}.{what}" for number in range(1, 7) for what in ("position", "yaw")),
    *("action.noise_seed", "action.jolt_seed", "observation.noise_seed", "picture.noise_seed", "picture.dropped_seed"),
    *("picture.occlusion_seed", "instruction.words_seed", "table.pattern", "background.pattern"),
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
    "action_jolt": ("action.jolt", "action.jolt_seed"),
    "sensor_noise": ("observation.noise", "observation.noise_seed"),
    "picture_noise": ("picture.noise", "picture.noise_seed"),
    "picture_blur": ("picture.blur",),
    "picture_exposure": ("picture.exposure",),
    "picture_compression": ("picture.jpeg_quality",),
    "picture_contrast": ("picture.contrast",),
    "picture_framing": ("picture.offset", "picture.tilt"),
    "picture_occlusion": ("picture.occlusion", "picture.occlusion_seed"),
    "picture_drops": ("picture.dropped", "picture.dropped_seed"),
    "delay": ("observation.delay",),
    "language": ("instruction.paraphrase",),
    "missing_words": ("instruction.words", "instruction.words_seed"),
    "misspelt_words": ("instruction.misspelt", "instruction.words_seed"),
}
"""What each axis says that it changes, told apart from how it finds it."""


def numbers(value: ConditionValue) -> tuple[float, ...]:
    assert not isinstance(value, str)
    return tuple(map(float, value)) if isinstance(value, tuple) else (float(value),)


@pytest.mark.parametrize(("task", "axis"), ON_TASKS)
def test_an_axis_changes_what_it_says_and_nothing_else(task, axis):
    catalogue = catalogue_of(task, **TASKS[task])
    on = [variation.key for variation in AXES[axis].variations(catalogue)]
    benign = {index: conditions_of(PLAIN[task], index) for index in (0, 3)}
    says = {key for pattern in SAYS[axis] for key in (*on, *benign[0], *COMPANIONS) if fnmatch(key, pattern)}
    for level in (1, EDGE_LEVEL) if on else ():
        env = build_varied(task, AXES[axis].settings(catalogue, level), **TASKS[task])
        for index, before in benign.items():
            changed = conditions_of(env, index)
            differ = {key for key in before.keys() | changed.keys() if before.get(key) != changed.get(key)}
            assert set(on) <= differ <= says, (level, index)
            assert differs_only_by(before, changed, on)


OWN_AXES = [name for name, axis in AXES.items() if axis.variations(CAN)]


def test_every_variation_belongs_to_one_axis_and_colour_is_none_where_a_thing_is_called_by_it():
    for variation in {each for name in OWN_AXES for each in AXES[name].variations(CAN)}:
        owners = [name for name in OWN_AXES if variation in AXES[name].variations(CAN)]
        assert owners == [name for name, axis in AXES.items() if axis.owns(variation.key)]
        assert len(owners) == 1
    assert not AXES["object_color"].variations(catalogue_of("pick_by_colour"))


def test_by_default_a_start_varies_over_a_full_turn_and_whole_centimetres_of_the_tasks_own_draws():
    ranges = {variation.key: (variation.sampler.low, variation.sampler.high) for variation in CAN}
    assert ranges["can.yaw"] == ((-math.pi,), (math.pi,))
    assert ranges["can.position"] == ((0.4, -0.2, 0.05), (0.6, 0.2, 0.05))


@pytest.mark.parametrize("axis", OWN_AXES)
def test_a_change_only_grows_from_level_to_level(axis):
    nominal = {variation.key: variation.nominal for variation in AXES[axis].variations(CAN)}
    levels = [AXES[axis].settings(CAN, level) for level in (1, 3, 5)]
    episodes = [conditions_of(build_varied("lift_object", each, object="can"), 3) for each in levels]
    for key, middle in nominal.items():
        ways = [
            tuple(value - start for value, start in zip(numbers(each[key]), middle, strict=True)) for each in episodes
        ]
        for component in zip(*ways, strict=True):
            assert abs(component[0]) <= abs(component[1]) <= abs(component[2])
            assert component[0] * component[2] >= 0


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
MOVED = {"cube.shift": (0.01, -0.02), "cube.turn": 0.5, "cube.size": 2.0, "robot.joint_shift": (0.1, 0.2)}


def test_a_start_is_what_the_task_draws_and_what_is_added_to_it_and_nothing_else_differs_also_from_json():
    now = with_moved_starts({**BEFORE, **MOVED}, MOVED)
    assert now["cube.position"] == (0.51, 0.1 - 0.02, 0.04)
    assert now["cube.yaw"] == 0.8
    assert now["robot.joint_position"] == (0.1, -0.4 + 0.2)
    assert differs_only_by(BEFORE, now, MOVED)
    assert differs_only_by(json.loads(json.dumps(BEFORE)), json.loads(json.dumps(now)), MOVED)
    by_a_hair = {**now, "cube.position": (0.51 + 1e-9, 0.1 - 0.02, 0.04)}
    assert not differs_only_by(BEFORE, by_a_hair, MOVED)


@pytest.mark.parametrize(
    ("before", "now", "on", "is_all"),
    [
        ({}, {"cube.mass": 0.2}, "cube.mass", True),
        ({}, {"cube.mass": 0.2, "cube.position": (0.5, 0.1, 0.021)}, "cube.mass", False),
        ({}, {"cube.mass": 0.2, "robot.joint_position": (0.0, -0.41)}, "cube.mass", False),
        ({}, {"cube.mass": 0.2, "light.color": (1.0, 1.0, 0.9)}, "cube.mass", False),
        # What a variation draws besides belongs to it alone.
        ({}, {"action.noise": 1, "action.noise_seed": 7}, "action.noise", True),
        ({}, {"table.texture": 1, "table.pattern": 7}, "table.texture", True),
        ({}, {"distractors.count": 1, "distractor_2.yaw": 7}, "distractors.count", True),
        ({}, {"cube.mass": 1, "action.noise_seed": 7}, "cube.mass", False),
        ({}, {"cube.mass": 1, "distractor_2.yaw": 7}, "cube.mass", False),
        # It was on before, or is not on now.
        ({"cube.mass": 0.1}, {"cube.mass": 0.2}, "cube.mass", False),
        ({}, {}, "cube.mass", False),
        # What cannot have been moved was not.
        ({}, {"bin.shift": (0.1, 0.0)}, "bin.shift", False),
        ({"bin.position": "left"}, {"bin.position": "right", "bin.shift": (0.1, 0.0)}, "bin.shift", False),
    ],
)
def test_an_episode_that_differs_in_anything_else_is_another_one(before, now, on, is_all):
    assert differs_only_by({**BEFORE, **before}, {**BEFORE, **now}, [on]) is is_all


# Other patterns on the table and on the floor show in pictures, each in its place, and nowhere else.

HEAD = "robot_head_cam"
CAMERAS = {"enable_cameras": True, "camera_size": 48, "camera_segmentation": True}


def textured(key: str, *parts: int, backend: str = "mujoco"):
    """Return pictures of the same episode with more and more of a pattern, and what each pixel shows."""
    env = build_varied("lift_object", fixed(key, *parts), num_envs=len(parts), backend=backend, **CAMERAS)
    one = conditions_of(env, 0)
    seen = env.reset(torch.arange(len(parts)), [{**one, key: share} for share in parts])["camera_obs"]
    bodies = seen[f"{HEAD}_segmentation"].numpy()[0, ..., 0]
    model = env.backend.model
    return env, seen[f"{HEAD}_rgb"].numpy().astype(int), bodies == model.body("table").id, bodies == 0


@pytest.mark.parametrize(
    ("key", "backend"), [("table.texture", "mujoco"), ("table.texture", "warp"), ("background.texture", "mujoco")]
)
def test_a_texture_covers_its_surface_more_and_more_and_nothing_else(key, backend):
    _, pictures, shows_table, shows_floor = textured(key, 0, 1, 5, backend=backend)
    covered = shows_table if key.startswith("table") else shows_floor
    assert covered.sum() > 100
    changes = [np.abs(picture - pictures[0]) for picture in pictures]
    assert all(change[~covered].max() == 0 for change in changes)
    means = [change[covered].mean() for change in changes]
    assert means[0] == 0 < means[1] < means[2]


def test_a_texture_is_an_episodes_own_shows_in_films_and_does_not_touch_the_physics():
    env, pictures, *_ = textured("table.texture", 0, 5)
    plain = build_varied("lift_object", {}, **CAMERAS)
    seen = plain.reset(torch.tensor([0]), [conditions_of(plain, 0)])["camera_obs"][f"{HEAD}_rgb"].numpy()
    assert np.array_equal(pictures[0], seen[0])
    assert np.array_equal(env.film([0, 1], [f"{HEAD}_rgb"])[f"{HEAD}_rgb"], pictures)
    steps_of(env, hold_still(env), 3)
    one, other = (state["integration_state"] for state in env.episode_states(range(2)))
    assert np.array_equal(one, other)
    without, covered = ({**conditions_of(env, 0), "table.texture": parts} for parts in (0, 5))
    seen = env.reset(torch.arange(2), [covered, without])["camera_obs"][f"{HEAD}_rgb"].numpy()
    assert np.array_equal(seen, pictures[::-1])


def test_an_episode_has_the_same_pattern_at_every_strength_and_episodes_have_different_ones():
    weak, strong = (build_varied("lift_object", fixed("table.texture", parts)) for parts in (1, 5))
    patterns, same = ([conditions_of(env, index)["table.pattern"] for index in range(20)] for env in (weak, strong))
    assert patterns == same
    assert 3 < len(set(patterns)) <= len(range(NUM_PATTERNS))


@pytest.mark.parametrize("pattern", range(NUM_PATTERNS))
def test_patterns_have_two_colours_and_none_that_a_task_names(pattern):
    colours = np.unique(pattern_pixels(pattern, 1).reshape(-1, 3), axis=0).astype(int)
    assert len(colours) == 2
    # Reds, greens, blues and yellows of objects have one channel far above another.
    assert all(colour.max() - colour.min() < 70 for colour in colours)


# What varies in an episode is drawn from streams of the episode, by reference.


def test_variations_and_noise_are_drawn_from_streams_of_the_episode_by_key():
    varied = {"enabled": True, "sampler_cfg": {"low": 0.0, "high": 1.0}}
    keys = ("cube.friction", "light.intensity")
    env = build_varied("lift_object", {**dict.fromkeys(keys, varied), "action.noise": {"enabled": True}})
    for index in (0, 3):
        conditions = conditions_of(env, index, seed=11)
        assert conditions["action.noise_seed"] == episode_seed(11, Stream.NOISE, index)
        for key in keys:
            assert conditions[key] == episode_generator(11, Stream.VARIATION, index, key).random()


# An episode that varies its words is told a paraphrase of its task, and everything else stays as it is.


@pytest.mark.parametrize("axis", ["picture_compression", "table_texture", "background_texture", "language"])
def test_there_is_nothing_beyond_the_edge_of_what_is_whole(axis):
    enabled_variations(CAN, AXES[axis].settings(CAN, EDGE_LEVEL))
    with pytest.raises(ConfigError):
        enabled_variations(CAN, AXES[axis].settings(CAN, EDGE_LEVEL + 1))


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


@pytest.mark.parametrize("colour", ["red", "blue"])
def test_the_words_of_every_draw_are_looked_at_and_not_those_of_one_only(colour):
    class Tells(PickByColour):
        def paraphrases_for(self, conditions):
            told = super().paraphrases_for(conditions)
            return [*told, "level 5"] if colour in self.instruction_for(conditions) else told

    builder = TableTask(config_class=TableOptions, make_task=lambda _, embodiment: Tells(embodiment))
    with pytest.raises(ConfigError, match="'level 5'"):
        builder.variations(TableOptions())


def test_variations_are_those_of_options_that_are_checked():
    builder = ENVIRONMENTS.get("lift_object")
    with pytest.raises(ConfigError, match="action mode"):
        builder.variations(builder.config_class(action_mode="wishful"))


def offered(key: str, sampler: Sampler, **more) -> Variation:
    asset, _, name = key.partition(".")
    return Variation(asset=asset, name=name, unit="", description="", sampler=sampler, **more)


MASS = offered("cube.mass", Sampler(low=(0.05,), high=(0.2,)), minimum=1e-4, maximum=100.0)
PLACE = offered("cube.position", Sampler(low=(0.4, -0.2, 0.0), high=(0.6, 0.2, 0.0)), sizes=(2, 3))
DELAY = offered("observation.delay", Sampler(low=(0.0,), high=(3.0,)), minimum=0, maximum=100, integer=True)
WHICH = offered("task.target", Sampler(type=SamplerType.CHOICE, choices=("red", "blue")))
CATALOGUE = (MASS, PLACE, DELAY, WHICH)


def test_flat_nested_and_mixed_spellings_say_the_same():
    flat = {"cube.mass.enabled": True, "cube.mass.sampler_cfg.low": 0.1}
    nested = {"cube": {"mass": {"enabled": True, "sampler_cfg": {"low": 0.1}}}}
    mixed = {"cube.mass.enabled": True, "cube": {"mass.sampler_cfg": {"low": 0.1}}}
    [found] = enabled_variations(CATALOGUE, flat)
    assert (found.sampler.low, found.sampler.high) == ((0.1,), (0.2,))
    assert enabled_variations(CATALOGUE, nested) == enabled_variations(CATALOGUE, mixed) == (found,)
    assert enabled_variations(CATALOGUE, {**flat, "cube.mass.enabled": False}) == ()
    # A position may be given without its height.
    limits = {"low": [0.3, -0.1], "high": [0.4, 0.1]}
    [found] = enabled_variations(CATALOGUE, {"cube.position": {"enabled": True, "sampler_cfg": limits}})
    assert (found.sampler.low, found.sampler.high) == ((0.3, -0.1), (0.4, 0.1))


def test_choices_and_probabilities_and_p_say_which_sampler_is_meant():
    def sampler(**cfg) -> Sampler:
        return enabled_variations(CATALOGUE, {"cube.mass": {"enabled": True, "sampler_cfg": cfg}})[0].sampler

    assert sampler(choices=[0.1, 0.2]) == Sampler(type=SamplerType.CHOICE, choices=((0.1,), (0.2,)))
    assert sampler(choices=[0.1, 0.2], probabilities=[0.9, 0.1]).type is SamplerType.CATEGORICAL
    assert sampler(choices=[0.1], type="sequential_choice").type is SamplerType.SEQUENTIAL_CHOICE
    assert sampler(p=0.3) == Sampler(type=SamplerType.BERNOULLI, low=(0.05,), high=(0.2,), p=0.3)


def on(**sampler_cfg) -> dict:
    return {"enabled": True, "sampler_cfg": sampler_cfg}


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        ({"cube.mas.enabled": True}, "cube.mas.enabled", "'cube.mass'"),
        ({"cube.mass": True}, "cube.mass", "needs a field"),
        ({"cube.mass.enable": True}, "cube.mass.enable", "'enabled'"),
        ({"cube.mass.sampler_cfg.lo": 1}, "cube.mass.sampler_cfg.lo", "'sampler_cfg.low'"),
        ({"cube.mass.enabled": 1}, "cube.mass.enabled", "true or false"),
        ({"cube.mass.sampler_cfg.low": 0.1}, "cube.mass.enabled", "neither on nor off"),
        ({"cube.mass": on(low=0)}, "cube.mass.sampler_cfg.low", "0.0001 to 100"),
        ({"cube.mass": on(low=5)}, "cube.mass.sampler_cfg.low", "above high"),
        ({"cube.mass": on(low="x")}, "cube.mass.sampler_cfg.low", "no number"),
        ({"cube.mass": on(low=True)}, "cube.mass.sampler_cfg.low", "no number"),
        ({"cube.mass": on(low=[1, 2])}, "cube.mass.sampler_cfg.low", "2 numbers"),
        ({"cube.mass": on(type="normal")}, "cube.mass.sampler_cfg.type", "no sampler"),
        ({"cube.mass": on(choices=[])}, "cube.mass.sampler_cfg.choices", "at least one"),
        ({"cube.mass": on(choices=[1], low=0.1)}, "cube.mass.sampler_cfg.low", "'choice'"),
        ({"cube.mass": on(choices=[1, 2], probabilities=[0.5, 0.1])}, "cube.mass.sampler_cfg.probabilities", "sum to"),
        ({"cube.mass": on(p=2)}, "cube.mass.sampler_cfg.p", "probability"),
        ({"observation.delay": on(high=1.5)}, "observation.delay.sampler_cfg.high", "whole number"),
        ({"task.target": on(choices=["rad"])}, "task.target.sampler_cfg.choices", "'red'"),
        ({"cube.mass.enabled": True, "cube": {"mass": {"enabled": True}}}, "cube.mass.enabled", "given twice"),
    ],
)
def test_a_mistake_is_named_by_its_key_with_the_way_out(overrides, key, message):
    others = {"light.enabled": True, "observation.delay.enable": True}
    with pytest.raises(ConfigError) as refused:
        enabled_variations(CATALOGUE, {**others, **overrides})
    assert {f"variations.{other}" for other in others} < {problem.key for problem in refused.value.problems}
    (told,) = (problem.message for problem in refused.value.problems if problem.key == f"variations.{key}")
    assert message in told


def test_spelled_out_variations_read_back_as_themselves():
    overrides = {
        "cube.mass": on(choices=[0.1, 0.2], probabilities=[0.25, 0.75]),
        "cube.position.enabled": True,
        "observation.delay": on(p=0.5, high=9),
        "task.target.enabled": True,
    }
    found = enabled_variations(CATALOGUE, overrides)
    assert enabled_variations(CATALOGUE, spelled(found)) == found


PLACED = {"low": [0.4, 0], "high": [0.8, 0]}
BENT = {"low": [0, 0, 0, -3.5, 0, 1, 0], "high": [0, 0, 0, -1, 0, 1, 0]}


@pytest.mark.parametrize(
    ("overrides", "key", "limits"),
    [
        ({"cube.shift": on(low=[-0.1, -0.5], high=[0.1, 0.1])}, "cube.shift.sampler_cfg.low", "-0.3999 to 0.3999"),
        ({"cube.position": on(low=[0.4, 0], high=[1.1, 0])}, "cube.position.sampler_cfg.high", "-0.2199 to 1.02"),
        ({"cube.position": on(**PLACED), "cube.shift": on(low=[0, 0], high=[0.3, 0])}, "cube.shift", "-0.2199 to 1.02"),
        ({"robot.joint_shift": on(low=0, high=3.1)}, "robot.joint_shift.sampler_cfg.high", "-2.8773 to 2.8773"),
        ({"robot.joint_position": on(**BENT)}, "robot.joint_position.sampler_cfg.low", "-3.0718 to -0.0698"),
    ],
)
def test_what_cannot_be_on_the_table_or_on_the_robot_is_refused(overrides, key, limits):
    with pytest.raises(ConfigError) as refused:
        enabled_variations(catalogue_of("lift_object"), overrides)
    (problem,) = refused.value.problems
    assert problem.key == f"variations.{key}"
    assert limits in problem.message
    within = {
        "cube.shift": on(low=[-0.5, -0.3999], high=[0.42, 0.3999]),
        "robot.joint_shift": on(low=-0.65, high=1.73),
    }
    assert len(enabled_variations(catalogue_of("lift_object"), within)) == 2
