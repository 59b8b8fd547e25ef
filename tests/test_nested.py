import math

from isaaclab_arena.nested import leaves, not_finite, overlaid, with_leaves

TREE = {"a": {"b": 1, "c": {}}, "d": [2, {"e": 3}]}


def test_leaves_come_with_the_keys_that_lead_to_them_and_changed_ones_are_in_new_containers():
    assert list(leaves(TREE)) == [(("a", "b"), 1), (("d",), [2, {"e": 3}])]
    assert list(leaves(TREE, into_lists=True)) == [(("a", "b"), 1), (("d", 0), 2), (("d", 1, "e"), 3)]
    changed = with_leaves(TREE, lambda leaf: -leaf, into_lists=True)
    assert changed == {"a": {"b": -1, "c": {}}, "d": [-2, {"e": -3}]}
    assert TREE["a"] == {"b": 1, "c": {}}
    assert with_leaves({"a": [1]}, len) == {"a": 1}


def test_what_lies_above_wins_key_by_key_and_shares_no_mapping_with_what_is_made_of_it():
    below, above = {"a": {"b": 1, "c": 2}, "d": 3, "e": {"f": 4}}, {"a": {"b": 5, "g": 6}, "e": 7, "h": {"i": 1}}
    made = overlaid(below, above)
    assert made == {"a": {"b": 5, "c": 2, "g": 6}, "d": 3, "e": 7, "h": {"i": 1}}
    made["a"]["b"] = made["h"]["i"] = 9
    assert (below["a"], above["h"]) == ({"b": 1, "c": 2}, {"i": 1})


def test_none_takes_away_a_key_that_is_below_where_it_is_asked_to():
    for removes, expected in ((True, {}), (False, {"x": None})):
        made = overlaid({"a": {"x": 1}}, {"a": {"x": None}, "y": None}, none_removes=removes)
        assert made == {"a": expected, "y": None}


def test_one_mapping_may_take_the_place_of_another():
    below, above = {"p": {"class": 1, "x": 1}, "q": {"class": 1, "x": 1}}, {"p": {"class": 2}, "q": {"class": 1}}
    made = overlaid(below, above, replaces=lambda below, above: below["class"] != above["class"])
    assert made == {"p": {"class": 2}, "q": {"class": 1, "x": 1}}


def test_numbers_that_are_not_finite_are_found_however_deep():
    found = not_finite({"a": [1.0, math.inf], "b": {"c": (-math.inf, 1, "inf")}})
    assert found == [math.inf, -math.inf]
    assert not_finite(2.0) == []
