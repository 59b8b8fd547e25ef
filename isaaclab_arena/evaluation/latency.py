"""Late answers: policies whose answers come some control steps of simulated time after the query."""

import csv
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isaaclab_arena.config.schema import MAX_MS, Delays, LatencyConfig, Meanwhile
from isaaclab_arena.errors import ConfigError, EnvironmentBuildError, Problem, first_line, refuse
from isaaclab_arena.evaluation.batching import FixedBatchPolicy, PolicyWrapper
from isaaclab_arena.evaluation.rollout import EnvGroup
from isaaclab_arena.evaluation.running_episodes import action_tensor, checked_action
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import ChunkTraits, Continuation, PolicyBase
from isaaclab_arena.interfaces.policy_options import declared_options
from isaaclab_arena.interfaces.policy_traits import announced_pictures, shown_to
from isaaclab_arena.interfaces.specs import HOLDS_LAST, HoldAction
from isaaclab_arena.policy.action_chunking import ChunkPlayer
from isaaclab_arena.storage.ledger import MAX_QUERY_TIMES, QueryPace

# The duration of policy queries on this machine, as a sample of bounded size.


@dataclass(eq=False)
class QueryTimes:
    """Keeps the time of every query, then of every second one, every fourth, ..., evenly over a job."""

    pace: QueryPace | None = None  # interval of queries if the world waits for them; None if it does not
    kept_s: list[float] = field(default_factory=list)  # the sampled durations [s]
    _stride: int = 1
    _number: int = 0

    def add(self, seconds: float) -> None:
        """Add the duration of a query [s]."""
        if self._number % self._stride == 0:
            self.kept_s.append(round(seconds, 7))
        self._number += 1
        if len(self.kept_s) > MAX_QUERY_TIMES:
            self.kept_s = self.kept_s[::2]
            self._stride *= 2


# The latency in control steps, from a job's setting in steps or in milliseconds.


def in_time(latencies_ms: Iterable[float], control_dt: float) -> Delays:
    """Return delays from equally likely latencies [ms], each rounded up to control steps of `control_dt` [s]."""
    # The rounding of a division must not add a step.
    steps = (math.ceil(each / (1000.0 * control_dt) - 1e-9) for each in latencies_ms)
    return Delays(steps=tuple(sorted(Counter(max(0, each) for each in steps).items())), control_dt=control_dt)


def latencies_of(config: LatencyConfig, directory: Path) -> tuple[float, ...] | None:
    """Return a job's latencies [ms], relative files in `directory`. None if given in steps or to be measured."""
    if config.file is None:
        if config.ms is None:
            return None
        low, high = config.ms
        # The midpoint of each of 1000 equal intervals represents it.
        shares = (np.arange(1000) + 0.5) / 1000
        return (low,) if low == high else tuple((low + (high - low) * shares).tolist())

    path, key, column, max_latencies = directory / config.file, "latency.file", "latency_ms", 100_000

    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            if column not in (table.fieldnames or ()):
                message = f"'{path}' has no column '{column}', which holds one latency a line [ms]"
                raise ConfigError(message, key=key)
            texts = [line[column] for line in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"'{path}' cannot be read: {first_line(error)}", key=key) from error
    if not 1 <= len(texts) <= max_latencies:
        message = f"'{path}' has {len(texts)} latencies; it must hold 1 to {max_latencies}"
        raise ConfigError(message, key=key)
    latencies = []
    for number, text in enumerate(texts, start=2):
        value = math.nan
        with suppress(ValueError):
            value = float(text or "")
        if not 0.0 <= value <= MAX_MS:
            message = f"'{path}': line {number}: {text!r} is no latency from 0 to {MAX_MS:g} ms"
            raise ConfigError(message, key=key)
        latencies.append(value)
    return tuple(latencies)


# Query any policy for action chunks of some env slots, also one that returns single actions.

ONE_STEP = ChunkTraits(played=1, predicted=1)


