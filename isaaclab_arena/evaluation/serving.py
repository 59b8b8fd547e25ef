"""A job's policy for clients in other processes: each session has an env slot, and queries are batched."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from isaaclab_arena.errors import ArenaError, ConfigError, PolicyError, did_you_mean, first_line
from isaaclab_arena.evaluation.batching import Batcher, ProbeResult, Query, filled_up, probe_policy
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.running_episodes import agreed_instruction, checked_action
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.observer import WatchedStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import announced_pictures, refuse_misread, shown_to
from isaaclab_arena.interfaces.specs import CAMERAS, Pictures
from isaaclab_arena.nested import with_leaves

# Check the observation of one env slot that a client sends, and combine those of several into a batch.

SlotObservation: TypeAlias = Mapping[str, Mapping[str, torch.Tensor]]
"""The observation of one env slot by group, then term, without the dimension of env slots."""


class ObservationRefusedError(PolicyError):
    """A client's observation does not match the spec of the served environment. The client can correct it."""


def checked_observation(observation: Mapping[str, Any], spec: Mapping[str, Any]) -> SlotObservation:
    """Return one env slot's observation as tensors of the spec's dtypes, else raise `ObservationRefusedError`."""
    # Only the group of pictures may be missing as a whole: the policy does not look at it in every step.
    due = {group: terms for group, terms in spec.items() if group != CAMERAS or group in observation}
    _refuse_other_names("groups", observation, due)
    checked: dict[str, dict[str, torch.Tensor]] = {}
    for group, terms in due.items():
        given = observation[group]
        if not isinstance(given, Mapping):
            raise ObservationRefusedError(f"'{group}' must hold arrays by name, it is a {type(given).__name__}")
        _refuse_other_names(f"arrays of '{group}'", given, terms)
        checked[group] = {}
        for term, term_spec in terms.items():
            name, values = f"{group}.{term}", given[term]
            if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
                native = values.astype(values.dtype.newbyteorder("="), copy=False)
                tensor = torch.from_numpy(np.ascontiguousarray(native))
            elif isinstance(values, torch.Tensor):
                tensor = values
            else:
                kind = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else f"a {type(values).__name__}"
                raise ObservationRefusedError(f"'{name}' must be an array of numbers, it is {kind}")
            if tuple(tensor.shape) != term_spec.shape:
                raise ObservationRefusedError(f"'{name}' has shape {tuple(tensor.shape)}, expected {term_spec.shape}")
            if not term_spec.dtype.is_floating_point and tensor.dtype != term_spec.dtype:
                raise ObservationRefusedError(f"'{name}' has type {tensor.dtype}, expected {term_spec.dtype}")
            checked[group][term] = tensor.to(term_spec.dtype)
            if term_spec.dtype.is_floating_point and not bool(torch.isfinite(checked[group][term]).all()):
                raise ObservationRefusedError(f"'{name}' holds NaN or infinity")
    return checked


def batched(observations: Mapping[int, SlotObservation], spec: Mapping[str, Any], num_envs: int) -> Observation:
    """Combine the observations of some env slots into one batch of num_envs slots; the other slots hold zeros."""
    batch: Observation = {}
    for group, terms in spec.items():
        batch[group] = {}
        for name, term in terms.items():
            # Only the pictures may be missing.
            there = {env_id: each[group][name] for env_id, each in observations.items() if group in each}
            if len(there) == len(observations):
                wide = torch.zeros((num_envs, *term.shape), dtype=term.dtype)
                for env_id, part in there.items():
                    wide[env_id] = part
                batch[group][name] = wide
                continue

            # The policy does not look at the pictures of the other env slots.
            drawn = torch.stack(list(there.values())) if there else torch.zeros((0, *term.shape), dtype=term.dtype)
            batch[group][name] = Pictures(tuple(there), drawn, name, "the served policy")
    return batch


def _refuse_other_names(what: str, given: Mapping[str, Any], due: Mapping[str, Any]) -> None:
    missing = [name for name in due if name not in given]
    unknown = [str(name)[:100] for name in given if name not in due]
    names = missing or unknown
    listed = f"{', '.join(map(repr, names[:8]))}{', …' if names[8:] else ''}"
    if missing:
        raise ObservationRefusedError(f"the observation lacks the {what} {listed}")
    if unknown:
        raise ObservationRefusedError(f"the observation has unknown {what}: {listed}{did_you_mean(unknown[0], due)}")


# Show a policy an environment that is simulated elsewhere: its specs and its words, but no simulation.


