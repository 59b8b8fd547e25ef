import os
from collections.abc import Iterator, Mapping

import pytest

from isaaclab_arena.environments.gym.env_slots import SlotSource
from isaaclab_arena.environments.gym.worker.answers import (
    MOVE,
    MOVE_AND_LOOK,
    NO_SLOT,
    Answers,
    SharedArrays,
    num_bytes,
)
from tests.environments.gym import gym_fakes
from tests.environments.gym.gym_fakes import ID


class Asked:
    """What a worker would answer with, around the fake environment, and the arrays that it shows."""

    def __init__(self, memory: int, **make_kwargs) -> None:
        self.answers = Answers(memory, lambda error: {"error": str(error)})
        self.request = SlotSource(kind="gym", name=ID, make_kwargs=make_kwargs).request("make")
        description = self.ask({**self.request, "slots": [0], "num_slots": 1})
        os.ftruncate(memory, num_bytes(description, 1))
        self.shared = SharedArrays(memory, description, 1)
        self.ask({"request": "reset", "slots": [0], "starts": [{"seed": 1, "options": None}], "pictures": [True]})

    def ask(self, message: Mapping) -> dict:
        return self.answers.answer(dict(message), {})[0]

    def step(self, *, pictures: bool = True) -> dict:
        """Answer about an environment's step without its observation."""
        self.shared.asked[0] = MOVE_AND_LOOK if pictures else MOVE
        return self.ask({}).get(0, {})


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("answers")
    yield descriptor
    os.close(descriptor)


def test_what_an_environment_raises_is_told_and_the_others_go_on(memory):
    asked = Asked(memory, misbehaviour="raise", at_step=1)
    assert asked.step() == {"error": "the floor gave way"}
    assert asked.shared.moving[0] == NO_SLOT


def test_all_environments_are_closed_also_if_one_of_them_raises(memory):
    asked = Asked(memory, misbehaviour="raise_at_close")
    asked.ask({**asked.request, "slots": [1, 2], "num_slots": 3})
    gym_fakes.CLOSED.clear()
    with pytest.raises(OSError, match="the door is stuck"):
        asked.answers.close()
    assert len({id(each) for each in gym_fakes.CLOSED}) == 3


def test_pictures_that_nobody_wants_do_not_travel(memory):
    asked = Asked(memory, picture=True)
    for pictures, clock_shown in ((False, 0), (True, 2)):
        assert asked.step(pictures=pictures) == {}
        assert (asked.shared.arrays["eye.front"] == clock_shown).all()
    assert asked.shared.arrays["numbers"][0, 1] == 2


def test_what_cannot_be_found_raises(memory):
    with pytest.raises(ImportError, match="No module named"):
        Answers(memory, lambda error: {}).answer(
            {"request": "find", "kind": "gym", "name": "no_such:Draw-v0", "make_kwargs": {}}, {}
        )
