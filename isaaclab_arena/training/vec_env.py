"""An environment as rsl_rl expects it, the starts of its episodes, and their statistics."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.pictures import CAMERAS
from isaaclab_arena.models.network import ActionScaler
from isaaclab_arena.policy.rsl_rl import flattened


@dataclass
class EpisodeStarts:
    """Gives each new episode of a rank its conditions, in the order in which the episodes begin."""

    environment: Environment
    seed: int  # the run's seed plus the rank
    group_size: int = 1  # env slots that begin alike if all begin together; it may change between episodes
    num_drawn: int = 0

    def next_conditions(self, count: int) -> list[Conditions]:
        """Return the start conditions of the next `count` episodes, all different."""
        first, self.num_drawn = self.num_drawn, self.num_drawn + count
        starts = []
        for index in range(first, first + count):
            episode = Episode(job="training", episode_index=index, seed=self.seed)
            conditions = self.environment.draw_conditions(episode.conditions_generator())
            starts.append(self.environment.vary_conditions(conditions, episode))
        return starts


@dataclass(frozen=True, kw_only=True)
class EpisodeStatistics:
    """Statistics of episodes that ended. All rates and means are NaN without episodes."""

    num_episodes: int
    mean_return: float  # mean sum of rewards of an episode
    mean_length: float  # mean number of control steps of an episode
    success_rate: float  # NaN also if the environment measures no success
    lost_rate: float  # share of episodes that were lost or whose physics broke down
    # Means of the environment's other metrics at the end of an episode, without episodes whose physics broke down.
    metrics: dict[str, float]


_FIXED = ("episodes", "return", "length", "measured", "success", "lost", "sound")


class EpisodeCounter:
    """Adds up the episodes of one rank's env slots."""

    def __init__(self, *, num_envs: int, metrics: tuple[str, ...], device: torch.device) -> None:
        # Names of the environment's further metrics, the same on every rank and in the same order.
        self.metrics = metrics
        # Sum of rewards and number of control steps of the episode under way. Shapes: (num_envs,), float64.
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(num_envs, dtype=torch.float64, device=device)
        # Sums over the episodes that ended since `take`, in the order of `_FIXED` and then the metrics.
        self.sums = torch.zeros(len(_FIXED) + len(metrics), dtype=torch.float64, device=device)

    def add(self, step: Step, ended: torch.Tensor, cut: torch.Tensor) -> None:
        """Count a control step. Masks of shape (num_envs,): `ended` episodes, and those `cut` and not counted."""
        # An env slot that broke down may hold NaN, and NaN times zero is NaN.
        self.returns += torch.where(step.diverged, 0.0, step.reward)
        self.lengths += 1
        sound = ended & ~step.diverged
        success = torch.zeros_like(ended) if step.success is None else step.success & sound
        lost = ended & (step.terminated | step.diverged) & ~success
        measured = torch.zeros_like(ended) if step.success is None else ended
        counted = [
            ended,
            torch.where(ended, self.returns, 0.0),
            torch.where(ended, self.lengths, 0.0),
            measured,
            success,
            lost,
            sound,
            *(torch.where(sound, step.metrics[name], 0.0) for name in self.metrics),
        ]
        self.sums += torch.stack([values.to(torch.float64) for values in counted]).sum(dim=1)
        begins = ended | cut
        self.returns[begins] = 0
        self.lengths[begins] = 0

    def take(self) -> torch.Tensor:
        """Return the sums over the episodes that ended on this rank since the last call, and reset them."""
        taken = self.sums.clone()
        self.sums.zero_()
        return taken


def statistics_of(sums: torch.Tensor, metrics: tuple[str, ...]) -> EpisodeStatistics:
    """Return means from sums; see `EpisodeCounter.sums`."""

    def mean(total: float, count: float) -> float:
        return total / count if count else math.nan

    episodes, returns, length, measured, success, lost, sound, *others = sums.tolist()
    return EpisodeStatistics(
        num_episodes=round(episodes),
        mean_return=mean(returns, episodes),
        mean_length=mean(length, episodes),
        success_rate=mean(success, measured),
        lost_rate=mean(lost, episodes),
        metrics={name: mean(value, sound) for name, value in zip(metrics, others, strict=True)},
    )


_EPISODE_LENGTH, _BEGAN_LATE = "training/episode_length", "training/began_late"
_NUM_DRAWN = "training/num_drawn"
_RETURNS, _LENGTHS, _SUMS = "training/returns", "training/lengths", "training/sums"


