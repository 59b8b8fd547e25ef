"""How many env slots a policy is asked for together, and whether the same bits can then be promised."""

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, PolicyError, first_line
from isaaclab_arena.evaluation.policy_answers import action_tensor, checked_action, checked_finished
from isaaclab_arena.interfaces.environment import Environment, EnvironmentWrapper, Observation, StateTree, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.pictures import CAMERAS, PicturesOnDemand, SomePictures
from isaaclab_arena.interfaces.policy import PolicyBase, announced_pictures, chunks_of, stated_model
from isaaclab_arena.interfaces.policy_traits import AnswersChunks, Continuation, DividesCalls, SharesNetwork
from isaaclab_arena.interfaces.recordable import Recordable
from isaaclab_arena.interfaces.specs import ArraySpec, ObservationSpec
from isaaclab_arena.nested import with_leaves
from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, SETTLED_FILE
from isaaclab_arena.storage.run_plan import SettledBatch, read_settled, settle
from isaaclab_arena.testing.playing import Trace, action_of, bits, difference, ended, env_ids_of, shown_in

# Another policy, of which a subclass changes when and about what it is asked.


class PolicyWrapper(PolicyBase[None]):
    """Passes on everything but the question for an action, which a subclass defines.

    Args:
        policy: The other policy.

    Attributes:
        asked: The other policy.
    """

    def __init__(self, policy: PolicyBase) -> None:
        super().__init__()
        self.asked = policy

    def finished(self) -> torch.Tensor | None:
        """Return which env slots have finished, None for none. Shape: (num_envs,), bool."""
        return self.asked.finished()

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Tell the other policy of the episodes that begin."""
        self.asked.start_episodes(env, starts)

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Tell the other policy of the episodes that have ended."""
        self.asked.end_episodes(env, env_ids)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Reset the other policy for the named env slots."""
        self.asked.reset(env_ids)

    def set_task_description(self, task_description: str | None) -> str | None:
        """Give the other policy its instruction, and return the one that it will follow."""
        return self.asked.set_task_description(task_description)

    def has_length(self) -> bool:
        """Whether the other policy determines the length of a run."""
        return self.asked.has_length()

    def length(self) -> int | None:
        """What the other policy says."""
        return self.asked.length()

    def num_episodes(self) -> int | None:
        """What the other policy says."""
        return self.asked.num_episodes()

    @property
    def is_remote(self) -> bool:
        """Whether the other policy's network runs in another process."""
        return self.asked.is_remote

    def stated_model(self) -> str | None:
        """The description of its model by the other policy's server."""
        return stated_model(self.asked)

    def can_play(self, episode_index: int) -> bool:
        """Whether the other policy can play an episode."""
        return self.asked.can_play(episode_index)

    def close(self) -> None:
        """Close the other policy."""
        self.asked.close()


# Ask a policy on batches of one fixed size, for any number of env slots.
#
# The last digits of a network's answer for an env slot change with the size of the batch, which is enough to change a
# success. With the right batch size they do not depend on the place in the batch or on its other entries. Which sizes
# are right differs between machines; `settling` finds out. A policy that is always asked on a batch of that size
# gives an episode the same bits for any ``num_envs``.


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


# Test whether a network's answer for an env slot depends on its place in the batch or on its neighbours.
#
# A matrix library may compute the end of a batch differently from its beginning, so the last digits of a network's
# answer may depend on the place. This depends on the processor, the library and the size of every layer, so it must
# be tested. The test shows the same examples at other places and among other examples. Pure functions.

MAX_CALLS = 5
"""Largest number of calls for a batch of one size."""

