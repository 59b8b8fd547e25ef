"""Plans of runs and their entries, from what matters of them."""

import dataclasses
from typing import Any

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.storage.contents import Node
from isaaclab_arena.storage.ledger import PlanEntry, RunPlan

HERE = Node(host="here", cpu="some", cores=2, platform="Linux")
_RESOLVED = {field.name for field in dataclasses.fields(PlanEntry)}


def plan_entry(name: str, *, rank: int | None = 0, **said: Any) -> PlanEntry:
    """Return the entry of a job; what is no key of an entry is one of the job itself."""
    asked = {"index": 0, "environment": "lift_object", "policy_type": "zero_action", "seed": 3}
    asked |= {key: value for key, value in said.items() if key not in _RESOLVED}
    resolved = {key: value for key, value in said.items() if key in _RESOLVED}
    return PlanEntry(config=JobConfig(name=name, **asked), rank=rank, **resolved)


def run_plan(*jobs: PlanEntry, world_size: int = 1, **changes: Any) -> RunPlan:
    values = {
        "run_id": "run",
        "created_at": "2026-01-01T00:00:00+00:00",
        "config_hash": "abc",
        "source_file": "jobs.json",
        "command_line": (),
        "versions": {},
        "git_revision": None,
        "machine": HERE,
        "devices": ("cpu",) * world_size,
    }
    return RunPlan(jobs=jobs, world_size=world_size, **{**values, **changes})
