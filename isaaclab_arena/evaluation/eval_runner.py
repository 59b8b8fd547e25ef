"""Run a file of evaluation jobs, on one process or as one of many ranks.

python -m isaaclab_arena.evaluation.eval_runner --eval_jobs_config jobs.json
python -m isaaclab_arena.evaluation.eval_runner --eval_jobs_config jobs.json --gpu_ids all
python -m torch.distributed.run --nproc_per_node=4 -m isaaclab_arena.evaluation.eval_runner --eval_jobs_config jobs.json
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.garbage import collect_from_now_on, collect_later

if __name__ == "__main__":
    # Imports make hundreds of thousands of objects that stay; looking for garbage among them takes a sixth of the time.
    collect_later()

from isaaclab_arena.config.loading import limited, load_jobs_file
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.launching.launch import launch_if_asked
from isaaclab_arena.distributed.process import process_age_s
from isaaclab_arena.evaluation.console import exit_code_of
from isaaclab_arena.evaluation.options import RunOptions, read_command_line, refuse_unknown, split_overrides
from isaaclab_arena.evaluation.plan.condition_sets import agreed_hash
from isaaclab_arena.evaluation.plan.planning import RunRequest
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.evaluation.plan.variation_listing import show_variations
from isaaclab_arena.evaluation.run import execute

PROGRAM = "isaaclab_arena.evaluation.eval_runner"


@dataclass(frozen=True, kw_only=True)
class EvalOptions(RunOptions):
    """Run every job of a job file and merge one table."""

    eval_jobs_config: str
    """The job file or experiment, JSON or YAML; keys of an experiment may follow: runs.NAME.num_rebuilds=2."""


def main(argv: Sequence[str] | None = None, *, typed_as: str = PROGRAM) -> int:
    """Run the command and return its exit code.

    Args:
        argv: Arguments after the program's name; those of this process where None.
        typed_as: The name by which the help calls the program.

    Returns:
        0 if every job completed, 1 if not, 2 for a mistake of the user's, 130 or 143 if interrupted.
    """
    arguments = tuple(sys.argv[1:] if argv is None else argv)
    import_s = process_age_s()
    return exit_code_of(lambda: _run(arguments, import_s, typed_as))


def _run(arguments: Sequence[str], import_s: float | None, typed_as: str) -> int:
    options, overrides = _read(arguments, typed_as)
    launched = launch_if_asked(options, module=PROGRAM, arguments=arguments)
    if launched is not None:
        return launched
    options.check()
    context = DistributedContext.from_environment(device=options.device)
    request = jobs_request(options, overrides, arguments, import_s=import_s, may_import=not options.no_import)
    collect_from_now_on()
    return show_variations(request.jobs) if options.list_variations else execute(request, context)


def asked_for(arguments: Sequence[str], *, may_import: bool) -> RunRequest:
    """Return what a command line asks for; nothing is run.

    Args:
        arguments: Arguments after the program's name.
        may_import: Whether jobs may name code that is not registered; the command line may refuse that too.

    Raises:
        ConfigError: If the job file is not there or wrong.
        SystemExit: If an option is malformed.
    """
    options, overrides = _read(arguments, PROGRAM)
    may_import = may_import and not options.no_import
    return jobs_request(options, overrides, arguments, import_s=None, may_import=may_import)


def _read(arguments: Sequence[str], program: str) -> tuple[EvalOptions, Sequence[str]]:
    """Return the options, and the overrides of an experiment's keys."""
    options, rest = read_command_line(EvalOptions, arguments, program=program)
    overrides, unknown = split_overrides(rest)
    refuse_unknown(unknown, options)
    return options, overrides


def jobs_request(
    options: EvalOptions,
    overrides: Sequence[str],
    arguments: Sequence[str],
    *,
    import_s: float | None,
    may_import: bool,
) -> RunRequest:
    """Return what is asked of a run of a job file; nothing is run.

    Args:
        options: The options, with the file.
        overrides: Keys of an experiment that the command line sets.
        arguments: A command line that says all this.
        import_s: See `RunRequest`.
        may_import: Whether jobs may name code that is not registered.

    Raises:
        ConfigError: If the job file is not there or wrong.
    """
    read = load_jobs_file(options.eval_jobs_config, options.job_defaults(), overrides=overrides, suites=SUITES)
    jobs_file = limited(read, options.limit)
    jobs = resolve_jobs(
        jobs_file.jobs,
        file=jobs_file.path,
        overrides=options.policy_overrides(),
        policy_batch=options.fixed_policy_batch(),
        device=options.device,
        may_import=may_import,
    )
    return RunRequest(
        jobs=jobs,
        config_hash=agreed_hash(jobs_file.config_hash, [job.saved_conditions for job in jobs]),
        source_file=jobs_file.path,
        command_line=(PROGRAM, *arguments),
        questions=jobs_file.questions,
        options=replace(options, tracking=tuple(dict.fromkeys((*jobs_file.tracking, *options.tracking)))),
        import_s=import_s,
    )


if __name__ == "__main__":
    raise SystemExit(main())