class Answers:
    """A policy as a source of chunks, which have one action if it returns single actions."""

    def __init__(self, policy: PolicyBase, *, waits: bool = False) -> None:
        # `waits`: no answer is late, so the policy may combine chunks itself.
        self._policy, self.is_chunked = policy, False
        self._wide = policy if isinstance(policy, FixedBatchPolicy) else None
        self._asked = policy if self._wide is None else self._wide.asked
        self.traits = ONE_STEP
        if "chunks" in self._asked.offers:
            # `ConfigError`: the policy's options combine chunks in a way that only the policy itself can.
            try:
                self.traits, self.is_chunked = self._asked.chunk_traits(), True
            except ConfigError:
                if not waits:
                    raise
        # A policy that cannot act in some env slots alone is called every step for all of them.
        self.acts_in_some = not waits and "act_in_some" in policy.offers
        self._action = torch.zeros(0)

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """Take in the observation of some env slots, once in every control step."""
        if self.is_chunked:
            seen = (env, observation) if self._wide is None else self._wide.seen(env, observation)
            self._asked.look(*seen, env_ids)
        elif not self.acts_in_some:
            self._action = checked_action(self._policy.get_action(env, observation), env)

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None
    ) -> torch.Tensor:
        """Return chunks of some env slots, shape (n, predicted, action_dim); see `PolicyBase.chunks`."""
        if self.is_chunked:
            seen = (env, observation) if self._wide is None else self._wide.seen(env, observation)
            return self._asked.chunks(*seen, env_ids, going_on)
        if self.acts_in_some:
            shown = shown_to(self._policy, env, observation)
            self._action = action_tensor(self._policy.act_in_some(env, shown, env_ids))
        return self._action[list(env_ids), None].to("cpu", torch.float32)


# The actions that new chunks continue in real-time chunking.


def continuation(plans: torch.Tensor, played: torch.Tensor, *, committed: int) -> Continuation:
    """Return the planned actions and weights that new chunks of some env slots continue."""
    # plans: (n, horizon, action_dim). played: (n,) int64, actions of earlier steps, `horizon` if there is no chunk.
    # committed: actions that are played before the new chunks arrive.
    horizon = plans.shape[1]
    actions = torch.zeros_like(plans)
    weights = torch.zeros(plans.shape[:2])
    for number, begin in enumerate(played.tolist()):
        planned = horizon - begin
        actions[number, :planned] = plans[number, begin:]
        if planned == 0:
            continue
        # The weight of the plan in a new chunk: Black, Galliker and Levine, "Real-Time Execution of Action Chunking
        # Flow Policies", 2025, arXiv 2506.07339, eq. 5. The weight is 1 for the committed actions. It then decays to 0
        # at `planned` (>= committed), the number of steps for which an action is planned.
        weights[number, :committed] = 1.0
        for place in range(committed, planned):
            remaining = (planned - place) / (planned - committed + 1)
            weights[number, place] = remaining * math.expm1(remaining) / math.expm1(1.0)
    return Continuation(actions=actions, weights=weights)


# Check whether the latency that a job requests is possible with a policy in an environment.


def refusals(
    delays: Delays, meanwhile: Meanwhile, environment: Environment, *, traits: ChunkTraits | None = None
) -> list[Problem]:
    """Return every problem with its key within the job. `traits`: the policy's chunks, None if unknown."""
    longest, wrong = delays.longest, list[str]()
    problems = []
    if longest >= environment.max_episode_length:
        message = f"answers are up to {longest} control steps late; an episode has {environment.max_episode_length}"
        problems.append(Problem(message, key="latency"))
    if meanwhile is Meanwhile.HOLD and longest and environment.hold_action is None:
        wrong.append(
            "'hold' needs an action that keeps the robot still, and the environment declares none "
            "(Environment.hold_action); declare it, or use wait or chunk"
        )
    plays_on = traits if meanwhile in (Meanwhile.CHUNK, Meanwhile.RTC) else None
    # A chunk loses its first `longest` actions, and must then last `longest` steps until the next one.
    if plays_on is not None and 2 * longest > plays_on.predicted:
        wrong.append(
            f"'{meanwhile}': answers are up to {longest} control steps late, but the policy predicts only "
            f"{plays_on.predicted} action{'s' if plays_on.predicted > 1 else ''}; allow at most "
            f"{plays_on.predicted // 2} steps, or use hold"
        )
    if meanwhile is Meanwhile.RTC and plays_on is not None and not plays_on.can_continue:
        wrong.append("'rtc' needs a policy that continues given actions, which this one cannot; use chunk")
    return problems + [Problem(message, key="latency.meanwhile") for message in wrong]


