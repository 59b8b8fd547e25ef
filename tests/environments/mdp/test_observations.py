from typing import Any, cast

import torch

from isaaclab_arena.environments.mdp.spaces import number_term, offset_term, orientation_term, position_term, read_terms

POINT = torch.tensor([[0.5, 0.1, 0.2], [0.6, 0.0, 0.3]], dtype=torch.float64)
NOWHERE = cast("Any", None)


def test_points_are_seen_from_the_robots_base_and_nothing_else_is():
    origin = torch.tensor([[0.0, 0.0, -0.1], [0.0, 0.0, 0.0]], dtype=torch.float64)
    terms = {
        "place": position_term(lambda _: POINT),
        "way": offset_term(lambda _: POINT),
        "number": number_term("x", "m", lambda _: POINT[:, :1]),
        "orientation": orientation_term(lambda _: torch.ones(2, 4)),
    }
    seen = read_terms(terms, NOWHERE, torch.device("cpu"), origin)
    torch.testing.assert_close(seen["place"], torch.tensor([[0.5, 0.1, 0.3], [0.6, 0.0, 0.3]]))
    torch.testing.assert_close(seen["way"], POINT.float())
    torch.testing.assert_close(seen["number"], POINT[:, :1].float())
    assert seen["orientation"].tolist() == [[1.0] * 4] * 2
    assert [term.spec.unit for term in terms.values()] == ["m", "m", "m", None]


def test_a_term_without_a_unit_has_none():
    units = [term.spec.unit for term in (orientation_term(lambda _: POINT), number_term("x", "m", lambda _: POINT))]
    assert units == [None, "m"]


def test_an_observation_does_not_change_when_the_world_goes_on():
    state = torch.ones(2, 3)
    seen = read_terms({"place": position_term(lambda _: state)}, NOWHERE, torch.device("cpu"))
    state += 1
    assert seen["place"].tolist() == [[1.0] * 3] * 2
