"""PPO and GRPO for any number of ranks, which learn as one process would, and their exchange of gradients."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Literal, Self

import torch
from rsl_rl.algorithms import PPO as RslRlPPO  # noqa: N811  an acronym, as rsl_rl has it
from rsl_rl.env import VecEnv
from rsl_rl.models import MLPModel
from rsl_rl.modules import EmpiricalNormalization
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import compile_model, resolve_class, resolve_obs_groups, resolve_optimizer
from tensordict import TensorDict
from torch import nn

from isaaclab_arena.distributed.ranks import average_over_ranks_, gather_from_ranks

# The exchange of gradients and of the statistics of samples between ranks.


@dataclass(eq=False, kw_only=True)
class GradientExchange:
    """Averages gradients over ranks after every `period` mini-batches; bounds each message to `bucket_mb` [MB]."""

    # Period 1: all ranks make the same optimiser step on the mean of their gradients. A longer period lets each rank
    # continue by itself, and averages weights and optimiser state at the boundary (local SGD, arXiv:1805.09767).
    # A boundary then sends four times as many bytes in one message. So a longer period saves messages, and saves bytes
    # from a period of 5 on.
    period: int
    bucket_mb: float = 25.0
    _left: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)

    def begin_update(self, num_mini_batches: int) -> None:
        """Set the number of mini-batches of the update that begins now."""
        self._left, self._done = num_mini_batches, 0

    def exchange(
        self,
        parameters: Sequence[nn.Parameter],
        *optimizers: torch.optim.Optimizer,
        beside: Sequence[torch.Tensor] = (),
    ) -> None:
        """Average over ranks if this mini-batch is a boundary; call it between backward pass and optimiser step."""
        self._left -= 1
        self._done += 1
        # ``beside`` is averaged after every mini-batch, boundary or not; at a boundary it shares the message.
        together = list(beside)
        # The last mini-batch of an update is always a boundary, so that all ranks act with the same policy.
        is_boundary = self._left <= 0 or self._done % self.period == 0
        for parameter in parameters if is_boundary else ():
            if parameter.grad is not None:
                together.append(parameter.grad)
            # Since the last boundary, ranks that step alone have drifted apart in weights and moments too.
            if self.period != 1:
                together.append(parameter.data)
                together += [
                    value
                    for optimizer in optimizers
                    for value in optimizer.state.get(parameter, {}).values()
                    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim
                ]
        if not together:
            return

        # All ranks pack the tensors in the same order, and send them in messages of limited size.
        with torch.no_grad():
            packed = torch.cat([tensor.reshape(-1) for tensor in together])
            for message in packed.split(max(1, int(self.bucket_mb * 1024 * 1024) // packed.element_size())):
                average_over_ranks_(message)
            for tensor, averaged in zip(together, packed.split([tensor.numel() for tensor in together]), strict=True):
                tensor.copy_(averaged.view_as(tensor))


EPSILON = 1e-8


def moments_over_ranks(
    values: torch.Tensor, *, gather: Callable[[torch.Tensor], list[torch.Tensor]] = gather_from_ranks
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return number (), mean and squared deviations (features,) of all ranks' samples, each of (>= 1, features)."""
    # Each rank sends number, sum and squared deviations of its samples. Shape: (3, features), float64.
    own = values.to(torch.float64)
    total = own.sum(dim=0)
    squares = ((own - total / len(own)) ** 2).sum(dim=0)
    message = torch.stack((torch.full_like(total, len(own)), total, squares))
    # Chan et al.'s parallel variance: squares around each rank's mean, plus the shift of that mean to the common one.
    counts, totals, squares = torch.stack(gather(message)).to(values.device).unbind(dim=1)
    mean = totals.sum(dim=0) / counts.sum(dim=0)
    around_mean = squares + counts * (totals / counts - mean) ** 2
    return counts[:, 0].sum(), mean, around_mean.sum(dim=0)


