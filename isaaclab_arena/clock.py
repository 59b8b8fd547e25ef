"""Return the current time in the format of a run's files."""

from datetime import UTC, datetime


def now(*, local: bool = False) -> str:
    """Return the time as ISO 8601 with time zone, to the millisecond.

    Args:
        local: Whether it is that of this node's time zone, not UTC.
    """
    time = datetime.now(UTC)
    return (time.astimezone() if local else time).isoformat(timespec="milliseconds")
