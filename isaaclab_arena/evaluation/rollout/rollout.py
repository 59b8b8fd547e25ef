"""The loop: reset, act, step, observe, end.

Episodes are assigned to env slots before they start, and every episode that starts is finished and counted. A slot
whose episode ends takes the next one. To stop at the first K episodes that finish would favour short episodes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial

import torch

from isaaclab_arena.errors import ArenaError, PolicyLostError
from isaaclab_arena.evaluation.rollout.attempts import attempt_of, made_again, telling_plans
from isaaclab_arena.evaluation.rollout.endings import Ending, policy_lost
from isaaclab_arena.evaluation.rollout.episode_events import bad_starts, begin_events, solved_starts, with_events
from isaaclab_arena.evaluation.rollout.limits import NO_LIMITS, RolloutLimits
from isaaclab_arena.evaluation.rollout.picture_readers import PictureReaders
from isaaclab_arena.evaluation.rollout.policy_answers import PolicyAnswer, agreed_instruction, with_policy_metrics
from isaaclab_arena.evaluation.rollout.running_episodes import RolloutResult, RunningEpisodes
from isaaclab_arena.evaluation.rollout.soundness import unsound_slots, without_unsound
from isaaclab_arena.evaluation.rollout.starts import StartingEpisodes, next_starts
from isaaclab_arena.evaluation.rollout.stopwatch import Phase, Stopwatch
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Episode, Outcome
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer
from isaaclab_arena.interfaces.policy import PolicyBase

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
