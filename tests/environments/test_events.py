"""Events of an episode, read from how the world moved."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.events import (
    HOVER_STEPS,
    STUCK_STEPS,
    ArmFacts,
    Facts,
    FloorFacts,
    MomentRing,
    approach,
    arm_facts,
    ends,
    events_of,
    ever,
    floor_events_of,
    floor_progress_of,
    moved_from_start,
    progress_of,
    spans,
    strayed,
    streak,
    visits,
)
from isaaclab_arena.interfaces.episode import EVENTS
from tests.environments.building import build, hold_still, start

MOMENTS = 41


def holds(pattern: str, moments: int = MOMENTS) -> np.ndarray:
    return np.array([each == "#" for each in pattern.ljust(moments, ".")])


def told(
    *,
    moments: int,
    stages: Sequence[Sequence[float]] | None = None,
    blocked: str = "",
    travel_m: float = 1.0,
    **facts: Any,
) -> Facts:
    """Return facts of an episode in which nothing else happens: the hand is near, and the arm moves.

    What is a pattern, ``..##``, holds in the moments of its hashes, and in no later one.
    """
    patterns = {"taken": "", "met": "", "nearly": ""} | {k: v for k, v in facts.items() if isinstance(v, str)}
    numbers = {"hand_m": [0.01] * moments} | {k: v for k, v in facts.items() if not isinstance(v, str)}
    return Facts(
        stages=[torch.tensor(stage).double() for stage in stages or [[0.5] * moments]],
        arm=ArmFacts(travel_m=torch.full((moments,), travel_m), blocked=torch.from_numpy(holds(blocked, moments))),
        reach_m=0.05,
        **{name: torch.tensor(each) for name, each in numbers.items()},
        **{name: torch.from_numpy(holds(pattern, moments)) for name, pattern in patterns.items()},
    )


def arm_told(joint: int, turn_rad: float):
    """Motion of an arm whose one joint turns for 40 control steps."""
    env = build("lift_object")
    start(env)
    ring = MomentRing(env.backend, num_envs=1, capacity=40)
    ring.start([0])
    action = hold_still(env)
    action[0, joint] += turn_rad
    for _ in range(40):
        env.step(action)
        ring.keep()
    return arm_facts(ring.moments([0])[0], env.robot)


def test_an_arm_that_presses_on_the_table_or_stands_at_the_limit_of_a_joint_is_blocked():
    pressed = arm_told(1, 1.3)
    assert pressed.blocked[-10:].all()
    assert not pressed.blocked[:5].any()
    assert pressed.travel_m[0] == 0
    assert pressed.travel_m[-1] > 0.1
    assert arm_told(6, 10.0).blocked[-10:].all()
    assert not arm_told(1, 0.1).blocked.any(), "it stands where it is told to be"


def test_progress_never_falls_and_leaves_the_last_part_to_success():
    facts = told(moments=5, stages=([0.5, 1, 1, 1, 0], [0, 0, 1, 0, 0]))
    np.testing.assert_allclose(progress_of(facts, solved=False), [1 / 6, 1 / 3, 2 / 3, 2 / 3, 2 / 3])
    np.testing.assert_allclose(progress_of(facts, solved=True), [1 / 6, 1 / 3, 2 / 3, 2 / 3, 1])


def test_a_later_stage_says_that_those_before_it_are_done_and_the_way_to_a_place_is_measured_from_the_start():
    assert progress_of(told(moments=2, stages=([0, 0], [0, 0], [0, 0.5])), solved=False)[-1] == 2.5 / 4
    torch.testing.assert_close(approach(torch.tensor([0.5, 0.3, 0.1, 0.7]), 0.1), torch.tensor([0.0, 0.5, 1.0, 0.0]))


def test_a_thing_strays_only_while_nobody_holds_it():
    x = [0.0, 0.1, 0.2, 0.3, 0.3, 0.5, 0.6]
    position = torch.tensor([(each, 0.0, 0.0) for each in x])
    held = torch.tensor([False, False, True, True, False, False, False])
    # It has one step to come to rest after it was let go.
    expected = torch.tensor([0.0, 0.1, 0.0, 0.0, 0.0, 0.2, 0.3])
    torch.testing.assert_close(strayed(position, held, settle_steps=1), expected)


def facts(share: list[float] | None = None, **patterns: str) -> FloorFacts:
    """Return facts of 40 control steps of 0.02 s; a pattern, ``..##``, holds in its hashes and in no later moment."""
    stated: dict[str, Any] = {"lost": "", "fallen": "", "nearly": "", **patterns}
    done = np.linspace(0, 1, MOMENTS) if share is None else np.array(share)
    return FloorFacts(dt_s=0.02, share=done, **{name: holds(pattern) for name, pattern in stated.items()})


