"""Convert recordings to LeRobot datasets and back: ``python -m isaaclab_arena_gr00t.convert``."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from isaaclab_arena.errors import ArenaError, ConfigError
from isaaclab_arena.logs import open_missing_streams, plain_text
from isaaclab_arena.paths import typed_words
from isaaclab_arena_gr00t.data.from_lerobot import write_recordings
from isaaclab_arena_gr00t.data.layout import FileSizes
from isaaclab_arena_gr00t.data.to_lerobot import LeRobotOptions, write_lerobot_dataset


@dataclass(frozen=True, kw_only=True)
class ToLeRobot(LeRobotOptions):
    """Make a LeRobot dataset of recordings."""

    dataset: Path
    """A recording, the directory of a job, or the directory of a run for all its jobs."""
    output_dir: Path
    """Directory of the dataset; missing or empty."""
    state_names: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Put this observation into observation.state; may be given several times. By default the robot's own state."""
    sizes: tyro.conf.Suppress[FileSizes] = field(default_factory=FileSizes)
    """Largest sizes of files and directories."""


@dataclass(frozen=True, kw_only=True)
class FromLeRobot:
    """Make recordings of a LeRobot dataset of version 2.0, 2.1 or 3.0."""

    dataset: Path
    """Directory of the dataset."""
    output_dir: Path
    """Directory of the recordings, one per job; missing or empty."""


_Command = (
    Annotated[ToLeRobot, tyro.conf.subcommand("to_lerobot")]
    | Annotated[FromLeRobot, tyro.conf.subcommand("from_lerobot")]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Convert, and return the exit code: 0, 2 for a mistake of the user, 130 after Ctrl-C, 1 for any other error."""
    open_missing_streams()
    command = tyro.cli(
        _Command,
        prog="python -m isaaclab_arena_gr00t.convert",
        args=typed_words(argv),
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.EnumChoicesFromValues),
        use_underscores=True,
    )
    try:
        if isinstance(command, FromLeRobot):
            for recording in write_recordings(command.dataset, command.output_dir, _say_progress):
                print(plain_text(f"recording in {recording}", keep_lines=True), flush=True)
        else:
            written = write_lerobot_dataset(command.dataset, command.output_dir, command, _say_progress)
            counts = ", ".join(f"{count} {name}" for name, count in written.items())
            print(plain_text(f"{counts} in {command.output_dir}", keep_lines=True), flush=True)
    except KeyboardInterrupt:
        return 130
    except ArenaError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _say_progress(done: int, due: int) -> None:
    """Print the progress at every tenth."""
    if done * 10 // due > (done - 1) * 10 // due:
        print(f"{done} of {due} episodes", flush=True)


if __name__ == "__main__":
    sys.exit(main())
