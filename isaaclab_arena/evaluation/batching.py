"""Batches of policy calls: their gathering from several askers, their fixed size, and the probes of that size."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, PolicyError, first_line
from isaaclab_arena.evaluation.process import generators_put_back
from isaaclab_arena.evaluation.running_episodes import action_tensor, checked_action, checked_finished
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.environment_builder import EnvironmentWrapper
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import Continuation, PolicyBase, PolicyTraits
from isaaclab_arena.interfaces.policy_traits import announced_pictures, shown_to
from isaaclab_arena.interfaces.specs import CAMERAS, ArraySpec, ObservationSpec, Pictures, StateTree
from isaaclab_arena.nested import with_leaves
from isaaclab_arena.testing import environment_conformance as conformance

_LOG = logging.getLogger(__name__)

# Gather the queries of several askers into calls on one thread.

AskedT = TypeVar("AskedT")
AnswerT = TypeVar("AnswerT")


@dataclass(kw_only=True, eq=False)
class Query(Generic[AskedT, AnswerT]):
    """A query that waits for its call."""

    asked: AskedT
    number: int  # its share of a batch
    kind: Hashable  # only queries of one kind share a call
    arrived_s: float = field(default_factory=time.perf_counter)
    answer: "Future[AnswerT]" = field(default_factory=Future)


class Batcher(ABC, Generic[AskedT, AnswerT]):
    """Answers the queries of several askers by common calls, in a thread of its own."""

    name: ClassVar[str]
    ended: ClassVar[str]
    """The message of a query without an answer at the end."""

    def __init__(self, *, max_batch: int, max_wait_s: float) -> None:
        # A call waits until a batch is full, every asker has asked, or a query has waited `max_wait_s` [s].
        self.num_askers = 0  # each asks one query at a time
        self.is_closed = False  # whether it answers no more queries
        self.failure: str | None = None  # the error that ended the thread
        self._max_batch, self._max_wait_s = max_batch, max_wait_s
        self._changed = threading.Condition()
        self._waiting: list[Query[AskedT, AnswerT]] = []
        self._steps: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def count(self, change: int) -> None:
        """Add an asker, or remove one."""
        with self._changed:
            self.num_askers += change
            self._changed.notify_all()

    def submit(self, asked: AskedT, *, number: int = 1, kind: Hashable = None) -> "Future[AnswerT]":
        """Queue a query, and return its answer to come; PolicyError once the thread has ended or `close` was called."""
        query: Query[AskedT, AnswerT] = Query(asked=asked, number=number, kind=kind)
        with self._changed:
            if self.is_closed:
                raise PolicyError(self.ended)
            self._waiting.append(query)
            self._changed.notify_all()
        return query.answer

    def soon(self, step: Callable[[], None]) -> None:
        """Have the thread take a step before its next call; steps keep their order."""
        with self._changed:
            self._steps.append(step)
            self._changed.notify_all()

    def close(self) -> None:
        """Fail the queries that wait, and end the thread. May be called more than once."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
        self._thread.join()

    @abstractmethod
    def _answers(self, queries: Sequence[Query[AskedT, AnswerT]]) -> Iterable[AnswerT | Exception]:
        """Return the answers to queries of one kind, or their errors, in order."""

    def _release(self) -> None:
        """Free what the calls need, on the thread, at its end."""

    def _run(self) -> None:
        taken: list[Query[AskedT, AnswerT]] = []
        try:
            while True:
                with self._changed:
                    # Wait for a query or a step, then for other queries to join the call.
                    self._changed.wait_for(lambda: self.is_closed or self._waiting or self._steps)
                    if self._waiting and not self.is_closed:
                        left_s = self._waiting[0].arrived_s + self._max_wait_s - time.perf_counter()
                        self._changed.wait_for(
                            lambda: (
                                self.is_closed
                                or len(self._waiting) >= self.num_askers
                                or sum(each.number for each in self._waiting) >= self._max_batch
                            ),
                            timeout=max(0.0, left_s),
                        )
                    if self.is_closed:
                        return

                    # Take the first query, and those behind it that can be answered with it.
                    steps, self._steps, taken, number = self._steps, deque(), [], 0
                    for each in self._waiting:
                        if not taken or (each.kind == taken[0].kind and number + each.number <= self._max_batch):
                            taken.append(each)
                            number += each.number
                    self._waiting = [each for each in self._waiting if each not in taken]
                # Steps come first: a query may begin what follows one.
                for step in steps:
                    step()
                # An asker gets its answer as soon as it is there; answers may take several calls.
                for query, answer in zip(taken, self._answers(taken) if taken else (), strict=True):
                    if isinstance(answer, Exception):
                        query.answer.set_exception(answer)
                    else:
                        query.answer.set_result(answer)
        except Exception as error:
            self.failure = first_line(error)
            raise
        finally:
            with self._changed:
                self.is_closed = True
                # No asker may wait for ever, so all queries without an answer fail.
                left = [query for query in (*taken, *self._waiting) if not query.answer.done()]
            for query in left:
                query.answer.set_exception(PolicyError(self.ended))
            self._release()


