"""An environment's observations for a GR00T model, and its answers as actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from isaaclab_arena.distributed.devices import on_cpu
from isaaclab_arena.errors import PolicyError, Problem, did_you_mean, placed, refuse
from isaaclab_arena.interfaces.connections import Connections, entries
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.specs import (
    ArraySpec,
    Pictures,
    in_colours,
    no_camera,
    picture_layout,
    pictures_of,
    resized_with_padding,
)
from isaaclab_arena.policy.action_chunking import FrameHistory, answered, in_float32
from isaaclab_arena_gr00t.config import (
    PRESENT,
    Gr00tClosedloopPolicyConfig,
    JointFiles,
    JointGroups,
    ModelInterface,
)

# Locate a model's inputs and outputs in an environment, once, before the first step.

CAMERA_GROUP = "camera_obs"
STATE_GROUP = "policy"


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """The location of a model's inputs and outputs in an environment."""

    cameras: Mapping[str, str]  # video key to picture in the group ``camera_obs``
    image_size: tuple[int, int]  # height and width of the model's pictures [px]
    state_terms: tuple[str, ...]  # observations of the group ``policy`` that form the state, side by side
    state: Mapping[str, tuple[int, ...]]  # indices of each state key in the state
    action: Mapping[str, tuple[int, ...]]  # indices of each action key; together every index exactly once
    language_keys: tuple[str, ...]  # all hold the same instruction
    video_steps: tuple[int, ...] = PRESENT  # control steps of the pictures, 0 for the present one
    state_steps: tuple[int, ...] = PRESENT

    def connections(self, env: Environment, *, source: str) -> Connections:
        """Return the environment's entries that the model sees and sets; messages name `source`, e.g. a checkpoint."""
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


@dataclass(frozen=True, kw_only=True)
class RecordedSpaces:
    """The observations and actions of a recording's environment; joint names are not recorded."""

    observation_spec: Mapping[str, Mapping[str, ArraySpec]]  # group, then term
    action_spec: ArraySpec


def wired(
    environment: Environment | RecordedSpaces,
    model: ModelInterface,
    config: Gr00tClosedloopPolicyConfig,
    files: JointFiles,
    *,
    file: str,
) -> Wiring:
    """Locate a model's inputs and outputs in an environment or recording; ConfigError with all problems by YAML key."""
    # Collect all problems, so that the user can correct the file in one pass.
    problems: list[Problem] = []
    if config.action_horizon > model.horizon:
        message = (
            f"is {config.action_horizon}, but the model predicts {model.horizon} steps; make it {model.horizon} or less"
        )
        problems.append(Problem(message, key="action_horizon"))
    cameras, wrong = _cameras(environment, model.video_keys, config)
    problems += wrong
    state_terms, state, wrong = wired_state(
        _terms(environment, STATE_GROUP), model.state_keys, config.state_names, files
    )
    problems += wrong
    action, wrong = wired_action(environment.action_spec, model.action_keys, files)
    problems += wrong

    # Sizes are known only if all keys were found.
    found: Mapping[str, Mapping[str, Sequence[int]]] = {"state": state, "action": action}
    if not problems:
        problems = [
            Problem(
                f"the model's {kind} '{key}' has {size} numbers, the environment has {len(found[kind][key])} for it; "
                "give the joints that the model was trained with",
                key="policy_joints_config_path",
            )
            for kind, sizes in (model.dimensions or {}).items()
            for key, size in sizes.items()
            if key in found.get(kind, {}) and len(found[kind][key]) != size
        ]
    refuse(placed(problems, file=file))
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


def _cameras(
    environment: Environment | RecordedSpaces, video_keys: Sequence[str], config: Gr00tClosedloopPolicyConfig
) -> tuple[dict[str, str], list[Problem]]:
    key = "pov_cam_name_sim"
    given = config.pov_cam_name_sim
    if not video_keys:
        return {}, []
    if isinstance(given, dict):
        chosen = dict(given)
    else:
        names = (given,) if isinstance(given, str) else given
        # Names that are the model's video keys match by name, other names by position.
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

    # Each chosen camera must be there, with pictures of the size that the file states.
    pictures = _terms(environment, CAMERA_GROUP)
    for camera in chosen.values():
        if camera not in pictures:
            problems.append(Problem(no_camera(camera, pictures), key=key))
            continue
        try:
            shape = picture_layout(pictures[camera].shape, pictures[camera].dtype).shape
        except ValueError as reason:
            problems.append(Problem(f"'{camera}' {reason}", key=key))
            continue
        if config.original_image_size is not None and shape != config.original_image_size:
            message = f"is {list(config.original_image_size)}, but '{camera}' gives {list(shape)}"
            problems.append(Problem(message, key="original_image_size"))
    return {video: chosen[video] for video in video_keys if video in chosen}, problems


def _terms(environment: Environment | RecordedSpaces, group: str) -> dict[str, ArraySpec]:
    terms = environment.observation_spec.get(group, {})
    if isinstance(terms, ArraySpec):
        return {}
    return {name: spec for name, spec in terms.items() if isinstance(spec, ArraySpec)}


