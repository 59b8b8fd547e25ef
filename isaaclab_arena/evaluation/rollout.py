"""The loop: one environment, one policy, a fixed list of episodes, and whoever watches.

Episodes are assigned to rows before they start, and every episode that starts is finished and counted. A row that
finishes takes the next episode not yet started. So the set of episodes never depends on which of them are short:
stopping at the first K that finish, as vectorised evaluators commonly do, favours short episodes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from isaaclab_arena.errors import ArenaError, PolicyLostError
from isaaclab_arena.evaluation.endings import Ending, ending_of, out_of_time, policy_lost
from isaaclab_arena.evaluation.policy_answers import checked_action, checked_finished, checked_instruction, copied
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


NO_LIMITS = RolloutLimits()


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """What a rollout did.

    Attributes:
        finished_episodes: Episodes that ran to their end.
        cut_episodes: Episodes that had started when the step limit or a stop request ended the rollout.
        env_steps: Control steps summed over running rows.
        interrupted: Whether a stop request ended it.
    """

    finished_episodes: int
    cut_episodes: int
    env_steps: int
    interrupted: bool


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
        environment: Its rows run the episodes.
        policy: Gives the actions.
        episodes: What to run, in order of start. May be endless if ``limits`` has ``max_steps``.
        observers: Told of everything, in this order.
        language_instruction: What the policy is told in every episode, instead of the environment's own words.
        limits: How much it may do at most.
        stop_requested: Asked before every step; True ends the rollout, and so does whatever it raises.
        stopwatch: Counts where the time goes, and how long each episode takes.

    Returns:
        How many episodes finished and how many were cut.

    Raises:
        PolicyError: If the policy's action has the wrong shape or holds NaN or infinity.
        PolicyLostError: If the policy answers no more. Episodes that had made a step have then ended as errors.
        ArenaError: If the environment lets an episode run past its ``max_episode_length``.
    """
    told = language_instruction
    loop = _Loop(environment, policy, iter(episodes), observers, told, limits, stopwatch or Stopwatch())
    with torch.no_grad():
        try:
            return loop.run(stop_requested)
        except PolicyLostError as error:
            loop.end_lost_episodes(error)
            raise


