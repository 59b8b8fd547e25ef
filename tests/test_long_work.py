"""What is said while something long goes on."""

from isaaclab_arena.long_work import told


def lines_of(num_items: int, *, seconds_each: float) -> list[str]:
    said: list[str] = []
    clock = [0.0]
    for _ in told(range(num_items), "checking job '{lift}'", interval_s=2.0, now_s=lambda: clock[0], say=said.append):
        clock[0] += seconds_each
    return said


def test_how_far_it_has_come_is_said_now_and_then():
    assert lines_of(6_000, seconds_each=1 / 1024) == [
        "checking job '{lift}': 2,048 of 6,000 episodes",
        "checking job '{lift}': 4,096 of 6,000 episodes",
    ]


def test_nothing_is_said_of_what_is_over_soon():
    assert lines_of(1000, seconds_each=0.001) == []
    assert lines_of(0, seconds_each=1) == []