def wired_state(
    observed: Mapping[str, ArraySpec], keys: Sequence[str], joint_terms: Sequence[str], files: JointFiles
) -> tuple[tuple[str, ...], dict[str, tuple[int, ...]], list[Problem]]:
    """Return the needed observations in order, each state key's indices in them side by side, and the problems."""
    # A key that the joint files do not name is the observation of that name.
    groups: JointGroups = files.policy.state if files.policy else {}
    needed = tuple(joint_terms) if any(key in groups for key in keys) else ()
    wanted = list(dict.fromkeys([*needed, *(key for key in keys if key not in groups)]))
    problems: list[Problem] = []
    for name in wanted:
        key = "state_names_sim" if name in needed else "policy_joints_config_path"
        if name not in observed:
            message = f"the environment observes no '{name}'{did_you_mean(name, observed)}"
            problems.append(Problem(message, key=key))
        elif len(observed[name].shape) != 1:
            message = f"'{name}' has shape {observed[name].shape}; only a list of numbers can be part of the state"
            problems.append(Problem(message, key=key))
    if problems:
        return (), {}, problems

    specs = [observed[name] for name in needed]
    order, problems = _agreed_order(specs, files.state_order if needed else None, key="state_joints_config_path")
    if problems:
        return (), {}, problems

    # The observations lie side by side, each from its start.
    starts: dict[str, int] = {}
    for name in wanted:
        starts[name] = sum(observed[earlier].shape[0] for earlier in starts)
    places: dict[str, tuple[int, ...]] = {}
    for key in keys:
        if key in groups:
            found, wrong = _places(groups[key], order, group=key, kind="state")
            places[key], problems = found, problems + wrong
        else:
            places[key] = tuple(range(starts[key], starts[key] + observed[key].shape[0]))
    return tuple(wanted), places, problems


def wired_action(
    spec: ArraySpec, keys: Sequence[str], files: JointFiles
) -> tuple[dict[str, tuple[int, ...]], list[Problem]]:
    """Return each action key's indices, together every index exactly once, and the problems."""
    groups: JointGroups = files.policy.action if files.policy else {}
    # A single group that the joint files do not name is the whole action.
    if len(keys) == 1 and keys[0] not in groups:
        return {keys[0]: tuple(range(spec.shape[0]))}, []
    order, problems = _agreed_order([spec], files.action_order, key="action_joints_config_path")
    if problems:
        return {}, problems
    places: dict[str, tuple[int, ...]] = {}
    for key in keys:
        if key not in groups:
            message = f"does not name the joints of the model's action '{key}'{did_you_mean(key, groups)}"
            problems.append(Problem(message, key="policy_joints_config_path"))
            continue
        places[key], wrong = _places(groups[key], order, group=key, kind="action")
        problems += wrong
    if problems:
        return places, problems

    # Every joint of the environment needs exactly one value.
    taken = [place for group in places.values() for place in group]
    return places, [
        Problem(
            f"{taken.count(place) or 'none'} of the model's actions is for '{joint}'; there must be exactly one",
            key="policy_joints_config_path",
        )
        for place, joint in enumerate(order)
        if taken.count(place) != 1
    ]


def _places(
    joints: Sequence[str], order: Sequence[str], *, group: str, kind: str
) -> tuple[tuple[int, ...], list[Problem]]:
    """Return the position of each joint in `order`, and a problem for each that is missing or there twice."""
    places: list[int] = []
    problems = []
    for joint in joints:
        found = [position for position, name in enumerate(order) if name == joint]
        places += found[:1]
        if len(found) != 1:
            twice = f"'{joint}' stands at positions {' and '.join(map(str, found))}"
            wrong = twice if found else f"there is no joint '{joint}'{did_you_mean(joint, order)}"
            problems.append(Problem(f"{kind} group '{group}': {wrong}", key="policy_joints_config_path"))
    return tuple(places), problems


def _agreed_order(
    specs: Sequence[ArraySpec], given: Sequence[str] | None, *, key: str
) -> tuple[tuple[str, ...], list[Problem]]:
    """Return the joints in order, from the environment or the file; if both have an order, they must agree."""
    # One name per number, None for a number without a name.
    names: list[str | None] = []
    for spec in specs:
        names.extend(spec.names if spec.names is not None else [None] * spec.shape[0])
    if given is None:
        if None in names:
            return (), [Problem("is missing; the environment does not name all its joints", key=key)]
        return tuple(name for name in names if name is not None), []
    if len(given) != len(names):
        return (), [Problem(f"lists {len(given)} joints, the environment has {len(names)}", key=key)]
    problems = [
        Problem(f"says that joint {place} is '{ours}', in the environment it is '{theirs}'", key=key)
        for place, (ours, theirs) in enumerate(zip(given, names, strict=True))
        if theirs is not None and ours != theirs
    ]
    return tuple(given), problems


# Convert an environment's observations for a GR00T model, and its answers into actions.


