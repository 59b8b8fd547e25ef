"""Identify what a job evaluates by content: checkpoints by their hash, packages by their version."""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from isaaclab_arena.interfaces.content import UNKNOWN

SAVED_CONDITIONS = "saved conditions"
"""The name of a job's saved conditions among what decides what its environment does."""

_HASH = re.compile(r"[0-9a-f]{64}")
_SHOWN_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What decides what comes out of a job beside its options and this package.

    Attributes:
        policy: What decides what the policy does, such as ``checkpoint_path model_300.pt``, to its SHA-256, its
            version, or `UNKNOWN`.
        environment: The same for the environment and its saved conditions.
        checkpoint: What tables name as the checkpoint, None for a policy without one.
    """

    policy: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str | None = None

    @property
    def policy_sha256(self) -> str | None:
        """One hash for everything that decides what the policy does, whatever its files are called.

        None for a policy that is nothing but this package and its options, `UNKNOWN` where a part is not known.
        """
        return _hash_of(self.policy.values())

    @property
    def environment_sha256(self) -> str | None:
        """The same for everything that decides what the environment does."""
        return _hash_of(self.environment.values())

    @property
    def is_known(self) -> bool:
        """Whether equal contents mean that the same was evaluated."""
        return UNKNOWN not in {*self.policy.values(), *self.environment.values()}


def _hash_of(contents: Collection[str]) -> str | None:
    if not contents or UNKNOWN in contents:
        return UNKNOWN if contents else None
    return hashlib.sha256("\n".join(sorted(contents)).encode()).hexdigest()


def differences_of_contents(before: Contents, now: Contents) -> Iterator[tuple[str, str]]:
    """Yield what is not what it was, and how: ``checkpoint_path model_300.pt``, ``was 1a2b…, is now 9f8e…``."""
    yield from changes(before.policy, now.policy)
    yield from changes(before.environment, now.environment)


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each name whose content differs, and how; what is not known on either side differs from nothing."""
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, "not there"), now.get(name, "not there")
        if old != new and UNKNOWN not in {old, new}:
            yield name, f"was {shown(old)}, is now {shown(new)}"


def shown(content: str) -> str:
    """Return a hash with as many digits as tell it from others, anything else as it is."""
    return content[:_SHOWN_DIGITS] if _HASH.fullmatch(content) else content
