"""The rows of one environment, from step to step: the policy acts, physics answers, observers watch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.evaluation.rollout.endings import Ending, out_of_time, policy_lost
from isaaclab_arena.evaluation.rollout.policy_answers import (
    checked_action,
    checked_finished,
    checked_instruction,
    copied,
)
from isaaclab_arena.evaluation.rollout.running_episodes import RunningEpisodes
from isaaclab_arena.evaluation.rollout.stepping import Stepping
from isaaclab_arena.evaluation.rollout.stopwatch import Phase, Stopwatch
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase


@dataclass(frozen=True, kw_only=True)
class RolloutLimits:
    """How much a rollout may do at most; None is no limit.

    Attributes:
        max_steps: Control steps of the batch after which the rollout ends and cuts the episodes under way.
        max_rows: Rows that are used at once; those beyond rest.
        episode_timeout_s: Wall time of an episode [s]. One that takes longer ends as an error after the step under way,
            and its row takes the next episode.
    """

    max_steps: int | None = None
    max_rows: int | None = None
    episode_timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """Rows that are simulated together, and whose actions are asked for together.

    Attributes:
        environment: Its rows run episodes.
        policy: Gives their actions, and remembers their episodes and no others.
        first_row: Rows that the job has in groups before this one.
    """

    environment: Environment
    policy: PolicyBase
    first_row: int = 0


@dataclass(frozen=True, kw_only=True)
class SharedParts:
    """What all groups of a rollout share.

    Attributes:
        pending: Episodes that have yet to begin, in order.
        observers: Told of everything, in this order.
        language_instruction: What the policy is told in every episode, instead of the environment's own words.
        limits: How much may be done at most.
        stopwatch: Counts where the time goes.
    """

    pending: Iterator[Episode]
    observers: Sequence[Observer]
    language_instruction: str | None
    limits: RolloutLimits
    stopwatch: Stopwatch


class GroupRows:
    """The rows of a group, from step to step.

    The calls are `start`, then in turn `begin_step` and `finish_step`, after which `refill` puts the next episodes
    into rows that became free.

    Args:
        group: Whose rows.
        shared: What it shares with other groups.
        make_stepping: Makes what steps its environment.

    Attributes:
        env_steps: Control steps summed over running rows.
    """

    def __init__(
        self, group: RowGroup, shared: SharedParts, make_stepping: Callable[[Environment, Stopwatch], Stepping]
    ) -> None:
        self._environment = environment = group.environment
        self._policy = group.policy
        self._first_row = group.first_row
        self._shared = shared
        self._stopwatch = shared.stopwatch
        self._stepping = make_stepping(environment, shared.stopwatch)
        self._instruction: str | None = None
        self._episodes = RunningEpisodes(environment.num_envs, environment.device)
        self._observation: Observation = {}
        self._begun: _BegunStep | None = None
        self._free: list[int] = []
        self._num_steps = 0
        self._latest: Step | None = None
        self.env_steps = 0

    @property
    def num_running(self) -> int:
        """Rows in which an episode is under way."""
        return self._episodes.num_running

    @property
    def finished_episodes(self) -> int:
        """Episodes that ran to their end."""
        return self._episodes.num_finished

    @property
    def is_stepping(self) -> bool:
        """Whether a step was begun and not finished."""
        return self._begun is not None

    @property
    def may_step(self) -> bool:
        """Whether there is a step to make."""
        return self.num_running > 0 and self._is_within_limit()

    def start(self, num_rows: int) -> None:
        """Begin the first episodes, in so many rows.

        Raises:
            PolicyError: If the policy will follow something that is no instruction.
        """
        self._instruction = self._agreed_instruction()
        self._free = list(range(num_rows))
        self.refill()

    def refill(self) -> None:
        """Give each row that became free the next pending episode; those for which there is none rest."""
        if self._free and self._is_within_limit():
            self._start_episodes(self._free)
        self._free = []

    def begin_step(self) -> None:
        """Ask the policy, and begin the step that follows from its answer.

        Raises:
            PolicyError: If the policy's action has the wrong shape or holds NaN or infinity.
            PolicyLostError: If the policy answers no more.
        """
        environment, policy = self._environment, self._policy
        with self._measure(Phase.POLICY):
            # The policy gets tensors of its own: what it does to them must not reach the recording.
            answer = policy.get_action(environment, copied(self._observation))
            action = checked_action(answer, environment, self._episodes.running)
            finished = checked_finished(policy.finished(), environment)
        self._begun = _BegunStep(action=action, policy_finished=finished)
        self._stepping.begin(action)
        self._num_steps += 1

    def finish_step(self) -> None:
        """Wait for the step that was begun, show it to the observers, and end the episodes that ended with it.

        Raises:
            ArenaError: If the environment lets an episode run past its ``max_episode_length``.
        """
        begun, self._begun = self._begun, None
        if begun is None:
            raise RuntimeError("no step was begun")
        step = self._latest = self._stepping.finish()
        transition = Transition(
            running=self._episodes.running.clone(),
            num_running=self.num_running,
            observation=self._observation,
            action=begun.action,
            step=step,
        )
        with self._measure(Phase.RECORD):
            for observer in self._shared.observers:
                observer.on_step(self._environment, transition)
        self._episodes.count(step)
        self.env_steps += self.num_running
        self._observation = step.observation
        max_length = self._environment.max_episode_length
        ended = self._episodes.over(step, begun.policy_finished, max_length=max_length)
        self._end(ended, step)
        self._free = sorted([*ended, *self._end_late_episodes(step)])
        if self._free:
            with self._measure(Phase.POLICY):
                self._policy.end_episodes(self._environment, self._free)

    def end_lost_episodes(self, error: PolicyLostError) -> None:
        """End the episodes that have lost their policy. One without a step so far was not tried, and stays missing."""
        self.close()
        if self._latest is not None:
            self._end(dict.fromkeys(self._episodes.tried(), policy_lost(str(error))), self._latest)

    def close(self) -> None:
        """Wait until nothing happens in the environment any more. May be called more than once."""
        self._begun = None
        self._stepping.close()

    def _is_within_limit(self) -> bool:
        max_steps = self._shared.limits.max_steps
        return max_steps is None or self._num_steps < max_steps

    def _agreed_instruction(self) -> str | None:
        """Return what every episode is told: what the job says or the policy insists on; None if each has its own."""
        asked = self._shared.language_instruction
        told = asked or self._environment.task_description
        answer = checked_instruction(self._policy.set_task_description(told), told)
        return asked if answer == told else answer

    def _start_episodes(self, env_ids: Sequence[int]) -> None:
        """Give each named row the next pending episode."""
        environment = self._environment
        starts = []
        for env_id, episode in zip(env_ids, self._shared.pending, strict=False):
            conditions = self._conditions(episode)
            start = EpisodeStart(
                env_id=env_id,
                episode=episode,
                conditions=conditions,
                language_instruction=self._instruction or environment.instruction(conditions),
                first_row=self._first_row,
            )
            starts.append(start)
        if not starts:
            return
        rows = torch.tensor([start.env_id for start in starts], dtype=torch.int64, device=environment.device)
        with self._measure(Phase.SIMULATE):
            self._observation = environment.reset(rows, [start.conditions for start in starts])
        self._episodes.begin(starts, now_s=self._stopwatch.elapsed_s())
        with self._measure(Phase.POLICY):
            self._policy.start_episodes(environment, starts)
        with self._measure(Phase.RECORD):
            for observer in self._shared.observers:
                observer.on_episode_start(environment, starts, self._observation)

    def _conditions(self, episode: Episode) -> Conditions:
        if episode.saved_conditions is not None:
            return episode.saved_conditions
        drawn = self._environment.draw_conditions(episode.conditions_generator())
        return self._environment.vary_conditions(drawn, episode)

    def _end_late_episodes(self, step: Step) -> list[int]:
        """End the episodes that take too long, and return their rows."""
        limit_s = self._shared.limits.episode_timeout_s
        if limit_s is None:
            return []
        late = self._episodes.late(now_s=self._stopwatch.elapsed_s(), limit_s=limit_s)
        # The environment steps such a row until it is reset, but nobody watches it any more.
        self._end(dict.fromkeys(late, out_of_time(limit_s)), step)
        return late

    def _end(self, endings: Mapping[int, Ending], step: Step) -> None:
        """End the episodes of the named rows, and tell the observers."""
        for record in self._episodes.end(endings, step):
            with self._measure(Phase.RECORD):
                for observer in self._shared.observers:
                    observer.on_episode_end(self._environment, record)

    @contextmanager
    def _measure(self, phase: Phase) -> Iterator[None]:
        """Count the time inside the block towards a phase, and what the environment rendered meanwhile as such."""
        rendered_s = self._environment.render_s
        with self._stopwatch.measure(phase):
            yield
        self._stopwatch.move(self._environment.render_s - rendered_s, counted_as=phase, to=Phase.RENDER)


@dataclass(frozen=True, kw_only=True)
class _BegunStep:
    """A step under way.

    Attributes:
        action: What the policy does. Shape: (num_envs, action_dim).
        policy_finished: Rows in which it has nothing more to do, None for none. Shape: (num_envs,), bool.
    """

    action: torch.Tensor
    policy_finished: torch.Tensor | None
