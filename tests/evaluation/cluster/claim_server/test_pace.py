import pytest

from isaaclab_arena.evaluation.cluster.claim_server import BEATS_PER_S, DELIVERIES_PER_S, POLLS_PER_S, pace_of, rest_of


def test_few_ranks_speak_as_often_as_they_like():
    assert (pace_of(8).delivery_s, pace_of(8).beat_s, rest_of(8)) == (0.25, 0.5, 0.5)


@pytest.mark.parametrize("num_ranks", [100, 400, 1000, 1500])
def test_many_ranks_together_speak_no_oftener(num_ranks):
    pace = pace_of(num_ranks)
    assert num_ranks / pace.delivery_s <= DELIVERIES_PER_S
    assert num_ranks / pace.beat_s <= BEATS_PER_S
    assert num_ranks / rest_of(num_ranks) <= POLLS_PER_S


def test_no_rank_is_silent_for_so_long_that_it_is_taken_for_dead():
    assert max(pace_of(100_000).beat_s, pace_of(100_000).delivery_s, rest_of(100_000)) < 30.0 / 3
