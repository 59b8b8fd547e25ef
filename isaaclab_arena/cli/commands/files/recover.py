"""``isaaclab-arena recover``: bring back the plan of a run, whose file was lost or damaged."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from isaaclab_arena.evaluation.plan_rebuilding import rebuild_with
from isaaclab_arena.logs import plain_text
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.recovery.plan_recovery import recover_plan


@dataclass(frozen=True, kw_only=True)
class RecoverOptions:
    """Write run.json again where it was lost or damaged.

    It is taken from the copy that a run keeps beside its attempts, or, where there is none, made anew from the command
    line of the first attempt and its job file.
    """

    output_directory: tyro.conf.Positional[Path]
    """The directory of one run."""
    no_import: bool = False
    """Refuse jobs that name code that is not registered."""


def main(argv: Sequence[str]) -> int:
    """Recover the plan of one run, and say what can be done now.

    Raises:
        ConfigError: If nothing is lost, or it cannot be brought back.
    """
    options = tyro.cli(RecoverOptions, args=list(argv), prog="isaaclab-arena recover")
    recovered = recover_plan(options.output_directory, rebuild_with(may_import=not options.no_import))
    plan = recovered.plan
    jobs = "1 job" if len(plan.jobs) == 1 else f"{len(plan.jobs)} jobs"
    told = f"{options.output_directory / RUN_PLAN_FILE} is there again, with {jobs}; merge, verify, or resume"
    if recovered.is_made_anew:
        told += f"\nmade anew from what was typed: {' '.join(plan.command_line)}; its jobs are those that were recorded"
    print(plain_text(told, keep_lines=True))
    return 0
