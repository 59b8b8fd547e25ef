"""The loop: reset, act, step, observe, end."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard

import numpy as np
import torch

from isaaclab_arena.errors import ArenaError, PolicyError, PolicyLostError, first_line
from isaaclab_arena.evaluation.policy_answers import (
    Phase,
    PolicyAnswer,
    Stopwatch,
    agreed_instruction,
    ask,
    with_policy_metrics,
)
from isaaclab_arena.evaluation.running_episodes import (
    NO_LIMITS,
    Ending,
    RolloutLimits,
    RolloutResult,
    RunningEpisodes,
    bad_starts,
    begin_events,
    policy_lost,
    solved_starts,
    unsound_slots,
    with_events,
    without_unsound,
)
from isaaclab_arena.interfaces.environment import (
    BeginsResets,
    BeginsSteps,
    Environment,
    Observation,
    Step,
    StepsAhead,
    TriesSteps,
)
from isaaclab_arena.interfaces.episode import Conditions, Episode, EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition, WatchedStart
from isaaclab_arena.interfaces.pictures import CAMERAS, PicturesOnDemand, SomePictures, some_pictures
from isaaclab_arena.interfaces.policy import PolicyBase, announced_pictures, plans_of
from isaaclab_arena.interfaces.recordable import Restorable

# Makes steps and resets of an environment as early as it lets them be made, and tells it which steps follow.


def attempt_of(environment: Environment) -> Callable[[torch.Tensor], Step]:
    """Return what makes a control step of an environment, or none if ``Step.made`` says so.

    It is `TriesSteps.try_step`, unless a class derived from the one that has it, or a wrapper, has a `step` of its own.

    Args:
        environment: The environment.
    """
    if isinstance(environment, TriesSteps) and _is_its_own(environment, "try_step", "step"):
        return environment.try_step
    return environment.step


def begins_steps(environment: Environment) -> TypeGuard[BeginsSteps]:
    """Return whether steps of an environment, begun here, are made in other processes.

    They are not if a class derived from the one that begins them, or a wrapper, has a `step` of its own.
    """
    return (
        isinstance(environment, BeginsSteps)
        and _is_its_own(environment, "begin_step", "step")
        and environment.steps_elsewhere
    )


def begins_resets(environment: Environment) -> TypeGuard[BeginsResets]:
    """Return whether other env slots of an environment can make steps while some are reset in other processes.

    They cannot if a class derived from the one that begins resets, or a wrapper, has a `reset` of its own.
    """
    return (
        isinstance(environment, BeginsResets)
        and _is_its_own(environment, "begin_reset", "reset")
        and environment.steps_while_starting > 0
    )


def telling_plans(policy: PolicyBase, environment: Environment) -> Callable[[], None] | None:
    """Return what tells an environment the actions that a policy has planned; None where nobody plans or listens.

    An environment does not listen if a class derived from the one that does, or a wrapper, has a `step` of its own.
    """
    plans = plans_of(policy)
    if plans is None or not isinstance(environment, StepsAhead) or not _is_its_own(environment, "plan_steps", "step"):
        return None
    if not environment.makes_steps_ahead:
        return None

    def tell() -> None:
        environment.plan_steps({env_id: plans.planned(env_id) for env_id in environment.unplanned()})

    return tell


def made_again(environment: Environment) -> Step:
    """Return a control step whose first attempt did not make it.

    Raises:
        TypeError: If the environment makes no attempts.
    """
    if not isinstance(environment, TriesSteps):
        raise TypeError(f"{type(environment).__name__} says that it made no step, and cannot make it again")
    return environment.step_again()


def _is_its_own(environment: Environment, method: str, whole: str) -> bool:
    """Return whether a method is made for the same ``step`` or ``reset`` that the environment has."""
    # A wrapper has the other environment's methods without a class that defines them.
    classes = type(environment).__mro__
    has_method, has_whole = (
        next((number for number, each in enumerate(classes) if name in each.__dict__), len(classes))
        for name in (method, whole)
    )
    return has_method <= has_whole


# Start episodes: their conditions, instruction and env slot, and which control steps are made meanwhile.


def next_starts(environment: Environment, env_ids: Iterable[int], pending: Iterator[Episode]) -> list[EpisodeStart]:
    """Return the starts of the next episodes, one for each env slot as long as there are episodes.

    They have the task's words, until `StartingEpisodes` gives them their own.

    Args:
        environment: Draws what episodes start from.
        env_ids: Env slots that are free.
        pending: Episodes that have yet to begin, in order; no more are taken than there are env slots.
    """
    starts = []
    words = environment.task_description
    for env_id, episode in zip(env_ids, pending, strict=False):
        conditions = _conditions(environment, episode)
        start = WatchedStart(env_id=env_id, episode=episode, conditions=conditions, language_instruction=words)
        starts.append(start)
    return starts


class StartingEpisodes:
    """Episodes whose env slots are being reset, and that begin when it is their turn.

    An environment whose resets are made elsewhere makes control steps in the meantime. Their number is fixed, so that
    what comes out does not depend on how long a reset takes.

    Args:
        environment: Where they start.
        instruction: What the policy is told in every episode, None where the environment says it for each.
        may_overlap: Whether other episodes may make steps meanwhile.
    """

    def __init__(self, environment: Environment, instruction: str | None, *, may_overlap: bool) -> None:
        self._environment, self._instruction = environment, instruction
        self._elsewhere = environment if may_overlap and begins_resets(environment) else None
        self._waiting: list[_Waiting] = []

    def begin(self, starts: Sequence[EpisodeStart], *, num_steps: int) -> None:
        """Begin resets.

        Args:
            starts: Those of `next_starts`.
            num_steps: Control steps that were made so far.
        """
        overlaps = self._elsewhere is not None and all(start.episode.start_state is None for start in starts)
        if self._elsewhere is not None and overlaps:
            self._elsewhere.begin_reset(_env_ids(self._environment, starts), [start.conditions for start in starts])
            num_steps += self._elsewhere.steps_while_starting
        self._waiting.append(_Waiting(starts=starts, turn=num_steps, is_begun=overlaps))

    def are_due(self, *, num_steps: int, num_running: int) -> bool:
        """Return whether it is the turn of episodes to begin; the first ones need not wait where no other one runs."""
        return any(each.turn <= num_steps for each in self._waiting) or bool(self._waiting and not num_running)

    def finish(self, *, num_steps: int) -> tuple[list[EpisodeStart], Observation]:
        """Wait for the resets of the episodes that are due.

        Returns:
            Their starts with what the policy is told, ascending by env slot, and the observation of all env slots.

        Raises:
            ArenaError: If a state that an episode carries, or the conditions beside it, do not fit the environment.
        """
        turn = max(num_steps, min(each.turn for each in self._waiting))
        due = [each for each in self._waiting if each.turn <= turn]
        self._waiting = [each for each in self._waiting if each.turn > turn]
        observation: Observation = {}
        for each in due:
            observation = self._finished(each)
        starts = sorted((start for each in due for start in each.starts), key=lambda start: start.env_id)
        words = [self._instruction or self._environment.instruction(start.conditions) for start in starts]
        told = zip(starts, words, strict=True)
        return [dataclasses.replace(start, language_instruction=each) for start, each in told], observation

    def close(self) -> None:
        """Wait for all resets that were begun: their answers must not be taken for those of other requests."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each.is_begun:
                # Whoever closes now has a reason of its own, which counts more than what becomes of these episodes.
                with suppress(Exception):
                    self._finished(each)

    def _finished(self, waiting: "_Waiting") -> Observation:
        if self._elsewhere is None or not waiting.is_begun:
            return _placed(self._environment, waiting.starts)
        return self._elsewhere.finish_reset([start.env_id for start in waiting.starts])


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """Episodes that are to begin together.

    Attributes:
        starts: Their starts.
        turn: How many control steps have been made when it is their turn.
        is_begun: Whether their resets were begun.
    """

    starts: Sequence[EpisodeStart]
    turn: int
    is_begun: bool


