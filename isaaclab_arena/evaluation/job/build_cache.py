"""The environments and the policies in use, kept as long as the next job asks for the same ones."""

import logging
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from isaaclab_arena.evaluation.batching.policy_probe import ProbeResult
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.policy import PolicyBase


class Closable(Protocol):
    """Something that holds resources."""

    def close(self) -> None:
        """Release them."""


_LOG = logging.getLogger(__name__)

Tool = TypeVar("Tool", bound=Closable)


class Slot(Generic[Tool]):
    """Holds one built thing and what it was built from."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._tool: Tool | None = None

    def get(self, key: str, build: Callable[[], Tool]) -> Tool:
        """Return what was built for ``key``, building it, after closing what was there, if that was another."""
        if self._tool is None or self._key != key:
            self.clear()
            self._tool = build()
            self._key = key
        return self._tool

    def clear(self) -> None:
        """Close what is there. If that fails it is logged: the next job is not to blame."""
        tool, self._tool, self._key = self._tool, None, None
        if tool is None:
            return
        try:
            tool.close()
        except BaseException:  # noqa: BLE001  closing is a user's code too, and must not take the next job down
            _LOG.warning("closing %s failed", type(tool).__name__, exc_info=True)


class Bench:
    """What has been built for one group of rows: consecutive jobs that ask for the same share it."""

    def __init__(self) -> None:
        self.environment: Slot[Environment] = Slot()
        self.policy: Slot[PolicyBase] = Slot()

    def clear(self) -> None:
        """Close both."""
        self.policy.clear()
        self.environment.clear()


class Workbench:
    """What one rank has built, for each group of a job's rows.

    Attributes:
        probed: What policies have shown when they were asked about made-up observations: policy, environment and rows
            of the batch to what came of it.
    """

    def __init__(self) -> None:
        self._benches: list[Bench] = []
        self.probed: dict[tuple[str, str, int], ProbeResult] = {}

    def benches(self, num_groups: int) -> Sequence[Bench]:
        """Return one bench for each group, after clearing those that are too many."""
        while len(self._benches) > num_groups:
            self._benches.pop().clear()
        while len(self._benches) < num_groups:
            self._benches.append(Bench())
        return self._benches

    def clear(self) -> None:
        """Close everything."""
        self.benches(0)