class _Loop:
    """The state of one rollout: which episode each row runs, and what it has gathered so far."""

    def __init__(
        self,
        environment: Environment,
        policy: PolicyBase,
        pending: Iterator[Episode],
        observers: Sequence[Observer],
        language_instruction: str | None,
        limits: RolloutLimits,
        stopwatch: Stopwatch,
    ) -> None:
        self._environment = environment
        self._policy = policy
        self._pending = pending
        self._observers = observers
        self._stopwatch = stopwatch
        self._instruction = language_instruction
        self._limits = limits
        rows, device = environment.num_envs, environment.device
        self._starts: list[EpisodeStart | None] = [None] * rows
        self._started_s = [0.0] * rows
        self._running = torch.zeros(rows, dtype=torch.bool, device=device)
        self._length = torch.zeros(rows, dtype=torch.int64, device=device)
        # Double precision, so that the sum does not depend on the order of magnitude of what came before.
        self._return = torch.zeros(rows, dtype=torch.float64, device=device)
        self._num_running = 0
        self._finished_episodes = 0
        self._env_steps = 0
        self._latest: Step | None = None

    def run(self, stop_requested: Callable[[], bool]) -> RolloutResult:
        self._instruction = self._agreed_instruction()
        max_steps = self._limits.max_steps
        observation = self._start_episodes(range(self._environment.num_envs)[: self._limits.max_rows])
        num_steps, interrupted = 0, False
        while observation is not None and self._num_running > 0:
            if max_steps is not None and num_steps >= max_steps:
                break
            interrupted = stop_requested()
            if interrupted:
                break
            step, ended = self._step(observation)
            num_steps += 1
            observation = step.observation
            if ended and (max_steps is None or num_steps < max_steps):
                observation = self._start_episodes(ended) or observation
        return RolloutResult(
            finished_episodes=self._finished_episodes,
            cut_episodes=self._num_running,
            env_steps=self._env_steps,
            interrupted=interrupted,
        )

    def end_lost_episodes(self, error: PolicyLostError) -> None:
        """End the episodes that have lost their policy. One without a step so far was not tried, and stays missing."""
        if self._latest is None:
            return
        for env_id in torch.nonzero(self._running & (self._length > 0)).flatten().tolist():
            self._end_episode(env_id, policy_lost(str(error)), self._latest)

    def _agreed_instruction(self) -> str | None:
        """Return what every episode is told: what the job says or the policy insists on; None if each has its own."""
        told = self._instruction or self._environment.task_description
        answer = checked_instruction(self._policy.set_task_description(told), told)
        return self._instruction if answer == told else answer

    def _start_episodes(self, env_ids: Sequence[int]) -> Observation | None:
        """Give each named row the next pending episode; return the observation, None if nothing was started."""
        environment = self._environment
        starts = []
        for env_id, episode in zip(env_ids, self._pending, strict=False):
            conditions = self._conditions(episode)
            start = EpisodeStart(
                env_id=env_id,
                episode=episode,
                conditions=conditions,
                language_instruction=self._instruction or environment.instruction(conditions),
            )
            starts.append(start)
        if not starts:
            return None
        rows = torch.tensor([start.env_id for start in starts], dtype=torch.int64, device=environment.device)
        with self._measure(Phase.SIMULATE):
            observation = environment.reset(rows, [start.conditions for start in starts])
        self._running[rows] = True
        self._num_running += len(starts)
        self._note_start(starts)
        self._length[rows] = 0
        self._return[rows] = 0.0
        with self._measure(Phase.POLICY):
            self._policy.start_episodes(environment, starts)
        with self._measure(Phase.RECORD):
            for observer in self._observers:
                observer.on_episode_start(environment, starts, observation)
        return observation

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

    def _step(self, observation: Observation) -> tuple[Step, list[int]]:
        """Make one control step; return it and the rows whose episodes ended with it."""
        environment, policy = self._environment, self._policy
        with self._measure(Phase.POLICY):
            # The policy gets tensors of its own: what it does to them must not reach the recording.
            action = checked_action(policy.get_action(environment, copied(observation)), environment, self._running)
            policy_finished = checked_finished(policy.finished(), environment)
        with self._measure(Phase.SIMULATE):
            step = self._latest = environment.step(action)
        transition = Transition(running=self._running.clone(), observation=observation, action=action, step=step)
        with self._measure(Phase.RECORD):
            for observer in self._observers:
                observer.on_step(environment, transition)
        self._length += self._running
        self._return += torch.where(self._running, step.reward, 0.0)
        self._env_steps += self._num_running
        over = step.terminated | step.truncated | step.diverged
        if policy_finished is not None:
            over = over | policy_finished.to(over.device)
        overdue = self._running & ~over & (self._length >= environment.max_episode_length)
        if bool(overdue.any()):
            raise ArenaError(
                f"the environment broke its contract: row {int(torch.nonzero(overdue)[0])} made "
                f"{environment.max_episode_length} steps, its max_episode_length, and was not truncated"
            )
        ended = torch.nonzero(over & self._running).flatten().tolist()
        for env_id in ended:
            self._end_episode(env_id, ending_of(step, env_id), step)
        ended = sorted(ended + self._end_late_episodes(step))
        if ended:
            with self._measure(Phase.POLICY):
                self._policy.end_episodes(environment, ended)
        return step, ended

    def _end_late_episodes(self, step: Step) -> list[int]:
        """End the episodes that take too long, and return their rows."""
        limit_s = self._limits.episode_timeout_s
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
        )
        self._running[env_id] = False
        self._num_running -= 1
        self._finished_episodes += 1
        with self._measure(Phase.RECORD):
            for observer in self._observers:
                observer.on_episode_end(self._environment, record)

    @contextmanager
    def _measure(self, phase: Phase) -> Iterator[None]:
        """Count the time inside the block towards a phase, and what the environment rendered meanwhile as such."""
        rendered_s = self._environment.render_s
        with self._stopwatch.measure(phase):
            yield
        self._stopwatch.move(self._environment.render_s - rendered_s, counted_as=phase, to=Phase.RENDER)
