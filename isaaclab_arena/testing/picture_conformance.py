"""Tests of what environments show, one per rule, that the tests of the contract `Environment` include."""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, UnannouncedPictureError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.pictures import CAMERAS, Filmable, FilmableLater, PicturesOnDemand
from isaaclab_arena.testing.playing import action_of, difference, ended, require, start, trace


class PictureConformance(ABC):
    """The rules of `PicturesOnDemand`, `Filmable` and `FilmableLater`; derive from `EnvironmentConformance`.

    Attributes:
        num_steps: Control steps for which a test plays an episode at most.
    """

    num_steps: ClassVar[int] = 20

    @abstractmethod
    def make(self, num_envs: int) -> Environment:
        """Return a new environment with so many env slots, in none of which an episode has started."""

    def test_pictures_on_demand_are_those_that_are_always_drawn(self) -> None:
        """`PicturesOnDemand`: announced env slots show the same, and the others no picture of another time."""
        with self._made(2) as every, self._made(2) as some:
            if not isinstance(some, PicturesOnDemand) or CAMERAS not in some.observation_spec:
                raise SkipTest("the environment has no PicturesOnDemand, or no pictures")
            episodes = {0: 0, 1: 1}
            some.draw_pictures_of([0])
            self._check_pictures(start(every, episodes), start(some, episodes), [0])
            for number, announced in zip(range(self.num_steps), cycle([[], [1], [0, 1]]), strict=False):
                action = action_of(every, episodes, number)
                some.draw_pictures_of(announced)
                expected, found = every.step(action), some.step(action)
                self._check_pictures(expected.observation, found.observation, announced)
                if bool(ended(expected).any()):
                    break

    def test_films_are_pictures_and_change_nothing(self) -> None:
        """`Filmable`: `film` returns uint8 pictures of the env slots and cameras it is asked for.

        `FilmableLater`: what `film_later` returns draws the same pictures, also after steps.
        """
        with self._made(2) as environment:
            if not isinstance(environment, Filmable) or not environment.filmable:
                raise SkipTest("the environment is not Filmable, or has nothing to film")
            expected = trace(environment, 0, {0: 0}, 2)
            start(environment, {0: 0, 1: 1})
            pictures = environment.film([1], environment.filmable)
            require(set(pictures) == set(environment.filmable), f"film returned {sorted(pictures)}")
            for name, picture in pictures.items():
                is_picture = picture.dtype == np.uint8 and picture.ndim == 4 and picture.shape[::3] == (1, 3)
                require(is_picture, f"the film of '{name}' has shape {picture.shape} and type {picture.dtype}")
            if environment.reproducible:
                why = difference(expected, trace(environment, 0, {0: 0}, 2))
                require(not why, f"filming changes the episode: {why}")
            self._check_unknown_camera(environment)
            if isinstance(environment, FilmableLater):
                self._check_drawn_later(environment)

    @contextlib.contextmanager
    def _made(self, num_envs: int) -> Iterator[Environment]:
        environment = self.make(num_envs)
        try:
            yield environment
        finally:
            environment.close()

    @staticmethod
    def _check_pictures(expected: Observation, found: Observation, announced: Sequence[int]) -> None:
        for name, pictures in expected[CAMERAS].items():
            for env_id in range(2):
                try:
                    same = torch.equal(found[CAMERAS][name][env_id], pictures[env_id])
                except UnannouncedPictureError:
                    require(env_id not in announced, f"'{name}' of env slot {env_id} was announced and is not there")
                    continue
                require(same, f"'{name}' of env slot {env_id} is not what it shows if everything is drawn")

    @staticmethod
    def _check_unknown_camera(environment: Filmable) -> None:
        try:
            environment.film([0], ["no such camera"])
        except (KeyError, ConfigError):
            return
        raise AssertionError("film accepts a camera that is not in filmable; it must raise KeyError")

    @staticmethod
    def _check_drawn_later(environment: Any) -> None:
        start(environment, {0: 0, 1: 1})
        drawing = environment.film_later([1, 0], environment.filmable)
        expected = environment.film([1, 0], environment.filmable)
        trace(environment, 1, {0: 2, 1: 3}, 2)
        for number, draw in enumerate(drawing):
            pictures = draw()
            require(set(pictures) == set(expected), f"{sorted(pictures)} are drawn, {sorted(expected)} filmed")
            for name, picture in pictures.items():
                same = np.array_equal(picture, expected[name][number])
                require(same, f"what is drawn later of '{name}' is not what film showed at that moment")
