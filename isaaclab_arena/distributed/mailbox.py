"""Words between ranks that share no disk, over torch's key-value store: what each is doing, and letters to rank 0.

Nobody waits for an answer. What was set stays in the store whether its sender lives or not, so what was sent counts.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

# torch.distributed has this name too, but only at run time, where a type checker does not see it.
from torch._C._distributed_c10d import Store

from isaaclab_arena.errors import ArenaError, first_line

_Answer = TypeVar("_Answer")

MAX_LETTER_CHARACTERS = 1_000_000
"""Longer letters are not to be posted: torch's store refuses a value of several megabytes, and ends the connection."""


class MailboxLostError(ArenaError):
    """The store cannot be reached any more: whoever held it, rank 0 or its launcher, has gone."""


class Mailbox:
    """The words of one run, as one of its ranks leaves and reads them. Safe to use from several threads.

    Every method raises `MailboxLostError` if the store has gone, and from then on at once.

    Args:
        store: Where they are.
        prefix: Begins every key.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._lost: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the store has gone."""
        return self._lost is not None

    def say_status(self, rank: int, status: str) -> None:
        """Replace what a rank says about itself."""
        self._set(f"status/{rank}", status)

    def status(self, rank: int) -> str | None:
        """Return what a rank last said about itself, None if nothing."""
        return self._get(f"status/{rank}")

    def post(self, rank: int, number: int, letter: str) -> None:
        """Post a letter to rank 0; on return it is in the store.

        Args:
            rank: The sender.
            number: How many letters it has posted before.
            letter: At most `MAX_LETTER_CHARACTERS`.
        """
        self._set(f"letter/{rank}/{number}", letter)
        # torch sends a value without waiting for an answer, so only that of a question shows that it has arrived.
        self._ask(lambda key: self._store.check([key]), f"letter/{rank}/{number}")

    def letters(self, rank: int) -> Iterator[str]:
        """Yield the letters of a rank that nobody has taken, in order.

        A letter is taken when the next one is asked for. Whoever goes on for a reader that died in between gets it
        once more.
        """
        number = int(self._get(f"taken/{rank}") or 0)
        while (letter := self._get(f"letter/{rank}/{number}")) is not None:
            yield letter
            number += 1
            self._set(f"taken/{rank}", str(number))
            self._ask(self._store.delete_key, f"letter/{rank}/{number - 1}")

    def _set(self, key: str, value: str) -> None:
        self._ask(lambda full_key: self._store.set(full_key, value), key)

    def _get(self, key: str) -> str | None:
        if not self._ask(lambda full_key: self._store.check([full_key]), key):
            return None
        return self._ask(self._store.get, key).decode()

    def _ask(self, question: Callable[[str], _Answer], key: str) -> _Answer:
        if self._lost is not None:
            raise MailboxLostError(self._lost)
        try:
            return question(f"{self._prefix}{key}")
        except RuntimeError as error:
            self._lost = first_line(error)
            raise MailboxLostError(self._lost) from error
