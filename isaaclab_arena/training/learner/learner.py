"""Collects samples on one rank and learns from them, with a state that training resumes from bit for bit."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rsl_rl.utils import check_nan

from isaaclab_arena.distributed.collectives import sum_over_ranks
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ArenaError, ConfigError, first_line
from isaaclab_arena.models.action_scaling import ActionScaler
from isaaclab_arena.training.checkpoints.task_evaluation import environment_job
from isaaclab_arena.training.learner.agent import build_algorithm, networks_of, set_random_seed
from isaaclab_arena.training.learner.episode_starts import EpisodeStarts
from isaaclab_arena.training.learner.episode_statistics import EpisodeStatistics, statistics_of
from isaaclab_arena.training.learner.first_weights import FirstWeights, begin_with
from isaaclab_arena.training.learner.vec_env import TrainingEnvironment
from isaaclab_arena.training.settings.config import TrainingConfig
from isaaclab_arena.training.settings.settings_files import learning_rate_before

_LOG = logging.getLogger(__name__)
_TOLD_OF_NAN = ("NaN values", "normal expects", "Expected parameter")
"""Parts of messages of rsl_rl and torch about NaN or a negative deviation."""


class DivergedError(ArenaError):
    """The training has reached NaN. Other settings may help."""


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """Results of an iteration.

    Attributes:
        losses: Name to mean loss over all ranks.
        episodes: Episodes that ended in it, of all ranks.
        env_steps: Control steps of all env slots of all ranks.
        collect_s: Time that taking samples took on this rank [s].
        learn_s: Time that learning took [s].
        learning_rate: Learning rate at the end.
        action_std: Mean standard deviation of the actions, NaN for a policy without.
    """

    losses: dict[str, float]
    episodes: EpisodeStatistics
    env_steps: int
    collect_s: float
    learn_s: float
    learning_rate: float
    action_std: float


class Learner:
    """One rank's env slots, copy of the networks and random numbers.

    Args:
        config: What is asked for.
        context: Who this process is; the process group exists where there are several ranks.
        num_threads: Threads that the physics may use.

    Attributes:
        iterations: Iterations done.
        algorithm: rsl_rl's algorithm.
        environment: The rank's env slots.
    """

    def __init__(self, config: TrainingConfig, context: DistributedContext, *, num_threads: int) -> None:
        self._config = config
        self._context = context
        self.iterations = 0
        seed = config.agent.seed + context.rank
        environment = environment_job(config).build_environment(device=context.device, num_threads=num_threads)
        self._starts = EpisodeStarts(environment, seed=seed)
        self.environment = TrainingEnvironment(
            environment,
            self._starts,
            scaler=ActionScaler(
                environment.action_spec,
                config.agent.action_scaling,
                clip=config.agent.clip_actions,
                device=environment.device,
            ),
            cfg={"environment": config.environment, "num_envs": config.num_envs, **config.env},
        )
        set_random_seed(seed)
        self.algorithm: Any = build_algorithm(config, self.environment, context)
        self._curiosity: Any = getattr(self.algorithm, "rnd", None)
        self._starts.group_size = getattr(self.algorithm, "group_size", 1)
        self._restarts = getattr(self.algorithm, "restarts_episodes", False)
        if config.agent.init_at_random_ep_len and not self._restarts:
            self.environment.begin_in_the_middle()
        self.algorithm.train_mode()
        if context.is_distributed:
            self.algorithm.broadcast_parameters()

    def iterate(self) -> Iteration:
        """Collect samples on all ranks, learn from them, and return the results. Every rank calls it.

        Raises:
            DivergedError: If an observation, a reward or a loss is NaN.
        """
        begin_iteration = getattr(self.algorithm, "begin_iteration", None)
        if begin_iteration is not None:
            begin_iteration(self.iterations)
        began = time.perf_counter()
        with self._telling_of_nan():
            self._collect()
            collected = time.perf_counter()
            losses, episodes = self._over_ranks(self.algorithm.update())
        self.iterations += 1
        learned = time.perf_counter()
        self._refuse_nan(losses)
        policy = self.algorithm.get_policy()
        std = policy.output_std.mean().item() if getattr(policy, "distribution", None) is not None else float("nan")
        return Iteration(
            losses=losses,
            episodes=episodes,
            env_steps=self.env_steps_per_iteration,
            collect_s=collected - began,
            learn_s=learned - collected,
            learning_rate=float(self.algorithm.learning_rate),
            action_std=std,
        )

    def _over_ranks(self, losses: Mapping[str, float]) -> tuple[dict[str, float], EpisodeStatistics]:
        """Return the mean losses and the statistics of episodes of all ranks, which need one message."""
        counter = self.environment.counter
        own = torch.cat((torch.tensor(list(losses.values()), dtype=torch.float64), counter.take().cpu()))
        total = sum_over_ranks(own)
        means = total[: len(losses)] / self._context.world_size
        episodes = statistics_of(total[len(losses) :], counter.metrics)
        return dict(zip(losses, means.tolist(), strict=True)), episodes

    @property
    def env_steps_per_iteration(self) -> int:
        """Control steps of all env slots of all ranks in an iteration."""
        return self._config.num_envs * self._config.agent.num_steps_per_env * self._context.world_size

    def rank_state(self) -> dict[str, Any]:
        """Return the state of this rank alone that resuming needs: random numbers, env slots, recurrent memory."""
        state: dict[str, Any] = {"torch_rng": torch.get_rng_state()}
        if self._context.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self._context.device)
        memory = {role: network.get_hidden_state() for role, network in networks_of(self.algorithm).items()}  # type: ignore[operator]
        state["memory"] = {role: value for role, value in memory.items() if value is not None}
        if self._curiosity is not None and self._curiosity.reward_normalization:
            state["curiosity_returns"] = self._curiosity.reward_normalizer.disc_avg.avg
        snapshot = self.environment.snapshot()
        if snapshot is not None:
            state["environment"] = {name: value.cpu() for name, value in snapshot.items()}
            state["metrics"] = list(self.environment.counter.metrics) if self.iterations else []
        return state

    def load(self, learned: Mapping[str, Any], rank_state: Mapping[str, Any] | None) -> bool:
        """Go on from a checkpoint.

        Args:
            learned: What rsl_rl saved, with ``iter``, the iterations done.
            rank_state: From `rank_state` of the same rank among as many, None to begin new episodes.

        Returns:
            Whether everything goes on exactly as it would have without a stop.
        """
        try:
            self.algorithm.load(dict(learned), None, strict=True)
        except (RuntimeError, ValueError, KeyError) as error:
            raise ConfigError(
                "the checkpoint is of another algorithm or other networks than are asked for now "
                f"({first_line(error)}); leave agent.algorithm, agent.actor, agent.critic and the environment as they "
                "were"
            ) from error
        self.iterations = int(learned["iter"])
        if self._curiosity is not None:
            # rsl_rl's schedule of its weight counts the steps, and no checkpoint keeps the count.
            self._curiosity.update_counter = self.iterations * self._config.agent.num_steps_per_env
        # Episodes that were seen before do not come again.
        self._starts.num_drawn += self.iterations * self._config.num_envs * self._config.agent.num_steps_per_env
        self._take_up_another_learning_rate(learned)
        if rank_state is None:
            return False
        snapshot = rank_state.get("environment")
        if snapshot is None or not self._fits(snapshot):
            return False
        self.environment.restore_snapshot(snapshot, metrics=tuple(rank_state["metrics"]))
        for role, network in networks_of(self.algorithm).items():
            memory = rank_state["memory"].get(role)
            if memory is not None:
                network.reset(hidden_state=_moved(memory, self._context.device))  # type: ignore[operator]
        returns = rank_state.get("curiosity_returns")
        if returns is not None and self._curiosity is not None:
            self._curiosity.reward_normalizer.disc_avg.avg = returns.to(self._context.device)
        # Last, because building and loading draw random numbers too.
        torch.set_rng_state(rank_state["torch_rng"])
        if "cuda_rng" in rank_state and self._context.device.type == "cuda":
            torch.cuda.set_rng_state(rank_state["cuda_rng"], self._context.device)
        return True

    def begin_with(self, path: Path) -> FirstWeights:
        """Begin with the weights of a checkpoint, which every rank reads, and return what was taken of it.

        Raises:
            ConfigError: If it is no checkpoint of rsl_rl, or its actor does not fit.
        """
        return begin_with(self.algorithm, path)

    def _take_up_another_learning_rate(self, learned: Mapping[str, Any]) -> None:
        """Use the learning rate that is asked for, where that is another one than the checkpoint began with."""
        before, now = learning_rate_before(learned), self._config.agent.algorithm.get("learning_rate")
        if before is None or now is None or now == before:
            return
        self.algorithm.learning_rate = now
        for group in self.algorithm.optimizer.param_groups:
            group["lr"] = now
        _LOG.info("the learning rate goes on from %g", now)

    def close(self) -> None:
        """Release what the environment holds."""
        self.environment.close()

    @torch.no_grad()
    def _collect(self) -> None:
        environment, algorithm, device = self.environment, self.algorithm, self._context.device
        observation = environment.restart() if self._restarts else environment.get_observations()
        for _ in range(self._config.agent.num_steps_per_env):
            actions = algorithm.act(observation.to(device))
            observation, rewards, dones, extras = environment.step(actions.to(environment.device))
            if self._config.agent.check_for_nan:
                check_nan(observation, rewards, dones)
            observation = observation.to(device)
            algorithm.process_env_step(observation, rewards.to(device), dones.to(device), extras)
        algorithm.compute_returns(observation)

    def _fits(self, snapshot: Mapping[str, torch.Tensor]) -> bool:
        return len(snapshot["training/episode_length"]) == self._config.num_envs

    @contextmanager
    def _telling_of_nan(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, RuntimeError) as error:
            if not any(words in str(error) for words in _TOLD_OF_NAN):
                raise
            raise self._diverged(first_line(error)) from error

    def _refuse_nan(self, losses: Mapping[str, float]) -> None:
        wrong = [name for name, value in losses.items() if value != value]  # noqa: PLR0124  NaN alone differs from itself
        if wrong:
            raise self._diverged(f"the loss {' and '.join(wrong)} is NaN")

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"iteration {self.iterations}: {what}; go on from the last checkpoint with --resume and a smaller "
            "agent.learning_rate or agent.clip_actions"
        )


def _moved(memory: torch.Tensor | tuple[torch.Tensor, ...], device: torch.device) -> Any:
    """Return a recurrent memory, a tensor or several, on a device."""
    if isinstance(memory, torch.Tensor):
        return memory.to(device)
    return tuple(part.to(device) for part in memory)
