"""Group relative policy optimisation: compares episodes that start alike, and needs no critic."""

import copy
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from rsl_rl.env import VecEnv
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from rsl_rl.utils import compile_model, resolve_class, resolve_obs_groups, resolve_optimizer
from tensordict import TensorDict
from torch import nn

from isaaclab_arena.training.learner.algorithms.gradient_exchange import GradientExchange
from isaaclab_arena.training.learner.algorithms.normalisation import normalise_over_ranks
from isaaclab_arena.training.learner.algorithms.ppo import falling_learning_rate

_EPSILON = 1e-8
_LOSSES = ("surrogate", "entropy", "reference_kl")


@dataclass(frozen=True, kw_only=True)
class GrpoSettings:
    """How GRPO learns.

    Attributes:
        group_size: Env slots that begin alike.
        num_learning_epochs: How often each sample is learned from.
        num_mini_batches: Parts that the samples are learned from in.
        clip_param: How far the ratio of probabilities counts, on either side of 1.
        gamma: Discount per control step.
        entropy_coef: Weight of the policy's entropy.
        kl_coef: Weight of the divergence from the policy that training began with, 0 for none.
        learning_rate: Of the optimiser.
        schedule: Of the learning rate: ``fixed``, or ``linear``, which falls to zero at ``max_iterations``.
        max_grad_norm: Longest gradient.
        optimizer: Its name, as rsl_rl has it.
        grad_sync_period: Mini-batches between two exchanges among ranks; see `GradientExchange`.
        max_iterations: Length of the training, for ``linear``.
        grad_reduce_bucket_mb: How much is sent to other ranks at once, at most [MB].
    """

    group_size: int = 8
    num_learning_epochs: int = 4
    num_mini_batches: int = 4
    clip_param: float = 0.2
    gamma: float = 0.99
    entropy_coef: float = 0.0
    kl_coef: float = 0.0
    learning_rate: float = 1e-3
    schedule: Literal["fixed", "linear"] = "fixed"
    max_grad_norm: float = 1.0
    optimizer: str = "adam"
    grad_sync_period: int = 1
    max_iterations: int = 0
    grad_reduce_bucket_mb: float = 25.0