# The plan, the pending answer and the next query of each env slot, in control steps of its own episode.

_NEVER = -1


class Timelines:
    """The chunks of all env slots, on the CPU, and the answers on their way. An env slot awaits at most one."""

    def __init__(self, num_envs: int, traits: ChunkTraits, action_dim: int, *, lead: int, goes_on: bool) -> None:
        # An answer belongs to the step of its query and arrives some steps later. `lead`: number of steps before the
        # end of its chunk at which an env slot queries again. If `goes_on`, the robot continues its chunk meanwhile and
        # skips the late actions of the next one. Otherwise it plays the first actions of every chunk.
        self._traits, self._lead, self._goes_on = traits, lead, goes_on
        length = traits.predicted if goes_on else traits.played
        self.player = ChunkPlayer.empty(num_envs, chunk_length=length, action_dim=action_dim)
        self._answers = torch.zeros(num_envs, traits.predicted, action_dim)
        # The place in its chunk at which an env slot has played enough; steps of the query and of the answer's arrival.
        self._end, self._asked, self._due = (torch.zeros(num_envs, dtype=torch.int64) for _ in range(3))
        # Per env slot and episode, shape (num_envs,): queries, steps with a pending answer, all steps.
        self.queries, self.stale_steps, self.length = (torch.zeros(num_envs, dtype=torch.int64) for _ in range(3))

    def restart(self, env_ids: torch.Tensor) -> None:
        """Start without a chunk in `env_ids`. Shape: (n,), int64."""
        self.player = self.player.restarted(env_ids)
        self._due[env_ids] = _NEVER
        for counts in (self._end, self.queries, self.stale_steps, self.length):
            counts[env_ids] = 0

    def asking(self) -> list[int]:
        """Return the env slots that query in their next step."""
        asks = self.player.active & (self._due == _NEVER) & (self._end - self.player.next_step <= self._lead)
        return torch.nonzero(asks).flatten().tolist()

    def ask(self, env_ids: Sequence[int], chunks: torch.Tensor, delays: Sequence[int]) -> None:
        """Store the answers (n, predicted, action_dim) to this step's queries, to arrive after `delays` [steps]."""
        slots = torch.tensor(list(env_ids), dtype=torch.int64)
        self._answers[slots] = chunks
        self._asked[slots] = self.length[slots]
        self._due[slots] = self.length[slots] + torch.tensor(list(delays), dtype=torch.int64)
        self.queries[slots] += 1
        self._receive()

    def next_actions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Advance a step. Return the actions (num_envs, action_dim) and the mask (num_envs,) of slots with one."""
        active, has_one = self.player.active, self.player.active & ~self.player.needs_chunk()
        action, self.player = self.player.popped()
        self.stale_steps += active & (self._due != _NEVER)
        self.length += active
        self._receive()
        return action, has_one

    def _receive(self) -> None:
        """Play the answers that have arrived."""
        there = torch.nonzero((self._due != _NEVER) & (self._due <= self.length)).flatten()
        if not len(there):
            return
        # If the old chunk was continued, the late actions of the new one are skipped.
        late = (self.length - self._asked)[there] * self._goes_on
        self._end[there] = (late + self._traits.played).clamp(max=self._traits.predicted)
        last = self.player.chunks.shape[2]
        chunks = [self._answers[slot, first:last] for slot, first in zip(there.tolist(), late.tolist(), strict=True)]
        self.player = self.player.refilled(there, chunks)
        self._due[there] = _NEVER


# Delay the answers of any policy by control steps of simulated time.
#
# The delay depends neither on the wall clock nor on other episodes. So the episodes are the same on any number of
# ranks, for any num_envs, and after any interruption.

STALE_SHARE = "latency.stale_share"
"""Metric of an episode: the share of its control steps in which an answer was awaited."""

QUERIES_PER_S = "latency.queries_per_s"
"""Metric of an episode: queries in a second of robot time."""


class LatePolicy(PolicyWrapper):
    """Queries another policy, and plays each answer some control steps after its observation. The first is not late."""

    # With `Meanwhile.WAIT` no answer is late, and only `times` receives the durations of queries.
    def __init__(self, policy: PolicyBase, delays: Delays, meanwhile: Meanwhile, times: QueryTimes) -> None:
        super().__init__(policy)
        self._delays, self._meanwhile, self._times = delays, meanwhile, times
        self._answers = Answers(policy, waits=meanwhile is Meanwhile.WAIT)
        self._generators: dict[int, np.random.Generator] = {}
        self._timelines: Timelines | None = None
        self._last: torch.Tensor | None = None
        self._control_dt = 0.0

    def check_environment(self, env: Environment) -> None:
        """Raise `ConfigError` with all `refusals` of this policy in this environment."""
        refuse(refusals(self._delays, self._meanwhile, env, traits=self._answers.traits))
        if self._meanwhile is Meanwhile.WAIT:
            # The pace is not an episode metric, so episodes have the same bits as without latency.
            self._times.pace = QueryPace(steps=self._answers.traits.played, control_dt=env.control_dt)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the current actions of all env slots. Shape: (num_envs, action_dim)."""
        timelines = self._timelines_of(env)
        asking, began_s = timelines.asking(), time.perf_counter()
        self._answers.look(env, observation, torch.nonzero(timelines.player.active).flatten().tolist())
        if asking:
            # In real-time chunking the new chunk continues the actions that are played before it arrives.
            going_on = None
            if self._meanwhile is Meanwhile.RTC and self._delays.longest:
                player = timelines.player
                plans, played = player.chunks[asking, 0], player.next_step[asking]
                going_on = continuation(plans, played, committed=self._delays.longest)
            chunks = self._answers.chunks(env, observation, asking, going_on)
            if going_on is not None:
                is_committed = (going_on.weights >= 1.0)[:, :, None]
                chunks = torch.where(is_committed, going_on.actions, chunks)

            delays = [0] * len(asking)
            for number, env_id in enumerate(asking):
                generator = self._generators.get(env_id)
                # The first answer of an episode has no delay.
                if int(timelines.queries[env_id]) and generator is not None and self._meanwhile is not Meanwhile.WAIT:
                    delays[number] = self._delays.draw(generator)
            timelines.ask(asking, chunks, delays)
            self._times.add(time.perf_counter() - began_s)

        action, has_one = timelines.next_actions()
        # An env slot without an action holds still, or repeats its last action.
        if self._last is None or self._last.shape != action.shape:
            self._last = torch.zeros_like(action)
        self._last = torch.where(has_one[:, None], action, held(env.hold_action, self._last))
        return self._last.to(env.device, non_blocking=True)

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots that start or query next and whose pictures the other policy needs, None for all."""
        asking = [*starting, *self._timelines_of(env).asking()]
        if self._answers.is_chunked:
            shown = {*self._answers.traits.picture_steps}
            # A query may show earlier steps, which are not known in advance.
            return () if not shown else asking if shown == {0} else None
        wanted = announced_pictures(self.asked, env, starting)
        if not self._answers.acts_in_some:
            return wanted
        return asking if wanted is None else [env_id for env_id in wanted if env_id in {*asking}]

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Start the episodes of the other policy. Each begins with a query."""
        self.asked.start_episodes(env, starts)
        self._control_dt = env.control_dt
        for start in starts:
            self._generators[start.env_id] = start.episode.latency_generator()
        self._timelines_of(env).restart(torch.tensor([start.env_id for start in starts], dtype=torch.int64))

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """End the episodes of the other policy, and stop the queries of their env slots."""
        self.asked.end_episodes(env, env_ids)
        timelines = self._timelines_of(env)
        timelines.player = timelines.player.rested(torch.tensor(list(env_ids), dtype=torch.int64))

    def episode_metrics(self, env_id: int) -> Mapping[str, float]:
        """Return the other policy's numbers, the share of stale steps and the queries per second."""
        own, timelines = super().episode_metrics(env_id), self._timelines
        length = 0 if timelines is None else int(timelines.length[env_id])
        if self._meanwhile is Meanwhile.WAIT or timelines is None or not length:
            return own
        return {
            **own,
            STALE_SHARE: int(timelines.stale_steps[env_id]) / length,
            QUERIES_PER_S: int(timelines.queries[env_id]) / (length * self._control_dt),
        }

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Reset the other policy, and drop the plans."""
        self.asked.reset(env_ids)
        if env_ids is None:
            self._timelines, self._last = None, None
        elif self._timelines is not None:
            self._timelines.restart(env_ids.cpu())

    def _timelines_of(self, env: Environment) -> Timelines:
        if self._timelines is None or len(self._timelines.length) != env.num_envs:
            goes_on = self._meanwhile in (Meanwhile.CHUNK, Meanwhile.RTC)
            traits, (action_dim,), lead = self._answers.traits, env.action_spec.shape, self._delays.longest
            self._timelines = Timelines(env.num_envs, traits, action_dim, lead=goes_on * lead, goes_on=goes_on)
        return self._timelines


def held(declared: HoldAction, last: torch.Tensor) -> torch.Tensor:
    """Return the actions of env slots without a new one. Shape: (num_envs, action_dim), like the previous `last`."""
    if declared is None or declared == HOLDS_LAST:
        return last
    # None in `declared` keeps the last value of that entry.
    stays = torch.tensor([value is None for value in declared])
    fixed = torch.tensor([0.0 if value is None else float(value) for value in declared])
    return torch.where(stays, last, fixed)


# Resolve a job's key ``latency`` for its environment and its policy, and wrap the policies.


def job_latency(
    config: LatencyConfig,
    directory: Path,
    environment: tuple[EnvironmentBuilder, Any],
    policy: tuple[type[PolicyBase], Mapping[str, Any]],
) -> tuple[Delays | None, tuple[float, ...] | None]:
    """Return the delays and the latencies [ms] of a job's answers, see `Job`. `ConfigError` with all known problems."""
    # `directory`: base of relative paths. `environment`: its builder and options. `policy`: its class and options.
    # Nothing is simulated here.
    # From the first to the last number of control steps, each is equally likely.
    delays, latencies_ms = None, latencies_of(config, directory)
    if config.steps is not None:
        delays = Delays(steps=tuple((number, 1) for number in range(config.steps[0], config.steps[1] + 1)))
    builder, environment_config = environment
    try:
        sample = None if config.measured else builder.sample(environment_config)
    except EnvironmentBuildError:
        # The job itself fails with this error, and no other job does.
        sample = None
    if sample is None:
        return delays, latencies_ms
    # The chunk traits, as far as they matter and are known before the policy is built.
    policy_class, options = policy
    try:
        # Only a latency that is measured later has neither.
        delays, traits = delays or in_time(latencies_ms or (), sample.control_dt), None
        if config.meanwhile is not Meanwhile.WAIT and "chunks" not in policy_class.offers:
            traits = ONE_STEP
        elif config.meanwhile is not Meanwhile.WAIT and "stated_chunks" in policy_class.offers:
            traits = policy_class.stated_chunks(declared_options(policy_class).read(options, owner="policy"))
        problems = refusals(delays, config.meanwhile, sample, traits=traits)
    finally:
        sample.close()
    refuse(problems)
    return delays, latencies_ms


def late_groups(
    groups: Sequence[EnvGroup],
    config: LatencyConfig,
    delays: Delays | None,
    latencies_ms: tuple[float, ...] | None,
    times: QueryTimes,
) -> Sequence[EnvGroup]:
    """Wrap the policies of all groups in `LatePolicy`. `ConfigError`: see `refusals`."""
    if delays is None and latencies_ms is None:
        raise ConfigError("its latency was not measured when the run started")
    late = []
    for group in groups:
        own = delays or in_time(latencies_ms or (), group.environment.control_dt)
        policy = LatePolicy(group.policy, own, config.meanwhile, times)
        policy.check_environment(group.environment)
        late.append(replace(group, policy=policy))
    return late