# The number of env slots in a policy's call, and the probes that decide if the same bits can be promised.

# Wrap a policy. A subclass changes the calls for actions: their time, their batch, their observations.


def _passed_on(name: str) -> Any:
    return lambda self, *args, **kwargs: getattr(self.asked, name)(*args, **kwargs)


class PolicyWrapper(PolicyBase[None]):
    """Delegates everything to another policy, `asked`, except `get_action`, which a subclass defines."""

    def __init__(self, policy: PolicyBase) -> None:
        super().__init__()
        self.asked = policy
        self.traits = policy.traits

    @property
    def is_remote(self) -> bool:
        """Whether the wrapped policy's network runs in another process."""
        return self.asked.is_remote

    start_episodes, end_episodes, reset, close = map(_passed_on, ("start_episodes", "end_episodes", "reset", "close"))
    finished, episode_metrics, can_play = map(_passed_on, ("finished", "episode_metrics", "can_play"))
    has_length, length, num_episodes = map(_passed_on, ("has_length", "length", "num_episodes"))
    set_task_description, stated_model = map(_passed_on, ("set_task_description", "stated_model"))


# Call a policy on batches of one fixed size, for any number of env slots.
#
# The last digits of a network's action for an env slot change with the batch size, which is enough to change a success.
# With the right batch size they depend neither on the place in the batch nor on its other rows. The right sizes differ
# between machines; `GroupBuilder` finds one. A policy that is always called on a batch of that size gives an episode
# the same bits for any ``num_envs``.


def batch_of(traits: PolicyTraits, policy_batch: int | None, *, num_envs: int) -> int:
    """Return the batch size of a job's policy. `ConfigError` if its `num_envs` env slots do not fit."""
    # `policy_batch` does not matter to a policy that is batch-invariant.
    if policy_batch is None or traits.batch_invariant:
        return num_envs
    if policy_batch < num_envs:
        raise ConfigError(
            f"{num_envs} env slots exceed --policy_batch {policy_batch}, the fixed batch of --deterministic; give "
            f"--policy_batch {num_envs} or more, or fewer env slots"
        )
    return policy_batch


def on_fixed_batch(policy: PolicyBase, policy_batch: int | None) -> PolicyBase:
    """Wrap a policy in `FixedBatchPolicy`. Return it unchanged if `policy_batch` is None or it is batch-invariant."""
    if policy_batch is None or policy.traits.batch_invariant:
        return policy
    return FixedBatchPolicy(policy, policy_batch)


