"""A run on disk whose jobs sweep how late their answers are."""

import dataclasses
from pathlib import Path

from isaaclab_arena.config.schema import Delays, LatencyConfig, Meanwhile
from isaaclab_arena.storage.ledger import PlanEntry, QueryPace
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report

LATE = {0: "ssssssssss", 1: "sssssssssf", 2: "sssssssfff", 4: "ssssffffff", 8: "sfffffffff"}
"""Control steps of latency to what became of the episodes."""


def write_late_run(directory: Path, meanwhile: Meanwhile = Meanwhile.HOLD) -> Path:
    """Write a run with a job for each latency and one without any, and return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    entries = [_late(index, steps, meanwhile) for index, steps in enumerate(LATE)]
    write_plan(directory, *entries, planned("plain", index=len(entries)))
    for entry, (steps, outcomes) in zip(entries, LATE.items(), strict=True):
        share = steps / (steps + 1)
        metrics = {"latency.stale_share": share, "latency.queries_per_s": 20.0 / (steps + 1)}
        told = {} if meanwhile is Meanwhile.WAIT else metrics
        lines = [dataclasses.replace(line, metrics=told) for line in commit_lines(outcomes, job=entry.name)]
        write_lines(directory, lines)
        pace = QueryPace(steps=1, control_dt=0.05) if meanwhile is Meanwhile.WAIT else None
        write_report(directory, report(entry.name, query_s=(0.060, 0.062, 0.181), query_pace=pace))
    write_lines(directory, commit_lines("sf", job="plain"))
    write_report(directory, report("plain"))
    return directory


def _late(index: int, steps: int, meanwhile: Meanwhile) -> PlanEntry:
    entry = planned(f"late-steps{steps}", index=index, swept={"latency.steps": steps})
    config = dataclasses.replace(entry.config, latency=LatencyConfig(steps=(steps, steps), meanwhile=meanwhile))
    return dataclasses.replace(entry, config=config, latency=Delays(steps=((steps, 1),)))
