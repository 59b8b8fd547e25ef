"""Rules of the house that no linter knows: what tests replace, and who reads the files of a run."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIRECTORIES = ("tests", "benchmarks", "submodules/Isaac-GR00T/tests")
OWN = ("isaaclab_arena", "isaaclab_arena_gr00t", "gr00t", "benchmarks")
PATCHES = ("setattr", "delattr", "patch", "object")
"""Of pytest's ``monkeypatch`` and of ``unittest.mock``."""


def patches(source: str) -> Iterator[str]:
    """Yield what a module replaces in packages of this project, or in what they import."""
    # Parsing takes most of the time, and few modules replace anything.
    if not any(f".{name}(" in source for name in PATCHES):
        return
    tree = ast.parse(source)
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {(alias.asname or alias.name.partition(".")[0]): alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {(alias.asname or alias.name): f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        target = node.args[0]
        name = target.value if isinstance(target, ast.Constant) else ast.unparse(target)
        root, dot, rest = str(name).partition(".")
        whole = f"{imported.get(root, root)}{dot}{rest}"
        if node.func.attr in PATCHES and whole.partition(".")[0] in OWN:
            yield f"{node.lineno}: {whole}"


def test_tests_hand_over_fakes_and_patch_nothing_of_this_project():
    found = {
        f"{path.relative_to(ROOT)}:{patch}"
        for directory in DIRECTORIES
        for path in sorted((ROOT / directory).rglob("*.py"))
        for patch in patches(path.read_text(encoding="utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (
            "from isaaclab_arena.sim import backends\nmonkeypatch.setattr(backends, 'f', g)",
            ["2: isaaclab_arena.sim.backends"],
        ),
        ("monkeypatch.setattr('gr00t.policy.f', g)", ["1: gr00t.policy.f"]),
        ("import isaaclab_arena.sim as here\nmock.patch.object(here.f, 'g')", ["2: isaaclab_arena.sim.f"]),
        (
            "from isaaclab_arena.a import b\nmonkeypatch.setattr(b.mujoco_warp, 'f', g)",
            ["2: isaaclab_arena.a.b.mujoco_warp"],
        ),
        ("import os\nmonkeypatch.setattr(os, 'link', refuse)", []),
    ],
)
def test_a_patch_is_found_however_its_target_is_named(source, found):
    assert list(patches(source)) == found


# Files of a run are read by `isaaclab_arena.storage` alone, which takes no pipe for a file and follows no link out.


PACKAGE = ROOT / "isaaclab_arena"
READERS = [
    *(
        file
        for area in ("results", "report", "analysis", "tracking", "cli")
        for file in sorted((PACKAGE / area).rglob("*.py"))
    ),
    *(PACKAGE / "evaluation" / f"{name}.py" for name in ("rerun", "verification")),
]
READS = {"open", "read_bytes", "read_text", "read_parquet", "read_csv", "read_schema"}
# These check the file before, read no file, or read one of the package or of this process.
ALLOWED = {
    "evaluation/verification.py",
    "cli/compare.py",
    "cli/main.py",
    "cli/start.py",
    "cli/status.py",
    "results/merge.py",
}


def raw_reads() -> Iterator[str]:
    for path in READERS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            if name in READS:
                yield path.relative_to(PACKAGE).as_posix()


def test_commands_read_files_of_a_run_through_its_reader_alone():
    assert set(raw_reads()) == ALLOWED
