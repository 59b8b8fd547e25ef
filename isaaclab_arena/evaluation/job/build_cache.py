"""A cache of size one: what was built for the last job, for as long as the next job asks for the same."""

import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from isaaclab_arena.evaluation.process.left_alone import put_back

_LOG = logging.getLogger(__name__)


class Closable(Protocol):
    """Something that holds resources."""

    def close(self) -> None:
        """Release them."""


Built = TypeVar("Built", bound=Closable)


class BuildCache(Generic[Built]):
    """Keeps the environments, or the policies, of the last job: one for each group of its env slots."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, Built]] = []
        self._lent: list[Built] = []

    def get(
        self, keys: Sequence[str], build: Callable[[Sequence[Built]], Built], *, are_lent: bool = False
    ) -> Sequence[Built]:
        """Return one object for each key, after closing what the last call returned for other keys.

        Args:
            keys: What each group asks for.
            build: Builds the next object, given those before it.
            are_lent: Whether those objects are somebody else's, who closes them.
        """
        num_kept = 0
        while num_kept < min(len(keys), len(self._entries)) and keys[num_kept] == self._entries[num_kept][0]:
            num_kept += 1
        self._keep(num_kept)
        for key in keys[num_kept:]:
            built = build([built for _, built in self._entries])
            self._entries.append((key, built))
            if are_lent:
                self._lent.append(built)
        return [built for _, built in self._entries]

    def clear(self) -> None:
        """Close everything."""
        self._keep(0)

    def _keep(self, number: int) -> None:
        """Close all but the first objects. If that fails it is logged: the next job is not to blame."""
        while len(self._entries) > number:
            _, built = self._entries.pop()
            if any(built is each for each in self._lent):
                continue
            try:
                with put_back(f"closing {type(built).__name__}"):
                    built.close()
            except BaseException:  # noqa: BLE001  closing is a user's code too, and must not take the next job down
                _LOG.warning("closing %s failed", type(built).__name__, exc_info=True)
