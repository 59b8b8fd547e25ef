"""Reads recordings while the system refuses the first, second, third … read, in a process that was started for it.

A program: prints, for each recording and each way of reading it, how many reads it takes.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

from isaaclab_arena.errors import DamagedFileError, StorageError
from isaaclab_arena.storage import episodes as hdf5
from tests.faults.system_trouble import SystemTrouble

WAYS: tuple[Callable[[Path], object], ...] = (
    hdf5.list_episodes,
    hdf5.read_totals,
    lambda path: hdf5.locate_arrays(path, 0),
    lambda path: hdf5.read_episode(path, 0),
    lambda path: hdf5.read_checksums(path, [0, 1]),
    lambda path: hdf5.verify_episodes(path, [0, 1]),
)


def num_reads(path: Path, read: Callable[[Path], object]) -> int:
    """Number of system reads. Each refused read must be reported as such."""
    loaded = ctypes.CDLL(None)
    for since in range(1, 1_000):
        loaded.trouble_begins_anew()
        trouble = SystemTrouble(call="read", number=errno.ENOTCONN, ending=path.suffix, since=since)
        os.environ.update(trouble.variables)
        try:
            read(path)
        except DamagedFileError as error:
            raise AssertionError(f"a refusal of read {since} was taken for damage") from error
        except StorageError as error:
            if not str(error).endswith(os.strerror(errno.ENOTCONN)):
                raise
        else:
            return since - 1
        finally:
            del os.environ["TROUBLE"]
    raise AssertionError("the reads never end")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(f"{' '.join(str(num_reads(Path(name), read)) for read in WAYS)}\n")
