"""``isaaclab-arena robustness`` and ``controls``: jobs beside arms of themselves, over the same episodes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import tyro
from rich.text import Text

from isaaclab_arena.analysis import controls as explaining
from isaaclab_arena.analysis import robustness as costs
from isaaclab_arena.analysis.arms import Arm, ReadRun, read_run
from isaaclab_arena.cli.compare import NOT_COMPARABLE
from isaaclab_arena.cli.main import kept
from isaaclab_arena.config.command_line import misspelt, read_some
from isaaclab_arena.config.expansion.suites import CONTROL_LABEL
from isaaclab_arena.config.options import Count, wrong_numbers
from isaaclab_arena.environments.variations.overrides import ALL_AXES, EDGE_LEVEL
from isaaclab_arena.errors import ConfigError, refuse
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.evaluation.process import results_console
from isaaclab_arena.logs import plain_text
from isaaclab_arena.report.writing import write_report
from isaaclab_arena.results.console import drawn
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.atomic import json_text, write_text
from isaaclab_arena.storage.episodes import find_recordings, index_episodes, named_in_words
from isaaclab_arena.storage.ledger import make_output_directory

# What both commands share: the run, its directory, and the answer.

_WAY_OUT = "copy the run to where it can be written"


@dataclass(frozen=True, kw_only=True)
class _ArmsOptions:
    jobs: tyro.conf.Positional[Path]
    """A job file, or the directory of a run whose jobs had arms."""
    output_dir: str | None = None
    """Exact directory for the run, instead of a dated one; missing or empty."""
    output_base_dir: str = "outputs"
    """Parent of the run's dated directory."""


def _run_into(directory: Path, words: Sequence[str], *, typed_as: str) -> int:
    """Run jobs into an empty directory, and return the exit code; a directory in which no run began is removed."""
    code = eval_runner.main([*words, "--output_dir", str(directory)], typed_as=typed_as)
    if code != 0 and not any(directory.iterdir()):
        directory.rmdir()
    return code


def _has_run(options: _ArmsOptions, rest: Sequence[str], *words: str, typed_as: str) -> tuple[Path, int]:
    """Run a job file unless a run is given; return the run's directory and the exit code."""
    own, others = ([field.name for field in fields(each)] for each in (options, eval_runner.EvalOptions))
    refuse([*wrong_numbers(options), *misspelt(rest, own, others=others)])
    if options.jobs.is_dir():
        return options.jobs, 0
    directory = make_output_directory(output_dir=options.output_dir, output_base_dir=options.output_base_dir)
    return directory, _run_into(directory, ["--eval_jobs_config", str(options.jobs), *words, *rest], typed_as=typed_as)


def _show(table: pd.DataFrame, sentences: Iterator[str], written: Path | None) -> int:
    console = results_console()
    console.print(drawn(table))
    for sentence in sentences:
        console.print(Text(plain_text(sentence)))
    if written is not None:
        console.print(Text(plain_text(f"written to {written}")))
    return 0


def _nothing(message: str) -> int:
    results_console().print(Text(plain_text(message)))
    return NOT_COMPARABLE


# Jobs whose episodes are changed.

_ROBUSTNESS = "isaaclab-arena robustness"


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions(_ArmsOptions):
    """Run every job once as it is and once more for each level of each axis, and say what is lost on the same episodes.

    Given the directory of such a run, it runs nothing. Further options are those of isaaclab-arena run. Writes
    robustness.csv, robustness.md and a picture per job into the run's directory.
    """

    axes: str = ALL_AXES
    """Axes of jobs without their own: all, or names separated by commas, such as light,delay."""
    levels: Count = EDGE_LEVEL
    """Highest level; 5 is the edge of the range that is known to be solvable."""