class GRPO:
    """GRPO (Shao et al., arXiv:2402.03300) for control, on the protocol of rsl_rl's algorithms.

    Every env slot begins a new episode with each iteration. The env slots of a group begin alike, so their returns
    differ only by what the policy did. An advantage is the discounted reward still to come, relative to the group's
    env slots that are under way at the same step. Steps after the first end of an episode do not count.

    Args:
        actor: The policy's network; recurrent ones are not supported.
        storage: Where samples are kept.
        settings: How it learns.
        device: Where to calculate.
        world_size: Number of ranks.

    Attributes:
        restarts_episodes: Whether every env slot begins a new episode with each iteration.
        group_size: Env slots that begin alike.
        learning_rate: Of the next step.
    """

    settings_class = GrpoSettings
    restarts_episodes = True
    rnd = None

    def __init__(
        self, actor: MLPModel, storage: RolloutStorage, settings: GrpoSettings, *, device: str, world_size: int = 1
    ) -> None:
        if actor.is_recurrent:
            raise ValueError("GRPO has no recurrent policies; use PPO, or an MLPModel")
        self.device = device
        self.settings = settings
        self.group_size = settings.group_size
        self.learning_rate = settings.learning_rate
        if world_size > 1:
            normalise_over_ranks(actor)
        self.actor: Any = actor.to(device)
        self._raw_actor: Any = self.actor
        self.reference: Any = None
        if settings.kl_coef:
            self.reference = copy.deepcopy(self.actor).eval().requires_grad_(requires_grad=False)
        optimizer_class: Any = resolve_optimizer(settings.optimizer)
        self.optimizer = optimizer_class(actor.parameters(), lr=settings.learning_rate)
        self.storage = storage
        self.transition: Any = RolloutStorage.Transition()
        self._world_size = world_size
        self._exchange = GradientExchange(period=settings.grad_sync_period, bucket_mb=settings.grad_reduce_bucket_mb)
        self._counts = torch.zeros(storage.num_transitions_per_env, storage.num_envs, dtype=torch.bool, device=device)
        self._advantages = torch.zeros(storage.num_transitions_per_env, storage.num_envs, device=device)

    @classmethod
    def construct_algorithm(cls, obs: TensorDict, env: VecEnv, cfg: dict[str, Any], device: str) -> Self:
        """Build the algorithm, its network and its storage from rsl_rl's configuration."""
        _, options = resolve_class(cfg["algorithm"])
        actor_class, actor_options = resolve_class(cfg["actor"])
        cfg["obs_groups"] = resolve_obs_groups(obs, cfg["obs_groups"], ["actor"])
        actor = actor_class(obs, cfg["obs_groups"], "actor", env.num_actions, **actor_options).to(device)
        storage = RolloutStorage("rl", env.num_envs, cfg["num_steps_per_env"], obs, [env.num_actions], device)
        world_size = 1 if cfg["multi_gpu"] is None else cfg["multi_gpu"]["world_size"]
        algorithm = cls(actor, storage, GrpoSettings(**options), device=device, world_size=world_size)
        algorithm.compile(cfg.get("torch_compile_mode"))
        return algorithm

    def begin_iteration(self, iteration: int) -> None:
        """Set the learning rate of an iteration, counted from 0, where it follows a schedule."""
        settings = self.settings
        if settings.schedule == "linear":
            self.learning_rate = falling_learning_rate(settings.learning_rate, iteration, settings.max_iterations)
            for group in self.optimizer.param_groups:
                group["lr"] = self.learning_rate

    def act(self, obs: TensorDict) -> torch.Tensor:
        """Draw an action for every env slot. Shape: (num_envs, action_dim)."""
        self.transition.actions = self.actor(obs, stochastic_output=True).detach()
        self.transition.actions_log_prob = self.actor.get_output_log_prob(self.transition.actions).detach()
        self.transition.distribution_params = tuple(p.detach() for p in self.actor.output_distribution_params)
        self.transition.values = torch.zeros(len(self.transition.actions), 1, device=self.device)
        self.transition.observations = obs
        return self.transition.actions

    def process_env_step(
        self, obs: TensorDict, rewards: torch.Tensor, dones: torch.Tensor, extras: dict[str, Any]
    ) -> None:
        """Keep what a step gave."""
        del obs, extras
        self.transition.rewards = rewards.clone()
        self.transition.dones = dones
        self.storage.add_transition(self.transition)
        self.transition.clear()

    def compute_returns(self, obs: TensorDict) -> None:
        """Compute advantages from the rewards of the first episode of each env slot."""
        del obs
        rewards, dones = self.storage.rewards[..., 0], self.storage.dones[..., 0].bool()
        returns, self._counts = returns_of_first_episode(rewards, dones, self.settings.gamma)
        self._advantages = group_advantages(returns, self._counts, self.group_size)

    def update(self) -> dict[str, float]:
        """Learn from the stored samples, and return the mean losses of this rank."""
        self._exchange.begin_update(self.settings.num_learning_epochs * self.settings.num_mini_batches)
        storage = self.storage
        observations = storage.observations.flatten(0, 1)
        actions, old_log_prob = storage.actions.flatten(0, 1), storage.actions_log_prob.flatten()
        advantages, counts = self._advantages.flatten(), self._counts.flatten()
        size = len(advantages) // self.settings.num_mini_batches
        # Summed on the device: each number that is read there makes the CPU wait for all that was asked for before.
        losses = torch.zeros(len(_LOSSES), dtype=torch.float64, device=self.device)
        for _ in range(self.settings.num_learning_epochs):
            order = torch.randperm(self.settings.num_mini_batches * size, device=self.device)
            for part in order.split(size):
                losses += self._learn(
                    observations[part], actions[part], old_log_prob[part], advantages[part], counts[part]
                )
        self.actor.update_normalization(observations)
        storage.clear()
        num_updates = self.settings.num_learning_epochs * self.settings.num_mini_batches
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
        """Learn from a mini-batch, and return its losses in the order of their names, on the device."""
        self.actor(observations, stochastic_output=True)
        log_prob = self.actor.get_output_log_prob(actions)
        weight = counts.to(log_prob.dtype)
        total = weight.sum().clamp(min=1)
        ratio = torch.exp(log_prob - old_log_prob)
        clipped = ratio.clamp(1 - self.settings.clip_param, 1 + self.settings.clip_param)
        surrogate = (torch.max(-advantages * ratio, -advantages * clipped) * weight).sum() / total
        entropy = (self.actor.output_entropy * weight).sum() / total
        divergence = torch.zeros((), device=self.device)
        if self.reference is not None:
            divergence = (self._divergence(observations, actions, log_prob) * weight).sum() / total
        self.optimizer.zero_grad()
        (surrogate - self.settings.entropy_coef * entropy + self.settings.kl_coef * divergence).backward()
        if self._world_size > 1:
            self.reduce_parameters()
        nn.utils.clip_grad_norm_(self.actor.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        return torch.stack((surrogate, entropy, divergence)).detach().to(torch.float64)

    def _divergence(self, observations: TensorDict, actions: torch.Tensor, log_prob: torch.Tensor) -> torch.Tensor:
        """Return an estimate of the divergence from the reference that is never negative (eq. 4 of the paper)."""
        if self.reference is None:
            return torch.zeros_like(log_prob)
        with torch.no_grad():
            self.reference(observations, stochastic_output=True)
            reference = self.reference.get_output_log_prob(actions)
        difference = reference - log_prob
        return torch.exp(difference) - difference - 1

    def train_mode(self) -> None:
        """Let the normaliser learn."""
        self.actor.train()

    def eval_mode(self) -> None:
        """Let the normaliser be."""
        self.actor.eval()

    def save(self) -> dict[str, Any]:
        """Return weights and optimiser, under rsl_rl's keys."""
        saved = {"actor_state_dict": self._raw_actor.state_dict(), "optimizer_state_dict": self.optimizer.state_dict()}
        return saved if self.reference is None else {**saved, "reference_state_dict": self.reference.state_dict()}

    def load(self, loaded_dict: dict[str, Any], load_cfg: dict[str, bool] | None, strict: bool) -> bool:  # noqa: FBT001  rsl_rl's signature
        """Take up what `save` returned, and say whether to go on with its iteration."""
        wanted = load_cfg or {"actor": True, "optimizer": True, "iteration": True}
        if wanted.get("actor"):
            self._raw_actor.load_state_dict(loaded_dict["actor_state_dict"], strict=strict)
            if self.reference is not None:
                reference = loaded_dict.get("reference_state_dict", loaded_dict["actor_state_dict"])
                self.reference.load_state_dict(reference, strict=strict)
        if wanted.get("optimizer"):
            self.optimizer.load_state_dict(loaded_dict["optimizer_state_dict"])
            self.learning_rate = self.optimizer.param_groups[0]["lr"]
        return wanted.get("iteration", False)

    def get_policy(self) -> MLPModel:
        """Return the policy's network."""
        return self._raw_actor

    def compile(self, mode: str | None = None) -> None:
        """Compile the network with ``torch.compile``, None for not."""
        self.actor = compile_model(self._raw_actor, mode)

    def broadcast_parameters(self) -> None:
        """Give all ranks the weights of rank 0."""
        for network in (self._raw_actor, self.reference):
            for tensor in {} if network is None else network.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)

    def reduce_parameters(self) -> None:
        """Exchange gradients among ranks."""
        self._exchange.exchange(list(self.actor.parameters()), self.optimizer)


