"""Plays LIBERO's resets so that each is the same whichever were played before."""

from __future__ import annotations

import typing

import numpy as np


class _Start(typing.NamedTuple):
    """What a reset of LIBERO starts from: the state of numpy's generator, and what draws the joints of fixtures."""

    generator_state: typing.Any
    drawn: list[typing.Any]


class ResetSequence:
    """The resets of one environment after it was made and seeded, each to be had at any time.

    LIBERO draws where fixtures stand from numpy's global generator, and each reset adds to a list of what it draws.
    So a reset depends on the seed and on how many resets came before; both are put back before it.

    Args:
        task: LIBERO's environment, which was just made.
        seeds_every_reset: Whether the generator is seeded before every reset, or only before the first.
    """

    def __init__(self, task: typing.Any, *, seeds_every_reset: bool) -> None:
        self._task = task
        self._seeds_every_reset = seeds_every_reset
        self._first: list[typing.Any] = list(task.env.object_property_initializers)
        self._seed: int | None = None
        self._starts: list[_Start] = []

    def play(self, seed: int, index: int) -> None:
        """Reset the environment as its reset number ``index`` after ``seed``."""
        if self._seeds_every_reset:
            self._reset(_Start(_seeded(seed), self._first * (index + 1)))
            return
        if seed != self._seed:
            self._seed, self._starts = seed, [_Start(_seeded(seed), self._first)]
        for number in range(len(self._starts) - 1, index):
            self._play(number)
        self._play(index)

    def _play(self, number: int) -> None:
        self._reset(self._starts[number])
        if number == len(self._starts) - 1:
            self._starts.append(_Start(np.random.get_state(), list(self._drawn)))

    @property
    def _drawn(self) -> list[typing.Any]:
        return self._task.env.object_property_initializers

    def _reset(self, start: _Start) -> None:
        np.random.set_state(start.generator_state)
        self._drawn[:] = start.drawn
        self._task.reset()


def _seeded(seed: int) -> typing.Any:
    return np.random.RandomState(seed).get_state()