def normalised_over_ranks(advantages: torch.Tensor) -> torch.Tensor:
    """Scale advantages of any shape to mean 0 and standard deviation 1 over the samples of all ranks."""
    count, mean, squares = moments_over_ranks(advantages.reshape(-1, 1))
    # Unbiased, as torch's own standard deviation, with which rsl_rl normalises.
    scale = torch.sqrt(squares / (count - 1).clamp(min=1)) + EPSILON
    return ((advantages.to(torch.float64) - mean) / scale).to(advantages.dtype)


class RanksNormalization(EmpiricalNormalization):
    """rsl_rl's observation normaliser, which sends one message instead of rsl_rl's three."""

    @torch.jit.unused
    def update(self, x: torch.Tensor) -> None:
        """Update the statistics with the samples of all ranks, shape (samples, features); every rank calls it."""
        if not self.training or (self.until is not None and self.count >= self.until):
            return
        count, mean, squares = moments_over_ranks(x)
        mean, variance = mean.to(x.dtype), (squares / count).to(x.dtype)
        self.count += count.to(torch.long)
        rate = (count / self.count).to(x.dtype)
        difference = mean - self._mean
        self._mean += rate * difference
        self._var += rate * (variance - self._var + difference * (mean - self._mean))
        self._std = torch.sqrt(self._var)


def normalise_over_ranks(network: nn.Module) -> None:
    """Normalise a network's observations over all ranks. Call it before the network has seen any."""
    found = getattr(network, "obs_normalizer", None)
    if type(found) is EmpiricalNormalization:
        network.obs_normalizer = RanksNormalization(found.mean.shape, eps=found.eps, until=found.until)


# Proximal policy optimisation.

_OF_ALL_RANKS = "adaptive, of all ranks"


class PPO(RslRlPPO):
    """rsl_rl's PPO (Schulman et al., arXiv:1707.06347), with gradients, KL and advantages over all ranks."""

    def __init__(self, *args: Any, grad_sync_period: int = 1, schedule: str = "adaptive", **kwargs: Any) -> None:
        # Advantages are normalised over the samples of all ranks. So N ranks with n env slots each learn what one
        # process with N·n env slots learns from the same samples.
        # Ranks exchange one message per mini-batch: the gradient, with the KL divergence that the adaptive rate
        # follows.
        # ``schedule``: ``adaptive`` follows the KL divergence; ``linear`` is followed by `Learner`; or ``fixed``.
        super().__init__(*args, schedule=schedule, **kwargs)
        self._exchange = GradientExchange(period=grad_sync_period, bucket_mb=self.grad_reduce_bucket_mb)
        self._mini_batch = RolloutStorage.Batch()
        if not self.is_multi_gpu:
            return
        for network in (self.actor, self.critic):
            normalise_over_ranks(network)
            network.to(self.device)
        if schedule == "adaptive" and self.desired_kl is not None:
            # rsl_rl would send two messages for each mini-batch, before the backward pass; see `reduce_parameters`.
            self.schedule = _OF_ALL_RANKS

            # `reduce_parameters` has no arguments, so the generators of mini-batches note the one in use.
            def noting(generator: Callable[..., Iterator[RolloutStorage.Batch]], *args: Any, **kwargs: Any) -> Any:
                for self._mini_batch in generator(*args, **kwargs):
                    yield self._mini_batch

            for name in ("mini_batch_generator", "recurrent_mini_batch_generator"):
                setattr(self.storage, name, partial(noting, getattr(self.storage, name)))

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute returns and advantages; the latter are normalised over all ranks' samples."""
        # Keep rsl_rl from normalising over this rank's samples only.
        per_mini_batch, self.normalize_advantage_per_mini_batch = self.normalize_advantage_per_mini_batch, True
        try:
            super().compute_returns(obs)
        finally:
            self.normalize_advantage_per_mini_batch = per_mini_batch
        if not per_mini_batch:
            self.storage.advantages = normalised_over_ranks(self.storage.advantages)

    def update(self) -> dict[str, float]:
        """Learn from the stored samples, and return this rank's mean losses."""
        self._exchange.begin_update(self.num_learning_epochs * self.num_mini_batches)
        return super().update()

    def reduce_parameters(self) -> None:
        """Exchange gradients among ranks; rsl_rl calls it after each backward pass if there are several ranks."""
        parameters = [*chain(self.actor.parameters(), self.critic.parameters())]
        optimizers = [self.optimizer]
        if self.rnd:
            parameters += self.rnd.predictor.parameters()
            optimizers.append(self.rnd.optimizer)
        if self.schedule != _OF_ALL_RANKS:
            self._exchange.exchange(parameters, *optimizers)
            return

        # The gradients' message also holds the mean KL divergence from the policy that took the mini-batch.
        before = self._mini_batch.old_distribution_params or ()
        with torch.no_grad():
            # In an augmented mini-batch, mirrored samples follow those that were taken.
            now = tuple(
                parameter[: len(taken)]
                for parameter, taken in zip(self.actor.output_distribution_params, before, strict=True)
            )
            mean_kl = self.actor.get_kl_divergence(before, now).mean()
        self._exchange.exchange(parameters, *optimizers, beside=[mean_kl])

        # Every rank adapts the learning rate to the same divergence, by the rule and the numbers of rsl_rl.
        divergence, rate = mean_kl.item(), self.learning_rate
        if divergence > self.desired_kl * 2.0:
            rate = max(1e-5, rate / 1.5)
        elif 0.0 < divergence < self.desired_kl / 2.0:
            rate = min(1e-2, rate * 1.5)
        set_learning_rate(self, rate)


