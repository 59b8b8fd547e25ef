"""``isaaclab-arena controls``: the share of a success rate that needs no looking and no listening."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import tyro
from rich.text import Text

from isaaclab_arena.analysis import controls
from isaaclab_arena.analysis.arms import Arm, ReadRun, read_run
from isaaclab_arena.cli.compare import NOT_COMPARABLE, run_into
from isaaclab_arena.cli.main import kept
from isaaclab_arena.config.command_line import misspelt, read_some
from isaaclab_arena.config.expansion.suites import CONTROL_LABEL
from isaaclab_arena.config.options import wrong_numbers
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

_PROGRAM = "isaaclab-arena controls"


@dataclass(frozen=True, kw_only=True)
class ControlsOptions:
    """Run jobs beside their controls, and say how much of each success rate needs no looking and no listening.

    Given the directory of such a run, it runs only the controls that play recordings of it, once. Further options are
    those of isaaclab-arena run. Writes controls.csv and controls.md into the run's directory, and its page again.
    """

    jobs: tyro.conf.Positional[Path]
    """A job file with the key controls, or the directory of its run."""
    output_dir: str | None = None
    """Exact directory for the run, instead of a dated one; missing or empty."""
    output_base_dir: str = "outputs"
    """Parent of the run's dated directory."""


def main(argv: Sequence[str]) -> int:
    """Run what has not run, write the files and show the table; return 0, a run's code, or 3 without controls."""
    options, rest = read_some(ControlsOptions, argv, program=_PROGRAM)
    own, others = ([field.name for field in fields(each)] for each in (ControlsOptions, eval_runner.EvalOptions))
    refuse([*wrong_numbers(options), *misspelt(rest, own, others=others)])
    directory = options.jobs
    if not directory.is_dir():
        directory = make_output_directory(output_dir=options.output_dir, output_base_dir=options.output_base_dir)
        code = run_into(directory, ["--eval_jobs_config", str(options.jobs), *rest], typed_as=_PROGRAM)
        if code != 0:
            return code
    run, recorded = read_run(directory), directory / controls.RECORDED
    jobs = [job for arm in run.arms.values() if arm.entry.config.controls for job in _recorded_jobs(run, arm)]
    if jobs and not (recorded / layout.RUN_PLAN_FILE).is_file():
        file = directory / f"{controls.RECORDED}.json"
        write_text(file, json_text({"jobs": jobs}), overwrite=True)
        make_output_directory(output_dir=str(recorded), output_base_dir="")
        code = run_into(recorded, ["--eval_jobs_config", str(file), *rest], typed_as=_PROGRAM)
        if code != 0:
            return code

    found, console = controls.explained(run), results_console()
    if not found:
        console.print(Text(plain_text(f"no job of {directory} has controls; give jobs the key 'controls'")))
        return NOT_COMPARABLE
    way_out = "copy the run to where it can be written"
    written = kept(lambda: controls.write_controls(directory, found)[1], way_out=way_out)
    kept(lambda: write_report([directory]), way_out=way_out)
    console.print(drawn(controls.explained_table(found)))
    for sentence in controls.sentences(found):
        console.print(Text(plain_text(sentence)))
    if written is not None:
        console.print(Text(plain_text(f"written to {written}")))
    return 0


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
