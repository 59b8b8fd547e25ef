"""The loop: reset, act, step, observe, end; for one environment, or for groups of env slots that take turns."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from isaaclab_arena.errors import ArenaError, PolicyError, PolicyLostError, first_line
from isaaclab_arena.evaluation import running_episodes
from isaaclab_arena.evaluation.running_episodes import Phase, PolicyAnswer, RolloutLimits, RunningEpisodes, Stopwatch
from isaaclab_arena.interfaces.environment import Environment, Step
from isaaclab_arena.interfaces.environment_builder import Background, background_of
from isaaclab_arena.interfaces.episode import SOLVED_AT_START, Episode, EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition, WatchedStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import announced_pictures, refuse_misread, seen_by
from isaaclab_arena.interfaces.specs import CAMERAS, Observation
from isaaclab_arena.nested import with_leaves

# Start episodes: their conditions, instruction and env slot, and the control steps made in the meantime.


def next_starts(environment: Environment, env_ids: Iterable[int], pending: Iterator[Episode]) -> list[EpisodeStart]:
    """Return the starts of the next episodes, one for each free env slot while episodes are left."""
    # Takes no more episodes than there are env slots. `StartingEpisodes` replaces the task's words by each episode's
    # own.
    starts = []
    words = environment.task_description
    for env_id, episode in zip(env_ids, pending, strict=False):
        conditions = episode.saved_conditions
        if conditions is None:
            drawn = environment.draw_conditions(episode.conditions_generator())
            conditions = environment.vary_conditions(drawn, episode)
        start = WatchedStart(env_id=env_id, episode=episode, conditions=conditions, language_instruction=words)
        starts.append(start)
    return starts


class StartingEpisodes:
    """Episodes whose env slots are being reset, each with the control step at which it begins."""

    def __init__(self, environment: Environment, instruction: str | None, *, may_overlap: bool) -> None:
        # An environment whose resets are made elsewhere steps in the meantime. The number of these steps is fixed, so
        # that results do not depend on the duration of a reset. `instruction` None: the environment states it for each
        # episode.
        self._environment, self._instruction = environment, instruction
        background = background_of(environment) if may_overlap else None
        self._elsewhere = None if background is None or background.steps_while_starting == 0 else background
        self.waiting: list[_Waiting] = []

    def begin(self, starts: Sequence[EpisodeStart], *, num_steps: int) -> None:
        """Begin the resets of these starts; `num_steps` counts the control steps made so far."""
        env_ids = torch.tensor([start.env_id for start in starts], dtype=torch.int64)
        env_ids = env_ids.to(self._environment.device, non_blocking=True)
        # A recorded start state is restored in this process, which cannot overlap.
        overlaps = self._elsewhere is not None and all(start.episode.start_state is None for start in starts)
        if self._elsewhere is not None and overlaps:
            self._elsewhere.begin_reset(env_ids, [start.conditions for start in starts])
            num_steps += self._elsewhere.steps_while_starting
        self.waiting.append(_Waiting(starts, env_ids, due_step=num_steps, is_elsewhere=overlaps))

    def finish(self, *, num_steps: int, num_running: int = 0) -> tuple[list[EpisodeStart], Observation] | None:
        """Wait for the resets that are due; return their starts by env slot and the observation of all env slots."""
        # None: none is due. If no episode runs, the first ones begin without waiting. `ArenaError` if a recorded state,
        # or the conditions beside it, do not fit the environment.
        due_step = min((each.due_step for each in self.waiting), default=num_steps + 1)
        if due_step > num_steps and (num_running or not self.waiting):
            return None
        due_step = max(num_steps, due_step)
        due = [each for each in self.waiting if each.due_step <= due_step]
        self.waiting = [each for each in self.waiting if each.due_step > due_step]
        observation: Observation = {}
        for each in due:
            observation = self._finished(each)
        starts = sorted((start for each in due for start in each.starts), key=lambda start: start.env_id)
        started = [
            replace(start, language_instruction=self._instruction or self._environment.instruction(start.conditions))
            for start in starts
        ]
        return started, observation

    def close(self) -> None:
        """Wait for all resets that were begun: their answers must not be taken for those of later requests."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if each.is_elsewhere:
                # The caller may close because of an error, which counts more than an error of these resets.
                with suppress(Exception):
                    self._finished(each)

    def _finished(self, waiting: "_Waiting") -> Observation:
        """Wait for a reset that was begun, or reset the env slots here."""
        starts, environment = waiting.starts, self._environment
        if self._elsewhere is not None and waiting.is_elsewhere:
            return self._elsewhere.finish_reset([start.env_id for start in starts])
        conditions = [start.conditions for start in starts]
        states = [start.episode.start_state for start in starts]
        if all(state is None for state in states):
            return environment.reset(waiting.env_ids, conditions)
        # An environment without `episode_states` may call something else ``restore``.
        is_restorable = type(environment).episode_states is not Environment.episode_states
        try:
            if is_restorable:
                return environment.restore(waiting.env_ids, conditions, [state or {} for state in states])
            return environment.reset(waiting.env_ids, conditions)
        except KeyError as missing:
            raise ArenaError(f"the recorded conditions lack {missing}, which this environment needs") from missing
        except (TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
            # The environment knows these keys, but a file's values may be anything.
            raise ArenaError(f"the recorded start does not fit this environment: {first_line(error)}") from error


class _Waiting(NamedTuple):
    """Episodes that are to begin together."""

    starts: Sequence[EpisodeStart]
    env_ids: torch.Tensor  # their env slots, (n,), int64, on the environment's device
    due_step: int  # number of control steps at which they begin
    is_elsewhere: bool  # whether their resets are made elsewhere


# Ask the policy, show the observers its steps, and have the pictures drawn that each of them reads.


class Readers:
    """The policy and the observers of one environment, each of which is shown the pictures that it announced."""

    def __init__(
        self, environment: Environment, policy: PolicyBase, observers: Sequence[Observer], stopwatch: Stopwatch
    ) -> None:
        # Before each `reset` and `step` every reader announces env slots, and the environment draws their union. Each
        # reader sees only the pictures it announced: the policy's actions must not depend on the observers.
        self._environment, self._policy, self._observers = environment, policy, observers
        self._stopwatch = stopwatch
        terms = environment.observation_spec.get(CAMERAS)
        self._num_terms = len(terms) if isinstance(terms, Mapping) else 0
        self._drawing = environment if self._num_terms and environment.pictures_drawn is not None else None
        # The env slots that each reader announced for the observation before the step, and for the next one: the policy
        # first, then the observers. All are True if pictures are not drawn on demand. Shape: (num_readers, num_envs),
        # bool.
        self._before, self._after = np.full((2, 1 + len(observers), environment.num_envs), self._drawing is None)
        # By env slot under reset: the readers of its first pictures. Shape: (num_readers,), bool.
        self._of_starting: dict[int, np.ndarray] = {}

    def before_reset(self, starts: Sequence[EpisodeStart]) -> None:
        """Announce the pictures that the first observations of these episodes need."""
        if self._drawing is not None:
            env_ids = [start.env_id for start in starts]
            self._after[:, env_ids] = False
            looked_at = self._announce(self._drawing, starts)
            self._of_starting.update({env_id: self._after[:, env_id].copy() for env_id in env_ids})
            self._stopwatch.pictures_looked_at += int(looked_at[env_ids].sum()) * self._num_terms

    def ask_policy(self, observation: Observation, running: torch.Tensor, num_running: int) -> PolicyAnswer:
        """Return the policy's answer, and announce the pictures needed after its step. running: (num_envs,), bool."""
        with self._stopwatch.measure(Phase.POLICY, self._environment):
            # The policy announced in its previous call the env slots whose pictures it sees now.
            seen = _seen_by(self._policy, observation, self._after[0])
            answer = running_episodes.checked_answer(self._policy, self._environment, seen, running)
            if self._drawing is None:
                return answer
            # From here on, announcements concern the observation after the step.
            self._before[:] = self._after
            self._after[:] = False
            looked_at = self._announce(self._drawing, ())
            num_looked_at = num_running if looked_at.all() else int(looked_at.sum())
            self._stopwatch.pictures_looked_at += num_looked_at * self._num_terms
            return answer

    def show_starts(self, starts: Sequence[EpisodeStart], observation: Observation) -> None:
        """Show the observers the episodes that begin and their first observation."""
        # Control steps since the resets have overwritten the announcements, so restore those of the starts.
        for start in starts if self._drawing is not None else ():
            self._after[:, start.env_id] = self._of_starting.pop(start.env_id)
        with self._stopwatch.measure(Phase.RECORD, self._environment):
            try:
                for observer, after in zip(self._observers, self._after[1:], strict=True):
                    observer.on_episode_start(self._environment, starts, _seen_by(observer, observation, after))
            except AttributeError as error:
                refuse_misread(error)
                raise

    def show_step(self, transition: Transition) -> None:
        """Show the observers a control step."""
        with self._stopwatch.measure(Phase.RECORD, self._environment):
            try:
                for observer, before, after in zip(self._observers, self._before[1:], self._after[1:], strict=True):
                    seen, step = transition, transition.step
                    if self._drawing is not None and not (before.all() and after.all()):
                        step = replace(step, observation=_seen_by(observer, step.observation, after))
                        shown = _seen_by(observer, transition.observation, before)
                        seen = replace(transition, observation=shown, step=step)
                    observer.on_step(self._environment, seen)
            # An observer may take announced pictures for those of all env slots, which is refused by its name.
            except AttributeError as error:
                refuse_misread(error)
                raise

    def show_ends(self, records: Sequence[EpisodeRecord]) -> None:
        """Show the observers the episodes that ended, one after the other."""
        for record in records:
            with self._stopwatch.measure(Phase.RECORD, self._environment):
                for observer in self._observers:
                    observer.on_episode_end(self._environment, record)

    def _announce(self, drawing: Environment, starts: Sequence[EpisodeStart]) -> np.ndarray:
        """Have the union of all announcements drawn. Return the mask of the env slots that are read, (num_envs,)."""
        named = np.zeros_like(self._after)
        starting = [start.env_id for start in starts]
        # Each reader is asked once the answer of the one before it is checked.
        wanted = chain(
            [(self._policy, announced_pictures(self._policy, self._environment, starting))],
            ((observer, observer.pictures_to_see(self._environment, starts)) for observer in self._observers),
        )
        for row, (reader, env_ids) in zip(named, wanted, strict=True):
            try:
                row[slice(None) if env_ids is None else list(env_ids)] = True
            except (IndexError, TypeError, ValueError) as error:
                raise (PolicyError if isinstance(reader, PolicyBase) else ArenaError)(
                    f"{type(reader).__name__}.pictures_to_see must return env slots below {len(row)}, or None, "
                    f"it returned {env_ids}"
                ) from error
        self._after |= named
        drawn = named.any(axis=0)
        drawing.draw_pictures_of(None if drawn.all() else np.flatnonzero(drawn).tolist())
        # An observer without hooks looks at nothing: it is there to have everything drawn.
        looks = [True, *(type(observer) is not Observer for observer in self._observers)]
        return np.logical_or.reduce(named[looks])


def _seen_by(reader: PolicyBase | Observer, observation: Observation, announced: np.ndarray) -> Observation:
    """Return the observation with only the pictures that a reader has announced. Shape of the mask: (num_envs,)."""
    # A reader of all pictures gets tensors, unless it is a policy that says in its traits that it announces them.
    announces = isinstance(reader, PolicyBase) and reader.traits.pictures == "announced" and CAMERAS in observation
    if announced.all() and not announces:
        return observation
    return {**observation, CAMERAS: seen_by(type(reader).__name__, observation[CAMERAS], announced)}


# The loop: reset, act, step, observe, end.
#
# Episodes are assigned to env slots before they start, and every episode that starts is finished and counted. An env
# slot whose episode ends takes the next one. To stop at the first K episodes that finish would favour short episodes.

_LOG = logging.getLogger(__name__)


@torch.no_grad()
def rollout(
    environment: Environment,
    policy: PolicyBase,
    episodes: Iterable[Episode],
    observers: Sequence[Observer],
    *,
    language_instruction: str | None = None,
    limits: RolloutLimits = running_episodes.NO_LIMITS,
    stop_requested: Callable[[], bool] = lambda: False,
    stopwatch: Stopwatch | None = None,
) -> running_episodes.RolloutResult:
    """Run episodes until all have finished, the limits are reached, or `stop_requested` returns True."""
    # `episodes` may be endless if `limits` has `max_steps`. Observers are called in their order. `language_instruction`
    # replaces the environment's own for every episode.
    loop = EpisodeLoop(environment, policy, episodes, observers, language_instruction, limits, stopwatch or Stopwatch())
    interrupted = False
    # Resets that are under way at the end are waited for; their episodes have not begun.
    with closing(loop.starting):
        try:
            num_envs = environment.num_envs
            loop.reset(range(num_envs if limits.max_envs is None else min(limits.max_envs, num_envs)))
            while loop.may_step and not (interrupted := stop_requested()):
                answer = loop.act()
                with loop.measure(Phase.SIMULATE):
                    step = loop.step(answer.action)
                loop.reset(loop.finish_step(answer, step))
        # The policy answers no more: record the episodes it leaves behind before the error ends the rollout.
        except PolicyLostError as error:
            loop.pictures.show_ends(loop.episodes.lost(error))
            raise
    return running_episodes.RolloutResult(
        finished_episodes=loop.episodes.num_finished,
        cut_episodes=loop.episodes.num_running,
        interrupted=interrupted,
    )


class EpisodeLoop:
    """The operations of the loop for one environment and one policy; see `rollout` for the arguments."""

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
        self.environment, self._policy = environment, policy
        self._pending, self._limits, self._stopwatch = iter(episodes), limits, stopwatch
        self._max_steps = math.inf if limits.max_steps is None else limits.max_steps
        self.measure = partial(stopwatch.measure, environment=environment)
        # An environment that cannot make a step again may call something else ``try_step``.
        can_try = type(environment).step_again is not Environment.step_again
        self.step = environment.try_step if can_try else environment.step
        instruction = running_episodes.agreed_instruction(policy, environment, language_instruction)
        # With a limit of steps, env slots must not miss steps while they are reset.
        self.starting = StartingEpisodes(environment, instruction, may_overlap=limits.max_steps is None)
        self._observation: Observation = {}
        # Env slots at rest whose last observation holds NaN or infinity.
        self._unsound: set[int] = set()
        self.pictures = Readers(environment, policy, observers, stopwatch)
        self.episodes = RunningEpisodes(environment.num_envs, environment.device, environment.action_spec)

    @property
    def may_step(self) -> bool:
        """Whether an episode is under way and the limit of steps is not reached."""
        return self.episodes.num_running > 0 and self.episodes.num_steps < self._max_steps

    def reset(self, env_ids: Iterable[int]) -> None:
        """Start the next episodes in these env slots; slots without an episode, or under reset elsewhere, rest."""
        # An episode that is solved at its start, or cannot begin, ends at once, and its env slot starts the next one.
        environment, num_steps = self.environment, self.episodes.num_steps
        may_start = num_steps < self._max_steps
        free, ended = list(env_ids), 0
        while True:
            resets = next_starts(environment, free, self._pending) if free and may_start else []
            if resets:
                self.pictures.before_reset(resets)
                with self.measure(Phase.SIMULATE):
                    self.starting.begin(resets, num_steps=num_steps)

            # Only the episodes that are due begin now; others wait for their resets while the rest makes steps.
            if not self.starting.waiting:
                return
            with self.measure(Phase.SIMULATE):
                started = self.starting.finish(num_steps=num_steps, num_running=self.episodes.num_running)
                if started is None:
                    return
                starts, self._observation = started
                environment.begin_events([start.env_id for start in starts])
            self.episodes.begin(starts, now_s=self._stopwatch.elapsed_s())
            self._unsound.difference_update(start.env_id for start in starts)
            with self.measure(Phase.POLICY):
                self._policy.start_episodes(environment, starts)
            self.pictures.show_starts(starts, self._observation)

            # Find episodes that are over at their start: solved, or spoiled by NaN, infinity or an error of the
            # environment.
            over, started_ids = dict[int, running_episodes.Ending](), [start.env_id for start in starts]
            for start, solved in zip(starts, environment.solved_at_start(started_ids), strict=True):
                if solved:
                    error = (
                        f"the task '{start.language_instruction}' was already solved at the start; this is an error "
                        "of the task, not of the policy"
                    )
                    over[start.env_id] = running_episodes.failed(SOLVED_AT_START, error)
                    episode = start.episode
                    message = "job '%s', episode %d, seed %d: %s"
                    _LOG.error(message, episode.job, episode.episode_index, episode.seed, error)
            unsound = running_episodes.unsound_slots(self._observation)
            found = [] if unsound is None else np.flatnonzero(unsound.cpu().numpy())
            bad = {
                env_id: running_episodes.unsound_entry(self._observation, env_id)
                for env_id in started_ids
                if env_id in found
            }
            bad |= environment.start_errors(started_ids)
            for env_id, error in bad.items():
                over[env_id] = running_episodes.failed(running_episodes.BAD_START, f"at the reset, {error}")

            free = self._end(over)
            ended = ended + len(free) if len(free) == len(starts) else 0
            # Without this limit a task that always ends at its start would never reach `max_steps`.
            if ended > 1000 and self._limits.max_steps is not None:
                raise ArenaError(f"{ended} episodes in a row ended at their start, without a step")

    def act(self) -> PolicyAnswer:
        """Ask the policy for the next action, and have the pictures that are read after it announced."""
        shown = self._observation
        if self._unsound:
            # Show zeros in place of NaN and infinity in these env slots, which rest: the policy sees all env slots, and
            # may refuse NaN even in those for which it need not act.
            slots = torch.tensor(sorted(self._unsound))
            shown = {
                group: terms
                if group == CAMERAS
                else with_leaves(
                    terms,
                    lambda part: (
                        part.index_put((slots,), part[slots].nan_to_num(0.0, 0.0, 0.0))
                        if isinstance(part, torch.Tensor) and part.is_floating_point()
                        else part
                    ),
                )
                for group, terms in shown.items()
            }
        answer = self.pictures.ask_policy(shown, self.episodes.running, self.episodes.num_running)
        self.episodes.note(answer.action)
        return answer

    def finish_step(self, answer: PolicyAnswer, step: Step) -> Sequence[int]:
        """Show and count the control step, end the episodes that are over or late, and return their env slots."""
        # A failed attempt is made again. Here, once in a step, the CPU waits for the GPU.
        environment = self.environment
        max_length = environment.max_episode_length
        with self.measure(Phase.SIMULATE):
            while (over := self.episodes.over(answer, step, max_length=max_length)) is None:
                step = environment.step_again()

        transition = Transition(
            running=self.episodes.running.clone(),
            num_running=self.episodes.num_running,
            observation=self._observation,
            action=answer.action,
            step=step,
        )
        self._observation = step.observation
        self.pictures.show_step(transition)

        self.episodes.count(step)
        late = self.episodes.late(now_s=self._stopwatch.elapsed_s(), limit_s=self._limits.episode_timeout_s)
        return self._end({**late, **over})

    def _end(self, endings: Mapping[int, running_episodes.Ending]) -> list[int]:
        """End episodes, and return their env slots in order."""
        if not endings:
            return []
        # An env slot at rest keeps its last observation: the policy must not see NaN or infinity of it.
        if any(ending.outcome is Outcome.ERROR for ending in endings.values()):
            unsound = running_episodes.unsound_slots(self._observation)
            self._unsound |= set() if unsound is None else endings.keys() & set(unsound.nonzero().flatten().tolist())
        records = self.episodes.end(endings)
        if "episode_metrics" in self._policy.offers:
            # The policy forgets an episode at its end.
            numbers = [self._policy.episode_metrics(each.env_id) for each in records]
            joined = [{**each.metrics, **own} for each, own in zip(records, numbers, strict=True)]
            records = [replace(each, metrics=own) for each, own in zip(records, joined, strict=True)]
        # Errors have no events, nor have the episodes of an environment that reports none.
        judged = [record for record in records if record.outcome not in (Outcome.ERROR, None)]
        if judged:
            with self.measure(Phase.SIMULATE):
                solved = [record.success is True for record in judged]
                events = self.environment.episode_events([record.env_id for record in judged], solved)
            found = {record.env_id: each for record, each in zip(judged, events, strict=True)}
            records = [replace(record, events=found.get(record.env_id)) for record in records]
        self.pictures.show_ends(records)
        free = sorted(endings)
        with self.measure(Phase.POLICY):
            self._policy.end_episodes(self.environment, free)
        return free


# The loop for groups of env slots: while one group is simulated, the policy acts for another.


@dataclass(frozen=True, kw_only=True)
class EnvGroup:
    """Env slots that are simulated together and share the calls of a policy."""

    environment: Environment
    policy: PolicyBase  # remembers the episodes of this group only


def group_sizes(num_envs: int, num_groups: int) -> list[int]:
    """Divide env slots into groups of equal size; the first groups have one more if needed."""
    size, left = divmod(num_envs, num_groups)
    return [size + (group < left) for group in range(num_groups)]


@torch.no_grad()
def pipelined_rollout(
    groups: Sequence[EnvGroup],
    episodes: Iterable[Episode],
    observers: Sequence[Observer],
    *,
    language_instruction: str | None = None,
    limits: RolloutLimits = running_episodes.NO_LIMITS,
    stop_requested: Callable[[], bool] = lambda: False,
    stopwatch: Stopwatch | None = None,
) -> running_episodes.RolloutResult:
    """Run episodes in groups of env slots; see `rollout` for the arguments and errors."""
    # Every group may make `max_steps`; `max_envs` is shared among them. Policies and observers are called in the
    # caller's thread only; steps are made in other threads or in workers.
    pending, stopwatch = iter(episodes), stopwatch or Stopwatch()
    pipelined: list[_PipelinedGroup] = []
    try:
        with ExitStack() as stack:
            for group in groups:
                common = pending, observers, language_instruction, limits, stopwatch
                loop = EpisodeLoop(group.environment, group.policy, *common)
                stack.enter_context(closing(loop.starting))
                pipelined.append(stack.enter_context(closing(_PipelinedGroup(loop, stopwatch))))

            # The limit of env slots is divided evenly among the groups.
            num_envs = [group.environment.num_envs for group in groups]
            num_used = sum(num_envs) if limits.max_envs is None else min(limits.max_envs, sum(num_envs))
            sizes = group_sizes(num_used, len(groups))
            for group, size, most in zip(pipelined, sizes, num_envs, strict=True):
                group.loop.reset(range(min(size, most)))

            # Results must not depend on the speed of a group, so their order is fixed.
            interrupted = False
            while not interrupted and any(group.under_way or group.loop.may_step for group in pipelined):
                for group in pipelined:
                    group.loop.reset(group.finish_step())
                    if not group.loop.may_step:
                        continue
                    interrupted = stop_requested()
                    if interrupted:
                        break
                    group.begin_step()
            for group in pipelined:
                group.finish_step()
    except PolicyLostError as error:
        for group in pipelined:
            group.loop.pictures.show_ends(group.loop.episodes.lost(error))
        raise
    counters = [group.loop.episodes for group in pipelined]
    return running_episodes.RolloutResult(
        finished_episodes=sum(each.num_finished for each in counters),
        cut_episodes=sum(each.num_running for each in counters),
        interrupted=interrupted,
    )


class _PipelinedGroup:
    """One group and its step under way, which its processes or a thread simulate while the policy acts for others."""

    # No other code uses the environment between `begin_step` and `finish_step`.
    def __init__(self, loop: EpisodeLoop, stopwatch: Stopwatch) -> None:
        self.loop, self._stopwatch = loop, stopwatch
        environment = loop.environment
        # The answer whose step is under way, and the place where it is made.
        self.under_way: tuple[PolicyAnswer, Background | Future[_Made]] | None = None
        self._background = background_of(environment)
        # A thread has its own stream of a GPU, so that neither waits for the policy. It also has its own current GPU,
        # by default the first one, which may be another rank's.
        is_gpu = environment.device.type == "cuda"
        self._stream = torch.cuda.Stream(environment.device) if is_gpu else None
        begin = partial(torch.cuda.set_device, environment.device) if is_gpu else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="simulation", initializer=begin)

    def begin_step(self) -> None:
        """Ask the policy, and begin the step of its answer."""
        answer = self.loop.act()
        if self._background is not None:
            with self._stopwatch.measure(Phase.SIMULATE):
                self._background.begin_step(answer.action)
            self.under_way = answer, self._background
            return
        # The event happens once the GPU has finished everything that the policy has queued so far.
        ready = None
        if self._stream is not None:
            ready = torch.cuda.Event()
            torch.cuda.current_stream(self._stream.device).record_event(ready)
        self.under_way = answer, self._thread.submit(self._make, answer.action, ready)

    def finish_step(self) -> Sequence[int]:
        """Finish the step under way, if any; return the env slots whose episodes ended with it."""
        # The stopwatch counts only the wait: the overlap costs nothing.
        if self.under_way is None:
            return ()
        (answer, working), self.under_way = self.under_way, None
        if isinstance(working, Background):
            with self._stopwatch.measure(Phase.SIMULATE):
                step = working.finish_step()
            return self.loop.finish_step(answer, step)
        began_s = self._stopwatch.elapsed_s()
        step, render_share, done = working.result()
        waited_s = self._stopwatch.elapsed_s() - began_s
        # Of the wait, rendering gets the same share as of the step.
        self._stopwatch.seconds[Phase.RENDER] += waited_s * render_share
        self._stopwatch.seconds[Phase.SIMULATE] += waited_s * (1.0 - render_share)
        if self._stream is not None and done is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(done)
        return self.loop.finish_step(answer, step)

    def close(self) -> None:
        """Wait for a step under way: its answer must not be taken for that of another request."""
        if self.under_way is not None and isinstance(self.under_way[1], Background):
            # The caller may close because of an error, which counts more than an error of this step.
            with suppress(Exception):
                self.under_way[1].finish_step()
        self._thread.shutdown()

    # torch's gradient mode is per thread.
    @torch.no_grad()
    def _make(self, action: torch.Tensor, ready: torch.cuda.Event | None) -> "_Made":
        if self._stream is not None and ready is not None:
            self._stream.wait_event(ready)
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            environment = self.loop.environment
            began_s, rendered_s = self._stopwatch.elapsed_s(), environment.render_s
            step = self.loop.step(action)
            taken_s, rendered_s = self._stopwatch.elapsed_s() - began_s, environment.render_s - rendered_s
            done = None
            if self._stream is not None:
                done = torch.cuda.Event()
                self._stream.record_event(done)
            return step, rendered_s / taken_s if taken_s > 0 else 0.0, done


_Made: TypeAlias = tuple[Step, float, torch.cuda.Event | None]
"""A step of another thread, the share of its time for pictures, and when the GPU has finished it."""
