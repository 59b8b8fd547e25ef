"""Convert recordings to LeRobot datasets and back: ``python -m isaaclab_arena_gr00t.convert``."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from isaaclab_arena.errors import ArenaError, ConfigError, refuse
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.lerobot import layout
from isaaclab_arena.lerobot.reading import write_recordings
from isaaclab_arena.lerobot.writing import ANY_MODEL, LeRobotOptions, ModelColumns, write_lerobot_dataset
from isaaclab_arena.logs import open_missing_streams, plain_text
from isaaclab_arena.paths import typed_words
from isaaclab_arena.storage.layout import ACTIONS, OBSERVATIONS
from isaaclab_arena_gr00t.config import JointFiles, read_joint_files, read_policy_config
from isaaclab_arena_gr00t.observations import wired_action, wired_state


@dataclass(frozen=True, kw_only=True)
class ToLeRobot(LeRobotOptions):
    """Make a LeRobot dataset of recordings."""

    dataset: Path
    """A recording, the directory of a job, or the directory of a run for all its jobs."""
    output_dir: Path
    """Directory of the dataset; missing or empty."""
    policy_config_yaml_path: Path | None = None
    """YAML file of the policy to train, for its cameras and groups of joints. By default all cameras, whole arrays."""
    sizes: tyro.conf.Suppress[layout.FileSizes] = field(default_factory=layout.FileSizes)
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
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.EnumChoicesFromValues, tyro.conf.UseAppendAction),
        use_underscores=True,
    )
    try:
        if isinstance(command, FromLeRobot):
            for recording in write_recordings(command.dataset, command.output_dir, _say_progress):
                print(plain_text(f"recording in {recording}", keep_lines=True), flush=True)
        else:
            model = ANY_MODEL
            if command.policy_config_yaml_path is not None:
                model = model_columns(command.policy_config_yaml_path)
            written = write_lerobot_dataset(command.dataset, command.output_dir, command, model, _say_progress)
            counts = ", ".join(f"{count} {name}" for name, count in written.items())
            print(plain_text(f"{counts} in {command.output_dir}", keep_lines=True), flush=True)
    except KeyboardInterrupt:
        return 130
    except ArenaError as error:
        print(plain_text(error, keep_lines=True), file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def model_columns(policy_config_yaml_path: Path) -> ModelColumns:
    """Return the observations, columns and cameras that a policy's YAML and joint files name; ConfigError if wrong."""
    policy = read_policy_config(policy_config_yaml_path)
    files = JointFiles() if policy.policy_joints_config_path is None else read_joint_files(policy)
    joints = files.policy

    def regrouped(state: Mapping[str, int], action_dim: int) -> dict[str, layout.Column]:
        columns: dict[str, layout.Column] = {}
        # Without the joints of its groups each observation is a group, and the action another.
        if joints is None:
            return columns
        if state:
            specs = {name: ArraySpec(shape=(size,)) for name, size in state.items()}
            terms, groups, problems = wired_state(specs, list(joints.state), list(state), files)
            refuse(problems)
            columns[layout.STATE] = layout.Column(
                sources={f"{OBSERVATIONS}/{name}": state[name] for name in terms},
                groups=groups,
                names=tuple(joint for group in joints.state.values() for joint in group),
            )
        groups, problems = wired_action(ArraySpec(shape=(action_dim,)), list(joints.action), files)
        refuse(problems)
        names = tuple(joint for group in joints.action.values() for joint in group)
        columns[layout.ACTION] = layout.Column(sources={ACTIONS: action_dim}, groups=groups, names=names)
        return columns

    return ModelColumns(
        language_instruction=policy.language_instruction,
        state_names=policy.state_names,
        regrouped=regrouped,
        cameras=policy.cameras,
        cameras_key="pov_cam_name_sim",
    )


def _say_progress(done: int, due: int) -> None:
    """Print the progress at every tenth."""
    if done * 10 // due > (done - 1) * 10 // due:
        print(f"{done} of {due} episodes", flush=True)


if __name__ == "__main__":
    sys.exit(main())