class FixedBatchPolicy(PolicyWrapper):
    """Calls a policy on batches of one size (at least num_envs): the env slots of the environment, then padding."""

    def __init__(self, policy: PolicyBase, policy_batch: int) -> None:
        super().__init__(policy)
        self._policy_batch = policy_batch
        # The other policy sees an environment of `policy_batch` env slots. In the padding no episode ever starts, and
        # all observations are zero.
        self._view: WideView | None = None

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the real env slots' actions (num_envs, action_dim). `PolicyError` if they do not fit the batch."""
        view, shown = self.seen(env, observation)
        action = self.asked.get_action(view, shown)
        if view.num_envs == view.num_real:
            # Without padding the evaluation loop checks the action itself.
            return action
        # The evaluation loop checks the values, because it knows which env slots run.
        return checked_action(action, view)[: env.num_envs]

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the real env slots whose pictures the other policy needs, None for all."""
        wanted = announced_pictures(self.asked, self.view_of(env), starting)
        return None if wanted is None else [env_id for env_id in wanted if env_id < env.num_envs]

    def finished(self) -> torch.Tensor | None:
        """Return the mask (num_envs,) of finished real env slots, None for none. `PolicyError` on a misfit."""
        finished = self.asked.finished()
        if self._view is None or finished is None:
            return finished
        checked = checked_finished(finished, self._view)
        return None if checked is None else checked[: self._view.num_real]

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Pass the episodes that begin to the other policy, with the padded view of the environment."""
        self.asked.start_episodes(self.view_of(env), starts)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Pass the env slots whose episodes have ended to the other policy, with the padded view of the environment."""
        self.asked.end_episodes(self.view_of(env), env_ids)

    def seen(self, env: Environment, observation: Observation) -> "tuple[WideView, Observation]":
        """Return the padded view of the environment, and the observation padded alike, in contiguous memory."""
        view = self.view_of(env)
        if view.num_envs > view.num_real:
            return view, padded(observation, view.num_envs, num_real=view.num_real, reader=type(self.asked).__name__)
        one_block = with_leaves(observation, lambda part: part.contiguous() if isinstance(part, torch.Tensor) else part)
        return view, one_block

    def view_of(self, env: Environment) -> "WideView":
        """Return the padded view of an environment, the same object for the same environment."""
        # Policies compare environments by identity, so each environment has one view.
        if self._view is None or self._view.real is not env:
            self._view = WideView(env, self._policy_batch)
        return self._view


class WideView(EnvironmentWrapper):
    """Shows an environment padded to `num_envs` env slots. `ConfigError` if the environment has more."""

    def __init__(self, real: Environment, num_envs: int) -> None:
        if num_envs < real.num_envs:
            raise ConfigError(f"a batch of {num_envs} cannot hold the environment's {real.num_envs} env slots")
        super().__init__(real)
        self.num_real = real.num_envs
        self.num_envs = num_envs

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """Raise `PolicyError`: only the evaluation loop starts episodes."""
        del env_ids, conditions
        raise PolicyError("a policy must not reset the environment that it acts in")

    def step(self, action: torch.Tensor) -> Step:
        """Raise `PolicyError`: only the evaluation loop steps."""
        del action
        raise PolicyError("a policy must not step the environment that it acts in")

    def state(self) -> StateTree:
        """Return the simulator state, padded with zeros. `PolicyError` if the environment shows no state."""
        state = self.real.state()
        if state is None:
            raise PolicyError("the environment that the policy acts in shows no state")
        return padded(state, self.num_envs)


def padded(tree: Mapping[str, Any], num_envs: int, *, num_real: int = 0, reader: str = "") -> dict[str, Any]:
    """Return a nested dict whose tensors (n, ...) are padded with zeros to (num_envs, ...), in new memory."""

    def wide(part: Any) -> Any:
        # Pictures get black ones of the padding; `reader` is named if it reads others that were not drawn.
        if isinstance(part, Pictures):
            black = part.frames.new_zeros((num_envs - num_real, *part.frames.shape[1:]))
            env_ids = (*part.env_ids, *range(num_real, num_envs))
            return replace(part, env_ids=env_ids, frames=torch.cat((part.frames, black)), reader=reader)
        if not isinstance(part, torch.Tensor):
            return part
        # Memory is contiguous, because an operation may sum in another order on another layout.
        widened = torch.zeros((num_envs, *part.shape[1:]), dtype=part.dtype, device=part.device)
        widened[: part.shape[0]] = part
        return widened

    return with_leaves(tree, wide)


# Test whether a network's output for an env slot depends on its place in the batch or on its neighbours.
#
# A matrix library may compute the end of a batch differently from its beginning, so the last digits of a network's
# output may depend on the place. The effect depends on the processor, the library and the size of every layer, so it
# must be tested. The test shows the same examples at other places and among other examples. Pure functions.

Ask: TypeAlias = Callable[[Sequence[int], int], Sequence[torch.Tensor]]
"""Answers a batch. It gets the example at each place and a number of steps, restarts all examples, and returns the
answer of each step. Shape of each: (batch, ...)."""


def answers_follow_from_examples(ask: Ask, batch: int) -> bool:
    """Whether the answer to every example has the same bits at every place and beside all other examples."""
    # A batch of one has no other place, so `ask` is not called.
    if batch == 1:
        return True
    # First the original order. Then reversed, because a matrix library computes the last places differently. Then
    # shifted by half a batch with every second example replaced, so that the neighbours differ too. A second step also
    # tests a policy's memory of the first.
    forwards = tuple(range(batch))
    moved_on = forwards[batch // 2 :] + forwards[: batch // 2]
    among_others = tuple(example if example % 2 else batch + example // 2 for example in moved_on)
    answered: dict[tuple[int, int], bytes] = {}
    for examples, num_steps in ((forwards, 2), (forwards[::-1], 2), (among_others, 1)):
        for step, answer in enumerate(ask(examples, num_steps)):
            # Bytes tell 0.0 from -0.0, unlike values, and NaN equals itself.
            raw = answer.detach().cpu().contiguous().flatten(1).view(torch.uint8).numpy()
            for example, row in zip(examples, raw, strict=True):
                answered_bits = row.tobytes()
                if answered.setdefault((example, step), answered_bits) != answered_bits:
                    return False
    return True


# Probe a policy with made-up observations: does the action of an env slot depend on other slots?
#
# The probe makes the same calls as the evaluation loop, so it covers everything between observation and action:
# pictures, the memory of a recurrent network, noise from an episode's stream, chunks of actions.

_SEED = 8_121_853
"""A fixed seed, so that the same machine always finds the same."""


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The outcome of a probe."""

    passes: bool  # same bits for each example at every place and beside all neighbours
    error: str | None = None  # the exception of the policy, None if it answered


