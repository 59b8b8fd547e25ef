"""Ask any policy for chunks of actions of some env slots, however it is asked otherwise."""

from collections.abc import Sequence
from typing import Protocol

import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.batching.fixed_batch import FixedBatchPolicy
from isaaclab_arena.evaluation.rollout.policy_answers import action_tensor, checked_action
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, acts_in_some, announced_pictures, chunks_of
from isaaclab_arena.interfaces.policy_traits import ActsInSome, AnswersChunks, ChunkTraits, Continuation

ONE_STEP = ChunkTraits(played=1, predicted=1)


class Answers(Protocol):
    """Who is asked: a policy that answers with chunks, or one that answers with an action."""

    traits: ChunkTraits

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """Take up what some env slots show, once in every control step."""

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None
    ) -> torch.Tensor:
        """Return chunks of some env slots; see `AnswersChunks.chunks`."""
        ...

    def pictures_to_see(self, env: Environment, starting: Sequence[int], asking: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots at whose pictures the policy looks next, None for all.

        Args:
            env: The environment.
            starting: Env slots in which an episode is about to begin.
            asking: Env slots that ask in their next step.
        """
        ...


def answers_of(policy: PolicyBase, *, waits: bool = False) -> Answers:
    """Return how a policy is asked for chunks.

    Args:
        policy: The policy.
        waits: Whether no answer is late. Then a policy may combine chunks as it likes.

    Raises:
        ConfigError: If its options combine chunks in a way that nobody else can.
    """
    asked = policy.asked if isinstance(policy, FixedBatchPolicy) else policy
    chunked = chunks_of(asked)
    if chunked is None:
        return _OneStep(policy, in_some=not waits)
    try:
        return _Chunked(policy, chunked)
    except ConfigError:
        if waits:
            return _OneStep(policy, in_some=False)
        raise


class _Chunked:
    def __init__(self, policy: PolicyBase, asked: AnswersChunks) -> None:
        self._asked = asked
        self._wide = policy if isinstance(policy, FixedBatchPolicy) else None
        self.traits = asked.chunk_traits()

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        self._asked.look(*self._seen(env, observation), env_ids)

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None
    ) -> torch.Tensor:
        return self._asked.chunks(*self._seen(env, observation), env_ids, going_on)

    def pictures_to_see(self, env: Environment, starting: Sequence[int], asking: Sequence[int]) -> Sequence[int] | None:
        del env
        shown = {*self.traits.picture_steps}
        if not shown:
            return ()
        # Which earlier step a query will show is not known before that step is over.
        return [*starting, *asking] if shown == {0} else None

    def _seen(self, env: Environment, observation: Observation) -> tuple[Environment, Observation]:
        if self._wide is None:
            return env, observation
        return self._wide.view_of(env), self._wide.seen(env, observation)


class _OneStep:
    """A policy that cannot act in some env slots alone is asked in every step; what nobody has asked for is dropped."""

    traits = ONE_STEP

    def __init__(self, policy: PolicyBase, *, in_some: bool) -> None:
        self._policy = policy
        self._some = policy if in_some and isinstance(policy, ActsInSome) and acts_in_some(policy) else None
        self._action = torch.zeros(0)

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        del env_ids
        if self._some is None:
            self._action = checked_action(self._policy.get_action(env, observation), env)

    def chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int], going_on: Continuation | None
    ) -> torch.Tensor:
        del going_on
        if self._some is not None:
            self._action = action_tensor(self._some.act_in_some(env, observation, env_ids))
        return self._action[list(env_ids), None].to("cpu", torch.float32)

    def pictures_to_see(self, env: Environment, starting: Sequence[int], asking: Sequence[int]) -> Sequence[int] | None:
        wanted = announced_pictures(self._policy, env, starting)
        if self._some is None or wanted is None:
            return wanted if self._some is None else [*starting, *asking]
        return [env_id for env_id in wanted if env_id in {*starting, *asking}]
