"""Count how episodes came out: pairs of two policies from the same conditions, and one policy alone."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PairCounts:
    """How pairs of episodes came out. A pair is one episode of each policy, from the same conditions.

    Attributes:
        both: Pairs in which both policies succeed.
        only_first: Pairs in which the first one alone succeeds.
        only_second: Pairs in which the second one alone succeeds.
        neither: Pairs in which neither succeeds.

    Raises:
        ValueError: If a count is negative.
    """

    both: int
    only_first: int
    only_second: int
    neither: int

    def __post_init__(self) -> None:
        if min(self.both, self.only_first, self.only_second, self.neither) < 0:
            raise ValueError(f"counts must not be negative, got {self}")

    @property
    def total(self) -> int:
        """Number of pairs."""
        return self.both + self.only_first + self.only_second + self.neither

    @property
    def successes(self) -> tuple[int, int]:
        """Successes of the first policy and of the second."""
        return self.both + self.only_first, self.both + self.only_second

    @property
    def difference(self) -> float | None:
        """Rate of the first policy less that of the second, None without pairs."""
        return (self.only_first - self.only_second) / self.total if self.total else None


@dataclass(frozen=True, kw_only=True)
class RateCounts:
    """How episodes of one policy came out.

    Attributes:
        successes: Episodes that succeeded.
        trials: Episodes that say whether they succeeded.

    Raises:
        ValueError: If a count is negative, or there are more successes than trials.
    """

    successes: int
    trials: int

    def __post_init__(self) -> None:
        if not 0 <= self.successes <= self.trials:
            raise ValueError(f"successes must be 0 to the number of trials, got {self}")