class TrainingEnvironment(VecEnv):
    """All env slots of one rank, for rsl_rl's algorithms."""

    def __init__(
        self,
        environment: Environment,
        starts: EpisodeStarts,
        *,
        scaler: ActionScaler,
        cfg: Mapping[str, Any],
    ) -> None:
        # An env slot whose episode is over starts the next one within the same step, as rsl_rl expects. Episodes that
        # succeed or reach the time limit are ``time_outs``: the critic estimates the value of the future. Lost
        # episodes, and those whose physics broke down, have no value from then on.
        # ``cfg`` describes the environment for rsl_rl's log writers.
        self.environment = environment
        self.num_envs = environment.num_envs
        self.num_actions = environment.action_spec.shape[0]
        self.max_episode_length = environment.max_episode_length
        self.device = environment.device
        self.cfg = dict(cfg)
        # The terms of each group, in the order in which the vector holds them.
        self.observation_terms = {
            group: tuple(terms)
            for group, terms in environment.observation_spec.items()
            if group != CAMERAS and isinstance(terms, Mapping)
        }
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        self._began_late = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._starts = starts
        self._scaler = scaler
        self._all_env_ids = torch.arange(self.num_envs, device=self.device)
        self._observation = self._flat(self._reset(self._all_env_ids, starts.next_conditions(self.num_envs)))
        self._counter: EpisodeCounter | None = None

    @property
    def counter(self) -> EpisodeCounter:
        """The counter of episodes; it exists from the first step on."""
        if self._counter is None:
            raise RuntimeError("no step has been made yet")
        return self._counter

    def get_observations(self) -> TensorDict:
        """Return the observation of all env slots: for each group, vectors of shape (num_envs, size)."""
        return self._observation

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step with the network's output (num_envs, action_dim), and start the next episode in env slots that ended."""
        # The observations are those of the new episode in env slots that restarted. Rewards, dones and ``time_outs``
        # have shape (num_envs,).
        environment = self.environment
        self._draw_nothing()
        step = environment.step(self._scaler(actions))
        if self._counter is None:
            metrics = tuple(step.metrics)
            self._counter = EpisodeCounter(num_envs=self.num_envs, metrics=metrics, device=environment.device)

        self.episode_length_buf += 1
        over = step.terminated | step.truncated | step.diverged
        # Env slots that began as if in the middle of an episode are cut by this count, and are not whole episodes.
        cut = ~over & (self.episode_length_buf >= self.max_episode_length)
        ended = over | cut
        self.counter.add(step, over & ~self._began_late, cut | (over & self._began_late))
        self._began_late &= ~ended
        succeeded = torch.zeros_like(over) if step.success is None else step.success
        # The mask `ended` is needed, because an environment may report success and continue the episode.
        time_outs = ended & (cut | step.truncated | succeeded) & ~step.diverged

        env_ids = ended.nonzero()[:, 0]
        observation = step.observation
        if env_ids.numel():
            observation = self._reset(env_ids, self._starts.next_conditions(env_ids.numel()))
            self.episode_length_buf[env_ids] = 0
        self._observation = self._flat(observation)
        return self._observation, step.reward, ended, {"time_outs": time_outs}

    def begin_in_the_middle(self) -> None:
        """Let each env slot's first episode end as if it had begun some time ago, so that not all end at once."""
        lengths = self.episode_length_buf
        lengths.copy_(torch.randint_like(lengths, high=self.max_episode_length))
        self._began_late = lengths > 0

    @property
    def unwrapped(self) -> Environment:
        """The environment itself; rsl_rl's random network distillation reads its ``step_dt``."""
        return self.environment

    def restart(self) -> TensorDict:
        """Start a new episode in every env slot, equal within groups, and return the observation."""
        group_size = self._starts.group_size
        drawn = self._starts.next_conditions(self.num_envs // group_size)
        grouped = [conditions for conditions in drawn for _ in range(group_size)]
        self._observation = self._flat(self._reset(self._all_env_ids, grouped))
        self.episode_length_buf.zero_()
        self._began_late.zero_()
        if self._counter is not None:
            self._counter.returns.zero_()
            self._counter.lengths.zero_()
        return self._observation

    def snapshot(self) -> dict[str, torch.Tensor] | None:
        """Return the state that decides the future of all env slots, None if the environment cannot provide it."""
        snapshot = self.environment.snapshot()
        if snapshot is None:
            return None
        counted = {}
        if self._counter is not None:
            counted = {_RETURNS: self._counter.returns, _LENGTHS: self._counter.lengths, _SUMS: self._counter.sums}
        return {
            **snapshot,
            **{name: value.clone() for name, value in counted.items()},
            _EPISODE_LENGTH: self.episode_length_buf.clone(),
            _BEGAN_LATE: self._began_late.clone(),
            _NUM_DRAWN: torch.tensor(self._starts.num_drawn),
        }

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor], *, metrics: tuple[str, ...]) -> None:
        """Restore the state of all env slots from `snapshot`; `metrics` are the names of `EpisodeCounter`."""
        own = {name: value for name, value in snapshot.items() if not name.startswith("training/")}
        self._draw_nothing()
        self._observation = self._flat(self.environment.restore_snapshot(own))
        self.episode_length_buf.copy_(snapshot[_EPISODE_LENGTH])
        self._began_late.copy_(snapshot[_BEGAN_LATE])
        self._starts.num_drawn = int(snapshot[_NUM_DRAWN])
        if _SUMS in snapshot:
            self._counter = EpisodeCounter(num_envs=self.num_envs, metrics=metrics, device=self.environment.device)
            self._counter.returns.copy_(snapshot[_RETURNS])
            self._counter.lengths.copy_(snapshot[_LENGTHS])
            self._counter.sums.copy_(snapshot[_SUMS])

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()

    def _reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        self._draw_nothing()
        return self.environment.reset(env_ids, conditions)

    def _draw_nothing(self) -> None:
        """Tell the environment to skip pictures next time: no network here sees any."""
        self.environment.draw_pictures_of(())

    def _flat(self, observation: Observation) -> TensorDict:
        vectors = {
            group: flattened(observation[group], terms, num_envs=self.num_envs, device=self.device)
            for group, terms in self.observation_terms.items()
        }
        return TensorDict(vectors, batch_size=[self.num_envs], device=self.device)