class ServedEnvironment(Environment):
    """The specs and the task description of an environment that clients simulate. It can neither reset nor step."""

    def __init__(self, real: Environment, *, num_envs: int, shown: Mapping[str, Collection[str]] | None = None) -> None:
        # The real environment may be closed afterwards. `shown`: terms that clients send, by group; None for all.
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        spec: Mapping[str, Any] = real.observation_spec
        if shown is not None:
            # Keep the environment's order of terms: a network may rely on it.
            spec = {
                group: chosen
                for group, terms in spec.items()
                if (chosen := {name: term for name, term in terms.items() if name in shown.get(group, ())})
            }
        self.observation_spec = spec
        self.action_spec = real.action_spec
        self.task_description = real.task_description
        self.max_episode_length = real.max_episode_length
        self.control_dt = real.control_dt

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        """Return no conditions: the client that simulates the episode draws them."""
        del generator
        return {}

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Raise `PolicyError`: the environment is simulated elsewhere."""
        del env_ids, conditions
        raise PolicyError("a served policy cannot reset the environment, which is simulated elsewhere")

    def step(self, action: torch.Tensor) -> Step:
        """Raise `PolicyError`: the environment is simulated elsewhere."""
        del action
        raise PolicyError("a served policy cannot step the environment, which is simulated elsewhere")


# Choose the number of env slots in each call of the policy, so that no client's answers depend on other clients.

_LOG = logging.getLogger(__name__)


Built: TypeAlias = tuple[PolicyBase, ServedEnvironment]
"""A policy for the env slots of all clients, and its environment, which may have more env slots than there are
clients."""


@torch.no_grad()
def settled(first: Built, build: Callable[[int], Built]) -> tuple[Built, int | None]:
    """Choose the smallest call size at which an env slot's answer is independent of the others. May return `first`."""
    # `build` builds the policy again for an environment of the given number of env slots. The size is None if it varies
    # with the clients that ask, or makes no difference.
    (policy, environment), traits = first, first[0].traits
    if traits.batch_invariant or policy.is_remote or not traits.reproducible:
        return first, None
    is_divided = "slots_per_call" in policy.offers
    own = policy.slots_per_call(environment.num_envs) if is_divided else environment.num_envs
    if own is None:
        return first, None
    result = ProbeResult(passes=False)
    for size in filled_up(own):
        # A policy that divides its calls is only given the size. Any other remembers something of each env slot of a
        # call: it is always called with all of them, so it is built with more.
        built = first
        if is_divided:
            policy.fill_calls_up_to(size)
        elif size != own:
            built = build(size)
        result = probe_policy(*built, batch=size)
        if built is not first:
            (first if result.passes else built)[0].close()
        if result.passes:
            name = type(policy).__name__
            _LOG.info("each call of %s has %d env slots, whose answers do not depend on each other", name, size)
            return built, size

    # No size passes. A probe that failed leaves the question open.
    if is_divided:
        policy.fill_calls_up_to(None)
    if result.error is not None:
        _LOG.info("clients may influence each other's last digits: %s", result.error)
    else:
        _LOG.warning(
            "on this machine the last digits of an answer of %s depend on its place and its neighbours in a call of %d "
            "env slots, and so on other clients",
            type(policy).__name__,
            own,
        )
    return first, own


# Build a job's policy to act in the env slots of clients, together where it can, else by one object for each.

ChooseTerms: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Collection[str]] | None]
"""Returns the terms of an observation spec that clients send, by group; None for all."""


@dataclass(frozen=True, kw_only=True)
class SlotAnswer:
    """The policy's answer for one env slot."""

    action: np.ndarray  # shape: (action_dim,), float32
    # The action, and those that follow it for any observation of the env slot. Shape: (n, action_dim), float32.
    planned: np.ndarray
    looks_next: bool  # whether the policy reads the pictures of the next observation