Ask: TypeAlias = Callable[[Sequence[int], int], Sequence[torch.Tensor]]
"""Answers a batch. It gets the example at each place and a number of steps, restarts all examples, and returns the
answer of each step. Shape of each: (batch, ...)."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """One order of the examples.

    Attributes:
        examples: Index of the example at each place.
        num_steps: Number of steps. A second one also tests what a policy remembers of the first.
    """

    examples: tuple[int, ...]
    num_steps: int


def num_examples(batch: int) -> int:
    """Return the number of different examples in the arrangements of a batch."""
    return batch + (batch + 1) // 2


def arrangements(batch: int) -> tuple[Arrangement, ...]:
    """Return the orders in which examples are shown.

    The first is the original order. The second is reversed, because the last places are those that are computed
    differently. The third is shifted by half a batch, with every second example replaced, so that neighbours differ
    too.
    """
    forwards = tuple(range(batch))
    moved_on = forwards[batch // 2 :] + forwards[: batch // 2]
    among_others = tuple(example if example % 2 else batch + example // 2 for example in moved_on)
    return (
        Arrangement(examples=forwards, num_steps=2),
        Arrangement(examples=forwards[::-1], num_steps=2),
        Arrangement(examples=among_others, num_steps=1),
    )


def answers_follow_from_examples(ask: Ask, batch: int) -> bool:
    """Return whether the answer to every example has the same bits at every place and beside all others.

    Args:
        ask: Answers a batch; called for each of `arrangements` in turn, until two answers differ.
        batch: Size of the batch. For a batch of one nothing is asked, because there is no other place.
    """
    if batch == 1:
        return True
    answered: dict[tuple[int, int], bytes] = {}
    for arrangement in arrangements(batch):
        for step, answer in enumerate(ask(arrangement.examples, arrangement.num_steps)):
            for example, answered_bits in zip(arrangement.examples, _bits(answer), strict=True):
                if answered.setdefault((example, step), answered_bits) != answered_bits:
                    return False
    return True


def _bits(answer: torch.Tensor) -> list[bytes]:
    """Return the bits at each place; unlike values, they tell zero from minus zero, and NaN equals itself."""
    raw = answer.detach().cpu().contiguous().flatten(1).view(torch.uint8)
    return [place.tobytes() for place in raw.numpy()]


# Ask a policy about made-up observations, to find out whether the action of an env slot depends on other slots.
#
# It is asked by the same calls as in the loop, so the test covers everything between observation and action:
# pictures, the memory of a recurrent network, noise from an episode's stream, chunks of actions.

_LOG = logging.getLogger(__name__)

_SEED = 8_121_853
"""A fixed seed, so that the same machine always finds the same."""

_PIXELS = torch.uint8
_HIGHEST_PIXEL, _HIGHEST_NUMBER = 255, 9


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """The outcome of asking a policy.

    Attributes:
        passes: Whether the answer to each example had the same bits at every place and with all neighbours.
        error: Why the policy could not be asked, None if it could.
    """

    passes: bool
    error: str | None = None


def probe_policy(policy: PolicyBase, environment: Environment, *, batch: int, continues: bool = False) -> ProbeResult:
    """Ask a policy a few times, and leave it, its streams and the process-wide generators as they were.

    Args:
        policy: The policy, between jobs, when no episode runs.
        environment: The environment, for its observation spec. It is neither reset nor stepped.
        batch: Number of env slots in a batch. If the environment has more, the others rest.
        continues: Whether it is asked for chunks that go on from planned actions, which takes its network another way.
    """
    if batch == 1:
        return ProbeResult(passes=True)
    probed = (policy.with_own_memory() if isinstance(policy, SharesNetwork) else None) or policy
    try:
        with generators_kept(), torch.no_grad():
            view, chunked = WideView(environment, max(batch, environment.num_envs)), chunks_of(probed)
            ask = _Asking(probed, view, batch)
            if continues and chunked is not None and chunked.chunk_traits().can_continue:
                ask = _Continuing(probed, view, batch, chunked)
            return ProbeResult(passes=answers_follow_from_examples(ask, batch))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001  a policy from elsewhere may be at a loss about what nobody has seen
        _LOG.debug("%s could not be asked about made-up observations", type(policy).__name__, exc_info=True)
        return ProbeResult(passes=False, error=f"{type(error).__name__}: {error}".splitlines()[0])
    finally:
        policy.reset()


class _Asking:
    """Asks a policy about examples in any order. Calling it is what `slot_probe.Ask` describes."""

    def __init__(self, policy: PolicyBase, view: WideView, batch: int) -> None:
        self._policy = policy
        self._view = view
        self._batch = batch
        generator = np.random.default_rng(_SEED)
        # There are two steps, and the second differs from the first.
        size = num_examples(batch)
        self._steps = [made_up(view.observation_spec, size, generator, view.device) for _ in range(2)]

    def __call__(self, examples: Sequence[int], num_steps: int) -> Sequence[torch.Tensor]:
        self._policy.reset()
        self._policy.start_episodes(self._view, [self._start(place, each) for place, each in enumerate(examples)])
        order = torch.tensor(examples, device=self._view.device)
        shown = [_rearranged(step, order, self._view.num_envs) for step in self._steps[:num_steps]]
        return [self._answer(each, examples)[: self._batch] for each in shown]

    def _answer(self, shown: dict[str, Any], examples: Sequence[int]) -> torch.Tensor:
        del examples
        return action_tensor(self._policy.get_action(self._view, shown))

    def _start(self, place: int, example: int) -> EpisodeStart:
        episode = Episode(job="probe", episode_index=example, seed=_SEED)
        drawn = self._view.draw_conditions(episode.conditions_generator())
        conditions = self._view.vary_conditions(drawn, episode)
        words = self._view.instruction(conditions)
        return EpisodeStart(env_id=place, episode=episode, conditions=conditions, language_instruction=words)


class _Continuing(_Asking):
    """Asks for chunks that go on from made-up actions, those of one example from none, as an episode's first do."""

    def __init__(self, policy: PolicyBase, view: WideView, batch: int, chunked: AnswersChunks) -> None:
        super().__init__(policy, view, batch)
        self._chunked = chunked
        generator, size = np.random.default_rng(_SEED), num_examples(batch)
        shape = (size, chunked.chunk_traits().predicted)
        actions = _numbers(ArraySpec(shape=(shape[1], *view.action_spec.shape)), size, generator)
        weights = np.sort(generator.random(shape, dtype=np.float32))[:, ::-1].copy()
        weights[:, 0], weights[0] = 1.0, 0.0
        self._going_on = Continuation(actions=actions, weights=torch.from_numpy(weights))

    def _answer(self, shown: dict[str, Any], examples: Sequence[int]) -> torch.Tensor:
        slots = range(len(examples))
        self._chunked.look(self._view, shown, slots)
        return self._chunked.chunks(self._view, shown, slots, self._going_on.of(examples))


