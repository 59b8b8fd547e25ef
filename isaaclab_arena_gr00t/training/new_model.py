"""A model with fresh weights for what is recorded, wired as it will be in an evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gr00t.data.statistics import compute_statistics
from gr00t.data.types import ModalityConfig
from gr00t.model import Gr00tSmallProcessor
from gr00t.model.building import build_small_model
from gr00t.model.modeling import Gr00tSmall

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.recorded_steps import RecordedSteps
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyConfig
from isaaclab_arena_gr00t.joint_files import JointFiles
from isaaclab_arena_gr00t.modality import ModelInterface
from isaaclab_arena_gr00t.training.demonstrations import (
    Demonstration,
    DemonstrationSteps,
    RecordedSpaces,
    recorded_spaces,
)
from isaaclab_arena_gr00t.wiring import Wiring, wired

LANGUAGE_KEY = "annotation.human.task_description"


@dataclass(frozen=True, kw_only=True)
class NewModel:
    """A model before its first step.

    Attributes:
        model: With random weights.
        processor: With the statistics of the demonstrations.
        wiring: Where everything that it takes and gives is in an environment.
    """

    model: Gr00tSmall
    processor: Gr00tSmallProcessor
    wiring: Wiring


def interface_of(config: Gr00tClosedloopPolicyConfig, files: JointFiles) -> ModelInterface:
    """Return what a model that is made for a YAML file takes and gives.

    Raises:
        ConfigError: If the file leaves it to a checkpoint, which there is not yet.
    """
    problems = []
    if files.policy is None:
        problems.append(Problem("is missing; a new model needs to know its joints", key="policy_joints_config_path"))
    if isinstance(config.pov_cam_name_sim, dict):
        video_keys = tuple(config.pov_cam_name_sim)
    else:
        given = config.pov_cam_name_sim
        video_keys = (given,) if isinstance(given, str) else tuple(given)
    if config.target_image_size[0] != config.target_image_size[1]:
        problems.append(Problem("a new model's pictures are square", key="target_image_size"))
    if problems or files.policy is None:
        raise ConfigError(problems)
    return ModelInterface(
        video_keys=video_keys,
        state_keys=tuple(files.policy.state),
        action_keys=tuple(files.policy.action),
        language_key=LANGUAGE_KEY,
        horizon=config.action_horizon,
    )


def wire_recordings(
    demonstrations: Sequence[Demonstration],
    interface: ModelInterface,
    config: Gr00tClosedloopPolicyConfig,
    files: JointFiles,
    *,
    file: str,
    steps: RecordedSteps,
) -> Wiring:
    """Return where everything is in recordings, which must all be alike.

    Raises:
        ConfigError: If a recording lacks something, or two differ in what they hold.
    """
    found: dict[object, RecordedSpaces] = {}
    for recording in {demonstration.file: demonstration for demonstration in demonstrations}.values():
        found[recording.file] = recorded_spaces(recording, steps)
    wirings = {path: wired(spaces, interface, config, files, file=file) for path, spaces in found.items()}
    (first, wiring), *others = wirings.items()
    for path, other in others:
        if (other, found[path].action_spec.shape) != (wiring, found[first].action_spec.shape):
            raise ConfigError(Problem(f"{first} and {path} hold different robots or cameras", key="--dataset"))
    return wiring


def new_model(
    data: DemonstrationSteps,
    demonstrations: Sequence[Demonstration],
    interface: ModelInterface,
    wiring: Wiring,
    config: Gr00tClosedloopPolicyConfig,
    *,
    seed: int,
    sizes: Mapping[str, Any] | None = None,
) -> NewModel:
    """Return a model that fits demonstrations, and has not learned anything.

    Args:
        data: Every control step to learn from; its statistics are kept in the checkpoint.
        demonstrations: The episodes, for their instructions.
        interface: What the model takes and gives.
        wiring: Where that is.
        config: The policy's YAML file.
        seed: Of the weights.
        sizes: Sizes of the model other than the default ones, such as ``hidden_size``.
    """
    modalities = {
        "video": ModalityConfig(delta_indices=[0], modality_keys=list(interface.video_keys)),
        "state": ModalityConfig(delta_indices=[0], modality_keys=list(interface.state_keys)),
        "action": ModalityConfig(
            delta_indices=list(range(interface.horizon)), modality_keys=list(interface.action_keys)
        ),
        "language": ModalityConfig(delta_indices=[0], modality_keys=[interface.language_key]),
    }
    statistics = {
        "state": {key: compute_statistics(values) for key, values in data.states().items()},
        "action": {key: compute_statistics(values) for key, values in data.actions().items()},
    }
    model, processor = build_small_model(
        {config.embodiment_tag: (modalities, statistics)},
        instructions=sorted({demonstration.instruction for demonstration in demonstrations}),
        image_size=config.target_image_size[0],
        seed=seed,
        sizes=sizes,
    )
    return NewModel(model=model, processor=processor, wiring=wiring)