def set_learning_rate(algorithm: Any, rate: float) -> None:
    """Set the learning rate of an algorithm and its optimiser."""
    algorithm.learning_rate = rate
    for group in algorithm.optimizer.param_groups:
        group["lr"] = rate


# Group relative policy optimisation for control.

_LOSSES = ("surrogate", "entropy", "reference_kl")


@dataclass(eq=False)
class GRPO:
    """GRPO (Shao et al., arXiv:2402.03300), on the protocol of rsl_rl's algorithms, with settings under their names."""

    # Every env slot begins a new episode with each iteration, and the env slots of a group begin alike. So their
    # returns differ only by the policy's actions.
    # An advantage is the discounted reward-to-go relative to the env slots of the group that are under way at the same
    # step. Steps after the first end of an episode do not count.
    restarts_episodes = True
    rnd = None

    actor: Any
    storage: RolloutStorage
    device: str
    _: KW_ONLY
    world_size: int = 1
    group_size: int = 8  # env slots that begin alike
    num_learning_epochs: int = 4
    num_mini_batches: int = 4
    clip_param: float = 0.2  # largest distance of the ratio of probabilities from 1
    gamma: float = 0.99  # discount per control step
    entropy_coef: float = 0.0
    kl_coef: float = 0.0  # weight of the divergence from the policy that training began with, 0 for none
    learning_rate: float = 1e-3
    schedule: Literal["fixed", "linear"] = "fixed"  # ``linear`` is followed by `Learner`
    max_grad_norm: float = 1.0
    optimizer: Any = "adam"  # the name, then the optimiser
    grad_sync_period: int = 1  # see `GradientExchange`
    grad_reduce_bucket_mb: float = 25.0  # largest message to other ranks [MB]

    def __post_init__(self) -> None:
        if self.actor.is_recurrent:
            raise ValueError("GRPO has no recurrent policies; use PPO, or an MLPModel")
        if self.world_size > 1:
            normalise_over_ranks(self.actor)
        self.actor = self._raw_actor = self.actor.to(self.device)
        self.reference: Any = None
        if self.kl_coef:
            self.reference = copy.deepcopy(self.actor).eval().requires_grad_(requires_grad=False)
        optimizer_class: Any = resolve_optimizer(self.optimizer)
        self.optimizer = optimizer_class(self.actor.parameters(), lr=self.learning_rate)
        self.transition: Any = RolloutStorage.Transition()
        self._exchange = GradientExchange(period=self.grad_sync_period, bucket_mb=self.grad_reduce_bucket_mb)
        # Filled by `compute_returns` for the following update.
        shape = self.storage.num_transitions_per_env, self.storage.num_envs
        self._counts = torch.zeros(shape, dtype=torch.bool, device=self.device)
        self._advantages = torch.zeros(shape, device=self.device)

    @classmethod
    def construct_algorithm(cls, obs: TensorDict, env: VecEnv, cfg: dict[str, Any], device: str) -> Self:
        """Build the algorithm, its network and its storage from rsl_rl's configuration."""
        _, options = resolve_class(cfg["algorithm"])
        actor_class, actor_options = resolve_class(cfg["actor"])
        cfg["obs_groups"] = resolve_obs_groups(obs, cfg["obs_groups"], ["actor"])
        actor = actor_class(obs, cfg["obs_groups"], "actor", env.num_actions, **actor_options).to(device)
        storage = RolloutStorage("rl", env.num_envs, cfg["num_steps_per_env"], obs, [env.num_actions], device)
        world_size = 1 if cfg["multi_gpu"] is None else cfg["multi_gpu"]["world_size"]
        algorithm = cls(actor, storage, device, world_size=world_size, **options)
        algorithm.actor = compile_model(algorithm.get_policy(), cfg.get("torch_compile_mode"))
        return algorithm

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Sample an action for every env slot. Shape: (num_envs, action_dim)."""
        self.transition.actions = self.actor(obs, stochastic_output=True).detach()
        self.transition.actions_log_prob = self.actor.get_output_log_prob(self.transition.actions).detach()
        self.transition.distribution_params = tuple(p.detach() for p in self.actor.output_distribution_params)
        # The storage asks for values; GRPO has no critic, so they are zero.
        self.transition.values = torch.zeros(len(self.transition.actions), 1, device=self.device)
        self.transition.observations = obs
        return self.transition.actions

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]
    ) -> None:
        """Store the rewards and dones of a step with its action."""
        del obs, extras
        self.transition.rewards = rewards.clone()
        self.transition.dones = dones
        self.storage.add_transition(self.transition)
        self.transition.clear()

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute advantages from the rewards of the first episode of each env slot."""
        del obs
        rewards, dones = self.storage.rewards[..., 0], self.storage.dones[..., 0].bool()
        returns, self._counts = returns_of_first_episode(rewards, dones, self.gamma)
        self._advantages = group_advantages(returns, self._counts, self.group_size)

    def update(self) -> dict[str, float]:
        """Learn from the stored samples, and return this rank's mean losses."""
        num_updates = self.num_learning_epochs * self.num_mini_batches
        self._exchange.begin_update(num_updates)
        storage = self.storage
        observations = storage.observations.flatten(0, 1)
        actions, old_log_prob = storage.actions.flatten(0, 1), storage.actions_log_prob.flatten()
        advantages, counts = self._advantages.flatten(), self._counts.flatten()
        size = len(advantages) // self.num_mini_batches
        # Sum on the device: each number read there makes the CPU wait for all operations queued before.
        losses = torch.zeros(len(_LOSSES), dtype=torch.float64, device=self.device)
        for _ in range(self.num_learning_epochs):
            order = torch.randperm(self.num_mini_batches * size, device=self.device)
            for part in order.split(size):
                losses += self._learn(
                    observations[part], actions[part], old_log_prob[part], advantages[part], counts[part]
                )
        self.actor.update_normalization(observations)
        storage.clear()
        losses /= num_updates
        return dict(zip(_LOSSES, losses.tolist(), strict=True))

    def _learn(
        self,
        observations: TensorDict,
        actions: torch.Tensor,
        old_log_prob: torch.Tensor,
        advantages: torch.Tensor,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        """Learn from a mini-batch; return its losses in the order of `_LOSSES`, on the device."""
        self.actor(observations, stochastic_output=True)
        log_prob = self.actor.get_output_log_prob(actions)
        # Samples after the first end of an episode have weight 0.
        weight = counts.to(log_prob.dtype)
        total = weight.sum().clamp(min=1)
        # The clipped surrogate of PPO, with the group's advantages.
        ratio = torch.exp(log_prob - old_log_prob)
        clipped = ratio.clamp(1 - self.clip_param, 1 + self.clip_param)
        surrogate = (torch.max(-advantages * ratio, -advantages * clipped) * weight).sum() / total
        entropy = (self.actor.output_entropy * weight).sum() / total

        # Estimate the divergence from the reference, never negative (eq. 4 of the paper).
        divergence = torch.zeros((), device=self.device)
        if self.reference is not None:
            with torch.no_grad():
                self.reference(observations, stochastic_output=True)
                reference = self.reference.get_output_log_prob(actions)
            difference = reference - log_prob
            divergence = ((torch.exp(difference) - difference - 1) * weight).sum() / total

        self.optimizer.zero_grad()
        (surrogate - self.entropy_coef * entropy + self.kl_coef * divergence).backward()
        if self.world_size > 1:
            self._exchange.exchange(list(self.actor.parameters()), self.optimizer)
        nn.utils.clip_grad_norm_(self.actor.parameters(), self.max_grad_norm)
        self.optimizer.step()
        return torch.stack((surrogate, entropy, divergence)).detach().to(torch.float64)

    def train_mode(self) -> None:
        """Let the normaliser learn."""
        self.actor.train()

    def save(self) -> dict[str, Any]:
        """Return weights and optimiser state, under rsl_rl's keys."""
        saved = {"actor_state_dict": self._raw_actor.state_dict(), "optimizer_state_dict": self.optimizer.state_dict()}
        return saved if self.reference is None else {**saved, "reference_state_dict": self.reference.state_dict()}

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, bool] | None, strict: bool) -> bool:  # noqa: FBT001  rsl_rl's signature
        """Restore all of what `save` returned; True, because training continues at its iteration."""
        del load_cfg
        self._raw_actor.load_state_dict(loaded_dict["actor_state_dict"], strict=strict)
        if self.reference is not None:
            # A checkpoint without a reference was trained without one: then the loaded actor becomes the reference.
            reference = loaded_dict.get("reference_state_dict", loaded_dict["actor_state_dict"])
            self.reference.load_state_dict(reference, strict=strict)
        self.optimizer.load_state_dict(loaded_dict["optimizer_state_dict"])
        self.learning_rate = self.optimizer.param_groups[0]["lr"]
        return True

    def get_policy(self) -> MLPModel:
        """Return the policy's network, uncompiled."""
        return self._raw_actor

    def broadcast_parameters(self) -> None:
        """Give all ranks the weights of rank 0."""
        for network in (self._raw_actor, self.reference):
            for tensor in {} if network is None else network.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)


