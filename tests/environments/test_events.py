"""Events of an episode, read from how the world moved."""

from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.environments.events import (
    HOVER_STEPS,
    STUCK_STEPS,
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
from isaaclab_arena.environments.mdp.task import Task, TaskSpec
from isaaclab_arena.interfaces.episode import EVENTS, EpisodeEvents
from tests.environments.building import build, build_on_the_floor, hold_still, start
from tests.environments.told import told


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


def test_a_later_stage_says_that_those_before_it_are_done():
    facts = told(moments=2, stages=([0, 0], [0, 0], [0, 0.5]))
    assert progress_of(facts, solved=False)[-1] == 2.5 / 4


def test_the_way_to_a_place_is_measured_from_the_start():
    torch.testing.assert_close(approach(torch.tensor([0.5, 0.3, 0.1, 0.7]), 0.1), torch.tensor([0.0, 0.5, 1.0, 0.0]))


def test_a_thing_strays_only_while_nobody_holds_it():
    x = [0.0, 0.1, 0.2, 0.3, 0.3, 0.5, 0.6]
    position = torch.tensor([(each, 0.0, 0.0) for each in x])
    held = torch.tensor([False, False, True, True, False, False, False])
    # It has one step to come to rest after it was let go.
    expected = torch.tensor([0.0, 0.1, 0.0, 0.0, 0.0, 0.2, 0.3])
    torch.testing.assert_close(strayed(position, held, settle_steps=1), expected)


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


ASTRAY = from_on(12)
PROGRESSING = "out_of_time_while_progressing"


@pytest.mark.parametrize(
    ("patterns", "decisive"),
    [
        # What is seen at the end comes before what happened first.
        ({"strayed": ASTRAY, "lost": ASTRAY, "fallen": from_on(38)}, "fell_over"),
        ({"strayed": ASTRAY, "lost": ASTRAY, "moved": ""}, "never_moved"),
        ({"strayed": ASTRAY, "lost": ASTRAY, "nearly": ASTRAY}, "almost"),
        ({"strayed": ASTRAY, "lost": ASTRAY, "nearly": "." * 12 + "#" * 8}, "strayed"),
        # A setback after which the task came further was made good, but not where success has become impossible.
        ({"strayed": "...####"}, PROGRESSING),
        ({"strayed": from_on(30)}, "strayed"),
        ({"strayed": "...####", "lost": from_on(35)}, "strayed"),
        # A goal that was met for a moment only was not undone.
        ({"met": "....." + "#" * 5}, PROGRESSING),
    ],
)
def test_of_events_on_the_floor_the_one_that_was_not_made_good_decides(patterns, decisive):
    assert seen(facts(**patterns))[1] == decisive


def test_a_robot_that_gets_no_further_has_stalled_and_one_that_was_stopped_has_not():
    early = [0.1] + [0.5] * (MOMENTS - 1)
    assert seen(facts(early)) == ({"stalled": (40, 1)}, "stalled")
    assert seen(facts(early), max_steps=100) == ({}, None)


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


def test_a_step_that_is_made_again_is_kept_once_and_what_a_task_does_not_name_is_not():
    env = build("lift_object")
    ring = MomentRing(env.backend, num_envs=1, capacity=4, fields=("qpos",))
    start(env)
    ring.start([0])
    ring.keep()
    env.step(hold_still(env))
    ring.num_kept -= 1
    ring.keep()
    (moments,) = ring.moments([0])
    assert len(moments.qpos) == 2
    assert torch.equal(moments.qpos[-1:], env.backend.qpos)
    with pytest.raises(AttributeError, match=r"'ctrl'.* moment_fields"):
        _ = moments.ctrl


@pytest.mark.parametrize(
    ("task", "root", "part"), [("velocity_go1", "trunk", "FR_foot"), ("walk_humanoid", "pelvis", "torso")]
)
def test_the_root_of_a_robot_is_where_its_free_joint_is_and_its_parts_are_not_taken_for_it(task, root, part):
    env = build_on_the_floor(task, num_envs=2)
    start(env)
    env.begin_events([0, 1])
    for _ in range(3):
        env.step(torch.full((2, env.action_spec.shape[0]), 0.5))
    assert env.moments is not None
    (moments,) = env.moments.moments([1])
    root, part = f"robot/{root}", f"robot/{part}"
    torch.testing.assert_close(moments.body_position(root)[-1], env.backend.body_position(root)[1])
    torch.testing.assert_close(moments.body_orientation(root)[-1], env.backend.body_orientation(root)[1])
    with pytest.raises(KeyError, match=f"{part} is not loose"):
        moments.body_orientation(part)


class TellsInItsOwnWay(Task):
    """Says that it tells events, and makes them without facts."""

    tells_events = True  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]  as a stranger may write it

    def judge(self, backend, running):
        raise NotImplementedError

    def events(self, moments, env_id, *, solved, max_steps):
        return EpisodeEvents(progress=float(solved), decisive=None, seen={})


