"""Choose how many env slots a job's policies are asked for together, and whether the same bits can then be promised.

A network's last digits change with the size of the batch, so the size belongs to the job. On some processors they also
change with the place in a batch whose size is no multiple of 4. So the batch is padded, and a probe tests whether
places still make a difference. Results are `bitwise` only if they do not.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.batching.fixed_batch import on_fixed_batch
from isaaclab_arena.evaluation.batching.policy_probe import ProbeResult
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import DividesCalls
from isaaclab_arena.storage.layout import COMMIT_FILE_PATTERN, SETTLED_FILE
from isaaclab_arena.storage.run.settled_batch import SettledBatch, read_settled, settle

_LOG = logging.getLogger(__name__)

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