def to_groups(values: torch.Tensor, positions: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """Return each group's values, (..., size), from `values` (..., num_joints) in the order of the simulation."""
    indices = {group: torch.tensor(places).to(values.device, non_blocking=True) for group, places in positions.items()}
    return {group: values.index_select(-1, places) for group, places in indices.items()}


class ModelInputs:
    """A model's inputs in every env slot, at the steps of its wiring."""

    def __init__(self, wiring: Wiring, num_envs: int) -> None:
        self.wiring, self.num_envs = wiring, num_envs
        # An input of the present step only needs no history.
        self._video, self._state = (
            None if steps == PRESENT else FrameHistory(steps, num_envs)
            for steps in (wiring.video_steps, wiring.state_steps)
        )

    def restart(self, env_ids: torch.Tensor) -> None:
        """Forget the earlier inputs of these env slots."""
        for history in (self._video, self._state):
            if history is not None:
                history.restart(env_ids)

    def push(self, observation: Observation, stepping: Sequence[int]) -> None:
        """Add the inputs of the env slots that make a step; call it once per control step, even without a query."""
        if self._video is not None:
            # Only the pictures that a later query shows were announced.
            some = pictures_of(observation[CAMERA_GROUP][next(iter(self.wiring.cameras.values()))])
            moving = set(stepping)
            drawn = [env_id for env_id in some.env_ids if env_id in moving]
            self._video.push(self._pictures(observation, drawn) if drawn else {}, drawn, stepping)
        if self._state is not None:
            self._state.push(self._states(observation, stepping), stepping, stepping)

    def of(
        self, observation: Observation, env_ids: Sequence[int], instructions: Sequence[str], *, as_tensors: bool
    ) -> dict[str, Any]:
        """Return ``video``, ``state`` and ``language`` by key for a question about `env_ids`, which may repeat."""
        # Shapes: each video (n, video steps, height, width, 3), uint8; each state (n, state steps, size), float32; each
        # language n lists of one text. `observation` is the one that was pushed last.
        if self._video is not None:
            video = self._video.frames(env_ids)
        else:
            video = {key: images[:, None] for key, images in self._pictures(observation, env_ids).items()}
        if self._state is not None:
            state = self._state.frames(env_ids)
        else:
            state = {key: values[:, None] for key, values in self._states(observation, env_ids).items()}
        shown: dict[str, Any] = {"video": video, "state": to_groups(state["state"], self.wiring.state) if state else {}}
        if not as_tensors:
            # One transfer brings all of them to the CPU.
            places = [(modality, key) for modality, values in shown.items() for key in values]
            arrays = on_cpu([shown[modality][key] for modality, key in places])
            for (modality, key), values in zip(places, arrays, strict=True):
                shown[modality][key] = values.contiguous().numpy()
        return {**shown, "language": {key: [[text] for text in instructions] for key in self.wiring.language_keys}}

    def _pictures(self, observation: Observation, env_ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the present pictures of some env slots. Shape of each: (n, height, width, 3), uint8."""
        height, width = self.wiring.image_size
        shown = {}
        for key, camera in self.wiring.cameras.items():
            images = in_colours(_of(observation[CAMERA_GROUP][camera], env_ids))
            shown[key] = resized_with_padding(images, height=height, width=width)
        return shown

    def _states(self, observation: Observation, env_ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the present ``state`` of some env slots, if the model has one. Shape: (n, size), float32."""
        if not self.wiring.state_terms:
            return {}
        terms = [_of(observation[STATE_GROUP][name], env_ids).float() for name in self.wiring.state_terms]
        return {"state": torch.cat(terms, dim=1)}


def action_chunks(answer: Mapping[str, Any], wiring: Wiring, *, num_slots: int, chunk_length: int) -> torch.Tensor:
    """Return a model's answer as chunks of actions: (num_slots, chunk_length, action_dim), float32, on the CPU."""
    # Values of the answer: (num_slots, at least chunk_length, size), in physical units. The model is foreign code, so
    # each key, shape and number is checked.
    groups = {}
    for key, places in wiring.action.items():
        if key not in answer:
            raise PolicyError(
                f"the model's answer has no action '{key}', it has {', '.join(map(str, answer)) or 'none'}"
            )
        values = answered(answer[key], f"the model's action '{key}'")
        due = (num_slots, chunk_length, len(places))
        if values.ndim != 3 or (values.shape[0], values.shape[2]) != (due[0], due[2]) or values.shape[1] < due[1]:
            raise PolicyError(
                f"the model's action '{key}' has shape {values.shape}; expected {due[0]} env slots, at least {due[1]} "
                f"steps and {due[2]} numbers"
            )
        groups[key] = torch.from_numpy(in_float32(values[:, :chunk_length], f"the model's action '{key}'"))
    # Together the groups contain every position of the action exactly once.
    joined = torch.cat(list(groups.values()), dim=-1)
    ordered = torch.empty_like(joined)
    ordered[..., [place for places in wiring.action.values() for place in places]] = joined
    return ordered


def _of(values: torch.Tensor | Pictures, env_ids: Sequence[int]) -> torch.Tensor:
    """Return the values of `env_ids`; the indices go to a GPU without a wait of the CPU."""
    if isinstance(values, Pictures):
        return values[env_ids]
    return values[torch.tensor(list(env_ids), dtype=torch.int64).to(values.device, non_blocking=True)]
