from typing import Any

import numpy as np
import pytest

from isaaclab_arena.environments.events import (
    FloorFacts,
    ever,
    floor_events_of,
    floor_progress_of,
    moved_from_start,
    streak,
)
from isaaclab_arena.interfaces.episode import EVENTS

MOMENTS = 41


def holds(pattern: str) -> np.ndarray:
    return np.array([each == "#" for each in pattern.ljust(MOMENTS, ".")])


def facts(share: list[float] | None = None, **patterns: str) -> FloorFacts:
    """Return facts of 40 control steps of 0.02 s; a pattern, ``..##``, holds in its hashes and in no later moment."""
    stated: dict[str, Any] = {"lost": "", "fallen": "", "nearly": "", **patterns}
    done = np.linspace(0, 1, MOMENTS) if share is None else np.array(share)
    return FloorFacts(dt_s=0.02, share=done, **{name: holds(pattern) for name, pattern in stated.items()})


def seen(told: FloorFacts, *, max_steps: int = MOMENTS - 1):
    events = floor_events_of(told, solved=False, max_steps=max_steps)
    return dict(events.seen), events.decisive


def from_on(moment: int) -> str:
    return "." * moment + "#" * (MOMENTS - moment)


@pytest.mark.parametrize(
    ("patterns", "name", "first"),
    [
        ({"fallen": from_on(38), "lost": from_on(20)}, "fell_over", 38),
        ({"off_rail": from_on(40), "lost": from_on(40)}, "left_the_rail", 40),
        ({"strayed": from_on(12), "lost": from_on(12)}, "strayed", 12),
        ({"met": "....." + "#" * 13, "lost": from_on(30)}, "success_undone", 18),
        ({"moved": "", "lost": from_on(30)}, "never_moved", 40),
        ({"nearly": from_on(25), "lost": from_on(25)}, "almost", 25),
        ({}, "out_of_time_while_progressing", 40),
    ],
)
def test_an_event_is_told_with_its_first_step_and_as_what_decided(patterns, name, first):
    found, decisive = seen(facts(**patterns))
    assert found == {name: (first, 1)}
    assert decisive == name
    assert name in EVENTS


def test_what_is_seen_at_the_end_comes_before_what_happened_first():
    astray = from_on(12)
    assert seen(facts(strayed=astray, lost=astray, fallen=from_on(38)))[1] == "fell_over"
    assert seen(facts(strayed=astray, lost=astray, moved=""))[1] == "never_moved"
    assert seen(facts(strayed=astray, lost=astray, nearly=astray))[1] == "almost"
    assert seen(facts(strayed=astray, lost=astray, nearly="." * 12 + "#" * 8))[1] == "strayed"


def test_a_setback_after_which_the_task_came_further_was_made_good():
    assert seen(facts(strayed="...####"))[1] == "out_of_time_while_progressing"
    assert seen(facts(strayed=from_on(30)))[1] == "strayed"


def test_nothing_is_made_good_where_success_has_become_impossible():
    assert seen(facts(strayed="...####", lost=from_on(35)))[1] == "strayed"


def test_a_robot_that_gets_no_further_has_stalled_and_one_that_was_stopped_has_not():
    early = [0.1] + [0.5] * (MOMENTS - 1)
    assert seen(facts(early)) == ({"stalled": (40, 1)}, "stalled")
    assert seen(facts(early), max_steps=100) == ({}, None)


def test_a_goal_that_was_met_for_a_moment_only_was_not_undone():
    assert seen(facts(met="....." + "#" * 5))[1] == "out_of_time_while_progressing"


def test_progress_never_falls_ends_where_success_became_impossible_and_is_1_for_successes_only():
    share = [0.0, 0.2, 0.4, 0.3, 0.5, 1.0] + [1.0] * (MOMENTS - 6)
    np.testing.assert_allclose(
        floor_progress_of(facts(share, lost=from_on(5)), solved=False)[:6], [0, 0.2, 0.4, 0.4, 0.5, 0.5]
    )
    assert floor_events_of(facts(share), solved=False, max_steps=40).progress < 1
    solved = floor_events_of(facts(share), solved=True, max_steps=40)
    assert (solved.progress, solved.decisive, dict(solved.seen)) == (1.0, None, {})


def test_a_streak_counts_steps_without_a_break_and_not_the_start():
    pattern = np.array([True, True, True, False, True, True])
    assert streak(pattern).tolist() == [0, 1, 2, 0, 1, 2]
    assert ever(~pattern).tolist() == [False, False, False, True, True, True]


def test_a_body_has_moved_when_it_is_ten_centimetres_away_or_turned_by_a_fifth_of_a_radian():
    still = (0.0, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0)
    away, high = (0.08, 0.07, *still[2:]), (0.0, 0.0, 0.9, *still[3:])
    little, far = ((*still[:3], np.cos(turn / 2), 0.0, 0.0, np.sin(turn / 2)) for turn in (0.19, 0.21))
    flipped = (*still[:3], -1.0, 0.0, 0.0, 0.0)
    poses = np.array([still, away, high, little, far, flipped])
    assert moved_from_start(poses).tolist() == [False, True, False, False, True, False]
