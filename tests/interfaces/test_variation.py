import numpy as np
import pytest

from isaaclab_arena.interfaces.environment_builder import Sampler, SamplerType, Variation
from isaaclab_arena.interfaces.episode import Episode


def stream(index: int, name: str = "cube.mass", seed: int = 0) -> np.random.Generator:
    return Episode(job="any", episode_index=index, seed=seed).variation_generator(name)


def draws(sampler: Sampler, number: int = 2000) -> list:
    return [sampler.draw(stream(index), index) for index in range(number)]


def whole(low: int, high: int) -> Variation:
    sampler = Sampler(low=(float(low),), high=(float(high),))
    return Variation(asset="a", name="b", unit="", description="", sampler=sampler, integer=True)


def test_uniform_draws_fill_their_range():
    values = np.array(draws(Sampler(low=(0.1, -1.0), high=(0.3, 1.0))))
    assert values.min(0) == pytest.approx([0.1, -1.0], abs=0.01)
    assert values.max(0) == pytest.approx([0.3, 1.0], abs=0.01)
    assert values.mean(0) == pytest.approx([0.2, 0.0], abs=0.05)
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.1


def test_a_wider_range_stretches_the_same_draws():
    narrow = np.array(draws(Sampler(low=(0.0,), high=(1.0,)), 20))
    wide = np.array(draws(Sampler(low=(0.0,), high=(8.0,)), 20))
    assert np.array_equal(8 * narrow, wide)


def test_whole_numbers_reach_both_ends_equally_often():
    values = [whole(1, 3).draw(stream(index), index) for index in range(3000)]
    assert set(values) == {1, 2, 3}
    assert all(isinstance(value, int) for value in values)
    assert [values.count(each) / 3000 for each in (1, 2, 3)] == pytest.approx([1 / 3] * 3, abs=0.04)


def test_choices_are_as_likely_as_they_should_be():
    choices = ((1.0,), (2.0,), (4.0,))
    equal = draws(Sampler(type=SamplerType.CHOICE, choices=choices))
    assert [equal.count(each) / 2000 for each in choices] == pytest.approx([1 / 3] * 3, abs=0.05)
    uneven = draws(Sampler(type=SamplerType.CATEGORICAL, choices=choices, probabilities=(0.7, 0.0, 0.3)))
    assert [uneven.count(each) / 2000 for each in choices] == pytest.approx([0.7, 0.0, 0.3], abs=0.05)


def test_choices_in_turn_go_by_the_episode():
    sampler = Sampler(type=SamplerType.SEQUENTIAL_CHOICE, choices=((1.0,), (2.0,), (4.0,)))
    assert draws(sampler, 5) == [(1.0,), (2.0,), (4.0,), (1.0,), (2.0,)]


def test_bernoulli_gives_high_with_its_probability():
    values = draws(Sampler(type=SamplerType.BERNOULLI, low=(0.0,), high=(1.0,), p=0.2))
    assert values.count((1.0,)) / 2000 == pytest.approx(0.2, abs=0.03)


def test_streams_differ_by_variation_episode_and_seed_and_by_nothing_else():
    first = stream(3).random()
    assert stream(3).random() == first
    assert len({first, stream(4).random(), stream(3, "cube.size").random(), stream(3, seed=1).random()}) == 4


def test_the_streams_of_a_seed_never_change():
    assert stream(5).random() == 0.18151747839080434


@pytest.mark.parametrize(
    ("value", "wrong"),
    [((0.0, 0.0, -1.0), None), ((0.0, 0.0, 0.0), "must not be all zeros"), ((0.0, 0.0, 99.0), "must be -10 to 10")],
)
def test_a_direction_has_a_direction(value, wrong):
    sampler = Sampler(low=(0.0, 0.0, -1.0), high=(0.0, 0.0, -1.0))
    light = Variation(
        asset="light",
        name="direction",
        unit="",
        description="",
        sampler=sampler,
        minimum=-10.0,
        maximum=10.0,
        sizes=(3,),
        is_direction=True,
    )
    assert light.wrong_with(value) == wrong
