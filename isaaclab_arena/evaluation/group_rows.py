"""The rows of one environment: which episode each of them runs, and what it has gathered so far."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from isaaclab_arena.errors import ArenaError, PolicyLostError
from isaaclab_arena.evaluation.endings import Ending, ending_of, out_of_time, policy_lost
from isaaclab_arena.evaluation.policy_answers import checked_action, checked_finished, checked_instruction, copied
from isaaclab_arena.evaluation.stepping import Stepping
from isaaclab_arena.evaluation.stopwatch import Phase, Stopwatch
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode, EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.policy.policy_base import PolicyBase


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
        num_running: Rows in which an episode is under way.
        finished_episodes: Episodes that ran to their end.
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
        num_rows, device = environment.num_envs, environment.device
        self._starts: list[EpisodeStart | None] = [None] * num_rows
        self._started_s = [0.0] * num_rows
        self._running = torch.zeros(num_rows, dtype=torch.bool, device=device)
        self._length = torch.zeros(num_rows, dtype=torch.int64, device=device)
        # Double precision, so that the sum does not depend on the order of magnitude of what came before.
        self._return = torch.zeros(num_rows, dtype=torch.float64, device=device)
        self._observation: Observation = {}
        self._begun: _BegunStep | None = None
        self._free: list[int] = []
        self._num_steps = 0
        self._latest: Step | None = None
        self.num_running = 0
        self.finished_episodes = 0
        self.env_steps = 0

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
            action = checked_action(answer, environment, self._running)
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
            running=self._running.clone(), observation=self._observation, action=begun.action, step=step
        )
        with self._measure(Phase.RECORD):
            for observer in self._shared.observers:
                observer.on_step(self._environment, transition)
        self._length += self._running
        self._return += torch.where(self._running, step.reward, 0.0)
        self.env_steps += self.num_running
        self._observation = step.observation
        ended = self._end_episodes_over(step, begun.policy_finished)
        self._free = sorted(ended + self._end_late_episodes(step))
        if self._free:
            with self._measure(Phase.POLICY):
                self._policy.end_episodes(self._environment, self._free)

    def end_lost_episodes(self, error: PolicyLostError) -> None:
        """End the episodes that have lost their policy. One without a step so far was not tried, and stays missing."""
        self.close()
        if self._latest is None:
            return
        for env_id in torch.nonzero(self._running & (self._length > 0)).flatten().tolist():
            self._end_episode(env_id, policy_lost(str(error)), self._latest)

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
        self._running[rows] = True
        self.num_running += len(starts)
        self._note_start(starts)
        self._length[rows] = 0
        self._return[rows] = 0.0
        with self._measure(Phase.POLICY):
            self._policy.start_episodes(environment, starts)
        with self._measure(Phase.RECORD):
            for observer in self._shared.observers:
                observer.on_episode_start(environment, starts, self._observation)

    def _note_start(self, starts: Sequence[EpisodeStart]) -> None:
        now_s = self._stopwatch.elapsed_s()
        for start in starts:
            self._starts[start.env_id] = start
            self._started_s[start.env_id] = now_s

    def _conditions(self, episode: Episode) -> Conditions:
        if episode.saved_conditions is not None:
            return episode.saved_conditions
        drawn = self._environment.draw_conditions(episode.conditions_generator())
        return self._environment.vary_conditions(drawn, episode)

    def _end_episodes_over(self, step: Step, policy_finished: torch.Tensor | None) -> list[int]:
        """End the episodes that are over, and return their rows."""
        over = step.terminated | step.truncated | step.diverged
        if policy_finished is not None:
            over = over | policy_finished.to(over.device)
        overdue = self._running & ~over & (self._length >= self._environment.max_episode_length)
        if bool(overdue.any()):
            raise ArenaError(
                f"the environment broke its contract: row {int(torch.nonzero(overdue)[0])} made "
                f"{self._environment.max_episode_length} steps, its max_episode_length, and was not truncated"
            )
        ended = torch.nonzero(over & self._running).flatten().tolist()
        for env_id in ended:
            self._end_episode(env_id, ending_of(step, env_id), step)
        return ended

    def _end_late_episodes(self, step: Step) -> list[int]:
        """End the episodes that take too long, and return their rows."""
        limit_s = self._shared.limits.episode_timeout_s
        if limit_s is None:
            return []
        now_s = self._stopwatch.elapsed_s()
        running = torch.nonzero(self._running).flatten().tolist()
        late = [env_id for env_id in running if now_s - self._started_s[env_id] > limit_s]
        for env_id in late:
            # The environment steps the row until it is reset, but nobody watches it any more.
            self._end_episode(env_id, out_of_time(limit_s), step)
        return late

    def _end_episode(self, env_id: int, ending: Ending, step: Step) -> None:
        start = self._starts[env_id]
        if start is None:
            raise RuntimeError(f"row {env_id} ended an episode that was never started")
        record = EpisodeRecord(
            episode=start.episode,
            env_id=env_id,
            outcome=ending.outcome,
            success=ending.success,
            length=int(self._length[env_id]),
            episode_return=float(self._return[env_id]),
            termination=ending.termination,
            conditions=start.conditions,
            language_instruction=start.language_instruction,
            metrics={name: float(values[env_id]) for name, values in step.metrics.items()},
            error=ending.error,
            first_row=self._first_row,
        )
        self._running[env_id] = False
        self.num_running -= 1
        self.finished_episodes += 1
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
