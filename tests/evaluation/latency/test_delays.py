import numpy as np
import pytest

from isaaclab_arena.config.schema import LatencyConfig
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.latency import in_steps, in_time, latencies_of


def test_times_are_rounded_up_to_control_steps():
    assert in_time([0.0, 49.9, 50.0, 50.1, 120.0], 0.05).steps == ((0, 1), (1, 2), (2, 1), (3, 1))
    # 0.06 / 0.02 is a little more than 3 in floating point.
    assert in_time([60.0], 0.02).steps == ((3, 1),)
    assert str(in_time([120.0], 0.05)) == "3 control steps of 50 ms"


def test_each_delay_of_a_range_is_as_likely_and_each_measured_one_as_often_as_it_was_measured():
    generator = np.random.default_rng(0)
    drawn = [in_steps(1, 4).draw(generator) for _ in range(4000)]
    assert all(abs(drawn.count(number) / 4000 - 0.25) < 0.03 for number in (1, 2, 3, 4))
    measured = in_time([10.0] * 9 + [90.0], 0.05)
    assert abs([measured.draw(generator) for _ in range(4000)].count(2) / 4000 - 0.1) < 0.02


def test_a_range_of_times_is_uniform(tmp_path):
    latencies = latencies_of(LatencyConfig(ms=(40.0, 120.0)), tmp_path)
    assert latencies is not None
    steps = dict(in_time(latencies, 0.05).steps)
    assert [round(steps[number] / sum(steps.values()), 3) for number in (1, 2, 3)] == [0.125, 0.625, 0.25]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ms\n4\n", "has no column 'latency_ms'"),
        ("latency_ms\n", "has 0 latencies"),
        ("latency_ms\n40\n-1\n", "line 3: '-1' is no latency"),
        ("latency_ms\n40\nnan\n", "line 3: 'nan' is no latency"),
        ("latency_ms,gpu\n,h200\n", "line 2: '' is no latency"),
    ],
)
def test_a_file_of_latencies_that_is_wrong_is_refused(tmp_path, text, why):
    (tmp_path / "latencies.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"latencies\.csv") as refused:
        latencies_of(LatencyConfig(file="latencies.csv"), tmp_path)
    assert why in str(refused.value)
    assert refused.value.problems[0].key == "latency.file"


def test_a_file_of_latencies_is_read_relative_to_the_job_file_and_a_missing_one_refused(tmp_path):
    (tmp_path / "latencies.csv").write_text("latency_ms,gpu\n41.5,h200\n60,h200\n", encoding="utf-8")
    assert latencies_of(LatencyConfig(file="latencies.csv"), tmp_path) == (41.5, 60.0)
    with pytest.raises(ConfigError, match="cannot be read"):
        latencies_of(LatencyConfig(file="none.csv"), tmp_path)