def made_up(spec: ObservationSpec, number: int, generator: np.random.Generator, device: torch.device) -> dict[str, Any]:
    """Return made-up observations: each example has another magnitude, and pictures are noise.

    Args:
        spec: The observation spec.
        number: Number of examples.
        generator: Source of the numbers.
        device: Device of the observations.
    """
    return with_leaves(spec, lambda part: _numbers(part, number, generator).to(device))


def _numbers(spec: ArraySpec, number: int, generator: np.random.Generator) -> torch.Tensor:
    shape = (number, *spec.shape)
    low, high = (
        np.full(spec.shape, default) if bound is None else np.array(bound).reshape(spec.shape)
        for bound, default in ((spec.low, -np.inf), (spec.high, np.inf))
    )
    if not spec.dtype.is_floating_point:
        top = 1 if spec.dtype is torch.bool else _HIGHEST_PIXEL if spec.dtype is _PIXELS else _HIGHEST_NUMBER
        return torch.from_numpy(np.clip(generator.integers(0, top, shape, endpoint=True), low, high)).to(spec.dtype)
    # There are small and large numbers, because a saturated network loses the digits that would differ.
    magnitude = 10.0 ** generator.uniform(-1.5, 0.5, (number, *[1] * len(spec.shape)))
    free = np.clip(magnitude * generator.standard_normal(shape), low, high)
    is_bounded = np.isfinite(low) & np.isfinite(high)
    least, most = np.where(is_bounded, low, 0.0), np.where(is_bounded, high, 0.0)
    within = least + (most - least) * generator.random(shape)
    return torch.from_numpy(np.where(is_bounded, within, free)).to(spec.dtype)