def probe_policy(policy: PolicyBase, environment: Environment, *, batch: int, continues: bool = False) -> ProbeResult:
    """Probe a policy between jobs. Restore the policy, its streams and the process-wide generators afterwards."""
    if batch == 1:
        return ProbeResult(passes=True)
    probed = policy.with_own_memory() or policy
    try:
        with generators_put_back(), torch.no_grad():
            # Only the environment's specs are used; it is neither reset nor stepped. Its env slots beyond `batch` rest.
            view = WideView(environment, max(batch, environment.num_envs))
            # One arrangement of the examples replaces every second one by another.
            size, generator = batch + (batch + 1) // 2, np.random.default_rng(_SEED)
            # The second step shows other observations than the first.
            observations = [made_up(view.observation_spec, size, generator, view.device) for _ in range(2)]
            # A chunk that continues planned actions takes another path through the network. Example 0 continues none,
            # like the first chunk of an episode.
            going_on = None
            if continues and "chunks" in probed.offers and probed.chunk_traits().can_continue:
                generator, predicted = np.random.default_rng(_SEED), probed.chunk_traits().predicted
                actions = _numbers(ArraySpec(shape=(predicted, *view.action_spec.shape)), size, generator)
                weights = np.sort(generator.random((size, predicted), dtype=np.float32))[:, ::-1].copy()
                weights[:, 0], weights[0] = 1.0, 0.0
                going_on = Continuation(actions=actions, weights=torch.from_numpy(weights))
            ask = partial(_answers, probed, view, observations, going_on)
            return ProbeResult(passes=answers_follow_from_examples(ask, batch))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001  a foreign policy may fail on made-up observations
        _LOG.debug("%s failed on generated observations", type(policy).__name__, exc_info=True)
        return ProbeResult(passes=False, error=f"{type(error).__name__}: {error}".splitlines()[0])
    finally:
        policy.reset()


