"""Locate a model's inputs and outputs in an environment, once, before the first step."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.connections import Connections, entries
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.pictures import no_camera, picture_layout
from isaaclab_arena.interfaces.specs import ArraySpec, ObservationSpec
from isaaclab_arena_gr00t.config import Gr00tClosedloopPolicyConfig
from isaaclab_arena_gr00t.joint_files import JointFiles
from isaaclab_arena_gr00t.joint_wiring import wired_action, wired_state
from isaaclab_arena_gr00t.modality import PRESENT, ModelInterface

CAMERA_GROUP = "camera_obs"
STATE_GROUP = "policy"


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """The location of a model's inputs and outputs in an environment.

    Attributes:
        cameras: Picture in the group ``camera_obs`` for each video key.
        image_size: Height and width of the model's pictures.
        state_terms: Observations of the group ``policy`` whose values, side by side, are the state.
        state: Indices of each state key in the state.
        action: Indices of each action key in the action; together every index exactly once.
        language_keys: Names of the instruction; all hold the same text.
        video_steps: Control steps of the pictures, 0 for the present one.
        state_steps: Control steps of the state.
    """

    cameras: Mapping[str, str]
    image_size: tuple[int, int]
    state_terms: tuple[str, ...]
    state: Mapping[str, tuple[int, ...]]
    action: Mapping[str, tuple[int, ...]]
    language_keys: tuple[str, ...]
    video_steps: tuple[int, ...] = PRESENT
    state_steps: tuple[int, ...] = PRESENT

    def connections(self, env: Environment, *, source: str) -> Connections:
        """Return which entries of an environment the model is shown, and which it sets.

        Args:
            env: The environment.
            source: The model's checkpoint or server, for messages.
        """
        terms = {name: spec for name, spec in _terms(env, STATE_GROUP).items() if name in self.state_terms}
        sizes, taken = {name: terms[name].shape[0] for name in self.state_terms}, {"action": env.action_spec.shape[0]}
        named = [terms[name].names for name in self.state_terms]
        names = [name for each in named for name in each or ()] if all(named) else None
        return Connections(
            pictures=self.cameras,
            states={key: entries(places, sizes, names) for key, places in self.state.items()},
            actions={key: entries(places, taken, env.action_spec.names) for key, places in self.action.items()},
            source=source,
        )


class Spaces(Protocol):
    """The observations and actions of an environment, which a recording has too."""

    @property
    def observation_spec(self) -> ObservationSpec:
        """Group, then term, then `ArraySpec`."""
        ...

    @property
    def action_spec(self) -> ArraySpec:
        """Shape: (action_dim,)."""
        ...


def wired(
    environment: Spaces, model: ModelInterface, config: Gr00tClosedloopPolicyConfig, files: JointFiles, *, file: str
) -> Wiring:
    """Return the location of a model's inputs and outputs in an environment.

    Args:
        environment: An environment, or the recording of one.
        model: Inputs and outputs of the model.
        config: The policy's YAML file.
        files: The joint files that it names.
        file: Its path, for messages.

    Raises:
        ConfigError: With everything that does not fit, each with the key of the YAML file.
    """
    problems: list[Problem] = _wrong_horizon(model, config)
    cameras, wrong = _cameras(environment, model.video_keys, config)
    problems += wrong
    state_terms, state, wrong = wired_state(
        _terms(environment, STATE_GROUP), model.state_keys, config.state_names, files
    )
    problems += wrong
    action, wrong = wired_action(environment.action_spec, model.action_keys, files)
    problems += wrong
    if not problems:
        problems = _wrong_sizes(model, {"state": state, "action": action})
    if problems:
        raise ConfigError([dataclasses.replace(problem, file=file) for problem in problems])
    return Wiring(
        cameras=cameras,
        image_size=config.target_image_size[:2],
        state_terms=state_terms,
        state=state,
        action=action,
        language_keys=model.language_keys,
        video_steps=model.video_steps,
        state_steps=model.state_steps,
    )


def _wrong_horizon(model: ModelInterface, config: Gr00tClosedloopPolicyConfig) -> list[Problem]:
    if config.action_horizon <= model.horizon:
        return []
    message = (
        f"is {config.action_horizon}, but the model predicts {model.horizon} steps; make it {model.horizon} or less"
    )
    return [Problem(message, key="action_horizon")]


def _wrong_sizes(model: ModelInterface, found: Mapping[str, Mapping[str, Sequence[int]]]) -> list[Problem]:
    return [
        Problem(
            f"the model's {kind} '{key}' has {size} numbers, the environment has {len(found[kind][key])} for it; give "
            "the joints that the model was trained with",
            key="policy_joints_config_path",
        )
        for kind, sizes in (model.dimensions or {}).items()
        for key, size in sizes.items()
        if key in found.get(kind, {}) and len(found[kind][key]) != size
    ]


def _cameras(
    environment: Spaces, video_keys: Sequence[str], config: Gr00tClosedloopPolicyConfig
) -> tuple[dict[str, str], list[Problem]]:
    key = "pov_cam_name_sim"
    given = config.pov_cam_name_sim
    if not video_keys:
        return {}, []
    if isinstance(given, dict):
        chosen = dict(given)
    else:
        names = (given,) if isinstance(given, str) else given
        by_name = set(names) == set(video_keys)
        chosen = {name: name for name in names} if by_name else dict(zip(video_keys, names, strict=False))
        if len(names) != len(video_keys):
            message = f"names {len(names)} cameras, the model looks through {len(video_keys)}: {', '.join(video_keys)}"
            return {}, [Problem(message, key=key)]
    problems = [
        Problem(f"the model has no video key '{video}'{did_you_mean(video, video_keys)}", key=f"{key}.{video}")
        for video in chosen
        if video not in video_keys
    ]
    problems += [
        Problem("is missing; the model looks at it", key=f"{key}.{video}")
        for video in video_keys
        if video not in chosen
    ]
    pictures = _terms(environment, CAMERA_GROUP)
    for camera in chosen.values():
        problems += _wrong_camera(camera, pictures, config)
    return {video: chosen[video] for video in video_keys if video in chosen}, problems


def _wrong_camera(camera: str, pictures: Mapping[str, ArraySpec], config: Gr00tClosedloopPolicyConfig) -> list[Problem]:
    key = "pov_cam_name_sim"
    if camera not in pictures:
        return [Problem(no_camera(camera, pictures), key=key)]
    spec = pictures[camera]
    try:
        shape = picture_layout(spec.shape, spec.dtype).shape
    except ValueError as reason:
        return [Problem(f"'{camera}' {reason}", key=key)]
    if config.original_image_size is not None and shape != config.original_image_size:
        message = f"is {list(config.original_image_size)}, but '{camera}' gives {list(shape)}"
        return [Problem(message, key="original_image_size")]
    return []


def _terms(environment: Spaces, group: str) -> dict[str, ArraySpec]:
    terms = environment.observation_spec.get(group, {})
    if isinstance(terms, ArraySpec):
        return {}
    return {name: spec for name, spec in terms.items() if isinstance(spec, ArraySpec)}
