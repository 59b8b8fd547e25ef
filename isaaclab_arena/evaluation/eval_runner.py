"""Run a file of evaluation jobs, on one process or as one of many ranks.

isaaclab-arena run jobs.json
isaaclab-arena run jobs.json --gpu_ids all
python -m torch.distributed.run --nproc_per_node=4 -m isaaclab_arena.evaluation.eval_runner --eval_jobs_config jobs.json
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from isaaclab_arena.distributed.interrupts import leave_on_ctrl_c
from isaaclab_arena.garbage import collect_later
from isaaclab_arena.paths import typed_words

if __name__ == "__main__":
    leave_on_ctrl_c()
    # Imports make hundreds of thousands of objects that stay; looking for garbage among them takes a sixth of the time.
    collect_later()

from isaaclab_arena.config.arena import is_override
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.options import Count
from isaaclab_arena.config.schema import JobDefaults
from isaaclab_arena.distributed.context import process_age_s, take_rank_of_scheduler
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation import planning, process, run, validation
from isaaclab_arena.evaluation.options import (
    AUTO,
    DYNAMIC,
    ClusterOptions,
    JobOptions,
    read_command_line,
    refuse_unknown,
)

PROGRAM = "isaaclab_arena.evaluation.eval_runner"
_MEANS_JOBS = {"jobs", "job", "config", "file", "jobs_file", "job_file", "jobs_config", "config_file", "eval_config"}


@dataclass(frozen=True, kw_only=True)
class JobFileOptions:
    """What to run: JOBS, and what its jobs do not set themselves."""

    heading: ClassVar[str] = JobOptions.heading

    eval_jobs_config: str = ""
    """JOBS, a job file or experiment, JSON or YAML; overrides of an experiment may follow: runs.NAME.num_rebuilds=2."""
    robustness: str | None = None
    """Run jobs without their own robustness once unchanged, and once for each level of these axes: all, or
    light,delay."""
    robustness_levels: Count | None = None
    """With --robustness, the highest level; by default 5, the edge of the range that is known to be solvable."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions(JobFileOptions, ClusterOptions):
    """Run every job of a job file and merge one table."""

    operands: ClassVar[str] = " JOBS"

    def job_defaults(self) -> JobDefaults:
        """Return the defaults of the command line for jobs that do not say them. `ConfigError` for levels alone."""
        defaults = super().job_defaults()
        if self.robustness is None:
            if self.robustness_levels is not None:
                raise ConfigError("has no effect without --robustness", key="--robustness_levels")
            return defaults
        names = [name.strip() for name in self.robustness.split(",") if name.strip()]
        robustness: dict[str, object] = {"axes": "all" if self.robustness == "all" else names}
        if self.robustness_levels is not None:
            robustness["levels"] = self.robustness_levels
        return replace(defaults, robustness=robustness)


def main(argv: Sequence[str] | None = None, *, typed_as: str = PROGRAM) -> int:
    """Run the command and return its exit code.

    Args:
        argv: Arguments after the program's name; None: those of this process.
        typed_as: Name of the program in the help.

    Returns:
        0 if every job completed, 1 if not, 2 for a mistake of the user's, 130 or 143 if interrupted.
    """
    arguments = tuple(typed_words(argv))
    import_s = process_age_s()
    with process.program() as ended:
        take_rank_of_scheduler()
        options, overrides = read_options(arguments, typed_as)
        options.check_cluster()
        return run.run_command_line(
            options,
            module=PROGRAM,
            arguments=arguments,
            request_of=lambda _: jobs_request(options, overrides, arguments, import_s=import_s),
            elsewhere=None if options.cluster is None else partial(_on_cluster, options),
        )
    return ended.code


def _on_cluster(options: ClusterOptions, request: planning.RunRequest) -> int:
    """Run a checked request on the ranks of a cluster, and return the exit code."""
    # An extra, and slow to load.
    from isaaclab_arena.evaluation.cluster.ray_engine import execute_on_cluster  # noqa: PLC0415

    return execute_on_cluster(request, options)


def asked_for(arguments: Sequence[str]) -> planning.RunRequest:
    """Return the request of a command line, without a run. `SystemExit` if an option is malformed."""
    return jobs_request(*read_options(arguments), arguments)


def read_options(arguments: Sequence[str], typed_as: str = PROGRAM) -> tuple[EvalOptions, Sequence[str]]:
    """Return the options, and the overrides of an experiment's keys; ConfigError for an option that does not exist."""
    options, rest = read_command_line(EvalOptions, arguments, program=typed_as)
    # Words such as ``runs.lift.num_rebuilds=2`` set keys of the experiment.
    overrides = [word for word in rest if is_override(word)]
    others = [word for word in rest if not is_override(word)]
    if not options.eval_jobs_config:
        # The job file needs no option; an option of another name that must mean it is refused with the right line.
        name, _, file = " ".join(others[:2]).replace("=", " ").partition(" ")
        if not name.startswith("-") and others:
            options = replace(options, eval_jobs_config=others.pop(0))
        elif not others or name.strip("-").replace("-", "_") in _MEANS_JOBS:
            line = f"{typed_as} {file or 'jobs.json'}"
            what = f"unknown option; the job file needs none: {line}" if others else f"is missing; type: {line}"
            raise ConfigError(what, key=name or "JOBS")
    refuse_unknown(others, options)
    if options.cluster is not None and options.assignment == AUTO:
        # On a cluster, where ranks come and go, nothing can be settled before the start.
        options = replace(options, assignment=DYNAMIC.name)
    return options, overrides


def jobs_request(
    options: EvalOptions, overrides: Sequence[str], arguments: Sequence[str], *, import_s: float | None = None
) -> planning.RunRequest:
    """Return the request for a run of a job file, without a run. `ConfigError` if the file is missing or wrong."""
    # `overrides`: keys of an experiment that the command line sets. `arguments`: the command line.
    read = load_jobs_file(
        options.eval_jobs_config,
        options.job_defaults(),
        overrides=overrides,
        suites=SUITES,
        arms=partial(validation.arms_of, may_import=not options.no_import),
    )
    return run.request_for(
        read,
        replace(options, tracking=tuple(dict.fromkeys((*read.tracking, *options.tracking)))),
        source_file=read.path,
        command_line=(PROGRAM, *arguments),
        import_s=import_s,
    )


if __name__ == "__main__":
    raise SystemExit(main())