def from_on(moment: int) -> str:
    return "." * moment + "#" * (MOMENTS - moment)


ASTRAY, EARLY = from_on(12), [0.1] + [0.5] * (MOMENTS - 1)
LOST = {"strayed": ASTRAY, "lost": ASTRAY}


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ({"fallen": from_on(38), "lost": from_on(20)}, {"fell_over": 38}),
        ({"off_rail": from_on(40), "lost": from_on(40)}, {"left_the_rail": 40}),
        (LOST, {"strayed": 12}),
        ({"met": "....." + "#" * 13, "lost": from_on(30)}, {"success_undone": 18}),
        ({"moved": "", "lost": from_on(30)}, {"never_moved": 40}),
        ({"nearly": from_on(25), "lost": from_on(25)}, {"almost": 25}),
        ({}, {"out_of_time_while_progressing": 40}),
        # What is seen at the end comes before what happened first.
        ({**LOST, "fallen": from_on(38)}, {"fell_over": 38, "strayed": 12}),
        ({**LOST, "moved": ""}, {"never_moved": 40, "strayed": 12}),
        ({**LOST, "nearly": ASTRAY}, {"almost": 12, "strayed": 12}),
        ({**LOST, "nearly": "." * 12 + "#" * 8}, {"strayed": 12, "almost": 12}),
        # A setback after which the task came further was made good, but not where success has become impossible.
        ({"strayed": "...####"}, {"out_of_time_while_progressing": 40, "strayed": 3}),
        ({"strayed": from_on(30)}, {"strayed": 30, "out_of_time_while_progressing": 40}),
        ({"strayed": "...####", "lost": from_on(35)}, {"strayed": 3}),
        # A goal that was met for a moment only was not undone.
        ({"met": "....." + "#" * 5}, {"out_of_time_while_progressing": 40}),
        # A robot that gets no further has stalled, and one that was stopped has not.
        ({"share": EARLY}, {"stalled": 40}),
        ({"share": EARLY, "max_steps": 100}, {}),
    ],
)
def test_of_events_on_the_floor_the_one_that_was_not_made_good_decides(patterns, found):
    """The first that is expected decides."""
    given = {"max_steps": MOMENTS - 1, **patterns}
    max_steps = given.pop("max_steps")
    events = floor_events_of(facts(**given), solved=False, max_steps=max_steps)
    assert dict(events.seen) == {name: (first, 1) for name, first in found.items()}
    assert events.decisive == next(iter(found), None)
    assert set(found) <= set(EVENTS)


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


