"""Ask a policy about made-up observations, to find out whether the action of an env slot depends on other slots.

It is asked by the same calls as in the loop, so the test covers everything between observation and action: pictures,
the memory of a recurrent network, noise from an episode's stream, chunks of actions.
"""

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isaaclab_arena.evaluation.batching.fixed_batch import WideView
from isaaclab_arena.evaluation.batching.slot_probe import answers_follow_from_examples, num_examples
from isaaclab_arena.evaluation.rollout.policy_answers import action_tensor
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, chunks_of
from isaaclab_arena.interfaces.policy_traits import AnswersChunks, Continuation, SharesNetwork
from isaaclab_arena.interfaces.specs import ArraySpec, ObservationSpec
from isaaclab_arena.nested import with_leaves

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
