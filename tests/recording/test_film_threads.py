"""Threads that do the tasks of films."""

from functools import partial
from threading import Barrier, Event, Thread
from time import sleep

import pytest

from isaaclab_arena.recording.video import TASKS_UNDONE, FilmThreads

PATIENCE_S = 30.0


def assert_happens(event: Event) -> None:
    assert event.wait(PATIENCE_S)


def test_a_film_that_takes_long_keeps_one_thread_and_no_other_film():
    threads, may_end, done = FilmThreads(3), Event(), Event()
    others = [threads.for_a_film() for _ in range(3)]
    threads.for_a_film()(lambda: assert_happens(may_end))
    drawn: list[int] = []
    for number, film in enumerate(others * 4):
        film(partial(drawn.append, number))
    others[-1](done.set)
    assert_happens(done)
    may_end.set()
    threads.close()
    assert sorted(drawn) == list(range(12))


def test_the_tasks_of_a_film_are_done_in_order_by_as_many_threads_as_there_are():
    threads = FilmThreads(4)
    done: dict[int, list[int]] = {film: [] for film in range(3)}
    films = {film: threads.for_a_film() for film in done}
    for number in range(200):
        for film, do in films.items():
            do(partial(done[film].append, number))
    threads.close()
    assert done == {film: list(range(200)) for film in done}


def test_a_task_that_fails_is_told_once_and_stops_none_behind_it():
    threads, done = FilmThreads(1), Event()

    def fail() -> None:
        raise ValueError("no picture")

    do = threads.for_a_film()
    do(fail)
    do(done.set)
    assert_happens(done)
    with pytest.raises(ValueError, match="no picture"):
        threads.raise_failure()
    threads.close()


def test_one_core_is_the_loops_until_it_waits_for_films():
    threads, begun, may_end = FilmThreads(2), Barrier(3), Event()
    at_work: list[int] = []

    def draw(number: int) -> None:
        at_work.append(number)
        begun.wait(PATIENCE_S)
        assert_happens(may_end)

    for number in range(2):
        threads.for_a_film()(partial(draw, number))
    ended = Thread(target=threads.close)
    sleep(0.05)
    assert len(at_work) == 1
    ended.start()
    begun.wait(PATIENCE_S)
    assert sorted(at_work) == [0, 1]
    may_end.set()
    ended.join()


def test_a_loop_without_room_for_a_task_lends_its_core():
    threads, begun = FilmThreads(2), Barrier(2)
    films = [threads.for_a_film() for _ in range(2)]

    def draw() -> None:
        # It waits until the other film's is drawn too, for which two threads are needed.
        begun.wait(PATIENCE_S)

    for film in films:
        film(draw)
    for _ in range(2 * TASKS_UNDONE):
        films[0](lambda: None)
    threads.close()