def test_the_moments_of_an_episode_are_what_the_simulation_showed_in_each_step():
    env = build("push_to_goal", num_envs=3)
    ring = MomentRing(env.backend, num_envs=3, capacity=4)
    start(env)
    ring.start([0, 1, 2])
    shown = []
    for step in range(6):
        if step == 2:
            start(env, [1])
            ring.start([1])
            shown.append(env.backend.body_position("object/body")[1].clone())
        env.step(hold_still(env) + 0.1 * step)
        ring.keep()
        if step >= 2:
            shown.append(env.backend.body_position("object/body")[1].clone())
    (moments,) = ring.moments([1])
    assert len(moments.qpos) == 5
    assert torch.equal(moments.body_position("object/body"), torch.stack(shown))
    assert torch.equal(moments.site_position("robot/tcp")[-1], env.backend.site_position("robot/tcp")[1])
    assert torch.equal(moments.body_position("goal/body")[0], env.backend.body_position("goal/body")[1])
    with pytest.raises(KeyError, match="not loose"):
        moments.body_orientation("goal/body")
    with pytest.raises(AttributeError, match=r"'xmat'.* moment_fields"):
        _ = moments.xmat
    # A step that is made again is kept once.
    ring.num_kept -= 1
    ring.keep()
    assert len(ring.moments([1])[0].qpos) == 5


_FAR, _NEAR = 0.5, 0.01


def near(pattern: str) -> list[float]:
    """Return distances of a hand that is near in the hashes of a pattern, and in no later moment [m]."""
    return [_NEAR if each == "#" else _FAR for each in pattern.ljust(22, ".")]


def reading_seen(*, max_steps: int = 1000, **facts):
    events = events_of(told(moments=22, **facts), solved=False, max_steps=max_steps)
    return dict(events.seen), events.decisive


AWAY = [0.0] * 4 + [0.06] * 18
GROWING = [0.1] * 10 + [0.9] * 12
RISING = [each / 30 for each in range(22)]
LATER = "....." + "#" * 17
TWICE = "......####.....#######"


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({"wrong_object": "...####...............", "taken": "#"}, {"wrong_object": 3}),
        ({"wrong_order": ".......####...........", "taken": "#"}, {"wrong_order": 7}),
        ({"off_table": "..............########", "taken": "#"}, {"fell_off_table": 14}),
        ({"taken": "..###", "carried": "..###"}, {"dropped": 5}),
        ({"strayed_m": [0.0] * 10 + [0.06] * 12, "taken": "#"}, {"pushed_away": 10}),
        ({"hand_m": near(".....####....###")}, {"reached_and_missed": (5, 2)}),
        ({"met": "....#####.............", "taken": "#"}, {"success_undone": 9}),
        ({"lifted": "..........############", "taken": "#"}, {"lifted": 10}),
        ({"blocked": "." * (22 - STUCK_STEPS) + "#" * STUCK_STEPS, "taken": "#"}, {"stuck": 22 - STUCK_STEPS}),
        ({"nearly": "......################", "taken": "#"}, {"almost": 6}),
        ({"travel_m": 0.001, "taken": "#"}, {"never_moved": 21}),
        ({"hand_m": near("")}, {"never_reached": 21}),
        # Letting go of what lies where it belongs is no drop; in the wrong place it is one when the hand lets go.
        ({"taken": "..###", "carried": "..###", "delivered": ".......#######"}, {}),
        ({"taken": "..#####", "carried": "..###"}, {"dropped": 7}),
        # What was dropped and then missed was dropped.
        (
            {"hand_m": near("########......###"), "taken": "..###", "carried": "..###"},
            {"dropped": 5, "reached_and_missed": 14},
        ),
        # Hovering to the end without taking anything is a miss, but arriving late is none.
        ({"hand_m": [_FAR] + [_NEAR] * (HOVER_STEPS + 1)}, {"reached_and_missed": 1}),
        ({"hand_m": near("............##########")}, {}),
        # The knuckles push it; it slips from the fingers before it is off the table; a failed grasp pushes it away.
        ({"hand_m": near(""), "taken": "...####", "strayed_m": [0.0] * 22}, {"reached_and_missed": 3}),
        ({"hand_m": near("########"), "taken": "..###", "carried": "."}, {"reached_and_missed": 0}),
        ({"hand_m": near("..#####"), "carried": ".", "strayed_m": AWAY}, {"reached_and_missed": 2, "pushed_away": 4}),
        # A setback that was made good decides nothing.
        (
            {"stages": (GROWING,), "taken": "..####.......#########", "carried": "..####", "nearly": 20 * "." + "#"},
            {"almost": 20, "dropped": 6},
        ),
        # Time runs out while progressing only at the limit and with late growth.
        ({"stages": (RISING,), "taken": "#", "max_steps": 21}, {"out_of_time_while_progressing": 21}),
        ({"stages": (RISING,), "taken": "#", "max_steps": 22}, {}),
        ({"stages": ([0.1] + [0.5] * 21,), "taken": "#", "max_steps": 21}, {"stalled": 21}),
        # What was missed and dropped, and is taken again, was made good; it was dropped again, or not.
        (
            {"hand_m": near("###...################"), "taken": TWICE, "carried": TWICE, "max_steps": 21},
            {"stalled": 21, "dropped": 10, "reached_and_missed": 0},
        ),
        ({"stages": (GROWING,), "taken": "..####.......#", "carried": "..####.......##"}, {"dropped": (6, 2)}),
        # A hand that went to another thing and never to the right one.
        ({"hand_m": near(""), "other_m": near(LATER)}, {"wrong_object": 5, "never_reached": 21}),
        ({"other_m": near(LATER), "taken": "#"}, {}),
        # A thing that is pushed away, and one that is pushed back again.
        ({"hand_m": near("############"), "strayed_m": AWAY}, {"pushed_away": 4, "reached_and_missed": 0}),
        (
            {"hand_m": near("############"), "strayed_m": [0.0] * 5 + [0.06] * 5 + [0.0] * 12},
            {"reached_and_missed": 0, "pushed_away": 5},
        ),
        # A goal that was nearly met and is not any more decides nothing, and a thing that is still held does.
        ({"taken": "#", "nearly": "......##"}, {"": 0, "almost": 6}),
        ({"stages": (GROWING,), "wrong_object": LATER, "taken": "#"}, {"wrong_object": 5}),
        # Of setbacks in the same step the first of the list decides.
        ({"wrong_order": LATER, "wrong_object": LATER, "taken": "#"}, {"wrong_object": 5, "wrong_order": 5}),
    ],
)
def test_an_event_is_told_with_its_first_step_and_count_and_what_was_not_made_good_decides(facts, found):
    """The first that is expected decides, none where that is no event."""
    every = {name: first if isinstance(first, tuple) else (first, 1) for name, first in found.items() if name}
    assert reading_seen(**facts) == (every, next(iter(found), None) or None)
    assert set(every) <= set(EVENTS)


