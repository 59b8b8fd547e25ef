"""Messages between ranks that share no disk, over torch's key-value store: the status of each, and files for rank 0.

Nobody waits for an answer. What was sent stays in the store whether its sender lives or not.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

# torch.distributed has this name too, but only at run time, where a type checker does not see it.
from torch._C._distributed_c10d import Store

from isaaclab_arena.errors import ArenaError, first_line

_Answer = TypeVar("_Answer")

MAX_MESSAGE_CHARACTERS = 1_000_000
"""Longer messages are not to be sent: torch's store refuses a value of several megabytes, and ends the connection."""


class StoreLostError(ArenaError):
    """The store cannot be reached any more: whoever held it, rank 0 or its launcher, has gone."""


class MessageStore:
    """The messages of one run, as one of its ranks sends and receives them. Safe to use from several threads.

    Every method raises `StoreLostError` if the store has gone, and from then on at once.

    Args:
        store: Where they are; all of its keys are for messages.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lost: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the store has gone."""
        return self._lost is not None

    def publish_status(self, rank: int, status: str) -> None:
        """Replace what a rank says about itself."""
        self._set(f"status/{rank}", status)

    def status(self, rank: int) -> str | None:
        """Return what a rank last said about itself, None if nothing."""
        return self._get(f"status/{rank}")

    def send(self, rank: int, number: int, message: str) -> None:
        """Send a message to rank 0; on return it is in the store.

        Args:
            rank: The sender.
            number: How many messages it has sent before.
            message: At most `MAX_MESSAGE_CHARACTERS`.
        """
        self._set(f"message/{rank}/{number}", message)
        # torch sends a value without waiting for an answer, so only that of a question shows that it has arrived.
        self._ask(lambda key: self._store.check([key]), f"message/{rank}/{number}")

    def received(self, rank: int) -> Iterator[str]:
        """Yield the messages of a rank that nobody has received, in order.

        A message counts as received when the next one is asked for. Whoever goes on for a reader that died in between
        gets it once more.
        """
        number = int(self._get(f"received/{rank}") or 0)
        while (message := self._get(f"message/{rank}/{number}")) is not None:
            yield message
            number += 1
            self._set(f"received/{rank}", str(number))
            self._ask(self._store.delete_key, f"message/{rank}/{number - 1}")

    def _set(self, key: str, value: str) -> None:
        self._ask(lambda key: self._store.set(key, value), key)

    def _get(self, key: str) -> str | None:
        if not self._ask(lambda key: self._store.check([key]), key):
            return None
        return self._ask(self._store.get, key).decode()

    def _ask(self, question: Callable[[str], _Answer], key: str) -> _Answer:
        if self._lost is not None:
            raise StoreLostError(self._lost)
        try:
            return question(key)
        except RuntimeError as error:
            self._lost = first_line(error)
            raise StoreLostError(self._lost) from error
