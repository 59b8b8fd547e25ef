"""Evaluate policies from Python, as the command line does and in the middle of somebody else's program."""

import signal
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, overload

from isaaclab_arena.api.arguments import JobFileKeywords, JobKeywords, PolicyLike
from isaaclab_arena.api.asked import Asked, asked_for
from isaaclab_arena.api.ranks import ranks_here, run_on_ranks
from isaaclab_arena.api.results import Results
from isaaclab_arena.distributed.devices.determinism import calculate_deterministically
from isaaclab_arena.distributed.process import limit_threads
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.process.interruption import watch_as_guest
from isaaclab_arena.evaluation.process.left_alone import left_alone
from isaaclab_arena.evaluation.run import RunConduct, execute_among
from isaaclab_arena.evaluation.startup.output_directory import make_output_directory
from isaaclab_arena.logs import set_up_console_logging
from isaaclab_arena.policy.lent import modules_at_rest
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.workers.kept_workers import stop_kept_workers


@overload
def evaluate(
    jobs: "str | PathLike[str]",
    *,
    output_dir: "str | PathLike[str] | None" = None,
    num_ranks: int | None = None,
    show_progress: bool = False,
    **options: Unpack[JobFileKeywords],
) -> Results: ...


@overload
def evaluate(
    *,
    environment: str,
    policy: PolicyLike,
    num_episodes: int | None = None,
    num_envs: int | None = None,
    seed: int | None = None,
    policy_config: Mapping[str, Any] | None = None,
    environment_args: Mapping[str, Any] | None = None,
    variations: Mapping[str, Any] | None = None,
    language_instruction: str | None = None,
    enable_cameras: bool = False,
    name: str | None = None,
    output_dir: "str | PathLike[str] | None" = None,
    num_ranks: int | None = None,
    show_progress: bool = False,
    **options: Unpack[JobKeywords],
) -> Results: ...


def evaluate(
    jobs: "str | PathLike[str] | None" = None,
    *,
    output_dir: "str | PathLike[str] | None" = None,
    num_ranks: int | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Results:
    """Evaluate the jobs of a file, or one policy in one environment, and return the results.

    The tables are those of the command line, byte for byte. What the process shares is left as it was: random numbers,
    threads, logging, the working directory. All ranks of an open process group must call this; they share the episodes
    and get equal results.

    Args:
        jobs: The job file; without it ``environment`` and ``policy`` are needed.
        output_dir: The run's directory, missing or empty; by default a temporary one, removed with the results.
        num_ranks: Ranks to start as processes; 1 for this process alone; None for an open process group, if any.
        show_progress: Whether progress is shown on stderr. Nothing is written to stdout.
        options: Options of the command line by name, and with ``environment`` those of that environment and the job;
            see `JobFileKeywords` and `JobKeywords`.

    Returns:
        The results. A job that failed, because of its policy for instance, is in the table.

    Raises:
        ConfigError: For a mistake in what is asked for, with the command line's text.
        ArenaError: If the run could not begin or go on: a full disk, ranks that do not find each other.
        KeyboardInterrupt: After Ctrl-C, once the control step is done and the tables are written.
    """
    # What an interpreter has imported may have been edited since.
    stop_kept_workers()
    asked = asked_for(jobs, {**options, "output_dir": output_dir}, num_ranks=num_ranks)
    if num_ranks is not None and num_ranks > 1:
        return _on_ranks(asked, num_ranks, shows_progress=show_progress)
    results, signal_number = _here(asked, alone=num_ranks == 1, shows_progress=show_progress)
    if signal_number is not None:
        # Everything is as it was, so it does what it would have done without us.
        signal.raise_signal(signal_number)
    return results


def _on_ranks(asked: Asked, num_ranks: int, *, shows_progress: bool) -> Results:
    options = asked.options(is_guest=False)
    owned = _temporary_directory(asked)
    path = _place(options, owned)
    with tempfile.TemporaryDirectory(prefix="isaaclab_arena_job_") as directory, left_alone():
        arguments = asked.arguments_for_ranks(options, Path(directory))
        # Mistakes are found here, where their exception is of use.
        asked.request(options, world_size=num_ranks)
        if options.output_dir is None and options.resume is None:
            arguments += ["--output_dir", str(path)]
        run_on_ranks(arguments, num_ranks, options, directory=path, shows_progress=shows_progress)
        return Results(merge_results(path), path, owned=owned)


def _here(asked: Asked, *, alone: bool, shows_progress: bool) -> tuple[Results, int | None]:
    options = asked.options(is_guest=True)
    with left_alone(), ranks_here(device=options.device, alone=alone) as ranks:
        if shows_progress:
            set_up_console_logging(ranks.context.rank)
        owned = _temporary_directory(asked) if ranks.context.is_rank_zero else None
        chosen = ranks.share_from_rank_zero("directory of the run", owned.name if owned else "")
        options = replace(options, output_dir=chosen) if chosen else options
        request = asked.request(options, world_size=ranks.context.world_size)
        limit_threads(options.torch_threads)
        if options.deterministic:
            calculate_deterministically()
        conduct = RunConduct(
            shows_progress=shows_progress, shows_results=False, writes_report=not chosen, listen=watch_as_guest
        )
        with modules_at_rest(asked.policy):
            outcome = execute_among(ranks, request, conduct=conduct)
        path = Path(ranks.share_from_rank_zero("directory of the results", str(outcome.output_directory)))
        _check_visible(path)
        results = Results(merge_results(path), path, owned=owned)
        # A temporary directory may go with rank 0's results as soon as nobody needs those.
        ranks.gather("results", "read")
        return results, outcome.signal_number


def _temporary_directory(asked: Asked) -> "tempfile.TemporaryDirectory[str] | None":
    """Return a directory for a run of which nobody says where it is to be."""
    if any(asked.given.get(name) is not None for name in ("output_dir", "output_base_dir", "resume")):
        return None
    return tempfile.TemporaryDirectory(prefix="isaaclab_arena_run_")


def _place(options: RunOptions, owned: "tempfile.TemporaryDirectory[str] | None") -> Path:
    """Return where ranks that are processes of their own shall write."""
    if owned is not None:
        return Path(owned.name)
    named = options.output_dir or options.resume
    return (
        Path(named).absolute()
        if named
        else make_output_directory(output_dir=None, output_base_dir=options.output_base_dir)
    )


def _check_visible(path: Path) -> None:
    if not (path / RUN_PLAN_FILE).is_file():
        message = f"rank 0 has written to '{path}', which this rank does not see; name a directory that all ranks share"
        raise ConfigError(Problem(message, key="--output_dir"))
