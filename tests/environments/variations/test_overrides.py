import pytest

from isaaclab_arena.environments.variations.overrides import enabled_variations
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment_builder import Sampler, SamplerType, Variation, spelled
from tests.environments.variations.varying import catalogue_of


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