def _placed(environment: Environment, starts: Sequence[EpisodeStart]) -> Observation:
    """Reset env slots; one whose episode carries a state gets it, bit for bit, where that is `Restorable`."""
    env_ids = _env_ids(environment, starts)
    conditions = [start.conditions for start in starts]
    states = [start.episode.start_state for start in starts]
    if all(state is None for state in states):
        return environment.reset(env_ids, conditions)
    try:
        if isinstance(environment, Restorable):
            return environment.restore(env_ids, conditions, [state or {} for state in states])
        return environment.reset(env_ids, conditions)
    except KeyError as missing:
        raise ArenaError(f"the recorded conditions lack {missing}, which this environment starts from") from missing
    except (TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        # Their keys are those that this environment knows, their values may be anything.
        raise ArenaError(f"the recorded start does not fit this environment: {first_line(error)}") from error


def _env_ids(environment: Environment, starts: Sequence[EpisodeStart]) -> torch.Tensor:
    slots = torch.tensor([start.env_id for start in starts], dtype=torch.int64)
    return slots.to(environment.device, non_blocking=True)


def _conditions(environment: Environment, episode: Episode) -> Conditions:
    if episode.saved_conditions is not None:
        return episode.saved_conditions
    drawn = environment.draw_conditions(episode.conditions_generator())
    return environment.vary_conditions(drawn, episode)


# Asks a policy and observers whose pictures they look at next, has those drawn, and shows each what it asked for.


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


# The loop: reset, act, step, observe, end.
#
# Episodes are assigned to env slots before they start, and every episode that starts is finished and counted. A slot
# whose episode ends takes the next one. To stop at the first K episodes that finish would favour short episodes.

_MOST_ENDED_STARTS = 1000


@torch.no_grad()
def rollout(
    environment: Environment,
    policy: PolicyBase,
    episodes: Iterable[Episode],
    observers: Sequence[Observer],
    *,
    language_instruction: str | None = None,
    limits: RolloutLimits = NO_LIMITS,
    stop_requested: Callable[[], bool] = lambda: False,
    stopwatch: Stopwatch | None = None,
) -> RolloutResult:
    """Run episodes until all have finished, or for a number of control steps.

    Args:
        environment: Its env slots run the episodes.
        policy: Gives their actions.
        episodes: What to run, in order of start. May be endless if ``limits`` has ``max_steps``.
        observers: Told of everything, in this order.
        language_instruction: What the policy is told in every episode, instead of the environment's own words.
        limits: How much it may do at most.
        stop_requested: Asked before every step; True ends the rollout, and so does whatever it raises.
        stopwatch: Counts where the time goes, and how long each episode takes.

    Raises:
        PolicyError: If the policy answers what the environment cannot take; `PolicyLostError` if it answers no more.
    """
    loop = EpisodeLoop(environment, policy, episodes, observers, language_instruction, limits, stopwatch or Stopwatch())
    interrupted = False
    with closing(loop):
        try:
            loop.reset(range(limits.num_used(environment.num_envs)))
            while loop.may_step and not (interrupted := stop_requested()):
                answer = loop.act()
                step, over = loop.settle(answer, loop.step(answer))
                loop.observe(answer, step)
                loop.reset(loop.end(step, over))
        except PolicyLostError as error:
            loop.end_lost_episodes(error)
            raise
    return loop.episodes.result(interrupted=interrupted)


class EpisodeLoop:
    """The verbs of the loop for one environment and one policy; see `rollout` for the arguments."""

    def __init__(
        self,
        environment: Environment,
        policy: PolicyBase,
        episodes: Iterable[Episode],
        observers: Sequence[Observer],
        language_instruction: str | None,
        limits: RolloutLimits,
        stopwatch: Stopwatch,
    ) -> None:
        self._environment, self._policy = environment, policy
        self._pending, self._limits, self._stopwatch = iter(episodes), limits, stopwatch
        self._measure = partial(stopwatch.measure, environment=environment)
        instruction = agreed_instruction(policy, environment, language_instruction)
        # Where steps are counted, none of them is left out.
        self._starting = StartingEpisodes(environment, instruction, may_overlap=limits.max_steps is None)
        self._observation: Observation = {}
        # Env slots at rest whose last observation holds NaN or infinity.
        self._unsound: set[int] = set()
        self._attempt = attempt_of(environment)
        self._tell_plans = telling_plans(policy, environment)
        self.pictures = PictureReaders(environment, policy, observers, stopwatch)
        self.episodes = RunningEpisodes(environment.num_envs, environment.device, environment.action_spec)

    @property
    def may_step(self) -> bool:
        """Whether an episode is under way and the limit of steps is not reached."""
        return self.episodes.num_running > 0 and self._limits.allow_step(self.episodes.num_steps)

    def reset(self, env_ids: Iterable[int]) -> None:
        """Start the next episodes in these env slots, unless there is no step left; slots without an episode rest.

        An env slot that is reset elsewhere rests too, until it is its turn to begin. An episode that is solved where it
        starts, or that cannot begin, is over at once, and its env slot starts the next.

        Raises:
            ArenaError: If steps decide how many episodes there are, and one after the other ends at its start.
        """
        free, ended = list(env_ids), 0
        while free or self._are_due():
            starts = self._start(free)
            solved = solved_starts(self._environment, starts) if starts else {}
            spoiled = bad_starts(self._environment, starts, self._observation) if starts else {}
            free = self._end({**solved, **spoiled})
            ended = ended + len(free) if len(free) == len(starts) else 0
            if ended > _MOST_ENDED_STARTS and self._limits.max_steps is not None:
                raise ArenaError(f"{ended} episodes, one after the other, ended at their start: no step is made")

    def _start(self, env_ids: Sequence[int]) -> Sequence[EpisodeStart]:
        """Begin to reset these env slots, and return the starts of the episodes whose turn it is."""
        environment, num_steps = self._environment, self.episodes.num_steps
        has_steps = self._limits.allow_step(num_steps)
        resets = next_starts(environment, env_ids, self._pending) if has_steps else []
        if resets:
            self.pictures.before_reset(resets)
            with self._measure(Phase.SIMULATE):
                self._starting.begin(resets, num_steps=num_steps)
        if not self._are_due():
            return []
        with self._measure(Phase.SIMULATE):
            starts, self._observation = self._starting.finish(num_steps=num_steps)
            begin_events(environment, starts)
        self.episodes.begin(starts, now_s=self._stopwatch.elapsed_s())
        self._unsound.difference_update(start.env_id for start in starts)
        with self._measure(Phase.POLICY):
            self._policy.start_episodes(environment, starts)
        self.pictures.show_starts(starts, self._observation)
        return starts

    def _are_due(self) -> bool:
        return self._starting.are_due(num_steps=self.episodes.num_steps, num_running=self.episodes.num_running)

    def act(self) -> PolicyAnswer:
        """Ask the policy what to do next, and at whose pictures it will look."""
        shown = without_unsound(self._observation, sorted(self._unsound)) if self._unsound else self._observation
        answer = self.pictures.ask(shown, self.episodes.running, self.episodes.num_running)
        self.episodes.note(answer)
        if self._tell_plans is not None:
            with self._measure(Phase.POLICY):
                self._tell_plans()
        return answer

    def step(self, answer: PolicyAnswer) -> Step:
        """Make the control step that the policy answered, as far as it can be known before it is settled."""
        with self._measure(Phase.SIMULATE):
            return self._attempt(answer.action)

    def settle(self, answer: PolicyAnswer, step: Step) -> tuple[Step, dict[int, Ending]]:
        """Return a step that was made, again if the first attempt failed, and how episodes end with it, by env slot.

        Only here, and only once in a step, the CPU waits for what a GPU has computed.
        """
        max_length = self._environment.max_episode_length
        with self._measure(Phase.SIMULATE):
            while (over := self.episodes.over(answer, step, max_length=max_length)) is None:
                step = made_again(self._environment)
        return step, over

    def observe(self, answer: PolicyAnswer, step: Step) -> None:
        """Show the step to the observers, with the observation that led to it."""
        transition = self.episodes.transition(self._observation, answer.action, step)
        self._observation = step.observation
        self.pictures.show_step(transition)

    def end(self, step: Step, over: Mapping[int, Ending]) -> Sequence[int]:
        """Count the step, end the episodes that are over or late, and return their env slots."""
        self.episodes.count(step)
        late = self.episodes.late(now_s=self._stopwatch.elapsed_s(), limit_s=self._limits.episode_timeout_s)
        return self._end({**late, **over})

    def _end(self, endings: Mapping[int, Ending]) -> list[int]:
        """End episodes, and return their env slots in order."""
        if not endings:
            return []
        if any(ending.outcome is Outcome.ERROR for ending in endings.values()):
            unsound = unsound_slots(self._observation)
            self._unsound |= set() if unsound is None else endings.keys() & set(unsound.nonzero().flatten().tolist())
        records = with_policy_metrics(self._policy, self.episodes.end(endings))
        with self._measure(Phase.SIMULATE):
            records = with_events(self._environment, records)
        self.pictures.show_ends(records)
        free = sorted(endings)
        with self._measure(Phase.POLICY):
            self._policy.end_episodes(self._environment, free)
        return free

    def end_lost_episodes(self, error: PolicyLostError) -> None:
        """End the episodes that have lost their policy. One that has made no step was not tried, and stays missing."""
        lost = dict.fromkeys(self.episodes.tried(), policy_lost(str(error)))
        self.pictures.show_ends(self.episodes.end(lost))

    def close(self) -> None:
        """Wait for resets under way; their episodes have not begun."""
        self._starting.close()
