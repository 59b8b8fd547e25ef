"""Asks a policy and observers whose pictures they look at next, has those drawn, and shows each what it asked for."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.rollout.policy_answers import PolicyAnswer, ask
from isaaclab_arena.evaluation.rollout.stopwatch import Phase, Stopwatch
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.pictures import CAMERAS, PicturesOnDemand, SomePictures, some_pictures
from isaaclab_arena.interfaces.policy import PolicyBase, announced_pictures


class PictureReaders:
    """A policy and observers, as those who look at the pictures of one environment.

    Before each `reset` and `step` they are asked what they will look at, and the environment draws what any of them
    wants. The policy is shown what it announced itself: what it does must not depend on who else watches.

    Args:
        environment: What shows the pictures.
        policy: Announces env slots.
        observers: Look at the pictures of all env slots, or at none.
        stopwatch: Counts what they look at, and the time that they take.
    """

    def __init__(
        self, environment: Environment, policy: PolicyBase, observers: Sequence[Observer], stopwatch: Stopwatch
    ) -> None:
        self._environment, self._policy, self._observers = environment, policy, observers
        self._stopwatch = stopwatch
        terms = environment.observation_spec.get(CAMERAS)
        self._num_terms = len(terms) if isinstance(terms, Mapping) else 0
        self._drawing = environment if self._num_terms and isinstance(environment, PicturesOnDemand) else None
        self._draws_all = any(each.sees_pictures for each in observers)
        # An observer without hooks looks at nothing: it is there to have everything drawn.
        self._looks_at_all = any(each.sees_pictures for each in observers if type(each) is not Observer)
        self._announced = np.zeros(environment.num_envs, bool)
        self._nobody = np.zeros(environment.num_envs, bool)

    def before_reset(self, env_ids: Sequence[int]) -> None:
        """Have drawn what is looked at once episodes have begun in these env slots."""
        if self._drawing is not None:
            wanted = self._announce(env_ids)
            self._count(env_ids if wanted is None or self._looks_at_all else set(wanted) & set(env_ids))

    def ask(self, observation: Observation, running: torch.Tensor, num_running: int) -> PolicyAnswer:
        """Return what the policy answers, and have drawn what is looked at after the step that it answers.

        Args:
            observation: What the last `reset` or `step` gave. The policy is shown the pictures that it announced.
            running: Env slots that make the step. Shape: (num_envs,), bool.
            num_running: Their number.
        """
        with self._stopwatch.measure(Phase.POLICY, self._environment):
            if self._drawing is None:
                return ask(self._policy, self._environment, observation, running)
            seen = observation if self._announced.all() else _seen_by(self._policy, observation, self._announced)
            answer = ask(self._policy, self._environment, seen, running)
            self._announced[:] = False
            wanted = self._announce(())
            self._count(range(num_running) if wanted is None or self._looks_at_all else set(wanted))
            return answer

    def show_starts(self, starts: Sequence[EpisodeStart], observation: Observation) -> None:
        """Show the observers which episodes began, and the observation that they begin with."""
        with self._stopwatch.measure(Phase.RECORD, self._environment):
            for observer, seen in self._observations(observation):
                observer.on_episode_start(self._environment, starts, seen)

    def show_step(self, transition: Transition) -> None:
        """Show the observers a control step."""
        with self._stopwatch.measure(Phase.RECORD, self._environment):
            if self._drawing is None:
                for observer in self._observers:
                    observer.on_step(self._environment, transition)
                return
            for observer, seen in self._transitions(transition):
                observer.on_step(self._environment, seen)

    def show_ends(self, records: Sequence[EpisodeRecord]) -> None:
        """Show the observers which episodes ended, one after the other."""
        for record in records:
            with self._stopwatch.measure(Phase.RECORD, self._environment):
                for observer in self._observers:
                    observer.on_episode_end(self._environment, record)

    def _observations(self, observation: Observation) -> Iterator[tuple[Observer, Observation]]:
        """Yield each observer with an observation as it is shown it."""
        for observer in self._observers:
            is_all = self._drawing is None or observer.sees_pictures
            yield observer, observation if is_all else _seen_by(observer, observation, self._nobody)

    def _transitions(self, transition: Transition) -> Iterator[tuple[Observer, Transition]]:
        """Yield each observer with a control step as it is shown it."""
        before, after = self._observations(transition.observation), self._observations(transition.step.observation)
        for (observer, observation), (_, result) in zip(before, after, strict=True):
            if result is transition.step.observation:
                yield observer, transition
            else:
                step = replace(transition.step, observation=result)
                yield observer, replace(transition, observation=observation, step=step)

    def _announce(self, starting: Sequence[int]) -> Sequence[int] | None:
        """Tell the environment what anybody wants, and return what the policy does."""
        wanted = announced_pictures(self._policy, self._environment, starting)
        try:
            self._announced[slice(None) if wanted is None else list(wanted)] = True
        except (IndexError, TypeError, ValueError) as error:
            raise PolicyError(
                f"{type(self._policy).__name__}.pictures_to_see must return env slots below "
                f"{self._environment.num_envs}, or None, it returned {wanted}"
            ) from error
        if self._drawing is not None:
            self._drawing.draw_pictures_of(None if self._draws_all else wanted)
        return wanted

    def _count(self, env_ids: Collection[int]) -> None:
        self._stopwatch.pictures_looked_at += len(env_ids) * self._num_terms


def _seen_by(reader: PolicyBase | Observer, observation: Observation, announced: np.ndarray) -> Observation:
    """Return an observation with no pictures but those that a reader has announced. Shape: (num_envs,), bool."""
    name = type(reader).__name__
    pictures: Mapping[str, SomePictures] = {
        term: some_pictures(term, each).seen_by(name, announced) for term, each in observation[CAMERAS].items()
    }
    return {**observation, CAMERAS: pictures}
