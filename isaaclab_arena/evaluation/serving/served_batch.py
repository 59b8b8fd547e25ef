"""Choose on how many env slots a served policy is asked, so that other clients change none of a client's answers."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from isaaclab_arena.evaluation.batching.policy_probe import ProbeResult, probe_policy
from isaaclab_arena.evaluation.batching.settling import filled_up
from isaaclab_arena.evaluation.serving.served_environment import ServedEnvironment
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import DividesCalls

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class BuiltTogether:
    """One policy for the env slots of all clients.

    Attributes:
        policy: The policy.
        environment: What it sees, which may have more env slots than there are clients.
        slots_per_call: Env slots of each call, None where others follow from who asks, or make no difference.
        others_matter: Whether an env slot's answer depends on its place and on other clients, None if nobody knows.
    """

    policy: PolicyBase
    environment: ServedEnvironment
    slots_per_call: int | None = None
    others_matter: bool | None = None


@torch.no_grad()
def settled(first: BuiltTogether, build: Callable[[int], BuiltTogether]) -> BuiltTogether:
    """Return a policy that is asked on the first size of a call on which others do not matter, if there is one.

    A policy that divides its calls gets calls of that size. Any other is asked on all env slots in each call, of which
    it remembers something, and so it gets as many.

    Args:
        first: The policy as its options say it; what is returned may be it.
        build: Builds another one that sees an environment of so many env slots.
    """
    traits = first.policy.traits
    if traits.batch_invariant:
        return BuiltTogether(policy=first.policy, environment=first.environment, others_matter=False)
    if first.policy.is_remote or not traits.reproducible:
        return first
    if isinstance(first.policy, DividesCalls):
        return _with_divided_calls(first, first.policy)
    return _with_more_slots(first, build)


def _with_divided_calls(first: BuiltTogether, calls: DividesCalls) -> BuiltTogether:
    own = calls.slots_per_call(first.environment.num_envs)
    if own is None:
        return first
    result, size = ProbeResult(passes=False), own
    for size in filled_up(own):
        calls.fill_calls_up_to(size)
        result = probe_policy(first.policy, first.environment, batch=size)
        if result.passes:
            break
    if not result.passes:
        calls.fill_calls_up_to(None)
        size = own
    return _said(first, size, result)


def _with_more_slots(first: BuiltTogether, build: Callable[[int], BuiltTogether]) -> BuiltTogether:
    least, result = first.environment.num_envs, ProbeResult(passes=False)
    for size in filled_up(least):
        built = first if size == least else build(size)
        result = probe_policy(built.policy, built.environment, batch=size)
        if result.passes:
            if built is not first:
                first.policy.close()
            return _said(built, size, result)
        if built is not first:
            built.policy.close()
    return _said(first, least, result)


def _said(built: BuiltTogether, size: int, result: ProbeResult) -> BuiltTogether:
    name = type(built.policy).__name__
    others_matter = None if result.error is not None else not result.passes
    if others_matter:
        _LOG.warning(
            "on this machine the last digits of an answer of %s depend on its place and its neighbours in a call of %d "
            "env slots, and so on other clients",
            name,
            size,
        )
    elif others_matter is None:
        _LOG.info("nobody knows whether clients influence each other's last digits: %s", result.error)
    else:
        _LOG.info("each call of %s has %d env slots, whose answers do not depend on each other", name, size)
    return BuiltTogether(
        policy=built.policy, environment=built.environment, slots_per_call=size, others_matter=others_matter
    )
