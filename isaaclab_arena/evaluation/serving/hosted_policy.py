"""Build a job's policy to act in the env slots of clients, together where it can, else by one object for each."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, PolicyError, first_line
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.rollout.policy_answers import agreed_instruction, checked_action
from isaaclab_arena.evaluation.serving.observations import SlotObservation, batched
from isaaclab_arena.evaluation.serving.served_batch import BuiltTogether, settled
from isaaclab_arena.evaluation.serving.served_environment import ServedEnvironment
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import WatchedStart
from isaaclab_arena.interfaces.policy import PolicyBase, acts_in_some, announced_pictures, plans_of
from isaaclab_arena.interfaces.policy_traits import ActsInSome, SharesNetwork
from isaaclab_arena.nested import with_leaves

ChooseTerms: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Collection[str]] | None]
"""Returns which terms of an observation spec clients send, by group; None for all."""


@dataclass(frozen=True, kw_only=True)
class BegunEpisode:
    """An episode that a client begins.

    Attributes:
        episode: Which episode.
        instruction: What the client says that is to be done, None if it says nothing.
    """

    episode: Episode
    instruction: str | None


@dataclass(frozen=True, kw_only=True)
class SlotAnswer:
    """What a policy answers in one env slot.

    Attributes:
        action: Shape: (action_dim,), float32.
        planned: The action, and those that follow it whatever the env slot shows. Shape: (n, action_dim), float32.
        looks_next: Whether it will look at the pictures of the env slot's next observation.
    """

    action: np.ndarray
    planned: np.ndarray
    looks_next: bool


class HostedPolicy:
    """A job's policy for a fixed number of env slots. It belongs to one thread.

    A policy that can act in some env slots while others wait is one object; see `served_batch` for how many env slots
    each of its calls has. Any other would move every env slot on whenever one asks. So each env slot has an object of
    its own, which shares the network where the policy offers that.

    Args:
        job: The job.
        num_slots: Number of env slots.
        shown: Chooses the terms that clients send from the environment's observation spec.

    Attributes:
        job: The job.
        num_slots: Number of env slots.
        environment: What the policy sees: of all env slots, or of one if each has an object of its own.
        policy: The policy, or that of the first env slot.
        chunk_length: Actions that follow from an episode's first observation.
        acts_together: Whether there is one policy for all env slots.
        slots_per_call: Env slots of each call; None where others follow from who asks, or make no difference.
        looks_first: Whether it looks at the pictures of an episode's first observation.
        reads_instruction: Whether it reads an episode's instruction.
        stated_instruction: The instruction that the job states, for clients that send none; None if it states none.

    Raises:
        ConfigError: If ``shown`` refuses the environment, or the policy cannot act in it.
    """

    def __init__(self, job: Job, num_slots: int, shown: ChooseTerms = lambda _: None) -> None:
        self.job, self.num_slots = job, num_slots
        self.stated_instruction = job.config.language_instruction or None
        self._policies: dict[int, PolicyBase] = {}
        real = job.with_num_envs(1, policy_num_envs=1).build_environment(device=torch.device("cpu"), num_threads=1)
        try:
            terms = shown(real.observation_spec)
            self.slots_per_call: int | None = 1
            together = self._built_together(real, terms, num_slots)
            self.policy, self.environment = together.policy, together.environment
            self.acts_together = acts_in_some(self.policy)
            if self.acts_together:
                together = settled(together, partial(self._built_together, real, terms))
                self.policy, self.environment = together.policy, together.environment
                self.slots_per_call = together.slots_per_call
            else:
                self.environment = ServedEnvironment(real, num_envs=1, shown=terms)
                self.policy.close()
                self.policy = self._built(self.environment)
        finally:
            real.close()
        self._policies[0] = self.policy
        self._try_out()
        # Whether the first observation of an episode needs pictures is the same in every env slot.
        looked_at = announced_pictures(self.policy, self.environment, [0])
        self.looks_first = looked_at is None or 0 in looked_at

    @property
    def observation_spec(self) -> Mapping[str, Any]:
        """What each env slot shows: group, then term, then `ArraySpec`."""
        return self.environment.observation_spec

    def start(self, env_id: int, begun: BegunEpisode) -> None:
        """Begin an episode in an env slot."""
        policy = self._policy_of(env_id)
        words = begun.instruction or self._instruction or self.environment.task_description
        place = env_id if self.acts_together else 0
        start = WatchedStart(env_id=place, episode=begun.episode, conditions={}, language_instruction=words)
        policy.start_episodes(self.environment, [start])
        self._started = start

    def end(self, env_id: int) -> None:
        """End the episode in an env slot."""
        self._policy_of(env_id).end_episodes(self.environment, [env_id if self.acts_together else 0])

    @torch.no_grad()
    def act(self, observations: Mapping[int, SlotObservation]) -> dict[int, SlotAnswer | Exception]:
        """Return the answer in some env slots, or what went wrong there, by env slot.

        Args:
            observations: By env slot; each has an episode under way.
        """
        if self.acts_together:
            return self._asked(self.policy, observations)
        answers: dict[int, SlotAnswer | Exception] = {}
        for env_id, observation in observations.items():
            answers[env_id] = self._asked(self._policy_of(env_id), {0: observation})[0]
        return answers

    def close(self) -> None:
        """Close every policy."""
        for policy in self._policies.values():
            policy.close()

    def _try_out(self) -> None:
        """Ask once about zeros, so that a policy that cannot be served says so before anybody connects."""
        zeros = with_leaves(self.observation_spec, lambda term: torch.zeros(term.shape, dtype=term.dtype))
        answer: SlotAnswer | Exception
        try:
            self.start(0, BegunEpisode(episode=Episode(job="trial", episode_index=0, seed=0), instruction=None))
            answer = self.act({0: zeros})[0]
            self.end(0)
        except PolicyError as error:
            answer = error
        self.policy.reset()
        if isinstance(answer, Exception):
            name = self.job.config.policy_type
            raise ConfigError(f"the policy '{name}' cannot be served: {first_line(answer)}") from answer
        self.chunk_length = len(answer.planned)
        self.reads_instruction = self._started.instruction_was_read

    def _built_together(
        self, real: Environment, terms: Mapping[str, Collection[str]] | None, num_envs: int
    ) -> BuiltTogether:
        environment = ServedEnvironment(real, num_envs=num_envs, shown=terms)
        return BuiltTogether(policy=self._built(environment), environment=environment)

    def _built(self, environment: ServedEnvironment) -> PolicyBase:
        first = self._policies.get(0)
        sharing = first.with_own_memory() if isinstance(first, SharesNetwork) else None
        policy = sharing or self.job.with_num_envs(1, policy_num_envs=environment.num_envs).build_policy()
        policy.reset()
        policy.check_environment(environment)
        if first is None:
            self.job.tell_connections(policy, environment)
        self._instruction = agreed_instruction(policy, environment, self.job.config.language_instruction)
        return policy

    def _policy_of(self, env_id: int) -> PolicyBase:
        if self.acts_together:
            return self.policy
        if env_id not in self._policies:
            self._policies[env_id] = self._built(self.environment)
        return self._policies[env_id]

    def _asked(
        self, policy: PolicyBase, observations: Mapping[int, SlotObservation]
    ) -> dict[int, SlotAnswer | Exception]:
        environment, env_ids = self.environment, list(observations)
        shown = batched(observations, environment.observation_spec, environment.num_envs)
        try:
            if isinstance(policy, ActsInSome) and self.acts_together:
                answer = policy.act_in_some(environment, shown, env_ids)
            else:
                answer = policy.get_action(environment, shown)
            actions = checked_action(answer, environment).numpy()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  what one query does to a policy must not stop the server
            return dict.fromkeys(env_ids, error)
        looks = announced_pictures(policy, environment, ())
        return {
            env_id: _answer(_planned(policy, env_id, actions[env_id]), looks_next=looks is None or env_id in looks)
            for env_id in env_ids
        }


def _planned(policy: PolicyBase, env_id: int, action: np.ndarray) -> np.ndarray:
    """Return an action and those that follow it for certain. Shape: (n, action_dim)."""
    plans = plans_of(policy)
    if plans is None:
        return action[None]
    return np.concatenate((action[None], plans.planned(env_id).cpu().numpy().astype(np.float32)))


def _answer(planned: np.ndarray, *, looks_next: bool) -> SlotAnswer | PolicyError:
    if not np.isfinite(planned).all():
        return PolicyError(f"the policy's action holds NaN or infinity: {planned[0].tolist()}")
    return SlotAnswer(action=planned[0], planned=planned, looks_next=looks_next)