def test_a_task_that_says_itself_whether_it_tells_events_is_believed_and_so_is_one_derived_from_it():
    spec = TaskSpec(name="own", instruction="do it", time_limit_s=1.0, hold_steps=1)
    derived = type("Derived", (TellsInItsOwnWay,), {})
    silent = type("Silent", (Task,), {"judge": TellsInItsOwnWay.judge})
    assert [each(spec).tells_events for each in (TellsInItsOwnWay, derived, silent)] == [True, True, False]


_FAR, _NEAR = 0.5, 0.01


def near(pattern: str) -> list[float]:
    """Return distances of a hand that is near in the hashes of a pattern, and in no later moment [m]."""
    return [_NEAR if each == "#" else _FAR for each in pattern.ljust(22, ".")]


def reading_seen(*, max_steps: int = 1000, **facts):
    events = events_of(told(moments=22, **facts), solved=False, max_steps=max_steps)
    return dict(events.seen), events.decisive


@pytest.mark.parametrize(
    ("facts", "name", "first_and_count"),
    [
        ({"wrong_object": "...####...............", "taken": "#"}, "wrong_object", (3, 1)),
        ({"wrong_order": ".......####...........", "taken": "#"}, "wrong_order", (7, 1)),
        ({"off_table": "..............########", "taken": "#"}, "fell_off_table", (14, 1)),
        ({"taken": "..###", "carried": "..###"}, "dropped", (5, 1)),
        ({"strayed_m": [0.0] * 10 + [0.06] * 12, "taken": "#"}, "pushed_away", (10, 1)),
        ({"hand_m": near(".....####....###")}, "reached_and_missed", (5, 2)),
        ({"met": "....#####.............", "taken": "#"}, "success_undone", (9, 1)),
        ({"lifted": "..........############", "taken": "#"}, "lifted", (10, 1)),
        ({"blocked": "." * (22 - STUCK_STEPS) + "#" * STUCK_STEPS, "taken": "#"}, "stuck", (22 - STUCK_STEPS, 1)),
        ({"nearly": "......################", "taken": "#"}, "almost", (6, 1)),
        ({"travel_m": 0.001, "taken": "#"}, "never_moved", (21, 1)),
        ({"hand_m": near("")}, "never_reached", (21, 1)),
    ],
)
def test_an_event_is_told_with_its_first_step_its_count_and_as_what_decided(facts, name, first_and_count):
    found, decisive = reading_seen(**facts)
    assert found == {name: first_and_count}
    assert decisive == name
    assert name in EVENTS


AWAY = [0.0] * 4 + [0.06] * 18
GROWING = [0.1] * 10 + [0.9] * 12
RISING = [each / 30 for each in range(22)]
TWICE = "......####.....#######"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
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
        # What was missed and dropped, and is taken again, was made good.
        (
            {"hand_m": near("###...################"), "taken": TWICE, "carried": TWICE, "max_steps": 21},
            {"stalled": 21, "dropped": 10, "reached_and_missed": 0},
        ),
    ],
)
def test_what_was_not_made_good_decides_among_what_is_seen(facts, expected):
    """The first that is expected decides."""
    every = {name: (first, 1) for name, first in expected.items()}
    assert reading_seen(**facts) == (every, next(iter(expected), None))


@pytest.mark.parametrize(
    ("facts", "decisive"),
    [
        # A hand that went to another thing and never to the right one.
        ({"hand_m": near(""), "other_m": near("....." + "#" * 17)}, "wrong_object"),
        ({"other_m": near("....." + "#" * 17), "taken": "#"}, None),
        # A thing that is pushed away, and one that is pushed back again.
        ({"hand_m": near("############"), "strayed_m": [0.0] * 5 + [0.06] * 17}, "pushed_away"),
        ({"hand_m": near("############"), "strayed_m": [0.0] * 5 + [0.06] * 5 + [0.0] * 12}, "reached_and_missed"),
        # A goal that was nearly met and is not any more.
        ({"taken": "#", "nearly": "......##"}, None),
        # It was taken again, and dropped again.
        ({"stages": (GROWING,), "taken": "..####.......#", "carried": "..####.......##"}, "dropped"),
        # It is still held, although the hand came nearer after.
        ({"stages": (GROWING,), "wrong_object": "....." + "#" * 17, "taken": "#"}, "wrong_object"),
        # Of setbacks in the same step the first of the list decides.
        ({"wrong_order": "....." + "#" * 17, "wrong_object": "....." + "#" * 17, "taken": "#"}, "wrong_object"),
    ],
)
def test_what_decides_is_what_the_hand_and_the_thing_did_last(facts, decisive):
    assert reading_seen(**facts)[1] == decisive


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
