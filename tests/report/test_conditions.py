import json
import math

import numpy as np
import pytest

from isaaclab_arena.report.jobs import condition_columns, mutual_information_bits, telling_conditions
from isaaclab_arena.results.statistics import wilson_interval


def test_every_number_and_text_is_a_column():
    columns = condition_columns(
        [
            json.dumps({"cube.position": [0.1, 0.2, 0.3], "mass": 1.5, "colour": "red"}),
            json.dumps({"cube.position": [0.4, 0.5, 0.6], "mass": None, "colour": "blue"}),
            "{}",
        ]
    )
    assert [*columns] == ["cube.position.x", "cube.position.y", "cube.position.z", "mass", "colour"]
    np.testing.assert_array_equal(columns["cube.position.y"], [0.2, 0.5, np.nan])
    np.testing.assert_array_equal(columns["mass"], [1.5, np.nan, np.nan])
    assert columns["colour"].tolist() == ["red", "blue", None]


def told(columns, success):
    return telling_conditions(columns, success, [str(index) for index in range(len(success))])


def test_the_condition_that_decides_comes_first_with_rates_that_count_every_episode():
    generator = np.random.default_rng(2)
    near, noise = generator.random(400), generator.random(400)
    success = (near < 0.5).astype(float)
    found = told({"noise": noise, "near": near}, success)
    assert [each.name for each in found] == ["near", "noise"]
    assert sum(each.scored for each in found[0].bins) == 400
    assert sum(each.successes for each in found[0].bins) == success.sum()
    assert found[0].bins[0].rate == 1.0
    assert found[0].bins[-1].rate == 0.0
    assert found[1].bits < 0.05


def test_mutual_information_is_that_of_the_definition_less_its_bias():
    groups, won = np.repeat([0, 1], 500), np.repeat([True, False], 500)
    assert mutual_information_bits(groups, won) == pytest.approx(1.0 - 1 / (2000 * math.log(2)))
    assert mutual_information_bits(groups, np.tile([True, False], 500)) == 0.0


def test_texts_have_a_rate_each_and_what_does_not_vary_has_none():
    success = np.tile([1.0, 0.0], 20)
    columns = {"colour": np.array(["red", "blue"] * 20, object), "height": np.full(40, 0.8)}
    (found,) = told(columns, success)
    assert {each.label: each.rate for each in found.bins} == {"red": 1.0, "blue": 0.0}


@pytest.mark.parametrize("success", [np.ones(50), np.zeros(50), np.array([1.0, 0.0] * 5), np.full(50, np.nan)])
def test_nothing_is_said_where_nothing_can_be_told(success: np.ndarray):
    assert told({"x": np.arange(len(success), dtype=float)}, success) == ()


def test_a_range_in_which_conditions_repeat_has_the_interval_of_these():
    success = np.tile([1.0, 1.0, 0.0, 1.0], 10)
    columns = {"place": np.tile([0.0, 1.0, 2.0, 3.0], 10)}
    (found,) = telling_conditions(columns, success, [str(place) for place in columns["place"]])
    one = wilson_interval(1, 1)
    assert one is not None
    assert [each.interval.low for each in found.bins if each.rate == 1.0] == pytest.approx([one.low] * 3)
    assert [(each.scored, each.distinct) for each in found.bins] == [(10, 1)] * 4