def robustness(argv: Sequence[str]) -> int:
    """Run the jobs unless they have run, write the files and show the table; return 0, the run's code, or 3."""
    # Exit code 3: the run has no arms to compare. ConfigError: the job file is wrong, or there is no such run.
    # StorageError: a file cannot be read or written.
    options, rest = read_some(RobustnessOptions, argv, program=_ROBUSTNESS)
    if options.jobs.is_dir() and rest:
        raise ConfigError(f"'{options.jobs}' is a run, which is only read", key=rest[0])
    arms = "--robustness", options.axes, "--robustness_levels", str(options.levels)
    directory, code = _has_run(options, rest, *arms, typed_as=_ROBUSTNESS)
    if code != 0:
        return code
    found = costs.drops(read_run(directory).arms.values())
    if not found:
        return _nothing(f"no job of {directory} has arms; give a job file, or jobs the key 'robustness'")
    written = kept(lambda: costs.write_robustness(directory, found)[1], way_out=_WAY_OUT)
    return _show(costs.drops_table(found), costs.sentences(found), written)


# Jobs whose policy cannot look or listen.

_CONTROLS = "isaaclab-arena controls"


@dataclass(frozen=True, kw_only=True)
class ControlsOptions(_ArmsOptions):
    """Run jobs beside their controls, and say how much of each success rate needs no looking and no listening.

    Given the directory of such a run, it runs only the controls that play recordings of it, once. Further options are
    those of isaaclab-arena run. Writes controls.csv and controls.md into the run's directory, and its page again.
    """


def controls(argv: Sequence[str]) -> int:
    """Run what has not run, write the files and show the table; return 0, a run's code, or 3 without controls."""
    options, rest = read_some(ControlsOptions, argv, program=_CONTROLS)
    directory, code = _has_run(options, rest, typed_as=_CONTROLS)
    if code != 0:
        return code
    run, recorded = read_run(directory), directory / explaining.RECORDED
    jobs = [job for arm in run.arms.values() if arm.entry.config.controls for job in _recorded_jobs(run, arm)]
    if jobs and not (recorded / layout.RUN_PLAN_FILE).is_file():
        file = directory / f"{explaining.RECORDED}.json"
        write_text(file, json_text({"jobs": jobs}), overwrite=True)
        make_output_directory(output_dir=str(recorded), output_base_dir="")
        code = _run_into(recorded, ["--eval_jobs_config", str(file), *rest], typed_as=_CONTROLS)
        if code != 0:
            return code
    found = explaining.explained(run)
    if not found:
        return _nothing(f"no job of {directory} has controls; give jobs the key 'controls'")
    written = kept(lambda: explaining.write_controls(directory, found)[1], way_out=_WAY_OUT)
    kept(lambda: write_report([directory]), way_out=_WAY_OUT)
    return _show(explaining.explained_table(found), explaining.sentences(found), written)


def _recorded_jobs(run: ReadRun, benign: Arm) -> Iterator[dict[str, Any]]:
    """Yield the jobs, as a job file has them, that play a job's recording; ConfigError if an episode is missing."""
    config, directory = benign.entry.config, (run.directory / benign.entry.name).absolute()
    with_key = {"file": str(run.directory), "job": config.name, "key": "controls"}
    there = [*index_episodes(find_recordings(str(directory), key="controls"), key="controls")]
    wanted = range(benign.planned or len(there))
    if missing := [index for index in wanted if index not in there]:
        raise ConfigError(f"episodes {named_in_words(missing)} have no recording; {benign.way_to_finish}", **with_key)
    # Its world is that of the job: all that decides the starts of episodes, and nothing of its policy.
    same = ("num_episodes", "num_rebuilds", "seed", "variations", "conditions", "language_instruction")
    shared = {name: value for name in same if (value := getattr(config, name))}
    environment = {"environment": config.environment, "num_envs": config.num_envs, **config.environment_args}
    environment |= {"enable_cameras": config.enable_cameras, "placement_seed": config.placement_seed}
    for control in config.controls:
        options: dict[str, Any] = {"replay_file_path": str(directory)}
        if control == "open_loop":
            options["episodes"] = [*wanted[1:], wanted[0]]
        yield {
            **shared,
            "name": f"{config.name}-{control}",
            "arena_env_args": environment,
            "policy_type": "replay" if control == "open_loop" else control,
            "policy_config_dict": options,
            "labels": {**config.labels, CONTROL_LABEL: control},
        }
