"""How often ranks may speak to the keeper of their run: a bounded number of times a second, however many they are."""

from isaaclab_arena.evaluation.cluster.messages import Pace

DELIVERIES_PER_S = 400.0
BEATS_PER_S = 200.0
POLLS_PER_S = 200.0
"""Of all ranks together, at most. An actor of Ray answers some 1,350 calls a second."""

SLOWEST_S = 8.0
"""A rank is taken for dead after 30 s of silence, of which several beats should get lost first [s]."""


def pace_of(num_ranks: int) -> Pace:
    """Return how often each of a number of ranks may deliver something, and how often it says that it lives."""
    return Pace(
        delivery_s=min(max(0.25, num_ranks / DELIVERIES_PER_S), SLOWEST_S),
        beat_s=min(max(0.5, num_ranks / BEATS_PER_S), SLOWEST_S),
    )


def rest_of(num_idle: int) -> float:
    """Return after how long each of a number of ranks that have got nothing may ask for work again [s]."""
    return min(max(0.5, num_idle / POLLS_PER_S), SLOWEST_S)
