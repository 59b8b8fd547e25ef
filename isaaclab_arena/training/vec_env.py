"""An environment as rsl_rl expects it, with the starts of its episodes and their measures."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict

from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.specs import CAMERAS
from isaaclab_arena.models.network import ActionScaler
from isaaclab_arena.policy.rsl_rl import flattened

_FIXED = ("episodes", "return", "length", "measured", "success", "lost")


class EpisodeCounter:
    """Adds up the episodes of one rank's env slots."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        # Names of the environment's further metrics, the same on every rank and in the same order; None before a step.
        self.metrics: tuple[str, ...] | None = None
        # Sum of rewards and number of control steps of the episode under way. Shapes: (num_envs,), float64.
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.lengths = torch.zeros_like(self.returns)
        # Sums over the episodes that ended since `take`, in the order of `_FIXED`; then for each metric the number of
        # episodes that have it, and their sum.
        self.sums = self.returns.new_zeros(len(_FIXED))

    def begin(self, metrics: tuple[str, ...]) -> None:
        """Count from nothing, with these metrics."""
        self.metrics = metrics
        self.sums = self.returns.new_zeros(len(_FIXED) + 2 * len(metrics))

    def add(self, step: Step, ended: torch.Tensor, cut: torch.Tensor) -> None:
        """Count a control step. Masks of shape (num_envs,): `ended` episodes, and those `cut` and not counted."""
        if self.metrics is None:
            self.begin(tuple(step.metrics))
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
        ]
        for name in self.metrics or ():
            known = sound & ~step.metrics[name].isnan()
            counted += [known, torch.where(known, step.metrics[name], 0.0)]
        self.sums += torch.stack([values.to(torch.float64) for values in counted]).sum(dim=1)
        begins = ended | cut
        self.returns[begins] = 0
        self.lengths[begins] = 0

    def take(self) -> torch.Tensor:
        """Return the sums over the episodes that ended on this rank since the last call, and reset them."""
        taken = self.sums.clone()
        self.sums.zero_()
        return taken

    def measures(self, sums: torch.Tensor) -> dict[str, float]:
        """Return the measures of episodes from the sums of one or more ranks, without means of nothing."""
        episodes, returns, length, measured, success, lost, *others = sums.tolist()
        of_metrics = zip(self.metrics or (), others[0::2], others[1::2], strict=True)
        # Success may not be measured. Episodes whose physics broke down are lost and have no metrics.
        means = {
            "Train/mean_reward": (returns, episodes),
            "Train/mean_episode_length": (length, episodes),
            "Train/success_rate": (success, measured),
            "Train/lost_rate": (lost, episodes),
            **{f"Metrics/{name}": (total, known) for name, known, total in of_metrics},
        }
        return {
            "Train/num_episodes": round(episodes),
            **{name: total / count for name, (total, count) in means.items() if count},
        }


_NUM_DRAWN, _SUMS = "training/num_drawn", "training/sums"


class TrainingEnvironment(VecEnv):
    """All env slots of one rank, for rsl_rl's algorithms.

    Attributes:
        group_size: Number of env slots that begin alike with `restart`.
        num_drawn: Number of episodes whose start conditions have been drawn, in the order in which they began.
        counter: Counts the episodes.
    """

    def __init__(self, environment: Environment, *, seed: int, scaler: ActionScaler, cfg: Mapping[str, Any]) -> None:
        # An env slot whose episode is over starts the next one within the same step, as rsl_rl expects. Episodes that
        # succeed or reach the time limit are ``time_outs``: the critic estimates the value of the future. Lost
        # episodes, and those whose physics broke down, have no value from then on.
        # ``seed`` is the run's plus the rank. ``cfg`` describes the environment for rsl_rl's log writers.
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
        self.counter = EpisodeCounter(self.num_envs, self.device)
        self.group_size = 1
        self.num_drawn = 0
        self._seed = seed
        self._scaler = scaler
        self._all_env_ids = torch.arange(self.num_envs, device=self.device)
        self._observation = self._flat(self._reset(self._all_env_ids, self.next_conditions(self.num_envs)))

    def next_conditions(self, count: int) -> list[Conditions]:
        """Return the start conditions of the next `count` episodes, all different."""
        first, self.num_drawn = self.num_drawn, self.num_drawn + count
        starts = []
        for index in range(first, first + count):
            episode = Episode(job="training", episode_index=index, seed=self._seed)
            conditions = self.environment.draw_conditions(episode.conditions_generator())
            starts.append(self.environment.vary_conditions(conditions, episode))
        return starts

    def get_observations(self) -> TensorDict:
        """Return the observation of all env slots: for each group, vectors of shape (num_envs, size)."""
        return self._observation

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step with the network's output (num_envs, action_dim), and start the next episode in env slots that ended."""
        # The observations are those of the new episode in env slots that restarted. Rewards, dones and ``time_outs``
        # have shape (num_envs,).
        self.environment.draw_pictures_of(())
        step = self.environment.step(self._scaler(actions))
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
            observation = self._reset(env_ids, self.next_conditions(env_ids.numel()))
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
        drawn = self.next_conditions(self.num_envs // self.group_size)
        grouped = [conditions for conditions in drawn for _ in range(self.group_size)]
        self._observation = self._flat(self._reset(self._all_env_ids, grouped))
        for kept in (self.episode_length_buf, self._began_late, self.counter.returns, self.counter.lengths):
            kept.zero_()
        return self._observation

    def snapshot(self) -> dict[str, torch.Tensor] | None:
        """Return the state that decides the future of all env slots, None if the environment cannot provide it."""
        snapshot = self.environment.snapshot()
        if snapshot is None:
            return None
        own = {name: value.clone() for name, value in self._kept().items()}
        return {**snapshot, **own, _NUM_DRAWN: torch.tensor(self.num_drawn)}

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor], *, metrics: tuple[str, ...]) -> None:
        """Restore the state of all env slots from `snapshot`; `metrics` are the names of `EpisodeCounter`."""
        theirs = {name: value for name, value in snapshot.items() if not name.startswith("training/")}
        self.environment.draw_pictures_of(())
        self._observation = self._flat(self.environment.restore_snapshot(theirs))
        self.num_drawn = int(snapshot[_NUM_DRAWN])
        if _SUMS in snapshot:
            self.counter.begin(metrics)
        for name, value in self._kept().items():
            # Checkpoints of before have other sums, which are 0 between iterations.
            if name != _SUMS or value.shape == snapshot[name].shape:
                value.copy_(snapshot[name])

    def _kept(self) -> dict[str, torch.Tensor]:
        """Return the tensors that a snapshot holds beside the environment's."""
        counter = self.counter
        counted = {"training/returns": counter.returns, "training/lengths": counter.lengths, _SUMS: counter.sums}
        return {
            **({} if counter.metrics is None else counted),
            "training/episode_length": self.episode_length_buf,
            "training/began_late": self._began_late,
        }

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()

    def _reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        # No network here sees pictures, so none is drawn with the next observation.
        self.environment.draw_pictures_of(())
        return self.environment.reset(env_ids, conditions)

    def _flat(self, observation: Observation) -> TensorDict:
        vectors = {
            group: flattened(observation[group], terms, num_envs=self.num_envs, device=self.device)
            for group, terms in self.observation_terms.items()
        }
        return TensorDict(vectors, batch_size=[self.num_envs], device=self.device)