class HostedPolicy:
    """A job's policy for `num_slots` env slots of clients, used by one thread. `ConfigError` if it cannot be served."""

    def __init__(self, job: Job, num_slots: int, shown: ChooseTerms = lambda _: None) -> None:
        # A policy that can act in some env slots while others wait is one object (`acts_together`); `settled` chooses
        # its call size. Any other would advance every env slot whenever one asks. So each env slot has an object of its
        # own, which shares the network if the policy offers that.
        self.job, self.num_slots = job, num_slots
        self._policies: dict[int, PolicyBase] = {}
        real = job.with_num_envs(1, policy_num_envs=1).build_environment(device=torch.device("cpu"), num_threads=1)
        try:
            # `shown` chooses the terms that clients send; it may refuse the environment.
            served = partial(ServedEnvironment, real, shown=shown(real.observation_spec))
            # Env slots of each call; None if the number varies with the clients that ask, or makes no difference.
            self.slots_per_call: int | None = 1
            together = self._built(served(num_envs=num_slots))
            self.acts_together = "act_in_some" in together[0].offers
            if self.acts_together:
                together, self.slots_per_call = settled(together, lambda number: self._built(served(num_envs=number)))
            else:
                together[0].close()
                together = self._built(served(num_envs=1))
            self.policy, self.environment = together
        finally:
            real.close()
        self._policies[0] = self.policy

        # Ask once with zeros, so that a policy that cannot be served fails before a client connects.
        zeros = with_leaves(self.environment.observation_spec, lambda term: torch.zeros(term.shape, dtype=term.dtype))
        answer: SlotAnswer | Exception
        try:
            self.start(0, Episode(job="trial", episode_index=0, seed=0))
            answer = self.act({0: zeros})[0]
            self.end(0)
        except PolicyError as error:
            answer = error
        self.policy.reset()
        if isinstance(answer, Exception):
            wrong = f"the policy '{job.config.policy_type}' cannot be served: {first_line(answer)}"
            raise ConfigError(wrong) from answer
        # Actions that follow from an episode's first observation.
        self.chunk_length = len(answer.planned)
        self.reads_instruction = self._started.instruction_was_read
        # Whether the first observation of an episode needs pictures is the same in every env slot.
        looked_at = announced_pictures(self.policy, self.environment, [0])
        self.looks_first = looked_at is None or 0 in looked_at

    def start(self, env_id: int, episode: Episode, instruction: str | None = None) -> None:
        """Begin an episode in an env slot, with the client's instruction if it states one."""
        policy, place = self._place_of(env_id)
        words = instruction or self._instruction or self.environment.task_description
        self._started = WatchedStart(env_id=place, episode=episode, conditions={}, language_instruction=words)
        policy.start_episodes(self.environment, [self._started])

    def end(self, env_id: int) -> None:
        """End the episode in an env slot."""
        policy, place = self._place_of(env_id)
        policy.end_episodes(self.environment, [place])

    @torch.no_grad()
    def act(self, observations: Mapping[int, SlotObservation]) -> dict[int, SlotAnswer | Exception]:
        """Map each env slot to its answer, or to the error of its query. Each must have an episode under way."""
        if self.acts_together:
            return self._asked(self.policy, observations)
        return {env_id: self._asked(self._place_of(env_id)[0], {0: each})[0] for env_id, each in observations.items()}

    def close(self) -> None:
        """Close every policy."""
        for policy in self._policies.values():
            policy.close()

    def _built(self, environment: ServedEnvironment) -> Built:
        first = self._policies.get(0)
        sharing = None if first is None else first.with_own_memory()
        policy = sharing or self.job.with_num_envs(1, policy_num_envs=environment.num_envs).build_policy()
        policy.reset()
        policy.check_environment(environment)
        if first is None:
            self.job.tell_connections(policy, environment)
        self._instruction = agreed_instruction(policy, environment, self.job.config.language_instruction)
        return policy, environment

    def _place_of(self, env_id: int) -> tuple[PolicyBase, int]:
        """Return the policy of a client's env slot, and the env slot in its environment."""
        if self.acts_together:
            return self.policy, env_id
        if env_id not in self._policies:
            self._policies[env_id], _ = self._built(self.environment)
        return self._policies[env_id], 0

    def _asked(
        self, policy: PolicyBase, observations: Mapping[int, SlotObservation]
    ) -> dict[int, SlotAnswer | Exception]:
        environment, env_ids = self.environment, list(observations)
        shown = batched(observations, environment.observation_spec, environment.num_envs)
        shown = shown_to(policy, environment, shown)
        try:
            try:
                if self.acts_together:
                    answer = policy.act_in_some(environment, shown, env_ids)
                else:
                    answer = policy.get_action(environment, shown)
            except AttributeError as error:
                refuse_misread(error)
                raise
            actions = checked_action(answer, environment).numpy()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  what one query does to a policy must not stop the server
            return dict.fromkeys(env_ids, error)
        looks = announced_pictures(policy, environment, ())
        answers = dict[int, SlotAnswer | Exception]()
        for env_id in env_ids:
            # The action, and the planned actions that follow it. Shape: (n, action_dim).
            planned = actions[env_id][None]
            if "planned" in policy.offers:
                planned = np.concatenate((planned, policy.planned(env_id).cpu().numpy().astype(np.float32)))
            looks_next = looks is None or env_id in looks
            answers[env_id] = SlotAnswer(action=planned[0], planned=planned, looks_next=looks_next)
            if not np.isfinite(planned).all():
                answers[env_id] = PolicyError(f"the policy's action holds NaN or infinity: {planned[0].tolist()}")
        return answers


# Answer the queries of all sessions on one thread: the queries that wait share one call of the policy.


class HostFullError(ArenaError):
    """Every env slot of a served policy has a session. The server can be started with more."""


Begun: TypeAlias = tuple[Episode, str | None]
"""An episode that a client begins, and its instruction as the client states it; None if it states none."""

