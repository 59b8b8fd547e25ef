"""Find out which rank failed first, and report it to the user. Pure functions."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.distributed.launching.launcher_messages import FailureRecord
from isaaclab_arena.logs import plain_text

_TOLD_BY_ITSELF = frozenset({1, 2})
"""Exit codes of programs that have printed the reason."""

_STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})
"""Signals after which programs end in good order, with exit code 128 + their number."""

_ORDERLY = _TOLD_BY_ITSELF | {128 + signal.SIGINT, 128 + signal.SIGTERM}
"""Exit codes that a rank may also have because another one failed."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The failure of one rank.

    Attributes:
        rank: Which rank.
        exit_code: Its exit code, or minus the number of the signal that killed it; None while it runs.
        record: The reason that it recorded, None if it recorded none.
    """

    rank: int
    exit_code: int | None
    record: FailureRecord | None

    def report(self, *, world_size: int, log_file: Path | None, unseen_lines: Sequence[str]) -> str:
        """Return the text to show; it is empty if rank 0 has already shown its own failure.

        Args:
            world_size: Number of ranks.
            log_file: The file with the rank's output, None if there is none.
            unseen_lines: The last lines of that output, if they were not shown.
        """
        expected = self.record is None or self.record.is_expected
        if self.rank == 0 and expected and self.exit_code in _TOLD_BY_ITSELF:
            return ""
        where = "" if log_file is None else f"; its output is in {log_file}"
        lines = [f"rank {self.rank} of {world_size} {self._how()}{where}"]
        if self.rank != 0:
            shown = unseen_lines if self.record is None else self.record.text.splitlines()
            lines += [f"[rank {self.rank}] {line}" for line in shown]
        return plain_text("\n".join(lines), keep_lines=True) + "\n"

    def _how(self) -> str:
        if self.exit_code is None:
            return "failed"
        if self.exit_code < 0:
            return f"was killed by {_signal_name(-self.exit_code)}"
        if self.exit_code - 128 in _STOPPING:
            return f"was stopped by {_signal_name(self.exit_code - 128)}"
        return f"failed with exit code {self.exit_code}"


def first_failure(ended: Mapping[int, int], records: Sequence[FailureRecord]) -> Failure | None:
    """Return the failure that caused the others, None if no rank has failed or it is too early to tell.

    If a rank dies without a record, the ranks that talk to it fail and record that. The reverse does not happen before
    the ranks are stopped. So a rank without a record comes first, then the earliest record.

    Args:
        ended: Exit codes of the ranks that ended by themselves, in the order in which this was noticed; minus the
            number of a signal.
        records: The failure records of the ranks.
    """
    failed = {rank: code for rank, code in ended.items() if code}
    by_rank = {record.rank: record for record in records}
    for rank, code in failed.items():
        if rank not in by_rank and code not in _ORDERLY:
            return Failure(rank=rank, exit_code=code, record=None)
    first = min(by_rank.values(), key=lambda record: record.recorded_ns, default=None)
    if first is not None:
        own = by_rank.get(0)
        if own is not None and first.is_expected and own.message == first.message:
            # All ranks find the same mistake, and rank 0 says it.
            first = own
        if first.rank in failed or _can_be_told_early(first, failed):
            return Failure(rank=first.rank, exit_code=failed.get(first.rank), record=first)
        return None
    for rank, code in failed.items():
        return Failure(rank=rank, exit_code=code, record=None)
    return None


def _can_be_told_early(record: FailureRecord, failed: Mapping[int, int]) -> bool:
    """Whether to report a failure before its process has ended. Rank 0 reports its own failure at this moment."""
    return record.rank != 0 and (bool(failed) or not record.is_expected)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
