import subprocess
import sys

import pytest

PROGRAM = """
import ctypes

library = ctypes.CDLL(None)


class Statistics(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
library.mallinfo2.restype = Statistics


def left_apart():
    pieces = [library.malloc(64) for _ in range(1000)]
    for piece in pieces:
        library.free(piece)
    return library.mallinfo2().fsmblks


from isaaclab_arena.allocation import join_freed_memory_at_once

before = left_apart()
join_freed_memory_at_once()
# Asking for much has what lies apart by now joined.
library.free(library.malloc(100_000))
print(before > 0, left_apart())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_small_pieces_of_memory_are_joined_as_they_are_freed():
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    if "mallinfo2" in finished.stderr:
        pytest.skip("the C library does not say how it keeps memory")
    assert finished.stdout.split() == ["True", "0"], finished.stderr
