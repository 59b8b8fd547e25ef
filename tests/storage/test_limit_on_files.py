"""Every way of writing takes a limit on the size of files (``ulimit -f``, RLIMIT_FSIZE) for a full disk."""

import subprocess
import sys

import pytest

pytest.importorskip("resource")

WRITE = """
import os, pathlib, resource
from isaaclab_arena.errors import DiskUnusableError
from isaaclab_arena.storage.atomic import append_line, write_at, write_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
def appended(path):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    append_line(descriptor, "x" * 999, path)
    append_line(descriptor, "x", path)
for name, write in (
    ("whole", lambda path: write_bytes(path, bytes(1001))),
    ("part", lambda path: write_at(path, 1000, b"x")),
    ("line", appended),
):
    try:
        write(pathlib.Path(name))
    except DiskUnusableError as error:
        print(error)
write_bytes(pathlib.Path("fits"), bytes(1000))
"""


def test_every_way_of_writing_takes_the_limit_for_a_full_disk(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WRITE], capture_output=True, text=True, cwd=tmp_path, check=True, timeout=120
    )
    assert done.stdout.splitlines() == [
        "cannot write whole: File too large",
        "cannot write part: File too large",
        "cannot append to line: File too large",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fits", "line", "part"]
