"""What policies share that answer from a process or a server: how long one waits, what a loss is, and who they are."""

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from isaaclab_arena.errors import PolicyLostError, shortened
from isaaclab_arena.logs import within

_LOG = logging.getLogger(__name__)

_MARGIN_S = 15.0
"""How long before the watchdog ends the process a policy is lost [s], which then costs episodes and not the rank."""
_MOST_STATED = 500

Answer = TypeVar("Answer")
Loss = TypeVar("Loss", bound=Exception)
Stated = TypeVar("Stated")


def patience_s(limit_s: float) -> float:
    """Return how long to wait for a policy elsewhere [s]: no longer than until it would end the process.

    Args:
        limit_s: What the options allow [s].
    """
    return within(limit_s, margin_s=_MARGIN_S)


class PolicyElsewhere(Generic[Stated]):
    """A policy in a process of its own or behind a server, whatever carries the questions to it.

    Args:
        name: What messages call it: ``the policy server at localhost:5555``.
        most_losses: How often it may be lost over one question: one that ends it again and again is at fault.
        stated: What it said of itself earlier, None if it was never met.

    Attributes:
        name: What messages call it.
        stated: What it said of itself when it was met first.
    """

    def __init__(self, name: str, *, most_losses: int = 2, stated: Stated | None = None) -> None:
        self.name = name
        self.stated = stated
        self._most_losses = most_losses

    def meet(self, stated: Stated) -> None:
        """Hear what it says of itself, each time that it is there anew.

        Raises:
            PolicyLostError: If it is another one than before.
        """
        if self.stated is not None and stated != self.stated:
            before, now = (shortened(str(each), _MOST_STATED) for each in (self.stated, stated))
            raise PolicyLostError(
                f"{self.name} came back as another one: it stated {before} and states {now} now; "
                "episodes of both must not count as one policy's"
            )
        self.stated = stated

    def asked(
        self, ask: Callable[[], Answer], losses: tuple[type[Loss], ...], *, comes_back: Callable[[Loss], bool]
    ) -> Answer:
        """Return an answer; a question over which the policy is lost is asked again.

        Args:
            ask: Asks it, in a new connection if need be. The answer must follow from the question alone.
            losses: What it raises where the policy is lost.
            comes_back: Whether it may be asked again after such an error. One that is late is slow and not gone.

        Raises:
            PolicyLostError: If it does not come back, or is lost too often.
        """
        num_losses = 0
        while True:
            try:
                return ask()
            except losses as error:
                num_losses += 1
                late = isinstance(error, TimeoutError)
                reason = "it did not answer in time" if late else str(error) or type(error).__name__
                if not comes_back(error):
                    raise PolicyLostError(f"{self.name} is lost: {reason}") from error
                if num_losses == self._most_losses:
                    message = f"{self.name} was lost {num_losses} times over one query: {reason}"
                    raise PolicyLostError(message) from error
                _LOG.warning("%s was lost (%s); asking again", self.name, reason)
