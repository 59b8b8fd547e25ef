"""``isaaclab-arena recover``: bring back the plan of a run, whose file was lost or damaged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.plan_recovery import recover_plan


@dataclass(frozen=True, kw_only=True)
class RecoverOptions:
    """Write run.json again where it was lost or damaged, from the copy that a run keeps beside its attempts."""

    output_directory: tyro.conf.Positional[Path]
    """The folder of one run."""


def main(argv: Sequence[str]) -> int:
    """Recover the plan of one run, and say what can be done now.

    Raises:
        ConfigError: If nothing is lost, or it cannot be brought back.
    """
    options = tyro.cli(RecoverOptions, args=list(argv), prog="isaaclab-arena recover")
    plan = recover_plan(options.output_directory)
    jobs = "1 job" if len(plan.jobs) == 1 else f"{len(plan.jobs)} jobs"
    print(
        plain_text(f"{options.output_directory / RUN_PLAN_FILE} is there again, with {jobs}; merge, verify, or resume")
    )
    return 0
