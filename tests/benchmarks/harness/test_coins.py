import pytest

from benchmarks.harness.coins import CoinOptions, Coins
from benchmarks.harness.environments import make_policy, success_rate, tally
from isaaclab_arena.interfaces.episode import Outcome


@pytest.mark.parametrize(("rate", "length"), [(1.0, 3), (0.0, 7)])
def test_heads_succeeds_early_and_tails_runs_into_the_time_limit(rate, length):
    environment = Coins(CoinOptions(success_rate=rate, success_step=3, failure_step=7), 2)
    found = tally(environment, make_policy("zero_action"), 5)
    assert {record.length for record in found.records} == {length}
    assert found.count(Outcome.SUCCESS) == 5 * rate
    assert found.busy == 5 * length
    # The last of five episodes in two slots runs alone.
    assert found.steps == found.busy + length


def test_a_success_rate_has_its_interval():
    assert success_rate(195, 200) == "97.5 % [94.3, 98.9]"
