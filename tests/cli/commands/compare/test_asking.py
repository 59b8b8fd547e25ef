import pytest

from isaaclab_arena.cli.commands.compare import check_share, question_of
from isaaclab_arena.errors import ConfigError


def test_a_question_is_what_was_typed():
    asked = question_of(alpha=0.01, margin=0.1)
    assert (asked.alpha, asked.margin) == (0.01, 0.1)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_outside_its_range_is_refused_under_the_name_of_its_option(value):
    with pytest.raises(ConfigError, match="--power: must be between 0 and 1"):
        check_share("power", value)
