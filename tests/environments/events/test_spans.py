import numpy as np

from isaaclab_arena.environments.events import ends, spans, visits


def holds(pattern: str) -> np.ndarray:
    return np.array([each == "#" for each in pattern])


def test_spans_have_their_first_and_last_moment():
    assert spans(holds("##.#...##")) == [(0, 1), (3, 3), (7, 8)]
    assert spans(holds("...")) == []


def test_a_short_break_ends_no_span_and_a_short_span_is_none():
    assert spans(holds("##.#...##"), gap=1) == [(0, 3), (7, 8)]
    assert spans(holds("##.#...##"), shortest=2) == [(0, 1), (7, 8)]


def test_a_visit_lasts_until_the_hand_is_well_away():
    distance = np.array([9.0, 4.0, 6.0, 4.0, 8.0, 9.0, 5.0])
    assert visits(distance, reach=5.0, left=7.0) == [(1, 3), (6, 6)]


def test_what_ends_is_named_by_the_first_moment_without_it_and_what_lasts_has_no_end():
    assert ends(holds("###..####.##"), shortest=3, gap=0) == [(3, 3), (9, 9)]
    assert ends(holds("..####"), shortest=1, gap=0) == []