def returns_of_first_episode(
    rewards: torch.Tensor, dones: torch.Tensor, gamma: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the discounted rewards still to come within the first episode of each env slot.

    Args:
        rewards: Shape: (num_steps, num_envs).
        dones: Whether an episode ended with the step. Shape: (num_steps, num_envs), bool.
        gamma: Discount per step.

    Returns:
        The returns, 0 after the first end, and whether a step belongs to the first episode. Shapes: as ``rewards``.
    """
    ended_before = (dones.cumsum(dim=0) - dones.to(torch.int64)) > 0
    counts = ~ended_before
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        following = torch.where(counts[step], rewards[step] + gamma * following, 0.0)
        returns[step] = following
    return returns, counts


def group_advantages(returns: torch.Tensor, counts: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return how much better each env slot does than its group at the same step, in standard deviations of the group.

    Args:
        returns: Shape: (num_steps, num_envs).
        counts: Which steps are compared. Shape: (num_steps, num_envs), bool.
        group_size: Consecutive env slots that make a group.

    Returns:
        0 where an env slot is alone. Shape: as ``returns``.
    """
    num_steps, num_envs = returns.shape
    values = returns.view(num_steps, num_envs // group_size, group_size)
    weight = counts.view(values.shape).to(returns.dtype)
    number = weight.sum(dim=2, keepdim=True)
    mean = (values * weight).sum(dim=2, keepdim=True) / number.clamp(min=1)
    deviation = ((values - mean) ** 2 * weight).sum(dim=2, keepdim=True) / (number - 1).clamp(min=1)
    advantages = (values - mean) / (torch.sqrt(deviation) + _EPSILON)
    return torch.where((weight > 0) & (number > 1), advantages, 0.0).view(num_steps, num_envs)
