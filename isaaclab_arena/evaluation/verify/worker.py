"""One rank of a verification: it runs its share of a sample, end to end, as the run that is verified did.

`isaaclab_arena.evaluation.verify.verification` starts it, alone or under torchrun, on a directory that holds a plan and
an attempt. It leaves commit lines and recordings there like any other rank; nobody merges them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.devices import calculate_deterministically
from isaaclab_arena.distributed.process import die_with_parent, limit_threads
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.evaluation.console import exit_code_of
from isaaclab_arena.evaluation.job.job_runner import JobRunner
from isaaclab_arena.evaluation.job.rank_settings import rank_settings
from isaaclab_arena.evaluation.options import read_command_line, refuse_unknown
from isaaclab_arena.evaluation.scheduling.job_queue import jobs_of_rank
from isaaclab_arena.evaluation.verify.plan import ATTEMPT, jobs_of_plan, options_of_plan, write_contents
from isaaclab_arena.paths import typed_words
from isaaclab_arena.storage.run.attempts import read_attempt
from isaaclab_arena.storage.run.run_plan import read_run_plan

PROGRAM = "isaaclab_arena.evaluation.verify.worker"


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Run a rank's share of a sample."""

    output_dir: Path
    """Directory with the plan and the attempt."""

    source: Path
    """Directory of the run that is verified."""

    no_import: bool = False
    """Refuse jobs that would import code which is not registered."""

    device: str | None = None
    """Where to simulate; by default a GPU where there is one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the share of this rank and return 0; jobs that fail say so in their reports.

    Args:
        argv: Arguments after the program's name; those of this process where None.
    """
    arguments = typed_words(argv)
    return exit_code_of(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    options, unknown = read_command_line(WorkerOptions, arguments, program=PROGRAM)
    refuse_unknown(unknown, options)
    die_with_parent()
    context = DistributedContext.from_environment(device=options.device)
    plan, attempt = read_run_plan(options.output_dir), read_attempt(options.output_dir, ATTEMPT)
    run_options = options_of_plan(plan)
    limit_threads(run_options.torch_threads)
    if run_options.deterministic:
        calculate_deterministically()
    jobs = jobs_of_plan(plan, options.source, may_import=not options.no_import, device=options.device)
    if context.is_rank_zero:
        write_contents(options.output_dir, jobs)
    settings = rank_settings(
        run_options,
        context,
        output_directory=options.output_dir,
        attempt=attempt,
        config_hash=plan.config_hash,
    )
    with initialise(context):
        runner = JobRunner(settings)
        try:
            for assigned in jobs_of_rank(jobs, attempt, rank=context.rank, split=True):
                runner.run(assigned.job, supply=assigned.supply)
        finally:
            runner.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