def returns_of_first_episode(
    rewards: torch.Tensor, dones: torch.Tensor, gamma: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return discounted rewards-to-go of the first episodes, and a mask of their steps: (num_steps, num_envs)."""
    # Rewards and dones have shape (num_steps, num_envs); a done marks the last step of an episode. Returns are 0 after
    # the first.
    ended_before = (dones.cumsum(dim=0) - dones.to(torch.int64)) > 0
    counts = ~ended_before
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        following = torch.where(counts[step], rewards[step] + gamma * following, 0.0)
        returns[step] = following
    return returns, counts


def group_advantages(returns: torch.Tensor, counts: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return advantages within each group at the same step, in standard deviations. Shape: (num_steps, num_envs)."""
    # Consecutive env slots form a group. Only steps that ``counts`` marks are compared; a lone env slot has 0.
    num_steps, num_envs = returns.shape
    values = returns.view(num_steps, num_envs // group_size, group_size)
    weight = counts.view(values.shape).to(returns.dtype)
    number = weight.sum(dim=2, keepdim=True)
    mean = (values * weight).sum(dim=2, keepdim=True) / number.clamp(min=1)
    deviation = ((values - mean) ** 2 * weight).sum(dim=2, keepdim=True) / (number - 1).clamp(min=1)
    advantages = (values - mean) / (torch.sqrt(deviation) + EPSILON)
    return torch.where((weight > 0) & (number > 1), advantages, 0.0).view(num_steps, num_envs)
