"""Writes what runs leave on disk: whole ones, half finished, and with names that want to be more than text."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isaaclab_arena.storage.contents import Node
from isaaclab_arena.storage.ledger import write_run_plan
from tests.results.evidence import commit_lines, planned, report, run_plan, write_lines, write_report

# A job's name is that of a directory, so it has no slash.
HOSTILE_NAMES = (
    "<b onclick=alert(1)>",
    "'quoted' \"twice\"",
    "${window.hacked = 1} {{ 7 * 7 }} {% raw %}",
    "&lt;script&gt;",
    "a" * 80,
)
HOSTILE_TEXTS = (
    "<script>window.hacked = 1</script>",
    "\"><img src=x onerror='window.hacked = 1'>",
    "' onmouseover='window.hacked = 1' x='",
    "</script><script>window.hacked = 1</script><!--",
    "\u202egnol\u202c",
    "long " * 60,
)


def write_run(
    directory: Path, jobs: Sequence[str], outcomes: str = "sfts", *, text: str = "lift the cube", reports: bool = True
) -> Path:
    """Write a run of jobs whose episodes came out as letters say; a text stands wherever one may."""
    said: dict[str, Any] = {"language_instruction": text, "task": text, "object": text, "embodiment": text}
    said["environment_args"] = {"environment": "lift_object", "object": text}
    entries = [planned(name, index=index, num_episodes=len(outcomes), **said) for index, name in enumerate(jobs)]
    node, command = Node(host=text, cpu=text, cores=2, platform="Linux"), ("isaaclab-arena", "run", text)
    write_run_plan(directory, run_plan(*entries, source_file=f"{text}.json", command_line=command, machine=node))
    for name in jobs:
        lines = commit_lines(outcomes, job=name)
        for index, line in enumerate(lines):
            conditions = {"cube.mass": 0.1 * index, "cube.position": [0.1, 0.2 * index, 0.0], text: text}
            own = {"conditions": conditions, "metrics": {"distance_m": 0.1}, "error": line.error and text}
            lines[index] = dataclasses.replace(line, language_instruction=text, wall_s=1.5, **own)
        (directory / name).mkdir()
        if lines:
            write_lines(directory, lines)
        if reports:
            write_report(directory, report(name))
    return directory
