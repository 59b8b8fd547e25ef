"""Describe what results depend on besides the plan, and compare it: versions, processor, system, device."""

from collections.abc import Mapping
from dataclasses import dataclass, field

SERVED_MODEL = "served_model"
"""What a policy server stated of its model; a replay, which asks none, does not compare it."""

_NOT_COMPARED = frozenset({"config_hash", "policy_type"})


@dataclass(frozen=True, kw_only=True)
class Node:
    """The computer that a process runs on.

    Attributes:
        host: Its name.
        cpu: Model of the processor.
        cores: Cores that the process may use.
        platform: Operating system, release and architecture.
    """

    host: str
    cpu: str
    cores: int
    platform: str


@dataclass(frozen=True, kw_only=True)
class ProvenanceChange:
    """One thing that is not what it was; None where it was absent or is absent now."""

    name: str
    before: str | None
    now: str | None

    def __str__(self) -> str:
        return f"{self.name} was {self.before or 'absent'}, is now {self.now or 'absent'}"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What results depend on beside what was asked for.

    Attributes:
        facts: A name such as ``torch``, ``cpu`` or ``device``, to its version or kind.
    """

    facts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, versions: Mapping[str, str], node: Node, **more: str) -> "Provenance":
        """Return what is known of a process from its versions, its node, and whatever else."""
        return cls(facts={**versions, "cpu": node.cpu, "platform": node.platform, **more})

    def differences(self, other: "Provenance") -> tuple[ProvenanceChange, ...]:
        """Return what changed from this to another provenance, by name."""
        names = sorted((self.facts.keys() | other.facts.keys()) - _NOT_COMPARED)
        changes = (
            ProvenanceChange(name=name, before=self.facts.get(name), now=other.facts.get(name)) for name in names
        )
        return tuple(change for change in changes if change.before != change.now)

    def told_differences(self, other: "Provenance") -> tuple[str, ...]:
        """Return a line for each fact that is known here and is not so in another provenance."""
        return tuple(str(change) for change in self.differences(other) if change.before is not None)