def _answers(
    policy: PolicyBase,
    view: WideView,
    observations: Sequence[Mapping[str, Any]],
    going_on: Continuation | None,
    examples: Sequence[int],
    num_steps: int,
) -> Sequence[torch.Tensor]:
    """Query a policy about examples in their order, for chunks that continue plans if there are any; see `Ask`."""
    # `observations`: of each step, those of all examples. Shape of the leaves: (number of examples, ...).
    policy.reset()
    starts = []
    for env_id, example in enumerate(examples):
        episode = Episode(job="probe", episode_index=example, seed=_SEED)
        drawn = view.vary_conditions(view.draw_conditions(episode.conditions_generator()), episode)
        words = view.instruction(drawn)
        starts.append(EpisodeStart(env_id=env_id, episode=episode, conditions=drawn, language_instruction=words))
    policy.start_episodes(view, starts)

    # New memory, because the policy may write to it.
    order, batch = torch.tensor(examples, device=view.device), len(examples)
    shown = [padded(with_leaves(each, lambda part: part[order]), view.num_envs) for each in observations[:num_steps]]
    if going_on is None:
        return [action_tensor(policy.get_action(view, shown_to(policy, view, each)))[:batch] for each in shown]
    answers = []
    for each in shown:
        seen = shown_to(policy, view, each)
        policy.look(view, seen, range(batch))
        answers.append(policy.chunks(view, seen, range(batch), going_on.of(examples))[:batch])
    return answers


def made_up(spec: ObservationSpec, number: int, generator: np.random.Generator, device: torch.device) -> dict[str, Any]:
    """Return random observations (number, ...): numbers of a different magnitude per example, noise pictures."""
    return with_leaves(spec, lambda part: _numbers(part, number, generator).to(device))


def _numbers(spec: ArraySpec, number: int, generator: np.random.Generator) -> torch.Tensor:
    shape = (number, *spec.shape)
    low, high = (
        np.full(spec.shape, default) if bound is None else np.array(bound).reshape(spec.shape)
        for bound, default in ((spec.low, -np.inf), (spec.high, np.inf))
    )
    if not spec.dtype.is_floating_point:
        top = 1 if spec.dtype is torch.bool else 255 if spec.dtype is torch.uint8 else 9
        return torch.from_numpy(np.clip(generator.integers(0, top, shape, endpoint=True), low, high)).to(spec.dtype)
    # Magnitudes are small and large, because a saturated network loses the digits that would differ.
    magnitude = 10.0 ** generator.uniform(-1.5, 0.5, (number, *[1] * len(spec.shape)))
    free = np.clip(magnitude * generator.standard_normal(shape), low, high)
    is_bounded = np.isfinite(low) & np.isfinite(high)
    least, most = np.where(is_bounded, low, 0.0), np.where(is_bounded, high, 0.0)
    within = least + (most - least) * generator.random(shape)
    return torch.from_numpy(np.where(is_bounded, within, free)).to(spec.dtype)


# Play an episode several times, to test whether its conditions and actions alone determine it.
#
# A foreign environment may draw from an unseeded generator, count its resets, or keep a running mean across episodes.
# Its traits do not show any of that.


