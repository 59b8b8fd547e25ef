"""Finds the episode over which ranks die: those that a dead rank ran are played one at a time until one is left.

A rank dies with its node, by a lack of memory, or because an episode crashes its process. Nobody can tell which from
outside. What the dead rank had begun is suspected, and played again with nothing beside it. An episode that then ends
is cleared. One over which the third rank dies, as the only one that it was playing, is condemned.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

LIVES_OF_AN_EPISODE = 3
"""How many ranks may die over an episode."""

_Key = tuple[int, int]
"""A job's index, and a piece of it."""


@dataclass(frozen=True, kw_only=True)
class Death:
    """A rank that has died.

    Attributes:
        rank: The rank.
        reason: How it died, in a line.
        machine: Identity of its machine, None where nobody knows.
    """

    rank: int
    reason: str
    machine: str | None = None


@dataclass(frozen=True, kw_only=True)
class Condemned:
    """An episode that is not played again.

    Attributes:
        job_index: Its job.
        episode_index: Which of the job's episodes.
        deaths: Of the ranks that died over it, in order.
    """

    job_index: int
    episode_index: int
    deaths: tuple[Death, ...]


class Suspects:
    """The episodes of a run over which ranks may have died. There are no more of them than dead ranks had begun."""

    def __init__(self) -> None:
        self._deaths: dict[_Key, dict[int, tuple[Death, ...]]] = {}

    def blame(self, begun: Sequence[tuple[int, int, int]], death: Death) -> Condemned | None:
        """Suspect the episodes that a rank was playing when it died.

        Args:
            begun: Job index, piece and episode index of each; those that have ended are not among them.
            death: How the rank died.

        Returns:
            The episode that was one death too many, which is suspected no more; None if there is none.
        """
        for job_index, piece, episode_index in begun:
            of_piece = self._deaths.setdefault((job_index, piece), {})
            of_piece[episode_index] = (*of_piece.get(episode_index, ()), death)
        if len(begun) != 1:
            return None
        job_index, piece, episode_index = begun[0]
        deaths = self._deaths[job_index, piece][episode_index]
        if len(deaths) < LIVES_OF_AN_EPISODE:
            return None
        self.clear(job_index, piece, [episode_index])
        return Condemned(job_index=job_index, episode_index=episode_index, deaths=deaths)

    def among(self, job_index: int, piece: int) -> frozenset[int]:
        """Return the episodes of a piece that are suspected."""
        return frozenset(self._deaths.get((job_index, piece), ()))

    def pieces(self, job_index: int) -> frozenset[int]:
        """Return the pieces of a job that have suspected episodes."""
        return frozenset(piece for job, piece in self._deaths if job == job_index)

    def clear(self, job_index: int, piece: int, ended: Collection[int]) -> None:
        """Suspect episodes of a piece no more, because they have ended."""
        of_piece = self._deaths.get((job_index, piece), {})
        for episode_index in of_piece.keys() & set(ended):
            del of_piece[episode_index]
        if not of_piece:
            self._deaths.pop((job_index, piece), None)
