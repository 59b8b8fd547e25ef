import pytest

from isaaclab_arena.distributed.devices import check_device_exists, parse_count
from isaaclab_arena.errors import ConfigError


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:01", "CPU", "", "cuda:1 ", "mps", "cuda:\uff11"])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(ConfigError, match="is no device; use cpu, cuda or"):
        check_device_exists(name, visible_gpus=8, option="--device")


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("7", 7), ("10", 10), ("999999999", 999_999_999)])
def test_variables_count_from_zero(text, number):
    assert parse_count("RANK", text) == number


@pytest.mark.parametrize("text", ["", "00", "01", "-1", "+1", "1 ", "1_0", "1.0", "1000000000", "\uff11"])
def test_what_counts_nothing_is_refused_with_its_name(text):
    with pytest.raises(ConfigError, match=r"environment variable RANK=.* is not a whole number from 0"):
        parse_count("RANK", text)
