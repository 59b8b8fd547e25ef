"""Asks a policy on a batch of one size, whatever the number of env slots.

The last digits of a network's answer for an env slot change with the size of the batch, and that is enough to change a
success. On batches of the right size they do not change with the place in the batch, nor with what stands beside it;
which sizes those are differs from machine to machine, and `settling` finds out. A policy that is always asked on as
many places then gives an episode the same bits for any ``num_envs``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.rollout.policy_answers import checked_action, checked_finished
from isaaclab_arena.interfaces.environment import Environment, Observation, StateTree, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, stated_model
from isaaclab_arena.interfaces.recordable import Recordable
from isaaclab_arena.nested import with_leaves


def check_policy_batch(policy_batch: int, *, num_envs: int) -> None:
    """Refuse a batch that cannot hold the env slots of a job.

    Args:
        policy_batch: Size of the batch that the policy is asked on.
        num_envs: Env slots of the job.

    Raises:
        ConfigError: If the batch is too small.
    """
    if policy_batch < num_envs:
        raise ConfigError(
            f"{num_envs} env slots do not fit into --policy_batch {policy_batch}, on which --deterministic asks the "
            f"policy; give --policy_batch {num_envs} or more, or fewer env slots"
        )


def batch_of(policy_class: type[PolicyBase], policy_batch: int | None, *, num_envs: int) -> int:
    """Return the size of the batch that a policy is asked on.

    Args:
        policy_class: Its class.
        policy_batch: Size that policies are always asked on, None for as many as there are env slots.
        num_envs: Env slots that there are.
    """
    return num_envs if policy_batch is None or policy_class.traits.batch_invariant else policy_batch


def on_fixed_batch(policy: PolicyBase, policy_batch: int | None) -> PolicyBase:
    """Return a policy that is asked on a batch of one size, which is the policy itself if it needs no such thing.

    Args:
        policy: What is asked.
        policy_batch: Size of the batch, None to ask on as many as there are env slots.
    """
    if policy_batch is None or policy.traits.batch_invariant:
        return policy
    return FixedBatchPolicy(policy, policy_batch)


class FixedBatchPolicy(PolicyBase[None]):
    """Asks another policy on a batch of one size: the env slots of the environment first, slots at rest behind.

    The other policy is shown an environment of that size. In the slots beyond the real ones no episode ever starts,
    and all that is observed there is zero.

    Args:
        policy: What is asked.
        policy_batch: Size that it is always asked on; at least as many as the environment has env slots.
    """

    def __init__(self, policy: PolicyBase, policy_batch: int) -> None:
        super().__init__()
        self._policy = policy
        self._policy_batch = policy_batch
        self._view: WideView | None = None

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the actions of the real env slots. Shape: (num_envs, action_dim).

        Raises:
            PolicyError: If the other policy's answer does not fit the batch.
        """
        view = self._view_of(env)
        if view.num_envs == view.num_real:
            # Nothing is filled up, and the loop checks the answer by itself.
            return self._policy.get_action(view, _of_one_layout(observation))
        action = self._policy.get_action(view, padded(observation, view.num_envs))
        # Values are for the loop to judge, which knows which env slots run; here only the shape of the batch matters.
        nowhere = torch.zeros(view.num_envs, dtype=torch.bool, device=env.device)
        return checked_action(action, view, nowhere)[: env.num_envs]

    def finished(self) -> torch.Tensor | None:
        """Return which real env slots have nothing more to do. Shape: (num_envs,), bool.

        Raises:
            PolicyError: If the other policy's answer does not fit the batch.
        """
        finished = self._policy.finished()
        if self._view is None or finished is None:
            return finished
        checked = checked_finished(finished, self._view)
        return None if checked is None else checked[: self._view.num_real]

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Tell the other policy of the episodes that begin."""
        self._policy.start_episodes(self._view_of(env), starts)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Tell the other policy of the episodes that have ended."""
        self._policy.end_episodes(self._view_of(env), env_ids)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Have the other policy forget what belongs to the episodes of the named env slots."""
        self._policy.reset(env_ids)

    def set_task_description(self, task_description: str | None) -> str | None:
        """Tell the other policy what to do, and return what it will follow."""
        return self._policy.set_task_description(task_description)

    def has_length(self) -> bool:
        """Whether the other policy says how long a run is."""
        return self._policy.has_length()

    def length(self) -> int | None:
        """What the other policy says."""
        return self._policy.length()

    def num_episodes(self) -> int | None:
        """What the other policy says."""
        return self._policy.num_episodes()

    @property
    def is_remote(self) -> bool:
        """Whether the other policy's network runs in another process."""
        return self._policy.is_remote

    def stated_model(self) -> str | None:
        """What the other policy's server says of its model."""
        return stated_model(self._policy)

    def can_play(self, episode_index: int) -> bool:
        """Whether the other policy has something to do in an episode."""
        return self._policy.can_play(episode_index)

    def close(self) -> None:
        """Close the other policy."""
        self._policy.close()

    def _view_of(self, env: Environment) -> "WideView":
        # Policies tell environments apart by identity, so one environment has one view.
        if self._view is None or self._view.real is not env:
            self._view = WideView(env, self._policy_batch)
        return self._view


