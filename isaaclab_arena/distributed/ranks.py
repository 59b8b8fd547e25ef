"""Exchange values between ranks at start-up, over torch's key-value store.

No rank waits for another one once the jobs run, because their work is very unequal.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

# torch.distributed has this name too, but only at run time, where a type checker does not see it.
from torch._C._distributed_c10d import Store

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ArenaError, ConfigError, first_line

_LOG = logging.getLogger(__name__)
_POLL_INTERVAL_S = 0.05
_BEAT_INTERVAL_S = 1.0
_LINGER_S = 0.3
_PATIENCE_S = 5.0
"""How long a rank waits before it logs that it is waiting [s]."""
_PIECE_LENGTH = 500_000
_MAX_TOLD = 8


class DistributedError(ArenaError):
    """The ranks could not find each other, because a process is missing or the network fails."""


class ClaimsLostError(DistributedError):
    """What keeps the claims of all ranks is gone, so that no rank knows what is left to do."""


class PeerStoppedError(DistributedError):
    """Another rank gave up during start-up, and has reported the reason."""


class Ranks:
    """All ranks of this run, as one of them sees them during start-up.

    Args:
        context: Who this process is.
        backend: Backend of the process group, None for a single process.
        store: Key-value store for messages between ranks.
        timeout_s: How long to wait for another rank's message [s].
        prefix: Prefix of every key.

    A name is used once. Methods raise `ValueError` at the second use.
    """

    def __init__(
        self, context: DistributedContext, *, backend: str | None, store: Store, timeout_s: float, prefix: str = ""
    ) -> None:
        self.context = context
        self.backend = backend
        self._store = store
        self._timeout_s = timeout_s
        self._prefix = prefix
        self._said: set[str] = set()

    def within(self, name: str) -> "Ranks":
        """Return the same ranks with fresh names, for something that they begin together.

        Args:
            name: Name of what they begin, the same on every rank and used once.
        """
        self._use_once(f"within/{name}")
        prefix = f"{self._prefix}{name}/"
        return Ranks(self.context, backend=self.backend, store=self._store, timeout_s=self._timeout_s, prefix=prefix)

    def share_from_rank_zero(self, name: str, value: str) -> str:
        """Return rank 0's value, on every rank.

        Args:
            name: Name of the value, the same on every rank and used once.
            value: Rank 0's value; the values of other ranks are ignored.

        Raises:
            PeerStoppedError: If another rank has given up.
            DistributedError: If rank 0 does not send it in time.
        """
        if self.context.is_rank_zero:
            self._say(f"shared/{name}", value)
            return value
        return self._hear(f"shared/{name}", rank=0, name=name)

    def agree(self, name: str, value: str) -> None:
        """Check that every rank holds the same value; all ranks reach the same result.

        Args:
            name: Name of the value, the same on every rank and used once.
            value: This rank's value, for example the hash of the job file it read.

        Raises:
            ConfigError: If they differ; the message names each rank's value.
            PeerStoppedError: If another rank has given up.
            DistributedError: If a rank does not answer in time.
        """
        self.agree_on(name, {name: value})

    def agree_on(
        self, name: str, values: Mapping[str, str], *, way_out: str = "start all of them with the same input"
    ) -> None:
        """Check that every rank holds the same values by name, in one message; all ranks reach the same result.

        Args:
            name: Name of the message, the same on every rank and used once.
            values: This rank's values.
            way_out: What the message of the error ends with.

        Raises:
            ConfigError: If any differs, or one rank lacks it; the message names the first, and each rank's value.
            PeerStoppedError: If another rank has given up.
            DistributedError: If a rank does not answer in time.
        """
        held = [json.loads(text) for text in self.gather(name, json.dumps(dict(values)))]
        for each in dict.fromkeys(key for own in held for key in own):
            told: dict[str, list[str]] = {}
            for rank, own in enumerate(held):
                told.setdefault(own.get(each, "none"), []).append(str(rank))
            if len(told) > 1:
                listed = ", ".join(
                    f"rank{'s' if len(ranks) > 1 else ''} {' '.join(ranks[:_MAX_TOLD])}"
                    f"{' and more' if len(ranks) > _MAX_TOLD else ''}: {value}"
                    for value, ranks in told.items()
                )
                raise ConfigError(f"the ranks do not agree on {each} ({listed}); {way_out}")

    def gather(self, name: str, value: str) -> list[str]:
        """Return every rank's value, by rank; see `agree` for arguments and errors."""
        self._say(f"gathered/{name}/{self.context.rank}", value)
        return [self._hear(f"gathered/{name}/{rank}", rank=rank, name=name) for rank in range(self.context.world_size)]

    def announce(self, name: str) -> None:
        """Let all ranks know that something has happened; see `is_announced`."""
        self._say(f"announced/{name}", "")

    def is_announced(self, name: str) -> bool:
        """Return whether a rank has announced it, without waiting."""
        with network_failures(self.context, self._timeout_s):
            return self._store.check([f"{self._prefix}announced/{name}"])

    def share_long_from_rank_zero(self, name: str, value: str) -> str:
        """Return rank 0's value, on every rank, however long it is; see `share_from_rank_zero`."""
        pieces = [value[start : start + _PIECE_LENGTH] for start in range(0, len(value), _PIECE_LENGTH)]
        count = int(self.share_from_rank_zero(f"length of {name}", str(len(pieces))))
        own = pieces if self.context.is_rank_zero else [""] * count
        return "".join(self.share_from_rank_zero(f"{name}, part {part}", piece) for part, piece in enumerate(own))

    @contextmanager
    def keep_waiting(self) -> Iterator[None]:
        """On rank 0, let the others wait as long as the ``with`` block takes, without a time-out."""
        if not (self.context.is_rank_zero and self.context.is_distributed):
            yield
            return
        done = threading.Event()
        beating = threading.Thread(target=self._beat_until, args=(done,), name="keep-waiting", daemon=True)
        beating.start()
        try:
            yield
        finally:
            done.set()
            beating.join()

    def _beat_until(self, done: threading.Event) -> None:
        beat = 0
        while not done.wait(min(_BEAT_INTERVAL_S, self._timeout_s / 4)):
            beat += 1
            try:
                self._store.set("patience", str(beat))
            except RuntimeError:
                _LOG.debug("the other ranks cannot be told to wait, the store is gone", exc_info=True)
                return

    def give_up(self, reason: str) -> None:
        """Tell ranks that still wait in start-up that this one will not take part."""
        if not self.context.is_distributed:
            return
        try:
            self._store.set("stopped", f"rank {self.context.rank}: {reason}")
        except RuntimeError:
            _LOG.debug("the other ranks cannot be told, the store is gone", exc_info=True)
        else:
            # Without torchrun, rank 0 holds the store, and the others must have read it before it is gone.
            time.sleep(0.0 if self.context.launched_by_torchrun else _LINGER_S)

    def _use_once(self, key: str) -> None:
        """Refuse a key that this rank has used: a slower rank would take the second value for the first."""
        if key in self._said:
            raise ValueError(f"the ranks have said '{self._prefix}{key}' before; give each message a name of its own")
        self._said.add(key)

    def _say(self, key: str, value: str) -> None:
        self._use_once(key)
        with network_failures(self.context, self._timeout_s):
            self._store.set(f"{self._prefix}{key}", value)

    def _hear(self, key: str, *, rank: int, name: str) -> str:
        key = f"{self._prefix}{key}"
        started = time.monotonic()
        deadline, heard, told = started + self._timeout_s, b"", False
        with network_failures(self.context, self._timeout_s):
            while not self._store.check([key]):
                if self._store.check(["stopped"]):
                    raise PeerStoppedError(f"stopped because of {self._store.get('stopped').decode()}")
                beat = self._store.get("patience") if self._store.check(["patience"]) else b""
                if beat != heard:
                    deadline, heard = time.monotonic() + self._timeout_s, beat
                if not told and time.monotonic() - started > min(_PATIENCE_S, self._timeout_s / 2):
                    told = True
                    self._tell_waiting(rank, name, deadline - time.monotonic())
                if time.monotonic() > deadline:
                    raise DistributedError(
                        f"rank {rank} did not say its {name} within {self._timeout_s:g} s; check that all "
                        f"{self.context.world_size} processes were started and are still there"
                    )
                time.sleep(_POLL_INTERVAL_S)
            return self._store.get(key).decode()

    def _tell_waiting(self, rank: int, name: str, left_s: float) -> None:
        until = (datetime.now().astimezone() + timedelta(seconds=left_s)).strftime("%H:%M:%S")
        _LOG.warning(
            "rank %d of %d waits for rank %d to say its %s, until %s unless that rank says that it needs longer",
            self.context.rank,
            self.context.world_size,
            rank,
            name,
            until,
        )


@contextmanager
def network_failures(context: DistributedContext, timeout_s: float) -> Iterator[None]:
    """Turn torch's network errors inside the ``with`` block into one message with a remedy.

    Args:
        context: Who this process is.
        timeout_s: How long this rank waited for the others [s], for the message.

    Raises:
        DistributedError: If anything about the network fails.
    """
    try:
        yield
    except RuntimeError as error:
        reason = first_line(error).rstrip(".")
        where = f"rank {context.rank} of {context.world_size} at {context.master_address}"
        if "EADDRINUSE" in str(error):
            raise DistributedError(
                f"{where}: the port is taken; choose another with torchrun's --master-port, or MASTER_PORT"
            ) from error
        raise DistributedError(
            f"{where} could not reach the other ranks within {timeout_s:g} s: {reason}; check that "
            f"{context.world_size} processes were started and that this address can be reached from their machines"
        ) from error
