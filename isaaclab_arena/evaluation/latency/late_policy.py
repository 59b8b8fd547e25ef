"""Make the answers of any policy late, by control steps of simulated time.

Neither the wall clock nor other episodes have a part in it. So the same episodes come out on any number of ranks, for
any number of env slots, and after any interruption.
"""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.batching.policy_wrapper import PolicyWrapper
from isaaclab_arena.evaluation.latency.answers import Answers, answers_of
from isaaclab_arena.evaluation.latency.continuing import bound, continuation
from isaaclab_arena.evaluation.latency.query_times import QueryTimes
from isaaclab_arena.evaluation.latency.refusals import refusals
from isaaclab_arena.evaluation.latency.timelines import Timelines
from isaaclab_arena.interfaces.environment import HOLDS_LAST, Environment, HoldAction, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.storage.run.job_reports import QueryPace

STALE_SHARE = "latency.stale_share"
"""Metric of an episode: the share of its control steps in which an answer was awaited."""

QUERIES_PER_S = "latency.queries_per_s"
"""Metric of an episode: queries in a second of robot time."""


class LatePolicy(PolicyWrapper):
    """Asks another policy, and plays each answer some control steps after the observation that it was made from.

    The first answer of an episode is waited for: a robot begins when it knows what to do.

    Args:
        policy: The other policy.
        delays: How many control steps answers are late.
        meanwhile: What the robot does until they are there; nothing of it is late with `Meanwhile.WAIT`.
        times: Is told how long queries take.
    """

    def __init__(self, policy: PolicyBase, delays: Delays, meanwhile: Meanwhile, times: QueryTimes) -> None:
        super().__init__(policy)
        self._delays, self._meanwhile, self._times = delays, meanwhile, times
        self.traits = policy.traits
        self._answers: Answers = answers_of(policy, waits=meanwhile is Meanwhile.WAIT)
        self._generators: dict[int, np.random.Generator] = {}
        self._timelines: Timelines | None = None
        self._last: torch.Tensor | None = None
        self._control_dt = 0.0

    def check_environment(self, env: Environment) -> None:
        """Refuse what cannot work with this policy in this environment; see `refusals`.

        Raises:
            ConfigError: With every problem.
        """
        problems = refusals(self._delays, self._meanwhile, env, traits=self._answers.traits)
        if problems:
            raise ConfigError(problems)
        if self._meanwhile is Meanwhile.WAIT:
            # Episodes say nothing of it, so that they are to the last bit those without latency.
            self._times.pace = QueryPace(steps=self._answers.traits.played, control_dt=env.control_dt)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return what every env slot does now. Shape: (num_envs, action_dim)."""
        timelines = self._timelines_of(env)
        asking, began_s = timelines.asking(), time.perf_counter()
        self._answers.look(env, observation, timelines.active)
        if asking:
            self._ask(env, observation, timelines, asking)
            self._times.add(time.perf_counter() - began_s)
        action, has_one = timelines.next_actions()
        if self._last is None or self._last.shape != action.shape:
            self._last = torch.zeros_like(action)
        self._last = torch.where(has_one[:, None], action, held(env.hold_action, self._last))
        return self._last.to(env.device, non_blocking=True)

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots that start or ask next, if the other policy looks at their pictures."""
        return self._answers.pictures_to_see(env, starting, self._timelines_of(env).asking())

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Tell the other policy, and begin with a query."""
        self.asked.start_episodes(env, starts)
        self._control_dt = env.control_dt
        for start in starts:
            self._generators[start.env_id] = start.episode.latency_generator()
        self._timelines_of(env).restart(torch.tensor([start.env_id for start in starts], dtype=torch.int64))

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Tell the other policy, and ask for these env slots no more."""
        self.asked.end_episodes(env, env_ids)
        self._timelines_of(env).rest(env_ids)

    def episode_metrics(self, env_id: int) -> Mapping[str, float]:
        """Return the share of stale actions and the queries in a second; see `MeasuresEpisodes`."""
        timelines = self._timelines
        if self._meanwhile is Meanwhile.WAIT or timelines is None or not int(timelines.length[env_id]):
            return {}
        length = int(timelines.length[env_id])
        return {
            STALE_SHARE: int(timelines.stale_steps[env_id]) / length,
            QUERIES_PER_S: int(timelines.queries[env_id]) / (length * self._control_dt),
        }

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Reset the other policy, and forget what is planned."""
        self.asked.reset(env_ids)
        if env_ids is None:
            self._timelines, self._last = None, None
        elif self._timelines is not None:
            self._timelines.restart(env_ids.cpu())

    def _ask(self, env: Environment, observation: Observation, timelines: Timelines, asking: list[int]) -> None:
        going_on = None
        if self._meanwhile is Meanwhile.RTC and self._delays.longest:
            played = timelines.played(asking)
            going_on = continuation(timelines.plans[asking], played, committed=self._delays.longest)
        chunks = self._answers.chunks(env, observation, asking, going_on)
        if going_on is not None:
            chunks = bound(chunks, going_on)
        delays = [self._delay(env_id, is_first=not int(timelines.queries[env_id])) for env_id in asking]
        timelines.ask(asking, chunks, delays)

    def _delay(self, env_id: int, *, is_first: bool) -> int:
        """Return how late the next answer of an env slot is."""
        generator = self._generators.get(env_id)
        if is_first or generator is None or self._meanwhile is Meanwhile.WAIT:
            return 0
        return self._delays.draw(generator)

    def _timelines_of(self, env: Environment) -> Timelines:
        if self._timelines is None or len(self._timelines.length) != env.num_envs:
            goes_on = self._meanwhile in (Meanwhile.CHUNK, Meanwhile.RTC)
            self._timelines = Timelines(
                env.num_envs,
                self._answers.traits,
                env.action_spec.shape[0],
                lead=self._delays.longest if goes_on else 0,
                goes_on=goes_on,
            )
        return self._timelines


def held(declared: HoldAction, last: torch.Tensor) -> torch.Tensor:
    """Return what a robot does that is told nothing new. Shape: (num_envs, action_dim).

    Args:
        declared: What its environment says; see `HoldAction`.
        last: The last actions. Shape: (num_envs, action_dim).
    """
    if declared is None or declared == HOLDS_LAST:
        return last
    stays = torch.tensor([value is None for value in declared])
    fixed = torch.tensor([0.0 if value is None else float(value) for value in declared])
    return torch.where(stays, last, fixed)
