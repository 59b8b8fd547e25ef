import json
import subprocess
import sys

import pytest

PROGRAMS = [
    ("isaaclab_arena.evaluation.eval_runner",),
    ("eval_runner",),
    ("isaaclab_arena.evaluation.experiment_runner",),
    ("isaaclab_arena.evaluation.policy_runner",),
    ("isaaclab_arena.training.train",),
    ("isaaclab_arena.cli", "run"),
    ("isaaclab_arena.cli", "merge"),
    ("isaaclab_arena.cli", "report"),
]
UNTIL_IT_LOADS_MUCH = """
import gc, json, runpy, sys
from contextlib import suppress


class Stop(BaseException):
    pass


class Finder:
    def find_spec(name, path=None, target=None):
        room, _, module = name.rpartition(".")
        if name == "torch" or (room == "isaaclab_arena.cli" and module not in ("main", "__main__")):
            print(gc.isenabled())
            raise Stop


sys.meta_path.insert(0, Finder)
for sys.argv in json.loads(sys.argv[1]):
    gc.enable()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("isaaclab_arena", "eval_runner")]:
        del sys.modules[name]
    with suppress(Stop):
        runpy.run_module(sys.argv[0], run_name="__main__")
"""


def test_every_program_looks_for_no_garbage_when_it_begins_to_load_much():
    told = subprocess.check_output([sys.executable, "-c", UNTIL_IT_LOADS_MUCH, json.dumps(PROGRAMS)], text=True)
    assert told.split() == ["False"] * len(PROGRAMS)


def told(script: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()


OLD = """
collect_later()
print(gc.isenabled())
import numpy
collect_from_now_on()
print(gc.isenabled(), len(gc.get_objects(generation=0)) < 100, len(gc.get_objects(generation=2)) > 10_000)
"""
FROZEN = """
gc.freeze()
counts, count = [], gc.get_freeze_count
gc.get_freeze_count = lambda: counts.append(1) or count()
before = count()
collect_later()
collect_from_now_on()
for _ in range(3):
    with without_collecting():
        print(gc.isenabled())
    print(gc.isenabled())
    gc.disable()
print(count() == before, len(counts))
"""


@pytest.mark.parametrize(
    ("script", "expected"),
    [(OLD, "False True True True"), (FROZEN, "False True False False False False True 1")],
    ids=["what was imported is old", "what is frozen stays so, is counted once, and a block ends as it began"],
)
def test_garbage_is_looked_for_again_once_that_is_wanted(script, expected):
    assert told(f"import gc; from isaaclab_arena.garbage import *\n{script}") == expected.split()


FREEING = """
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


from isaaclab_arena.garbage import join_freed_memory_at_once

before = left_apart()
join_freed_memory_at_once()
# Asking for much has what lies apart by now joined.
library.free(library.malloc(100_000))
print(before > 0, left_apart())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_small_pieces_of_memory_are_joined_as_they_are_freed():
    finished = subprocess.run([sys.executable, "-c", FREEING], capture_output=True, text=True, check=False)
    if "mallinfo2" in finished.stderr:
        pytest.skip("the C library does not say how it keeps memory")
    assert finished.stdout.split() == ["True", "0"], finished.stderr
