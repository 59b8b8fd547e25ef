"""Read what a directory of LeRobot's says of its policy, without LeRobot."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.checkpoints import read_small_file
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.nested import value_at
from isaaclab_arena.paths import given_path

KEY = "pretrained"

_CONFIG = "config.json"
_NEEDED = ("model.safetensors", "policy_preprocessor.json", "policy_postprocessor.json")
_UNNORMALISER = "unnormalizer_processor"
_NORMALISERS = {"policy_preprocessor.json": "normalizer_processor", "policy_postprocessor.json": _UNNORMALISER}
_ACTION = "ACTION"
_NEEDED_STATISTICS = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}
_OLD_LEROBOT = "; LeRobot writes them since 0.4, and lerobot.processor.migrate_policy_normalization adds them"
_OF_A_TRAINING = ("pretrained_model", "checkpoints/last/pretrained_model")
_PICTURES = "VISUAL"
_CHUNKS = ("n_action_steps", "chunk_size", "horizon")
"""Settings that say how many actions a policy makes or plays after one look."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """The inputs and the output of a policy."""

    kind: str  # the policy's type, such as `act`
    pictures: Mapping[str, tuple[int, int, int]]  # height, width and channels of each picture input
    states: Mapping[str, int]  # size of each other input
    action_dim: int  # numbers of an action
    num_observations: int  # observations that the policy sees, the present one included


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The facts that the dataset of a policy's training states."""

    # The observations that form each vector, in order, for vectors that this program converted.
    terms: Mapping[str, tuple[str, ...]]
    fps: float | None  # control steps per second
    action_names: tuple[str, ...] | None = None  # names of an action's numbers, in order; None if unnamed


def policy_directory(pretrained: str) -> Path:
    """Return a policy's directory from it or its training's (last checkpoint); ConfigError if files are missing."""
    path = given_path(pretrained)
    if not path.is_dir():
        message = (
            f"'{pretrained}' is no directory; a policy of the hub is fetched with: hf download NAME --local-dir DIR"
        )
        raise ConfigError(Problem(message, key=KEY))
    directory = next(
        (each for each in (path, *(path / name for name in _OF_A_TRAINING)) if (each / _CONFIG).is_file()), None
    )
    if directory is None:
        message = f"'{pretrained}' holds no policy of LeRobot: there is no {_CONFIG}, here or in {_OF_A_TRAINING[-1]}"
        raise ConfigError(Problem(message, key=KEY))
    missing = [name for name in _NEEDED if not (directory / name).is_file()]
    if missing:
        message = f"'{directory}' lacks {' and '.join(missing)}{'' if _NEEDED[0] in missing else _OLD_LEROBOT}"
        raise ConfigError(Problem(message, key=KEY))
    return directory