def test_a_success_may_have_setbacks_but_none_decides_and_falls_short_of_nothing():
    facts = told(moments=22, taken="..###......###########", carried="..###", nearly="#" * 22, met="." * 20 + "##")
    events = events_of(facts, solved=True, max_steps=21)
    assert (events.progress, events.decisive, dict(events.seen)) == (1.0, None, {"dropped": (5, 1)})


def test_spans_and_ends_and_visits_bridge_short_breaks_and_leave_out_short_spans():
    def these(pattern: str) -> np.ndarray:
        return np.array([each == "#" for each in pattern])

    assert spans(these("##.#...##")) == [(0, 1), (3, 3), (7, 8)]
    assert spans(these("...")) == []
    assert spans(these("##.#...##"), gap=1) == [(0, 3), (7, 8)]
    assert spans(these("##.#...##"), shortest=2) == [(0, 1), (7, 8)]
    # What ends is named by the first moment without it; what lasts has no end.
    assert ends(these("###..####.##"), shortest=3, gap=0) == [(3, 3), (9, 9)]
    assert ends(these("..####"), shortest=1, gap=0) == []
    # A visit lasts until the hand is well away.
    assert visits(np.array([9.0, 4.0, 6.0, 4.0, 8.0, 9.0, 5.0]), reach=5.0, left=7.0) == [(1, 3), (6, 6)]
