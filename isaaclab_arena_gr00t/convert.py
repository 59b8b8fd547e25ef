"""Convert recordings to LeRobot datasets and back: ``python -m isaaclab_arena_gr00t.convert``."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.logs import open_missing_streams, plain_text
from isaaclab_arena.paths import typed_words
from isaaclab_arena_gr00t.data.from_lerobot import write_recordings
from isaaclab_arena_gr00t.data.layout import DatasetVersion
from isaaclab_arena_gr00t.data.to_lerobot import LeRobotOptions, write_lerobot_dataset


@dataclass(frozen=True, kw_only=True)
class ToLeRobot:
    """Make a LeRobot dataset of recordings."""

    dataset: Path
    """A recording, the directory of a job, or the directory of a run for all its jobs."""
    output_dir: Path
    """Directory of the dataset; missing or empty."""
    version: Literal["v2.1", "v3.0"] = "v2.1"
    """v2.1 with modality.json, which GR00T's finetuning reads, or v3.0, LeRobot's newest."""
    policy_config_yaml_path: Path | None = None
    """YAML file of the policy to train, for its cameras and groups of joints. By default all cameras, whole arrays."""
    only_successes: bool = False
    """Leave out episodes that did not succeed."""
    state_names: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Put this observation into observation.state; may be given several times. By default the robot's own state."""
    environment_state: bool = False
    """Also put the other observations, which a real robot does not have, into observation.environment_state."""
    no_videos: bool = False
    """Leave out camera pictures."""
    lossless: bool = False
    """Keep every pixel exactly; the files grow, and some players do not show them."""
    png: bool = False
    """Keep pictures as PNG in the tables instead of in videos, for trainings without a video reader."""
    language_instruction: str = ""
    """Instruction of episodes that were recorded without one."""
    fps: int | None = None
    """Control steps per second, if the recording does not give a whole number."""
    robot_type: str | None = None
    """Name of the robot; by default as recorded."""


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
        config=(tyro.conf.FlagCreatePairsOff,),
        use_underscores=True,
    )
    try:
        if isinstance(command, FromLeRobot):
            for recording in write_recordings(command.dataset, command.output_dir, _say_progress):
                _say(f"recording in {recording}")
        else:
            _to_lerobot(command)
    except KeyboardInterrupt:
        return 130
    except ConfigError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return 2
    except ArenaError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return 1
    return 0


def _to_lerobot(command: ToLeRobot) -> None:
    if command.fps is not None and command.fps < 1:
        raise ConfigError(Problem(f"must be at least 1, got {command.fps}", key="--fps"))
    options = LeRobotOptions(
        version=DatasetVersion(command.version),
        policy_config_yaml_path=command.policy_config_yaml_path,
        only_successes=command.only_successes,
        state_names=command.state_names,
        environment_state=command.environment_state,
        videos=not command.no_videos,
        lossless=command.lossless,
        png=command.png,
        language_instruction=command.language_instruction,
        fps=command.fps,
        robot_type=command.robot_type,
    )
    written = write_lerobot_dataset(command.dataset, command.output_dir, options, _say_progress)
    _say(
        f"{written.num_episodes} episodes, {written.num_frames} control steps, {len(written.tasks)} instructions, "
        f"{len(written.features.cameras)} cameras in {command.output_dir}"
    )


def _say_progress(done: int, due: int) -> None:
    """Print the progress at every tenth."""
    if done * 10 // due > (done - 1) * 10 // due:
        _say(f"{done} of {due} episodes")


def _say(text: str) -> None:
    print(plain_text(text, keep_lines=True), flush=True)


if __name__ == "__main__":
    sys.exit(main())