def read_features(directory: Path) -> Features:
    """Return a policy's inputs and output from its configuration; ConfigError if the file is malformed."""
    path = directory / _CONFIG
    document = _document(path)
    try:
        inputs = {name: _shape(feature) for name, feature in document["input_features"].items()}
        pictures = {name for name, feature in document["input_features"].items() if feature["type"] == _PICTURES}
        (action_dim,) = _shape(document["output_features"]["action"])
        return Features(
            kind=str(document["type"]),
            pictures={name: _channels_last(inputs[name]) for name in inputs if name in pictures},
            states={name: _only(shape) for name, shape in inputs.items() if name not in pictures},
            action_dim=action_dim,
            num_observations=int(document.get("n_obs_steps", 1)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"'{path}' is no configuration of a policy of LeRobot: {type(error).__name__}: {error}"
        raise ConfigError(Problem(message, key=KEY)) from error


def read_num_actions(directory: Path) -> int:
    """Return the most actions that a policy predicts per query, by its configuration; ConfigError if unreadable."""
    document = _document(directory / _CONFIG)
    numbers = [document.get(name) for name in _CHUNKS]
    return max([1, *(number for number in numbers if isinstance(number, int))])


def remembers(directory: Path) -> bool:
    """True if the configuration gives a LeRobot policy a memory of its answers; ConfigError if unreadable."""
    document = _document(directory / _CONFIG)
    # A coefficient of 0 also enables the ensemble.
    return document.get("temporal_ensemble_coeff") is not None or bool(document.get("use_mpc"))


def refuse_another(said: Mapping[str, Any], features: Features, directory: Path) -> None:
    """Refuse a loaded policy that differs from its configuration, as with another LeRobot version; ConfigError."""
    # ``said`` is the loaded policy's description: ``type``, ``inputs``, ``num_observations`` and ``action_dim``.
    pictures = {name: [channels, height, width] for name, (height, width, channels) in features.pictures.items()}
    states = {name: [size] for name, size in features.states.items()}
    due: dict[str, Any] = {
        "type": features.kind,
        "inputs": {**pictures, **states},
        "num_observations": features.num_observations,
        "action_dim": features.action_dim,
    }
    # A type may add inputs that may stay empty.
    inputs = {name: list(each["shape"]) for name, each in said["inputs"].items() if name in due["inputs"]}
    loaded = {**said, "inputs": inputs}
    problems = [
        Problem(f"'{directory}' was loaded with {name} {loaded[name]}, and {_CONFIG} says {value}", key=KEY)
        for name, value in due.items()
        if loaded[name] != value
    ]
    if problems:
        raise ConfigError(problems)


def read_training_data(directory: Path, dataset: str | None) -> TrainingData:
    """Return the facts of the training's dataset, empty without one; ConfigError if a named one is no dataset."""
    # ``dataset`` is None for the directory in which the training found it.
    root = dataset
    if root is None and (directory / "train_config.json").is_file():
        root = value_at(_document(directory / "train_config.json"), ("dataset", "root"))
    path = given_path(root or "") / "meta" / "info.json"
    if root is None or not path.is_file():
        if dataset is not None:
            raise ConfigError(Problem(f"'{dataset}' is no dataset of LeRobot: it has no meta/info.json", key="dataset"))
        return TrainingData(terms={}, fps=None)
    document = _document(path)
    features = value_at(document, ("features",), otherwise={})
    terms = {name: _terms(value_at(feature, ("names",))) for name, feature in features.items()}
    fps = value_at(document, ("fps",))
    actions = value_at(features, ("action", "names"))
    is_named = isinstance(actions, list) and all(isinstance(name, str) for name in actions)
    return TrainingData(
        action_names=tuple(actions) if is_named else None,
        terms={name: found for name, found in terms.items() if found},
        fps=float(fps) if isinstance(fps, int | float) else None,
    )


def check_statistics(directory: Path) -> tuple[str, ...]:
    """Check the normalisers' statistics; ConfigError if useless or not finite. Return notes on missing ones."""
    # LeRobot does not normalise a feature without statistics. A normaliser without any of its features' statistics is
    # an error; one that lacks some is worth a note.
    notes, problems = [], []
    for name, normaliser in _NORMALISERS.items():
        path = directory / name
        steps = value_at(_document(path), ("steps",))
        for step in steps if isinstance(steps, list) else []:
            if value_at(step, ("registry_name",)) != normaliser:
                continue
            due = _to_normalise(step, is_action=normaliser == _UNNORMALISER)
            found = _statistics(directory, value_at(step, ("state_file",)))
            endless = [
                key for keys in due.values() for key in keys if key in found and not np.isfinite(found[key]).all()
            ]
            lacking = ", ".join(feature for feature, keys in due.items() if not {*keys} <= found.keys())
            if endless:
                message = f"'{path}' has statistics that are no finite numbers: {', '.join(endless)}"
                problems.append(Problem(message, key=KEY))
            elif lacking and found and lacking == ", ".join(due):
                others = ", ".join(sorted({key.rpartition(".")[0] for key in found}))
                message = (
                    f"'{path}' is to normalise {lacking}, and has statistics of {others} alone: nothing would be "
                    "normalised; save it with the statistics of its own features, or with IDENTITY where none are due"
                )
                problems.append(Problem(message, key=KEY))
            elif lacking:
                notes.append(f"{path} is to normalise {lacking}, and has no statistics for that: it stays as it is")
    if problems:
        raise ConfigError(problems)
    return tuple(notes)


def _to_normalise(step: Any, *, is_action: bool) -> dict[str, tuple[str, ...]]:
    """Return the statistics that a processor's step needs for each feature that it normalises."""
    config = value_at(step, ("config",), otherwise={})
    modes = value_at(config, ("norm_map",), otherwise={})
    chosen = value_at(config, ("normalize_observation_keys",))
    due = {}
    features = value_at(config, ("features",))
    for name, feature in features.items() if isinstance(features, Mapping) else ():
        kind = value_at(feature, ("type",))
        needed = _NEEDED_STATISTICS.get(str(value_at(modes, (str(kind),))), ())
        if needed and (kind == _ACTION) is is_action and (chosen is None or name in chosen):
            due[name] = tuple(f"{name}.{statistic}" for statistic in needed)
    return due


def _statistics(directory: Path, name: object) -> dict[str, np.ndarray]:
    """Return the saved statistics of a processor's step, by feature and statistic."""
    if not isinstance(name, str):
        return {}
    path = directory / name
    try:
        return read_small_file(path)
    except ValueError as error:
        raise ConfigError(Problem(f"'{path}', the statistics of a processor, {error}", key=KEY)) from error


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(Problem(f"'{path}' cannot be read: {error}", key=KEY)) from error


def _shape(feature: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(length) for length in feature["shape"])


def _channels_last(shape: tuple[int, ...]) -> tuple[int, int, int]:
    channels, height, width = shape
    return height, width, channels


def _only(shape: tuple[int, ...]) -> int:
    (size,) = shape
    return size


def _terms(names: object) -> tuple[str, ...]:
    """Return the observations of a vector whose numbers are named ``<observation>_<index within it>``."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    parts = [name.rpartition("_")[::2] for name in names]
    terms = tuple(dict.fromkeys(term for term, _ in parts))
    counted = [(term, str(number)) for term in terms for number in range(sum(each == term for each, _ in parts))]
    return terms if parts == counted else ()
