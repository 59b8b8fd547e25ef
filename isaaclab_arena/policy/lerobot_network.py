"""The process in which a policy of LeRobot runs: its options, its files, and the network that is asked."""

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load

from isaaclab_arena import workers
from isaaclab_arena.checkpoints import wrong_with_safetensors
from isaaclab_arena.config.options import Count, Positive
from isaaclab_arena.errors import ArenaError, ConfigError, PolicyError, PolicyLostError, Problem, refuse
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.interfaces.policy_traits import Entries
from isaaclab_arena.nested import value_at
from isaaclab_arena.paths import given_path

# Read the facts on a policy from its directory, without LeRobot.

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
_MOST_BYTES_OF_STATISTICS = 16 << 20
_OLD_LEROBOT = "; LeRobot writes them since 0.4, and lerobot.processor.migrate_policy_normalization adds them"
_OF_A_TRAINING = ("pretrained_model", "checkpoints/last/pretrained_model")
_PICTURES = "VISUAL"
_CHUNKS = ("n_action_steps", "chunk_size", "horizon")
"""Settings with the number of actions that a policy predicts or plays per query."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """The inputs and the output of a policy."""

    kind: str  # the policy's type, such as `act`
    pictures: Mapping[str, tuple[int, int, int]]  # height, width and channels of each picture input
    states: Mapping[str, int]  # size of each other input
    action_dim: int  # numbers of an action
    num_observations: int  # observations that the policy sees, the present one included
    num_actions: int  # the most actions that it predicts per query
    remembers: bool  # True if it has a memory of its answers


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
            f"'{pretrained}' is not a directory; fetch a policy from the hub with: hf download NAME --local-dir DIR"
        )
        raise ConfigError(message, key=KEY)
    directory = next(
        (each for each in (path, *(path / name for name in _OF_A_TRAINING)) if (each / _CONFIG).is_file()), None
    )
    if directory is None:
        message = f"'{pretrained}' holds no LeRobot policy: there is no {_CONFIG}, here or in {_OF_A_TRAINING[-1]}"
        raise ConfigError(message, key=KEY)
    missing = [name for name in _NEEDED if not (directory / name).is_file()]
    if missing:
        message = f"'{directory}' lacks {' and '.join(missing)}{'' if _NEEDED[0] in missing else _OLD_LEROBOT}"
        raise ConfigError(message, key=KEY)
    return directory


def read_features(directory: Path) -> Features:
    """Return a policy's inputs and output from its configuration; ConfigError if the file is malformed."""
    path = directory / _CONFIG
    document = _document(path)
    pictures: dict[str, tuple[int, int, int]] = {}
    states: dict[str, int] = {}
    try:
        for name, feature in document["input_features"].items():
            shape = tuple(int(length) for length in feature["shape"])
            if feature["type"] == _PICTURES:
                channels, height, width = shape
                pictures[name] = height, width, channels
            else:
                (states[name],) = shape
        (action_dim,) = document["output_features"]["action"]["shape"]
        return Features(
            kind=str(document["type"]),
            pictures=pictures,
            states=states,
            action_dim=int(action_dim),
            num_observations=int(document.get("n_obs_steps", 1)),
            num_actions=max([1, *(number for each in _CHUNKS if isinstance(number := document.get(each), int))]),
            # A coefficient of 0 also enables the ensemble.
            remembers=document.get("temporal_ensemble_coeff") is not None or bool(document.get("use_mpc")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"'{path}' is not a configuration of a LeRobot policy: {type(error).__name__}: {error}"
        raise ConfigError(message, key=KEY) from error


def read_training_data(directory: Path, dataset: str | None) -> TrainingData:
    """Return the facts of the training's dataset, empty without one; ConfigError if a named one is no dataset."""
    # ``dataset`` is None for the directory in which the training found it.
    root = dataset
    if root is None and (directory / "train_config.json").is_file():
        root = value_at(_document(directory / "train_config.json"), ("dataset", "root"))
    path = given_path(root or "") / "meta" / "info.json"
    if root is None or not path.is_file():
        if dataset is not None:
            raise ConfigError(f"'{dataset}' is not a LeRobot dataset: it has no meta/info.json", key="dataset")
        return TrainingData(terms={}, fps=None)
    document = _document(path)
    features = value_at(document, ("features",), otherwise={})
    # The observations of each vector whose numbers are named ``<observation>_<index within it>``.
    terms: dict[str, tuple[str, ...]] = {}
    for feature_name, feature in features.items():
        names = value_at(feature, ("names",))
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            parts = [name.rpartition("_")[::2] for name in names]
            found = tuple(dict.fromkeys(term for term, _ in parts))
            sizes = {term: sum(each == term for each, _ in parts) for term in found}
            counted = [(term, str(number)) for term, size in sizes.items() for number in range(size)]
            if found and parts == counted:
                terms[feature_name] = found
    fps = value_at(document, ("fps",))
    actions = value_at(features, ("action", "names"))
    is_named = isinstance(actions, list) and all(isinstance(name, str) for name in actions)
    return TrainingData(
        action_names=tuple(actions) if is_named else None,
        terms=terms,
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

            # The statistics that the step needs, for each feature that it normalises.
            is_action = normaliser == _UNNORMALISER
            config = value_at(step, ("config",), otherwise={})
            modes = value_at(config, ("norm_map",), otherwise={})
            chosen = value_at(config, ("normalize_observation_keys",))
            due = {}
            features = value_at(config, ("features",))
            for feature_name, feature in features.items() if isinstance(features, Mapping) else ():
                kind = value_at(feature, ("type",))
                needed = _NEEDED_STATISTICS.get(str(value_at(modes, (str(kind),))), ())
                if needed and (kind == _ACTION) is is_action and (chosen is None or feature_name in chosen):
                    due[feature_name] = tuple(f"{feature_name}.{statistic}" for statistic in needed)

            state_file = value_at(step, ("state_file",))
            found = _statistics(directory / state_file) if isinstance(state_file, str) else {}
            endless = [key for keys in due.values() for key in keys if key in found and not found[key].isfinite().all()]
            lacking = ", ".join(feature for feature, keys in due.items() if not {*keys} <= found.keys())
            if endless:
                message = f"'{path}' has statistics that are not finite: {', '.join(endless)}"
                problems.append(Problem(message, key=KEY))
            elif lacking and found and lacking == ", ".join(due):
                others = ", ".join(sorted({key.rpartition(".")[0] for key in found}))
                message = (
                    f"'{path}' normalises {lacking}, but has statistics of {others} only: nothing would be "
                    "normalised; save it with the statistics of its own features, or with IDENTITY"
                )
                problems.append(Problem(message, key=KEY))
            elif lacking:
                notes.append(f"{path} has no statistics of {lacking}, which is not normalised")
    refuse(problems)
    return tuple(notes)


def _statistics(file: Path) -> dict[str, torch.Tensor]:
    """Read a processor's statistics by name as float64; ConfigError if the file is damaged or large."""
    wrong = wrong_with_safetensors(file)
    if wrong is None and file.stat().st_size > _MOST_BYTES_OF_STATISTICS:
        wrong = f"has {file.stat().st_size} bytes, and at most {_MOST_BYTES_OF_STATISTICS} are read"
    found = {}
    if wrong is None:
        # Read as bytes: a file in mapped memory that becomes shorter would end this process.
        try:
            found = {name: tensor.double() for name, tensor in load(file.read_bytes()).items()}
        except KeyError as error:
            wrong = f"holds numbers of type {error}, which cannot be read"
        except SafetensorError as error:
            wrong = f"is damaged: {error}"
    if wrong is not None:
        raise ConfigError(f"'{file}', the statistics of a processor, {wrong}", key=KEY)
    return found


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"'{path}' cannot be read: {error}", key=KEY) from error


# Options of LeRobot policies.


@dataclass(frozen=True)
class LeRobotPolicyCfg(PolicyCfg):
    """Options of `LeRobotPolicy`. Paths are relative to the working directory.

    Attributes:
        pretrained: Directory that LeRobot's ``save_pretrained`` wrote, or one of a training, whose last checkpoint is
            taken.
        python: Interpreter that has LeRobot; that of this program by default.
        environment_variables: What the policy's process has beside this program's variables.
        images: Camera for each of the policy's pictures: ``{"observation.images.front": "front_cam_rgb"}``. By default
            the camera of the same name, or the only one.
        states: Observations of the group ``policy``, in order, for each of the policy's other inputs:
            ``{"observation.state": ["robot_joint_pos", "gripper_pos"]}``. By default those that the training's dataset
            names, or the only one of that size.
        dataset: The training's dataset, for names of states and the rate; by default where the training found it.
        fps: Control steps per second that the policy is made for; by default the dataset's.
        action_columns: Indices into the policy's action for each number of the environment's; None if both are the
            same.
        n_action_steps: Actions that are played before the policy looks again, at most as many as it was saved with.
        slots_per_call: Env slots in each call of the network; by default up to 4 on a CPU, and on a GPU as many as need
            a chunk.
        policy_device: ``cpu``, ``cuda`` or ``cuda:<index>``.
        policy_device_id: Index of a GPU.
        start_timeout_s: How long importing LeRobot and loading the policy may take [s].
        timeout_s: How long an answer may take [s].
    """

    pretrained: str
    python: str | None = None
    environment_variables: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, str] = field(default_factory=dict)
    states: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dataset: str | None = None
    fps: Positive | None = None
    action_columns: tuple[int, ...] | None = None
    n_action_steps: Count | None = None
    slots_per_call: Count | None = None
    policy_device: str | None = None
    policy_device_id: int | None = None
    start_timeout_s: Positive = 300.0
    timeout_s: Positive = 120.0

    @property
    def interpreter(self) -> str:
        """The interpreter of the policy's process."""
        return str(given_path(self.python or sys.executable))


# The process in which a LeRobot policy runs: start it, ask it, and restart it if it is lost.

ANSWERS = Path(__file__).with_name("lerobot_worker.py")
"""The program of its workers."""

NOTHING = np.zeros(0, np.uint8)
"""The memory of an episode that begins."""

SHOWN, WORDS, SEEDS, ACTIONS, MEMORIES = "shown.", "words", "noise_seeds", "actions", "memories"
"""The parts of a question and of its answer; the name of an input stands behind the first."""

PACKAGES = ("lerobot", "torch", "torchvision", "transformers", "diffusers", "numpy", "safetensors")
"""The packages that decide a policy's actions, beside its files."""

_VERSIONS = {"request": "versions", "packages": PACKAGES}
_VERSIONS_TIMEOUT_S = 60.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Description:
    """The properties of a loaded policy."""

    num_actions: int  # actions that it plays before the next observation
    action_dim: int  # numbers of an action
    takes_batches: bool  # True if one call may cover several env slots
    device_type: str  # `cpu` or `cuda`
    memory_bytes: int = 0  # size of its memory of an episode, 0 for none; a policy with memory gives one action

    @property
    def remembers(self) -> bool:
        """True if it has a memory of the episode, and so is asked in every control step."""
        return self.memory_bytes > 0

    def padded(self, memories: Sequence[np.ndarray]) -> np.ndarray:
        """Return memories with zeros behind them, (n, memory_bytes), uint8; PolicyError if one is longer."""
        size, longest = self.memory_bytes, max(map(len, memories))
        if longest > size:
            raise PolicyError(
                f"the policy's memory grows during an episode, to {longest} bytes from {size}, and a policy server "
                "needs a fixed size; leave policy_server out"
            )
        return np.stack([np.pad(memory, (0, size - len(memory))) for memory in memories])


def versions_there(options: LeRobotPolicyCfg) -> Mapping[str, str]:
    """Return the versions of Python and LeRobot's packages in the policy's interpreter; ConfigError without LeRobot."""
    interpreter, variables = options.interpreter, options.environment_variables
    try:
        answer, _ = workers.ask_kept_worker(ANSWERS, interpreter, variables, _VERSIONS, _VERSIONS_TIMEOUT_S)
        found = answer["versions"]
    except (workers.RequestError, workers.WorkerError) as error:
        raise ConfigError(f"'{interpreter}' does not answer: {error}", key="python") from error
    if "lerobot" not in found:
        message = f"'{interpreter}' (Python {found['python']}) has no LeRobot; name an interpreter that has it"
        raise ConfigError(message, key="python")
    return found


class LeRobotNetwork:
    """A LeRobot policy in a worker. Its memory of an episode is part of the question and of the answer.

    A policy asks it as it would ask one in a policy server, a `NetworkElsewhere`; a server asks it as a `Network`.
    """

    max_batch: int | None = None  # it answers any number of entries together; a server has a limit

    def __init__(self, directory: Path, device: torch.device, options: LeRobotPolicyCfg) -> None:
        # ``directory`` is that of LeRobot's ``save_pretrained``. ConfigError: the policy cannot be loaded.
        self._directory, self._device, self._options = directory, device, options
        self._elsewhere = workers.PolicyElsewhere[Mapping[str, Any]](f"the policy in '{directory}'")
        # The worker that answered the request for versions has started already, so take it.
        which = workers.which_worker(ANSWERS, options.interpreter, options.environment_variables)
        told = workers.taken_worker(which, _VERSIONS)
        # All questions to the other kept workers have been asked.
        workers.stop_kept_workers()
        self._worker: workers.WorkerProcess | None = None
        self._worker, self.description = self._started(told)
        self.about: Mapping[str, Any] = {"slots_per_call": None, **asdict(self.description)}

    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the next actions in one call; see `Network.answer`."""
        answers = self.ask(entries, slots_per_call=len(entries[WORDS]))
        if MEMORIES not in answers:
            return answers
        return {**answers, MEMORIES: self.description.padded(answers[MEMORIES])}

    def ask(self, entries: Entries, *, slots_per_call: int) -> dict[str, Any]:
        """Return the next actions of env slots; PolicyLostError without an answer, PolicyError if the policy fails."""
        # Inputs are the last observations, oldest first: (n, num_observations, ...). The actions are (n, num_actions,
        # action_dim), float32, finite. Copies of an entry fill a call up to ``slots_per_call``. A dead worker is
        # restarted and asked once more, because the answer follows from the question alone.
        shown = {name[len(SHOWN) :]: np.asarray(each) for name, each in entries.items() if name.startswith(SHOWN)}
        words, seeds = list(map(str, entries[WORDS])), [int(seed) for seed in entries[SEEDS]]
        remembers = self.description.remembers
        size = 1 if remembers else slots_per_call
        actions, memories = [], []
        for first in range(0, len(words), size):
            places = [*range(first, min(first + size, len(words)))]
            filled = places + places[:1] * (size - len(places))
            part = {name: values[filled] for name, values in shown.items()}
            if remembers:
                part[MEMORIES] = np.asarray(entries[MEMORIES][first])
            answer = self._called(part, [words[place] for place in filled], [seeds[place] for place in filled])
            actions.append(answer[ACTIONS][: len(places)])
            memories.append(answer.get(MEMORIES))
        return {ACTIONS: np.concatenate(actions), **({MEMORIES: memories} if remembers else {})}

    def close(self) -> None:
        """Stop the worker. May be called more than once."""
        if self._worker is not None:
            self._worker.close()

    def _called(
        self, shown: Mapping[str, np.ndarray], words: Sequence[str], noise_seeds: Sequence[int]
    ) -> Mapping[str, np.ndarray]:
        def asked_once() -> Mapping[str, np.ndarray]:
            if self._worker is None:
                self._worker, _ = self._started()
            try:
                request = {"request": "predict", "words": words, "seeds": noise_seeds}
                return self._worker.ask(request, workers.patience_s(self._options.timeout_s), shown)[1]
            except workers.WorkerError:
                # The failure stopped the worker.
                self._worker = None
                raise

        try:
            answer = self._elsewhere.asked(asked_once, (workers.WorkerError,), comes_back=lambda error: error.died)
        except workers.RequestError as error:
            raise PolicyError(f"{self._elsewhere.name} failed: {error}\n{error.traceback}") from error
        except ConfigError as error:
            raise PolicyLostError(f"{self._elsewhere.name} is lost: {error}") from error

        due = (len(words), self.description.num_actions, self.description.action_dim)
        actions = answer.get(ACTIONS)
        if actions is None or actions.shape != due:
            got = None if actions is None else actions.shape
            raise PolicyError(
                f"{self._elsewhere.name} answered with actions of shape {got}; expected {due}: (env slots, actions, "
                "action_dim)"
            )
        if not np.isfinite(actions).all():
            raise PolicyError(f"{self._elsewhere.name} answered with actions that are not finite")
        return answer

    def _started(self, started: workers.WorkerProcess | None = None) -> tuple[workers.WorkerProcess, Description]:
        """Return a worker that has loaded the policy; ConfigError if it cannot be loaded, or is another one now."""
        options, directory = self._options, self._directory
        settings = {
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        place = {"directory": str(directory), "device": str(self._device)}
        load = {"request": "load", "packages": PACKAGES, **place, "settings": settings}
        worker = None
        try:
            worker = started or workers.WorkerProcess(ANSWERS, options.interpreter, options.environment_variables)
            said, _ = worker.ask(load, workers.patience_s(options.start_timeout_s))

            # Another LeRobot version may load a policy that differs from its configuration.
            features = read_features(directory)
            shapes = features.pictures.items()
            pictures = {name: [channels, height, width] for name, (height, width, channels) in shapes}
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
                Problem(f"'{directory}' was loaded with {name} {loaded[name]}, but {_CONFIG} says {value}", key=KEY)
                for name, value in due.items()
                if loaded[name] != value
            ]
            refuse(problems)
            # The size of the memory in the trial may differ after a restart.
            self._elsewhere.meet({name: value for name, value in said.items() if name != "memory_bytes"})
        except workers.WorkerError as error:
            raise ConfigError(f"'{directory}' cannot be loaded: {error}", key=KEY) from error
        except (workers.RequestError, ArenaError) as error:
            if worker is not None:
                worker.close()
            if isinstance(error, ArenaError):
                raise
            message = f"LeRobot in '{options.interpreter}' cannot load '{directory}': {error}"
            _LOG.info("%s\n%s", message, error.traceback)
            raise ConfigError(message, key=KEY) from error
        about = {name: said[name] for name in ("num_actions", "action_dim", "takes_batches", "memory_bytes")}
        return worker, Description(**about, device_type=self._device.type)
