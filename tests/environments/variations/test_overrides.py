import pytest

from isaaclab_arena.environments.variations.overrides import enabled_variations
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment_builder import Sampler, SamplerType, Variation, spelled
from tests.environments.variations.varying import catalogue_of

MASS = Variation(
    asset="cube",
    name="mass",
    unit="kg",
    description="what it weighs",
    sampler=Sampler(low=(0.05,), high=(0.2,)),
    minimum=1e-4,
    maximum=100.0,
)
PLACE = Variation(
    asset="cube",
    name="position",
    unit="m",
    description="where",
    sampler=Sampler(low=(0.4, -0.2, 0.0), high=(0.6, 0.2, 0.0)),
    sizes=(2, 3),
)
DELAY = Variation(
    asset="observation",
    name="delay",
    unit="control steps",
    description="how old",
    sampler=Sampler(low=(0.0,), high=(3.0,)),
    minimum=0,
    maximum=100,
    integer=True,
)
WHICH = Variation(
    asset="task",
    name="target",
    unit="",
    description="which",
    sampler=Sampler(type=SamplerType.CHOICE, choices=("red", "blue")),
)
CATALOGUE = (MASS, PLACE, DELAY, WHICH)


def problems(overrides) -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        enabled_variations(CATALOGUE, overrides)
    return {str(problem.key): problem.message for problem in refused.value.problems}


def test_flat_nested_and_mixed_spellings_say_the_same():
    flat = {"cube.mass.enabled": True, "cube.mass.sampler_cfg.low": 0.1}
    nested = {"cube": {"mass": {"enabled": True, "sampler_cfg": {"low": 0.1}}}}
    mixed = {"cube.mass.enabled": True, "cube": {"mass.sampler_cfg": {"low": 0.1}}}
    [found] = enabled_variations(CATALOGUE, flat)
    assert (found.sampler.low, found.sampler.high) == ((0.1,), (0.2,))
    assert enabled_variations(CATALOGUE, nested) == enabled_variations(CATALOGUE, mixed) == (found,)


def test_what_is_not_enabled_is_off():
    assert enabled_variations(CATALOGUE, {"cube.mass.enabled": False, "cube.mass.sampler_cfg.low": 0.1}) == ()


def test_a_position_may_be_given_without_its_height():
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


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        ({"cube.mas.enabled": True}, "cube.mas.enabled", "did you mean 'cube.mass'"),
        ({"cube.mass": True}, "cube.mass", "needs a field"),
        ({"cube.mass.enable": True}, "cube.mass.enable", "did you mean 'enabled'"),
        ({"cube.mass.sampler_cfg.lo": 1}, "cube.mass.sampler_cfg.lo", "did you mean 'sampler_cfg.low'"),
        ({"cube.mass.enabled": 1}, "cube.mass.enabled", "must be true or false"),
        ({"cube.mass.sampler_cfg.low": 0.1}, "cube.mass.enabled", "neither on nor off"),
        ({"cube.mass": {"enabled": True, "sampler_cfg.low": 0}}, "cube.mass.sampler_cfg.low", "must be 0.0001 to 100"),
        ({"cube.mass": {"enabled": True, "sampler_cfg.low": 5}}, "cube.mass.sampler_cfg.low", "above high"),
        ({"cube.mass": {"enabled": True, "sampler_cfg.low": "x"}}, "cube.mass.sampler_cfg.low", "no number"),
        ({"cube.mass": {"enabled": True, "sampler_cfg.low": True}}, "cube.mass.sampler_cfg.low", "no number"),
        ({"cube.mass": {"enabled": True, "sampler_cfg.low": [1, 2]}}, "cube.mass.sampler_cfg.low", "has 2 numbers"),
        ({"cube.mass": {"enabled": True, "sampler_cfg.type": "normal"}}, "cube.mass.sampler_cfg.type", "no sampler"),
        ({"cube.mass": {"enabled": True, "sampler_cfg.choices": []}}, "cube.mass.sampler_cfg.choices", "at least one"),
        (
            {"cube.mass": {"enabled": True, "sampler_cfg": {"choices": [1], "low": 0.1}}},
            "cube.mass.sampler_cfg.low",
            "means nothing to a sampler of type 'choice'",
        ),
        (
            {"cube.mass": {"enabled": True, "sampler_cfg": {"choices": [1, 2], "probabilities": [0.5, 0.1]}}},
            "cube.mass.sampler_cfg.probabilities",
            "sum to 1",
        ),
        ({"cube.mass": {"enabled": True, "sampler_cfg.p": 2}}, "cube.mass.sampler_cfg.p", "probability"),
        (
            {"observation.delay": {"enabled": True, "sampler_cfg.high": 1.5}},
            "observation.delay.sampler_cfg.high",
            "whole number",
        ),
        (
            {"task.target": {"enabled": True, "sampler_cfg.choices": ["rad"]}},
            "task.target.sampler_cfg.choices",
            "did you mean 'red'",
        ),
        ({"cube.mass.enabled": True, "cube": {"mass": {"enabled": True}}}, "cube.mass.enabled", "given twice"),
    ],
)
def test_a_mistake_is_named_by_its_key_with_the_way_out(overrides, key, message):
    assert message in problems(overrides)[f"variations.{key}"]


