"""Ask a policy on batches of one fixed size, for any number of env slots.

The last digits of a network's answer for an env slot change with the size of the batch, which is enough to change a
success. With the right batch size they do not depend on the place in the batch or on its other entries. Which sizes are
right differs between machines; `settling` finds out. A policy that is always asked on a batch of that size gives an
episode the same bits for any ``num_envs``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.batching.policy_wrapper import PolicyWrapper
from isaaclab_arena.evaluation.rollout.policy_answers import checked_action, checked_finished
from isaaclab_arena.interfaces.environment import Environment, EnvironmentWrapper, Observation, StateTree, Step
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.pictures import SomePictures
from isaaclab_arena.interfaces.policy import PolicyBase, announced_pictures
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
    """Return the batch size for a policy.

    Args:
        policy_class: Its class.
        policy_batch: Fixed batch size, None for the number of env slots.
        num_envs: Number of env slots.
    """
    return num_envs if policy_batch is None or policy_class.traits.batch_invariant else policy_batch


def on_fixed_batch(policy: PolicyBase, policy_batch: int | None) -> PolicyBase:
    """Return a policy that is asked on batches of one size; it is the policy itself if that is not needed.

    Args:
        policy: The policy.
        policy_batch: Size of the batch, None for the number of env slots.
    """
    if policy_batch is None or policy.traits.batch_invariant:
        return policy
    return FixedBatchPolicy(policy, policy_batch)


class FixedBatchPolicy(PolicyWrapper):
    """Asks another policy on batches of one size: first the env slots of the environment, then slots at rest.

    The other policy sees an environment of that size. In the slots beyond the real ones no episode ever starts, and all
    observations there are zero.

    Args:
        policy: The policy.
        policy_batch: Size of each batch; at least the environment's number of env slots.
    """

    def __init__(self, policy: PolicyBase, policy_batch: int) -> None:
        super().__init__(policy)
        self._policy_batch = policy_batch
        self._view: WideView | None = None

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the actions of the real env slots. Shape: (num_envs, action_dim).

        Raises:
            PolicyError: If the other policy's answer does not fit the batch.
        """
        view = self.view_of(env)
        action = self.asked.get_action(view, self.seen(env, observation))
        if view.num_envs == view.num_real:
            # Nothing is padded, and the loop checks the answer itself.
            return action
        # The loop checks the values, because it knows which env slots run.
        return checked_action(action, view)[: env.num_envs]

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the real env slots at whose pictures the other policy looks, None for all."""
        wanted = announced_pictures(self.asked, self.view_of(env), starting)
        return None if wanted is None else [env_id for env_id in wanted if env_id < env.num_envs]

    def finished(self) -> torch.Tensor | None:
        """Return which real env slots have finished. Shape: (num_envs,), bool.

        Raises:
            PolicyError: If the other policy's answer does not fit the batch.
        """
        finished = self.asked.finished()
        if self._view is None or finished is None:
            return finished
        checked = checked_finished(finished, self._view)
        return None if checked is None else checked[: self._view.num_real]

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Tell the other policy of the episodes that begin."""
        self.asked.start_episodes(self.view_of(env), starts)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Tell the other policy of the episodes that have ended."""
        self.asked.end_episodes(self.view_of(env), env_ids)

    def seen(self, env: Environment, observation: Observation) -> Observation:
        """Return what the other policy sees of an observation: one of the view, in contiguous memory."""
        view = self.view_of(env)
        if view.num_envs == view.num_real:
            return _of_one_layout(observation)
        return padded(observation, view.num_envs, reader=type(self.asked).__name__)

    def view_of(self, env: Environment) -> "WideView":
        """Return what the other policy sees of an environment."""
        # Policies compare environments by identity, so each environment has one view.
        if self._view is None or self._view.real is not env:
            self._view = WideView(env, self._policy_batch)
        return self._view


class WideView(EnvironmentWrapper):
    """Shows an environment with more env slots than it has, to a policy that is asked on a larger batch.

    Values of env slots are padded with zeros.

    Args:
        real: The environment.
        num_envs: Number of env slots to show.

    Raises:
        ConfigError: If the environment has more env slots than that.
    """

    def __init__(self, real: Environment, num_envs: int) -> None:
        if num_envs < real.num_envs:
            raise ConfigError(f"a batch of {num_envs} cannot hold the environment's {real.num_envs} env slots")
        super().__init__(real)
        self.num_real = real.num_envs
        self.num_envs = num_envs

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Refuse, because only the loop starts episodes.

        Raises:
            PolicyError: Always.
        """
        del env_ids, conditions
        raise PolicyError("a policy must not reset the environment that it acts in")

    def step(self, action: torch.Tensor) -> Step:
        """Refuse, because only the loop steps.

        Raises:
            PolicyError: Always.
        """
        del action
        raise PolicyError("a policy must not step the environment that it acts in")

    def state(self) -> StateTree:
        """Return the simulator's state, padded with zeros beyond the real env slots.

        Raises:
            PolicyError: If the environment shows no state.
        """
        if not isinstance(self.real, Recordable):
            raise PolicyError("the environment that the policy acts in shows no state")
        return padded(self.real.state(), self.num_envs)


def _of_one_layout(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested dict with all tensors contiguous; the dict itself if they already are."""
    return with_leaves(tree, lambda part: part.contiguous() if isinstance(part, torch.Tensor) else part)


def padded(tree: Mapping[str, Any], num_envs: int, *, reader: str = "") -> dict[str, Any]:
    """Return a nested dict of tensors padded with zeros, in new contiguous memory.

    The memory layout matters, because an operation may compute in another order on another layout.

    Args:
        tree: Nested dict of tensors, batched by env slot; other values are passed on unchanged.
        num_envs: Number of env slots of the result.
        reader: Who is shown pictures of some env slots, where these are not all.
    """

    def wide(part: Any) -> Any:
        if isinstance(part, SomePictures):
            return part.padded(num_envs, reader=reader)
        if not isinstance(part, torch.Tensor):
            return part
        widened = torch.zeros((num_envs, *part.shape[1:]), dtype=part.dtype, device=part.device)
        widened[: part.shape[0]] = part
        return widened

    return with_leaves(tree, wide)
