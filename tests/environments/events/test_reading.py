import pytest
import torch

from isaaclab_arena.environments.events import HOVER_STEPS, STUCK_STEPS, events_of
from isaaclab_arena.interfaces.episode import EVENTS
from tests.environments.events.told import told

_FAR, _NEAR = 0.5, 0.01


def seen(facts, *, solved: bool = False, max_steps: int = 1000):
    events = events_of(facts, solved=solved, max_steps=max_steps)
    return dict(events.seen), events.decisive


@pytest.mark.parametrize(
    ("facts", "name", "first_and_count"),
    [
        ({"wrong_object": "...####...............", "taken": "#"}, "wrong_object", (3, 1)),
        ({"wrong_order": ".......####...........", "taken": "#"}, "wrong_order", (7, 1)),
        ({"off_table": "..............########", "taken": "#"}, "fell_off_table", (14, 1)),
        ({"taken": "..###", "carried": "..###"}, "dropped", (5, 1)),
        ({"strayed_m": [0.0] * 10 + [0.06] * 12, "taken": "#"}, "pushed_away", (10, 1)),
        ({"hand_m": [_FAR] * 5 + [_NEAR] * 4 + [_FAR] * 4 + [_NEAR] * 3 + [_FAR] * 6}, "reached_and_missed", (5, 2)),
        ({"met": "....#####.............", "taken": "#"}, "success_undone", (9, 1)),
        ({"lifted": "..........############", "taken": "#"}, "lifted", (10, 1)),
        ({"blocked": "." * (22 - STUCK_STEPS) + "#" * STUCK_STEPS, "taken": "#"}, "stuck", (22 - STUCK_STEPS, 1)),
        ({"nearly": "......################", "taken": "#"}, "almost", (6, 1)),
        ({"travel_m": 0.001, "taken": "#"}, "never_moved", (21, 1)),
        ({"hand_m": [_FAR] * 22}, "never_reached", (21, 1)),
    ],
)
def test_an_event_is_told_with_its_first_step_its_count_and_as_what_decided(facts, name, first_and_count):
    found, decisive = seen(told(moments=22, **facts))
    assert found == {name: first_and_count}
    assert decisive == name
    assert name in EVENTS


def test_letting_go_of_what_lies_where_it_belongs_is_no_drop():
    found, _ = seen(told(moments=22, taken="..###", carried="..###", delivered=".......#######"))
    assert "dropped" not in found


def test_what_is_put_down_in_the_wrong_place_is_dropped_when_the_hand_lets_go():
    assert seen(told(moments=22, taken="..#####", carried="..###")) == ({"dropped": (7, 1)}, "dropped")


def test_what_was_dropped_or_missed_and_is_taken_again_was_made_good():
    facts = {"hand_m": [_NEAR] * 3 + [_FAR] * 3 + [_NEAR] * 16, "carried": "......####.....#######"}
    found, decisive = seen(told(moments=22, taken=facts["carried"], **facts), max_steps=21)
    assert found == {"dropped": (10, 1), "reached_and_missed": (0, 1), "stalled": (21, 1)}
    assert decisive == "stalled"


def test_what_was_dropped_and_then_missed_was_dropped():
    hand_m = [_NEAR] * 8 + [_FAR] * 6 + [_NEAR] * 3 + [_FAR] * 5
    found, decisive = seen(told(moments=22, hand_m=hand_m, taken="..###", carried="..###"))
    assert found == {"dropped": (5, 1), "reached_and_missed": (14, 1)}
    assert decisive == "dropped"


def test_a_hand_that_went_to_another_thing_and_never_to_the_right_one_went_to_the_wrong_object():
    other_m = torch.tensor([_FAR] * 5 + [_NEAR] * 17)
    assert seen(told(moments=22, hand_m=[_FAR] * 22, other_m=other_m))[1] == "wrong_object"
    assert seen(told(moments=22, other_m=other_m, taken="#"))[1] is None


