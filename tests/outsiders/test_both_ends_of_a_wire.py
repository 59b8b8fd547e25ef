"""Neither end of a wire may know the other's package, so each has its own copy of what reads bytes with care."""

import re
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["arrays", "gr00t_wire", "messages", "request_socket", "zmtp"])
def test_both_ends_read_bytes_with_the_same_care(name):
    theirs, ours = (
        next(Path(package).rglob(f"{name}.py")).read_text(encoding="utf-8")
        for package in ("submodules/Isaac-GR00T/gr00t/policy", "isaaclab_arena_gr00t/remote")
    )
    module = re.compile(r"(gr00t\.policy|isaaclab_arena_gr00t\.remote)\.(wire\.)?")
    assert module.sub("", theirs) == module.sub("", ours)