class WideView(Environment):
    """An environment as a policy sees it that is asked on a batch of one size: with more env slots than there are.

    What is said of env slots is padded with zeros; anything else, also what is not part of the contract, is the real
    environment's.

    Args:
        real: The environment.
        num_envs: How many env slots to show.

    Raises:
        ConfigError: If that is less than there are.
    """

    def __init__(self, real: Environment, num_envs: int) -> None:
        if num_envs < real.num_envs:
            raise ConfigError(f"a batch of {num_envs} cannot hold the environment's {real.num_envs} env slots")
        self.real = real
        self.num_real = real.num_envs
        self.num_envs = num_envs
        self.device = real.device
        self.observation_spec = real.observation_spec
        self.action_spec = real.action_spec
        self.task_description = real.task_description
        self.max_episode_length = real.max_episode_length
        self.control_dt = real.control_dt
        self.reproducible = real.reproducible

    def __getattr__(self, name: str) -> Any:
        # A policy may know more of its environment than the contract says.
        return getattr(self.__dict__["real"], name) if "real" in self.__dict__ else object.__getattribute__(self, name)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """See `Environment.draw_conditions`."""
        return self.real.draw_conditions(generator)

    def vary_conditions(self, conditions: Conditions, episode: Episode) -> Conditions:
        """See `Environment.vary_conditions`."""
        return self.real.vary_conditions(conditions, episode)

    def instruction(self, conditions: Conditions) -> str:
        """See `Environment.instruction`."""
        return self.real.instruction(conditions)

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Refuse: it is the loop that starts episodes.

        Raises:
            PolicyError: Always.
        """
        del env_ids, conditions
        raise PolicyError("a policy must not reset the environment that it acts in")

    def step(self, action: torch.Tensor) -> Step:
        """Refuse: it is the loop that steps.

        Raises:
            PolicyError: Always.
        """
        del action
        raise PolicyError("a policy must not step the environment that it acts in")

    def state(self) -> StateTree:
        """Return the simulator's state, zero beyond the real env slots.

        Raises:
            PolicyError: If the environment shows no state.
        """
        if not isinstance(self.real, Recordable):
            raise PolicyError("the environment that the policy acts in shows no state")
        return padded(self.real.state(), self.num_envs)

    def provenance(self) -> Mapping[str, str]:
        """See `Environment.provenance`."""
        return self.real.provenance()

    @property
    def render_s(self) -> float:
        """See `Environment.render_s`."""
        return self.real.render_s


def _of_one_layout(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested dict of tensors with each of them laid out in order, itself where it already is."""
    return with_leaves(tree, lambda part: part.contiguous() if isinstance(part, torch.Tensor) else part)


def padded(tree: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Return a nested dict of tensors with zeros behind them, in memory of their own and of one layout.

    The layout matters too: an operation may take another way through a tensor that is laid out in another order.

    Args:
        tree: Nested dict of tensors, batched by env slot; anything else in it is passed on as it is.
        num_envs: Env slots that there are to be.
    """

    def wide(part: Any) -> Any:
        if not isinstance(part, torch.Tensor):
            return part
        widened = torch.zeros((num_envs, *part.shape[1:]), dtype=part.dtype, device=part.device)
        widened[: part.shape[0]] = part
        return widened

    return with_leaves(tree, wide)
