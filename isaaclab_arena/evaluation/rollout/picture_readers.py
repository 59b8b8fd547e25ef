"""Asks a policy and observers whose pictures they look at next, has those drawn, and shows each what it asked for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from isaaclab_arena.errors import ArenaError, PolicyError
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
        observers: Announce env slots too; each is shown those that it named itself.
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
        self._announced = np.zeros(environment.num_envs, bool)
        self._watchers = [_Watcher(each, environment.num_envs) for each in observers] if self._drawing else []
        # Whether each reader looks at what an env slot shows that is being reset.
        self._of_starting: dict[int, list[bool]] = {}

    def before_reset(self, starts: Sequence[EpisodeStart]) -> None:
        """Have drawn what is looked at once these episodes have begun."""
        if self._drawing is not None:
            env_ids = [start.env_id for start in starts]
            for announced in self._by_reader():
                announced[env_ids] = False
            looked_at = self._announce(self._drawing, starts)
            self._of_starting.update({env_id: [bool(each[env_id]) for each in self._by_reader()] for env_id in env_ids})
            self._count(env_ids if looked_at is None else set(looked_at) & set(env_ids))

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
            for watcher in self._watchers:
                watcher.turn()
            looked_at = self._announce(self._drawing, ())
            self._count(range(num_running) if looked_at is None else set(looked_at))
            return answer

    def show_starts(self, starts: Sequence[EpisodeStart], observation: Observation) -> None:
        """Show the observers which episodes began, and the observation that they begin with."""
        # Control steps may have been made, and announced, since the resets.
        for start in starts if self._drawing is not None else ():
            for announced, looks in zip(self._by_reader(), self._of_starting.pop(start.env_id), strict=True):
                announced[start.env_id] = looks
        with self._stopwatch.measure(Phase.RECORD, self._environment):
            if self._drawing is None:
                for observer in self._observers:
                    observer.on_episode_start(self._environment, starts, observation)
            for watcher in self._watchers:
                seen = watcher.shown(observation, watcher.after)
                watcher.observer.on_episode_start(self._environment, starts, seen)

    def show_step(self, transition: Transition) -> None:
        """Show the observers a control step."""
        with self._stopwatch.measure(Phase.RECORD, self._environment):
            if self._drawing is None:
                for observer in self._observers:
                    observer.on_step(self._environment, transition)
            for watcher in self._watchers:
                watcher.observer.on_step(self._environment, watcher.shown_step(transition))

    def show_ends(self, records: Sequence[EpisodeRecord]) -> None:
        """Show the observers which episodes ended, one after the other."""
        for record in records:
            with self._stopwatch.measure(Phase.RECORD, self._environment):
                for observer in self._observers:
                    observer.on_episode_end(self._environment, record)

    def _by_reader(self) -> list[np.ndarray]:
        """Return what the policy, and then each observer, has announced of what comes next."""
        return [self._announced, *(each.after for each in self._watchers)]

    def _announce(self, drawing: PicturesOnDemand, starts: Sequence[EpisodeStart]) -> Sequence[int] | None:
        """Tell the environment what anybody wants, and return which env slots are looked at, None for all."""
        wanted = announced_pictures(self._policy, self._environment, [start.env_id for start in starts])
        _add(self._announced, wanted, self._policy)
        drawn = looked_at = wanted
        for watcher in self._watchers:
            observer = watcher.observer
            wanted = observer.pictures_to_see(self._environment, starts)
            _add(watcher.after, wanted, observer)
            drawn = _union(drawn, wanted)
            # An observer without hooks looks at nothing: it is there to have everything drawn.
            looked_at = looked_at if type(observer) is Observer else _union(looked_at, wanted)
        drawing.draw_pictures_of(drawn)
        return looked_at

    def _count(self, env_ids: Collection[int]) -> None:
        self._stopwatch.pictures_looked_at += len(env_ids) * self._num_terms


class _Watcher:
    """An observer, and the env slots that it has announced.

    Attributes:
        observer: The observer.
        before: Announced of what the policy saw before the step. Shape: (num_envs,), bool.
        after: Announced of what comes next. Shape: (num_envs,), bool.
    """

    def __init__(self, observer: Observer, num_envs: int) -> None:
        self.observer = observer
        self.before, self.after = np.zeros((2, num_envs), bool)

    def turn(self) -> None:
        """Begin a control step: nothing is announced of what it leads to."""
        self.before[:] = self.after
        self.after[:] = False

    def shown(self, observation: Observation, announced: np.ndarray) -> Observation:
        """Return an observation as the observer is shown it."""
        return observation if announced.all() else _seen_by(self.observer, observation, announced)

    def shown_step(self, transition: Transition) -> Transition:
        """Return a control step as the observer is shown it."""
        if self.before.all() and self.after.all():
            return transition
        step = replace(transition.step, observation=self.shown(transition.step.observation, self.after))
        return replace(transition, observation=self.shown(transition.observation, self.before), step=step)


def _add(announced: np.ndarray, wanted: Sequence[int] | None, reader: PolicyBase | Observer) -> None:
    """Mark what a reader has announced. Shape of ``announced``: (num_envs,), bool."""
    try:
        announced[slice(None) if wanted is None else list(wanted)] = True
    except (IndexError, TypeError, ValueError) as error:
        raise (PolicyError if isinstance(reader, PolicyBase) else ArenaError)(
            f"{type(reader).__name__}.pictures_to_see must return env slots below {len(announced)}, or None, "
            f"it returned {wanted}"
        ) from error


def _union(some: Sequence[int] | None, others: Sequence[int] | None) -> Sequence[int] | None:
    """Return the env slots that are in one or the other, None for all."""
    if some is None or others is None:
        return None
    return sorted({*some, *others}) if others else some


def _seen_by(reader: PolicyBase | Observer, observation: Observation, announced: np.ndarray) -> Observation:
    """Return an observation with no pictures but those that a reader has announced. Shape: (num_envs,), bool."""
    name = type(reader).__name__
    pictures: Mapping[str, SomePictures] = {
        term: some_pictures(term, each).seen_by(name, announced) for term, each in observation[CAMERAS].items()
    }
    return {**observation, CAMERAS: pictures}
