"""``isaaclab-arena robustness``: say how much of a policy's success is left when its episodes are changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.text import Text

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.analysis.robustness import drops, drops_table, sentences, write_robustness
from isaaclab_arena.cli.commands.compare import NOT_COMPARABLE, kept
from isaaclab_arena.config.options import Count, refuse_wrong_numbers
from isaaclab_arena.environments.variations.overrides import ALL_AXES, EDGE_LEVEL
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.evaluation.console import results_console
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results.console import drawn
from isaaclab_arena.storage.disk import make_output_directory

PROGRAM = "isaaclab-arena robustness"


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions:
    """Run every job once as it is and once more for each level of each axis, and say what is lost on the same episodes.

    Given the directory of such a run, it runs nothing. Further options are those of isaaclab-arena run. Writes
    robustness.csv, robustness.md and a picture per job into the run's directory.
    """

    jobs: tyro.conf.Positional[Path]
    """A job file, or the directory of a run whose jobs had arms."""
    axes: str = ALL_AXES
    """Axes of jobs without their own: all, or names separated by commas, such as light,delay."""
    levels: Count = EDGE_LEVEL
    """Highest level; 5 is the edge of the range that is known to be solvable."""
    output_dir: str | None = None
    """Exact directory for the run, instead of a dated one; missing or empty."""
    output_base_dir: str = "outputs"
    """Parent of the run's dated directory."""


def main(argv: Sequence[str]) -> int:
    """Run the jobs unless they have run, write the files and show the table; return 0, the run's code, or 3."""
    # Exit code 3: the run has no arms to compare. ConfigError: the job file is wrong, or there is no such run.
    # StorageError: a file cannot be read or written.
    options, rest = tyro.cli(RobustnessOptions, args=argv, prog=PROGRAM, use_underscores=True, return_unknown_args=True)
    refuse_wrong_numbers(options)
    if not options.jobs.is_dir():
        directory = make_output_directory(output_dir=options.output_dir, output_base_dir=options.output_base_dir)
        arms = ["--robustness", options.axes, "--robustness_levels", str(options.levels)]
        run = ["--eval_jobs_config", str(options.jobs), *arms, "--output_dir", str(directory)]
        code = eval_runner.main([*run, *rest], typed_as=PROGRAM)
        if code != 0:
            # The directory of a run that did not begin is empty.
            if not any(directory.iterdir()):
                directory.rmdir()
            return code
    elif rest:
        raise ConfigError(f"'{options.jobs}' is a run, which is only read", key=rest[0])
    else:
        directory = options.jobs

    found = drops(read_run(directory).arms.values())
    console = results_console()
    if not found:
        message = f"no job of {directory} has arms; give a job file, or jobs the key 'robustness'"
        console.print(Text(plain_text(message)))
        return NOT_COMPARABLE
    way_out = "copy the run to where it can be written"
    written = kept(lambda: write_robustness(directory, found)[1], way_out=way_out)
    console.print(drawn(drops_table(found)))
    for sentence in sentences(found):
        console.print(Text(plain_text(sentence)))
    if written is not None:
        console.print(Text(plain_text(f"written to {written}")))
    return 0
