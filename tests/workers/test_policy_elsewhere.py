"""A policy that is lost is asked again a few times, but not one that is late, and not another one in its place."""

from collections.abc import Callable

import pytest

from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.logs import ended_in
from isaaclab_arena.workers import PolicyElsewhere, patience_s

LOST = (ConnectionError, TimeoutError, EOFError)


def answering(*answers: Exception | int) -> Callable[[], int]:
    """Return a question that is answered so, one answer after the other."""
    left = list(answers)

    def ask() -> int:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


def asked(*answers: Exception | int, most_losses: int = 3) -> int:
    policy = PolicyElsewhere[str]("the policy at home", most_losses=most_losses)
    return policy.asked(answering(*answers), LOST, comes_back=lambda error: not isinstance(error, TimeoutError))


def test_a_question_over_which_a_policy_is_lost_is_asked_again(caplog):
    assert asked(EOFError(), ConnectionError("cut"), 3) == 3
    assert "the policy at home was lost (EOFError); asking again" in caplog.text
    assert "the policy at home was lost (cut); asking again" in caplog.text


def test_a_question_that_ends_the_policy_again_and_again_is_not_asked_on():
    with pytest.raises(PolicyLostError, match=r"^the policy at home was lost 2 times over one query: gone$"):
        asked(EOFError(), ConnectionError("gone"), 3, most_losses=2)


def test_a_policy_that_is_late_is_not_asked_again():
    with pytest.raises(PolicyLostError, match=r"^the policy at home is lost: it did not answer in time$"):
        asked(TimeoutError("timed out"), 3)


def test_what_is_no_loss_goes_on_to_the_asker():
    with pytest.raises(ZeroDivisionError):
        asked(ZeroDivisionError(), 3)


def test_another_policy_in_the_place_of_the_first_is_refused():
    policy = PolicyElsewhere[str]("the policy at home")
    for _ in range(2):
        policy.meet("first")
    with pytest.raises(PolicyLostError, match="came back as another one: it stated first and states other now"):
        policy.meet("other")
    assert policy.stated == "first"
    with pytest.raises(PolicyLostError, match="it stated earlier and states other now"):
        PolicyElsewhere("the policy at home", stated="earlier").meet("other")


def test_patience_ends_before_the_process_does():
    assert patience_s(300.0) == 300.0
    with ended_in(lambda: 100.0):
        assert patience_s(300.0) == 85.0
        assert patience_s(30.0) == 30.0
    with ended_in(lambda: 4.0):
        assert patience_s(300.0) == 2.0
