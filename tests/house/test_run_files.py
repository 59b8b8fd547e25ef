"""Files of a run are read by `isaaclab_arena.storage` alone, which takes no pipe for a file and follows no link out."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "isaaclab_arena"
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