def test_every_mistake_is_told_at_once():
    assert len(problems({"cube.mas.enabled": True, "light.enabled": True, "cube.mass.sampler_cfg.low": "x"})) == 4


def test_spelled_out_variations_read_back_as_themselves():
    overrides = {
        "cube.mass": {"enabled": True, "sampler_cfg": {"choices": [0.1, 0.2], "probabilities": [0.25, 0.75]}},
        "cube.position.enabled": True,
        "observation.delay": {"enabled": True, "sampler_cfg": {"p": 0.5, "high": 9}},
        "task.target.enabled": True,
    }
    found = enabled_variations(CATALOGUE, overrides)
    assert enabled_variations(CATALOGUE, spelled(found)) == found


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (
            {"cube.shift": {"enabled": True, "sampler_cfg": {"low": [-0.1, -0.5], "high": [0.1, 0.1]}}},
            "variations.cube.shift.sampler_cfg.low",
            "number 2 must be -0.3999 to 0.3999, for it has to be on the table",
        ),
        (
            {"cube.position": {"enabled": True, "sampler_cfg": {"low": [0.4, 0.0], "high": [1.1, 0.0]}}},
            "variations.cube.position.sampler_cfg.high",
            "number 1 must be -0.2199 to 1.02, for it has to be on the table",
        ),
        (
            {"robot.joint_shift": {"enabled": True, "sampler_cfg": {"low": 0.0, "high": 3.1}}},
            "variations.robot.joint_shift.sampler_cfg.high",
            "number 1 must be -2.8773 to 2.8773, for no joint goes beyond its limits",
        ),
        (
            {
                "robot.joint_position": {
                    "enabled": True,
                    "sampler_cfg": {"low": [0, 0, 0, -3.5, 0, 1, 0], "high": [0, 0, 0, -1, 0, 1, 0]},
                }
            },
            "variations.robot.joint_position.sampler_cfg.low",
            "number 4 must be -3.0718 to -0.0698, for no joint goes beyond its limits",
        ),
        (
            {
                "cube.position": {"enabled": True, "sampler_cfg": {"low": [0.4, 0.0], "high": [0.8, 0.0]}},
                "cube.shift": {"enabled": True, "sampler_cfg": {"low": [0.0, 0.0], "high": [0.3, 0.0]}},
            },
            "variations.cube.shift",
            "added to 'cube.position', number 1 must be -0.2199 to 1.02",
        ),
    ],
)
def test_what_cannot_be_on_the_table_or_on_the_robot_is_refused(overrides, key, message):
    with pytest.raises(ConfigError) as refused:
        enabled_variations(catalogue_of("lift_object"), overrides)
    (problem,) = refused.value.problems
    assert problem.key == key
    assert problem.message.startswith(message)


def test_a_start_within_the_edges_of_table_and_robot_may_be_moved_to_them():
    overrides = {
        "cube.shift": {"enabled": True, "sampler_cfg": {"low": [-0.5, -0.3999], "high": [0.42, 0.3999]}},
        "robot.joint_shift": {"enabled": True, "sampler_cfg": {"low": -0.65, "high": 1.73}},
    }
    assert len(enabled_variations(catalogue_of("lift_object"), overrides)) == 2
