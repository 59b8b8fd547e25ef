from collections.abc import Sequence
from typing import Any

from isaaclab_arena.evaluation.builds import BuildCache


class Thing:
    """Notes when it is closed, and may refuse to."""

    def __init__(self, name: str, closed: list[str], *, stuck: bool = False) -> None:
        self.name = name
        self._closed = closed
        self._stuck = stuck

    def close(self) -> None:
        self._closed.append(self.name)
        if self._stuck:
            raise RuntimeError("the lid is stuck")


def filled(cache: BuildCache[Any], closed: list[str], *keys: str) -> Sequence[Thing]:
    things = cache.reuse(keys)
    for key in keys[len(things) :]:
        things.append(Thing(f"{key}{len(things)}", closed, stuck=keys[0] == "stuck"))
        cache.keep(key, things[-1])
    return things


def test_what_is_asked_for_again_is_not_built_again():
    cache, closed = BuildCache[Any](), []
    first = filled(cache, closed, "a", "b")
    again = filled(cache, closed, "a", "b")
    assert [id(thing) for thing in first] == [id(thing) for thing in again]
    assert closed == []


def test_what_was_built_for_another_key_is_closed_before_anything_is_built():
    cache, closed = BuildCache[Any](), []
    first = filled(cache, closed, "a", "b")
    assert cache.reuse(["a", "c", "d"]) == [first[0]]
    assert closed == ["b1"]


def test_groups_that_are_too_many_are_closed():
    cache, closed = BuildCache[Any](), []
    filled(cache, closed, "a", "a", "a")
    assert [thing.name for thing in filled(cache, closed, "a")] == ["a0"]
    assert closed == ["a2", "a1"]


def test_what_cannot_be_closed_takes_nothing_else_down(caplog):
    cache, closed = BuildCache[Any](), []
    filled(cache, closed, "stuck", "b")
    cache.clear()
    assert closed == ["b1", "stuck0"]
    assert "closing Thing failed" in caplog.text
    assert filled(cache, closed, "stuck")[0].name == "stuck0"


def test_what_was_lent_is_kept_for_the_next_job_and_never_closed():
    cache, closed = BuildCache[Any](), []
    thing = Thing("lent", closed)
    for _ in range(2):
        if not cache.reuse(["a"]):
            cache.keep("a", thing, is_lent=True)
        assert cache.reuse(["a"]) == [thing]
    filled(cache, closed, "b")
    cache.clear()
    assert closed == ["b0"]
