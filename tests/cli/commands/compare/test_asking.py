import pytest

from isaaclab_arena.cli.commands.compare import check_shares
from isaaclab_arena.errors import ConfigError


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_outside_its_range_is_refused_under_the_name_of_its_option(value):
    with pytest.raises(ConfigError, match="--power: must be between 0 and 1"):
        check_shares(alpha=0.05, margin=None, power=value)
