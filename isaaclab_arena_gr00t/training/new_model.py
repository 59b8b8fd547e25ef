"""Build the model for a training run, with random weights or those of a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gr00t.data.statistics import KeyStatistics, compute_statistics
from gr00t.data.types import ModalityConfig
from gr00t.errors import Gr00tError
from gr00t.model import Gr00tSmallProcessor
from gr00t.model.building import add_embodiment, build_small_model
from gr00t.model.checkpoint import load_model, load_processor
from gr00t.model.modeling import Gr00tSmall

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.recordings import RecordedSteps
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
        model: The model.
        processor: Its processor, with the statistics of the demonstrations, or of the base model's for a known robot.
        embodiment_tag: The robot that is trained.
    """

    model: Gr00tSmall
    processor: Gr00tSmallProcessor
    embodiment_tag: str


def interface_of(config: Gr00tClosedloopPolicyConfig, files: JointFiles) -> ModelInterface:
    """Return the inputs and outputs of a new model for a YAML file.

    Raises:
        ConfigError: If the file leaves them to a checkpoint, which does not exist yet.
    """
    problems = []
    if files.policy is None:
        problems.append(Problem("is missing; a new model needs to know its joints", key="policy_joints_config_path"))
    if config.target_image_size[0] != config.target_image_size[1]:
        problems.append(Problem("a new model's pictures are square", key="target_image_size"))
    if problems or files.policy is None:
        raise ConfigError(problems)
    return ModelInterface(
        video_keys=tuple(config.cameras),
        state_keys=tuple(files.policy.state),
        action_keys=tuple(files.policy.action),
        language_keys=(LANGUAGE_KEY,),
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
    """Return where the model's inputs and outputs are in recordings, which must all have the same layout.

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
    config: Gr00tClosedloopPolicyConfig,
    *,
    seed: int,
    sizes: Mapping[str, Any] | None = None,
) -> NewModel:
    """Return an untrained model that fits the demonstrations.

    Args:
        data: Every control step to learn from; its statistics are kept in the checkpoint.
        demonstrations: The episodes, for their instructions.
        interface: What the model takes and gives.
        config: The policy's YAML file.
        seed: Of the weights.
        sizes: Sizes of the model that differ from the defaults, such as ``hidden_size``.
    """
    model, processor = build_small_model(
        {config.embodiment_tag: (_modalities(interface), _statistics(data))},
        instructions=sorted({demonstration.instruction for demonstration in demonstrations}),
        image_size=config.target_image_size[0],
        seed=seed,
        sizes=sizes,
    )
    return NewModel(model=model, processor=processor, embodiment_tag=config.embodiment_tag)


def based_on(
    base_model_path: Path,
    data: DemonstrationSteps,
    interface: ModelInterface,
    config: Gr00tClosedloopPolicyConfig,
    *,
    seed: int,
) -> NewModel:
    """Return a checkpoint's model; the robot of the YAML file is added if the model does not know it.

    A known robot keeps the statistics of its states and actions.

    Args:
        base_model_path: Directory of the checkpoint.
        data: Every control step to learn from, for the statistics of a robot that is added.
        interface: What the model takes and gives.
        config: The policy's YAML file.
        seed: Of the weights of a robot that is added.

    Raises:
        ConfigError: If there is no such checkpoint, or it knows another robot under the same tag.
    """
    try:
        model, processor = add_embodiment(
            load_model(base_model_path, device="cpu", dtype=torch.float32),
            load_processor(base_model_path),
            config.embodiment_tag,
            _modalities(interface),
            _statistics(data),
            seed=seed,
        )
    except Gr00tError as error:
        raise ConfigError(Problem(str(error), key="--base_model_path")) from error
    return NewModel(model=model, processor=processor, embodiment_tag=config.embodiment_tag)


def _modalities(interface: ModelInterface) -> dict[str, ModalityConfig]:
    return {
        "video": ModalityConfig(delta_indices=[0], modality_keys=list(interface.video_keys)),
        "state": ModalityConfig(delta_indices=[0], modality_keys=list(interface.state_keys)),
        "action": ModalityConfig(
            delta_indices=list(range(interface.horizon)), modality_keys=list(interface.action_keys)
        ),
        "language": ModalityConfig(delta_indices=[0], modality_keys=list(interface.language_keys)),
    }


def _statistics(data: DemonstrationSteps) -> dict[str, dict[str, KeyStatistics]]:
    return {
        "state": {key: compute_statistics(values) for key, values in data.states().items()},
        "action": {key: compute_statistics(values) for key, values in data.actions().items()},
    }