def unlike_itself(environment: Environment, *, sees_pictures: bool) -> str | None:
    """Return the reason why an episode is not determined by its conditions and actions, None if it repeats itself."""
    # To be called between jobs, because it leaves env slots in the middle of episodes. Observations, rewards, ends,
    # success and metrics are compared to the last bit. `sees_pictures` adds the on-demand pictures of the start.
    last = environment.num_envs - 1
    # Env slot -> index of the episode that it plays.
    rounds = {
        "in another env slot": {0: 0, last: 0},
        "again beside another one": {0: 1, last: 0},
        "after another one": {0: 0, last: 1},
    }
    if last == 0:
        rounds = {"": {0: 0}, "again": {0: 0}, "after another one, in between": {0: 1}, "after another one": {0: 0}}
    expected: conformance.Trace = []
    try:
        with generators_put_back(), torch.no_grad():
            for how, playing in rounds.items():
                for slot, trace in _played(environment, playing, sees_pictures=sees_pictures).items():
                    if playing[slot] != 0:
                        continue
                    expected = expected or trace
                    if why := conformance.difference(expected, trace):
                        return f"an episode {how} with the same actions goes differently: {why}"
    except (Exception, SystemExit) as error:  # noqa: BLE001  foreign code; the job itself will report its error
        return f"the environment could not run an episode twice as a test ({type(error).__name__}: {first_line(error)})"
    return None


def _played(
    environment: Environment, playing: Mapping[int, int], *, sees_pictures: bool
) -> dict[int, conformance.Trace]:
    """Return the trace of each env slot in `playing`, until all episodes have ended or eight steps are made."""
    on_demand = environment.pictures_drawn is not None

    # Both episodes have index 0, because a benchmark may have only one episode.
    conditions = {}
    for slot, index in playing.items():
        episode = Episode(job="probe", episode_index=0, seed=_SEED + index)
        drawn = environment.draw_conditions(episode.conditions_generator())
        conditions[slot] = environment.vary_conditions(drawn, episode)

    # The start is compared too: instruction and observation, with on-demand pictures if the policy sees any.
    environment.draw_pictures_of([*playing] if sees_pictures else [])
    env_ids = torch.tensor(sorted(playing), dtype=torch.int64, device=environment.device)
    observation = environment.reset(env_ids, [conditions[slot] for slot in sorted(playing)])
    # On-demand pictures that were not drawn may show anything.
    if on_demand and not sees_pictures:
        observation = {group: terms for group, terms in observation.items() if group != CAMERAS}
    shown: dict[int, conformance.Trace] = {}
    for slot in playing:
        words = {"instruction": environment.instruction(conditions[slot]).encode()}
        shown[slot] = [{**conformance.shown_in(observation, slot), **words}]

    # Only running episodes are compared, because an env slot after its end may show anything.
    running = set(playing)
    for number in range(8):
        environment.draw_pictures_of([])
        step = environment.step(conformance.action_of(environment, playing, number))
        observation = step.observation
        if on_demand:
            observation = {group: terms for group, terms in observation.items() if group != CAMERAS}
        outcome = {name: getattr(step, name) for name in ("reward", "terminated", "truncated", "diverged", "success")}
        for slot in running:
            named = {
                name: conformance.bits(value[slot])
                for name, value in {**step.metrics, **outcome}.items()
                if value is not None
            }
            shown[slot].append({**conformance.shown_in(observation, slot), **named})
        running -= {slot for slot in running if bool(conformance.ended(step)[slot])}
        if not running:
            break
    return shown


# The sizes of batches to try, until a probe finds no difference between places.

MULTIPLES = (4, 8, 16)
"""Batch sizes are padded to multiples of these numbers. 4 comes first even if the batch might work without padding: a
probe of a few calls may miss a network that differs in a few of 100 places, and padding adds three places at most."""


def filled_up(num_envs: int) -> tuple[int, ...]:
    """Return the padded batch sizes to try, in order. A batch of one needs no padding."""
    if num_envs == 1:
        return (1,)
    return tuple(dict.fromkeys(-(-num_envs // multiple) * multiple for multiple in MULTIPLES))
