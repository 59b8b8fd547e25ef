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
    """Return the wait for a remote policy [s]: the limit, or less if the process would be ended before."""
    return within(limit_s, margin_s=_MARGIN_S)


class PolicyElsewhere(Generic[Stated]):
    """A policy in another process or behind a server, independent of the transport."""

    def __init__(self, name: str, *, most_losses: int = 2, stated: Stated | None = None) -> None:
        self.name = name  # the name in messages: `the policy server at localhost:5555`
        self.stated = stated  # the first description of itself, None before
        # A question that ends the policy again and again is at fault, so its losses are limited.
        self._most_losses = most_losses

    def meet(self, stated: Stated) -> None:
        """Compare its description with the first one, at each connection; PolicyLostError if it differs."""
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
        """Return an answer, asking again after a loss; PolicyLostError if it does not come back."""
        # ``ask`` may need a new connection, and the answer must follow from the question alone. ``comes_back`` is False
        # for a late policy: it is slow and not gone.
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
