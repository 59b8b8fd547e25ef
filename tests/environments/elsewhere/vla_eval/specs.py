"""What an action consists of."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DimSpec:
    name: str
    dims: int
    format: str
    range: tuple | None = None
