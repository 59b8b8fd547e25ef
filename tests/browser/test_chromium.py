"""How what a browser says through its pipe is taken in, however it is cut."""

import os
from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser, BrowserError


@pytest.fixture
def spoken() -> Iterator[tuple[Browser, int]]:
    """A browser of which only the pipes are there, and the end that it speaks into."""
    answers, speaker = os.pipe()
    heard, commands = os.pipe()
    yield Browser(None, commands, answers), speaker  # pyright: ignore[reportArgumentType]  # no process to end
    for descriptor in (answers, speaker, heard, commands):
        os.close(descriptor)


def test_an_event_that_has_half_arrived_when_the_wait_is_over_is_taken_in_by_the_next(spoken):
    browser, speaker = spoken
    os.write(speaker, b'{"method": "Page.load')
    browser.wait(0.01)
    assert browser.events == []
    os.write(speaker, b'EventFired"}\0')
    browser.wait(0.01)
    assert browser.events == [{"method": "Page.loadEventFired"}]


def test_events_that_arrive_together_are_all_taken_in(spoken):
    browser, speaker = spoken
    os.write(speaker, b'{"method": "a"}\0{"method": "b"}\0')
    browser.wait(0.01)
    assert [event["method"] for event in browser.events] == ["a", "b"]


def test_an_answer_is_found_behind_events(spoken):
    browser, speaker = spoken
    os.write(speaker, b'{"method": "a"}\0{"id": 1, "result": {"value": 3}}\0')
    assert browser.call("Runtime.evaluate") == {"value": 3}
    assert [event["method"] for event in browser.events] == ["a"]


def test_a_browser_that_has_ended_is_said_to_have():
    answers, speaker = os.pipe()
    os.close(speaker)
    with pytest.raises(BrowserError, match="has ended"):
        Browser(None, -1, answers).wait(1)  # pyright: ignore[reportArgumentType]  # no process to end
    os.close(answers)