def test_a_thing_that_is_pushed_away_and_back_again_was_not_pushed_away():
    hand_m = [_NEAR] * 12 + [_FAR] * 10
    away = told(moments=22, hand_m=hand_m, strayed_m=[0.0] * 5 + [0.06] * 17)
    back = told(moments=22, hand_m=hand_m, strayed_m=[0.0] * 5 + [0.06] * 5 + [0.0] * 12)
    assert seen(away)[1] == "pushed_away"
    assert seen(back)[1] == "reached_and_missed"


def test_a_goal_that_was_nearly_met_and_is_not_any_more_was_not_almost_met():
    assert seen(told(moments=22, taken="#", nearly="......##")) == ({"almost": (6, 1)}, None)


def test_hovering_to_the_end_without_taking_anything_is_a_miss_but_arriving_late_is_none():
    waited = told(moments=22, hand_m=[_FAR] + [_NEAR] * (HOVER_STEPS + 1))
    late = told(moments=22, hand_m=[_FAR] * 12 + [_NEAR] * 10)
    assert seen(waited) == ({"reached_and_missed": (1, 1)}, "reached_and_missed")
    assert seen(late) == ({}, None)


def test_a_thing_that_the_knuckles_push_was_come_to_and_missed():
    pushed = told(moments=22, hand_m=[_FAR] * 22, taken="...####", strayed_m=[0.0] * 22)
    assert seen(pushed) == ({"reached_and_missed": (3, 1)}, "reached_and_missed")


def test_what_slips_from_the_fingers_before_it_is_off_the_table_was_missed():
    slipped = told(moments=22, hand_m=[_NEAR] * 8 + [_FAR] * 14, taken="..###", carried=".")
    assert seen(slipped) == ({"reached_and_missed": (0, 1)}, "reached_and_missed")


def test_a_thing_that_is_pushed_away_by_a_failed_grasp_was_missed():
    pushed = [0.0] * 4 + [0.06] * 18
    missed = told(moments=22, hand_m=[_FAR] * 2 + [_NEAR] * 5 + [_FAR] * 15, carried=".", strayed_m=pushed)
    assert seen(missed) == ({"pushed_away": (4, 1), "reached_and_missed": (2, 1)}, "reached_and_missed")


def test_a_setback_that_was_made_good_decides_nothing():
    growing = [0.1] * 10 + [0.9] * 12
    found, decisive = seen(told(moments=22, stages=(growing,), taken="..####.......#", carried="..####.......##"))
    assert found["dropped"][0] == 6
    assert decisive == "dropped"
    dropped_early = told(
        moments=22, stages=(growing,), taken="..####.......#########", carried="..####", nearly=20 * "." + "#"
    )
    assert seen(dropped_early) == ({"dropped": (6, 1), "almost": (20, 1)}, "almost")


def test_a_wrong_object_that_is_still_held_decides_although_the_hand_came_nearer_after():
    nearer = [0.1] * 10 + [0.9] * 12
    assert seen(told(moments=22, stages=(nearer,), wrong_object="....." + "#" * 17, taken="#"))[1] == "wrong_object"


def test_of_setbacks_in_the_same_step_the_first_of_the_list_decides():
    both = told(moments=22, wrong_order=".....#################", wrong_object=".....#################", taken="#")
    assert seen(both)[1] == "wrong_object"


def test_time_runs_out_while_progressing_only_at_the_limit_and_with_late_growth():
    rising = told(moments=22, stages=([each / 30 for each in range(22)],), taken="#")
    assert seen(rising, max_steps=21)[1] == "out_of_time_while_progressing"
    assert seen(rising, max_steps=22) == ({}, None)
    early = told(moments=22, stages=([0.1] + [0.5] * 21,), taken="#")
    assert seen(early, max_steps=21) == ({"stalled": (21, 1)}, "stalled")


def test_a_success_may_have_setbacks_but_none_decides_and_falls_short_of_nothing():
    facts = told(moments=22, taken="..###......###########", carried="..###", nearly="#" * 22, met="." * 20 + "##")
    events = events_of(facts, solved=True, max_steps=21)
    assert (events.progress, events.decisive, dict(events.seen)) == (1.0, None, {"dropped": (5, 1)})
