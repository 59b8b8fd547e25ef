from fnmatch import fnmatch

import pytest

from isaaclab_arena.environments.variations.overrides import AXES, EDGE_LEVEL, differs_only_by, enabled_variations
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue
from tests.environments.variations.varying import build_varied, catalogue_of, conditions_of

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
