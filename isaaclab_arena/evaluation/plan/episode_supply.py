"""Hand out a rank's episodes of a job, one at a time as env slots become free."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from isaaclab_arena.episode_ranges import EpisodeRanges, of_ranges


class EpisodeSupply(Protocol):
    """The episodes of one job that this rank is to run."""

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield those of the candidates that this rank is to run, claimed, if need be, when they are asked for.

        Args:
            candidates: Episode indices, ascending; they may have no end.
        """
        ...

    def max_envs(self, num_envs: int) -> int:
        """Return how many of the ``num_envs`` env slots to use at once; the others rest."""
        ...

    def begin(self, episode_index: int) -> None:
        """Take note that an episode that was handed out is about to begin: its env slot is reset next."""
        ...

    def still_holds(self, episode_index: int) -> bool:
        """Whether an episode that was handed out is still this rank's, and may be committed."""
        ...

    def ends_early(self) -> bool:
        """Whether no further episode of the job is needed; `take` asks it before each."""
        ...


@dataclass(frozen=True, kw_only=True)
class FixedShare:
    """A share that was settled before the start: what is neither finished nor another rank's.

    Attributes:
        finished: Episodes that must not run again.
        share: This rank's episodes; None for all of them.
    """

    finished: EpisodeRanges = ()
    share: EpisodeRanges | None = None

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield the candidates that are this rank's and not finished."""
        finished = of_ranges(self.finished)
        share = None if self.share is None else of_ranges(self.share)
        if share is not None:
            end = max(share, default=-1)
            candidates = takewhile(lambda index: index <= end, candidates)
        return (index for index in candidates if index not in finished and (share is None or index in share))

    def max_envs(self, num_envs: int) -> int:
        """Return ``num_envs``."""
        return num_envs

    def begin(self, episode_index: int) -> None:
        """Do nothing: nobody else runs this share."""

    def still_holds(self, episode_index: int) -> bool:
        """Return True: nobody takes a fixed share away."""
        del episode_index
        return True

    def ends_early(self) -> bool:
        """Return False: all episodes are needed."""
        return False


@dataclass(frozen=True, kw_only=True)
class UntilOver:
    """Hands out the episodes of another supply as long as they are needed. What has begun is finished all the same.

    Attributes:
        supply: The other one.
        is_over: Whether no further episode of the job is needed.
    """

    supply: EpisodeSupply
    is_over: Callable[[], bool]

    def take(self, candidates: Iterable[int]) -> Iterator[int]:
        """Yield what the other supply yields, until nothing more is needed."""
        taken = self.supply.take(candidates)
        # Asked before an episode is taken, because taking one may claim it.
        while not self.ends_early() and (index := next(taken, None)) is not None:
            yield index

    def max_envs(self, num_envs: int) -> int:
        """Return what the other supply returns."""
        return self.supply.max_envs(num_envs)

    def begin(self, episode_index: int) -> None:
        """Tell the other supply."""
        self.supply.begin(episode_index)

    def still_holds(self, episode_index: int) -> bool:
        """Return what the other supply returns."""
        return self.supply.still_holds(episode_index)

    def ends_early(self) -> bool:
        """Whether the job is over."""
        return self.is_over()


EVERYTHING = FixedShare()
"""All episodes of a job that nobody has begun."""