_Asked: TypeAlias = tuple[int, Begun | None, SlotObservation]
"""An env slot, the episode that begins with the query (None if one goes on), and the observation."""


class PolicyHost(Batcher[_Asked, SlotAnswer]):
    """The thread that asks a policy for all sessions, each with its own env slot. It closes the policy."""

    name, ended = "policy host", "the policy is no longer served"

    def __init__(self, policy: HostedPolicy, *, max_batch: int = 64, max_wait_s: float = 0.005) -> None:
        # A call waits `max_wait_s` for the sessions whose episode is under way, so that their queries share it. If each
        # env slot has a policy of its own, a call is one query and waits for no other.
        self.policy = policy
        self._free = list(range(policy.num_slots))
        self._begun: set[int] = set()
        self._num_queries = self._num_calls = 0
        super().__init__(max_batch=max_batch if policy.acts_together else 1, max_wait_s=max_wait_s)

    def check_room(self) -> None:
        """Raise `HostFullError` if no env slot is free or the host is closed."""
        if self.is_closed or not self._free:
            num_slots = self.policy.num_slots
            raise HostFullError(f"all {num_slots} env slots of the served policy are taken; try again later")

    def open(self) -> "HostSession":
        """Return a session in a free env slot; `HostFullError` if there is none."""
        with self._changed:
            self.check_room()
            return HostSession(self, self._free.pop(0), looks_next=self.policy.looks_first)

    def statistics(self) -> dict[str, int]:
        """Return the open sessions, and since the start the answered queries and the policy's calls for them."""
        with self._changed:
            sessions = self.policy.num_slots - len(self._free)
            return {"sessions": sessions, "queries": self._num_queries, "calls": self._num_calls}

    def end(self, env_id: int) -> None:
        """End the env slot's episode before the next call."""

        def end() -> None:
            if env_id in self._begun:
                self._begun.discard(env_id)
                self.policy.end(env_id)

        self.count(-1)
        self.soon(end)

    def free(self, env_id: int) -> None:
        """Give the env slot to another session, once its episode has ended."""
        self.soon(lambda: self._free.append(env_id))

    def _answers(self, queries: Sequence[Query[_Asked, SlotAnswer]]) -> list[SlotAnswer | Exception]:
        """Answer queries by one call of the policy."""
        answers: dict[int, SlotAnswer | Exception] = {}
        shown: dict[int, SlotObservation] = {}
        for env_id, begun, observation in (query.asked for query in queries):
            try:
                if begun is not None:
                    self._begun.add(env_id)
                    self.policy.start(env_id, *begun)
                shown[env_id] = observation
            except Exception as error:  # noqa: BLE001  what one client begins must not stop the others
                answers[env_id] = error
        if shown:
            answers |= self.policy.act(shown)
        with self._changed:
            self._num_queries += len(queries)
            self._num_calls += 1
        return [answers[query.asked[0]] for query in queries]

    def _release(self) -> None:
        self.policy.close()


@dataclass(eq=False)
class HostSession:
    """A client's env slot in a served policy. It belongs to one thread."""

    host: PolicyHost
    env_id: int
    looks_next: bool  # whether the policy reads the pictures of the next observation
    _begun: Begun | None = field(default=None, init=False)
    _is_playing: bool = field(default=False, init=False)
    _is_open: bool = field(default=True, init=False)

    def start_episode(self, episode: Episode, instruction: str | None = None) -> None:
        """Begin an episode with the next query, and end the current one. `instruction` None: the job's or task's."""
        self.end_episode()
        self._begun, self._is_playing = (episode, instruction), True
        self.host.count(1)
        self.looks_next = self.host.policy.looks_first

    def act(self, observation: Mapping[str, Any]) -> SlotAnswer:
        """Return the answer to an observation, see `checked_observation`. An error of the policy ends the episode."""
        if not self._is_playing:
            raise PolicyError("no episode is running in this session; begin one first")
        # `ObservationRefusedError` leaves the episode under way: the client may send another observation.
        spec = self.host.policy.environment.observation_spec
        checked = checked_observation(observation, spec)
        if self.looks_next and spec.get(CAMERAS) and CAMERAS not in checked:
            raise ObservationRefusedError(f"the observation lacks '{CAMERAS}', which the policy needs in this step")
        waiting = self.host.submit((self.env_id, self._begun, checked))
        self._begun = None
        try:
            answer = waiting.result()
        except Exception:
            self.end_episode()
            raise
        self.looks_next = answer.looks_next
        return answer

    def end_episode(self) -> None:
        """End the episode, if one is under way."""
        if self._is_playing:
            self._is_playing, self._begun = False, None
            self.host.end(self.env_id)

    def close(self) -> None:
        """End the session, and give its env slot back. May be called more than once."""
        self.end_episode()
        if self._is_open:
            self._is_open = False
            self.host.free(self.env_id)