def _rearranged(tree: Mapping[str, Any], order: torch.Tensor, num_envs: int) -> dict[str, Any]:
    """Return examples in another order, padded with zeros, in new memory, because the policy may change it."""

    def rearranged(part: torch.Tensor) -> torch.Tensor:
        wide = torch.zeros((num_envs, *part.shape[1:]), dtype=part.dtype, device=part.device)
        wide[: len(order)] = part[order]
        return wide

    return with_leaves(tree, rearranged)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the process-wide random generators at the end of a ``with`` block: code from elsewhere may draw there."""
    restore: Callable[..., None] = np.random.set_state
    python, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()):
            yield
    finally:
        random.setstate(python)
        restore(numpy_state)


# Play an episode several times, to find out whether it follows from its conditions and actions alone.
#
# An environment from elsewhere may draw from a generator without a seed, count its resets, or keep a running mean
# from one episode to the next. None of that shows in what it says of itself.

NUM_STEPS = 8

# Both have the first index, beyond which a benchmark may have no episode.
_EPISODES = tuple(Episode(job="probe", episode_index=0, seed=seed) for seed in (8_121_853, 8_121_854))


def unlike_itself(environment: Environment, *, sees_pictures: bool) -> str | None:
    """Return why an episode does not follow from its conditions and actions, None where nothing speaks against it.

    One episode is played several times with the same few actions: again at once, in another env slot, beside another
    episode and after it. Observations, rewards, ends, success and metrics are compared to the last bit. Process-wide
    generators are left as they were.

    Args:
        environment: The environment between jobs. Its env slots are left in the middle of episodes.
        sees_pictures: Whether pictures that are drawn on demand are compared, too, at the start; others always are.
    """
    last = environment.num_envs - 1
    # Which of the two episodes each env slot plays.
    rounds = {
        "in another env slot": {0: 0, last: 0},
        "again beside another one": {0: 1, last: 0},
        "after another one": {0: 0, last: 1},
    }
    if last == 0:
        rounds = {"": {0: 0}, "again": {0: 0}, "after another one, in between": {0: 1}, "after another one": {0: 0}}
    expected: Trace = []
    try:
        with generators_kept(), torch.no_grad():
            for how, playing in rounds.items():
                for slot, trace in _played(environment, playing, sees_pictures=sees_pictures).items():
                    if playing[slot] != 0:
                        continue
                    expected = expected or trace
                    if why := difference(expected, trace):
                        return f"an episode that is played {how}, with the same actions, takes another course: {why}"
    except (Exception, SystemExit) as error:  # noqa: BLE001  code from elsewhere; the job itself will tell what is wrong
        return (
            f"no episode could be played to see whether it repeats itself ({type(error).__name__}: {first_line(error)})"
        )
    return None


def _played(environment: Environment, playing: Mapping[int, int], *, sees_pictures: bool) -> dict[int, Trace]:
    """Return what episodes showed in env slots, until all have ended or enough steps are made."""
    conditions = {slot: _conditions(environment, _EPISODES[each]) for slot, each in playing.items()}
    _announce(environment, [*playing] if sees_pictures else [])
    observation = environment.reset(env_ids_of(environment, [*playing]), [conditions[slot] for slot in sorted(playing)])
    shown: dict[int, Trace] = {}
    for slot in playing:
        words = {"instruction": environment.instruction(conditions[slot]).encode()}
        shown[slot] = [{**_seen(environment, observation, slot, is_drawn=sees_pictures), **words}]
    running = set(playing)
    for number in range(NUM_STEPS):
        _announce(environment, [])
        step = environment.step(action_of(environment, playing, number))
        outcome = {name: getattr(step, name) for name in ("reward", "terminated", "truncated", "diverged", "success")}
        for slot in running:
            named = {
                name: bits(value[slot]) for name, value in {**step.metrics, **outcome}.items() if value is not None
            }
            shown[slot].append({**_seen(environment, step.observation, slot, is_drawn=False), **named})
        running -= {slot for slot in running if bool(ended(step)[slot])}
        if not running:
            break
    return shown


def _announce(environment: Environment, env_ids: list[int]) -> None:
    if isinstance(environment, PicturesOnDemand):
        environment.draw_pictures_of(env_ids)


def _seen(environment: Environment, observation: Observation, slot: int, *, is_drawn: bool) -> dict[str, bytes]:
    """Return what an env slot shows, without pictures that were not asked for."""
    if isinstance(environment, PicturesOnDemand) and not is_drawn:
        observation = {group: terms for group, terms in observation.items() if group != CAMERAS}
    return shown_in(observation, slot)


def _conditions(environment: Environment, episode: Episode) -> Conditions:
    return environment.vary_conditions(environment.draw_conditions(episode.conditions_generator()), episode)


# Choose how many env slots a job's policies are asked for together, and whether the same bits can then be promised.
#
# A network's last digits change with the size of the batch, so the size belongs to the job. On some processors they
# also change with the place in a batch whose size is no multiple of 4. So the batch is padded, and a probe tests
# whether places still make a difference. Results are `bitwise` only if they do not.

MULTIPLES = (4, 8, 16)
"""Batch sizes are padded to multiples of these numbers. 4 comes first even if the batch might work without padding: a
probe of a few calls may miss a network that differs in a few of 100 places, and padding adds three places at most."""


@dataclass(frozen=True, kw_only=True)
class AskedPolicies:
    """The policies of a job's groups of env slots, and their batch size.

    Attributes:
        policies: One for each group.
        batch: Number of env slots that each policy is asked for together, None if that makes no difference.
        plan_because: Why the same bits are not promised, None if they are.
    """

    policies: Sequence[PolicyBase]
    batch: int | None
    plan_because: str | None


@dataclass(frozen=True, kw_only=True)
class Settling:
    """The inputs to the choice of a job's batch size.

    Attributes:
        directory: Directory of the job, where the choice is kept.
        policy_class: Class of the policies.
        environments: The environment of each group of env slots.
        fixed_batch: Fixed batch size, None for the number of env slots.
        planned: Batch size that an earlier start of the program chose, None if there was none.
        make: Builds or returns the policy of each group for a batch size; None for the number of env slots of each
            group.
        probe: Tests with the first group's policy, on a batch of that size, whether places matter.
        probe_environment: Plays in the first environment, and returns why its episodes do not repeat themselves, None
            where they do.
    """

    directory: Path
    policy_class: type[PolicyBase]
    environments: Sequence[Environment]
    fixed_batch: int | None
    planned: int | None
    make: Callable[[int | None], Sequence[PolicyBase]]
    probe: Callable[[PolicyBase, int], ProbeResult]
    probe_environment: Callable[[], str | None]

    @property
    def num_envs(self) -> int:
        """The batch size without padding."""
        return self.fixed_batch or max(environment.num_envs for environment in self.environments)


def filled_up(num_envs: int) -> tuple[int, ...]:
    """Return the sizes to which a batch may be padded, in the order of trial. A batch of one needs no padding."""
    if num_envs == 1:
        return (1,)
    return tuple(dict.fromkeys(-(-num_envs // multiple) * multiple for multiple in MULTIPLES))


def asked_policies(settling: Settling, *, simulated_on: str) -> AskedPolicies:
    """Return a job's policies with their batch size, and whether the same bits can be promised.

    Args:
        settling: The inputs of the job.
        simulated_on: Type of the device that simulates.
    """
    because = _because_of_environments(settling.environments, simulated_on)
    traits = settling.policy_class.traits
    is_likely = because is None and traits.reproducible and not traits.batch_invariant
    first = next(_sizes(settling, settling.num_envs), None) if is_likely else settling.fixed_batch
    policies = settling.make(first)
    because = because or _because_of_policies(policies) or settling.probe_environment()
    if because is not None or policies[0].traits.batch_invariant:
        return _as_they_are(settling, because)
    return _settled(settling, policies)


def _settled(settling: Settling, policies: Sequence[PolicyBase]) -> AskedPolicies:
    """Return the policies on the stored batch size, or on the first one on which places make no difference."""
    own = _size_of_calls(policies[0], settling.num_envs)
    num_envs = settling.num_envs if own is None else own
    earlier, sizes = _earlier(settling), tuple(_sizes(settling, num_envs))
    batch, result = sizes[0], ProbeResult(passes=False)
    for batch in sizes:
        result = settling.probe(_made(settling, batch, fills_calls=own is not None)[0], batch)
        if result.passes or result.error is not None:
            break
    if result.error is not None:
        return _as_they_are(settling, _cannot_be_asked(result.error))
    # If no batch size works, the padding is as small as possible.
    counts, problem = _kept(settling, batch if result.passes else sizes[0], num_envs)
    policies = _made(settling, counts, fills_calls=own is not None)
    if counts != batch:
        # No batch size worked, or another rank chose another one first.
        sizes = sizes if counts in sizes else (counts,)
        result = settling.probe(policies[0], counts)
    if counts > num_envs:
        _LOG.info("calls of %s are filled up from %d env slots to %d", type(policies[0]).__name__, num_envs, counts)
    if counts > 1 and counts % MULTIPLES[0]:
        problem = problem or _too_few_calls(counts)
    num_envs_shown = settling.fixed_batch if own is not None else counts
    return AskedPolicies(
        policies=[on_fixed_batch(policy, num_envs_shown) for policy in policies],
        batch=counts,
        plan_because=problem or (None if result.passes else _places_matter(sizes, is_kept=counts == earlier)),
    )


def _made(settling: Settling, batch: int, *, fills_calls: bool) -> Sequence[PolicyBase]:
    """Return the policies for a batch size: with calls of that size, or with an environment of that size."""
    if not fills_calls:
        return settling.make(batch)
    policies = settling.make(settling.fixed_batch)
    _fill_calls(policies, batch)
    return policies


def _size_of_calls(policy: PolicyBase, num_envs: int) -> int | None:
    return policy.slots_per_call(num_envs) if isinstance(policy, DividesCalls) else None


def _fill_calls(policies: Sequence[PolicyBase], num_envs: int | None) -> None:
    for policy in policies:
        if isinstance(policy, DividesCalls):
            policy.fill_calls_up_to(num_envs)


def _sizes(settling: Settling, num_envs: int) -> Iterator[int]:
    """Yield the batch sizes to try; if one was chosen before, only that one."""
    earlier = _earlier(settling)
    if earlier is not None and earlier >= num_envs:
        yield earlier
    elif any(settling.directory.glob(COMMIT_FILE_PATTERN)):
        # A program that chose no batch size asked for all env slots together.
        yield num_envs
    else:
        yield from filled_up(num_envs)


def _earlier(settling: Settling) -> int | None:
    if settling.planned is not None:
        return settling.planned
    try:
        settled = read_settled(settling.directory)
    except ConfigError:
        # It is said when it is to be kept.
        return None
    return None if settled is None else settled.policy_batch


def _kept(settling: Settling, batch: int, num_envs: int) -> tuple[int, str | None]:
    """Store the chosen batch size; return the size that counts, and why other ranks may not know it."""
    settled = settling.planned
    try:
        if settled is None:
            settled = settle(settling.directory, SettledBatch(policy_batch=batch)).policy_batch
    except ConfigError as error:
        _LOG.warning("%s", error)
        return batch, f"{SETTLED_FILE}, which says on how many rows the policy was asked before, cannot be read"
    if settled < num_envs:
        return batch, f"the policy was asked on {settled} rows before, and now there are {num_envs}"
    return settled, None


def _as_they_are(settling: Settling, because: str | None) -> AskedPolicies:
    """Return the policies without padding."""
    policies = settling.make(settling.fixed_batch)
    _fill_calls(policies, None)
    own, is_indifferent = _size_of_calls(policies[0], settling.num_envs), policies[0].traits.batch_invariant
    return AskedPolicies(
        policies=[on_fixed_batch(policy, settling.fixed_batch) for policy in policies],
        batch=None if is_indifferent or policies[0].is_remote else own or settling.num_envs,
        plan_because=because,
    )


def _because_of_environments(environments: Sequence[Environment], simulated_on: str) -> str | None:
    if simulated_on != "cpu":
        return f"simulated on {simulated_on}, which promises no order of its sums"
    if not all(environment.reproducible for environment in environments):
        return "the environment does not promise that an episode follows from its conditions and actions alone"
    return None


def _because_of_policies(policies: Sequence[PolicyBase]) -> str | None:
    if any(policy.is_remote for policy in policies):
        return "the policy's network runs in another process, which may put rows of several clients into one call"
    doubtful = next((policy for policy in policies if not policy.traits.reproducible), None)
    if doubtful is None:
        return None
    return doubtful.traits.plan_because or "the policy does not say that it is reproducible"


def _cannot_be_asked(error: str) -> str:
    return (
        "the policy cannot be asked about made-up observations, so nobody knows whether its rows influence each other "
        f"({error}); if they do not, to the last bit, say traits = PolicyTraits(batch_invariant=True) in its class"
    )


def _places_matter(sizes: Sequence[int], *, is_kept: bool) -> str:
    sized = f"{_in_words(sizes)} rows{', which the job has kept since it began' if is_kept else ''}"
    return (
        f"on this machine a row's answer depends on its place or its neighbours in a batch of {sized}; "
        "a single row has neither"
    )


def _too_few_calls(batch: int) -> str:
    return (
        f"episodes of an earlier start were asked for on a batch of {batch} rows, and where that is no multiple of "
        f"{MULTIPLES[0]} few calls cannot tell whether places in it matter; a new run fills it up"
    )


def _in_words(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and of {last}" if most else last
