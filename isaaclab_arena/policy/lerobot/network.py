"""The process in which a policy of LeRobot runs: its options, and the network that is asked."""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isaaclab_arena.config.options import Count, Positive
from isaaclab_arena.errors import ArenaError, ConfigError, PolicyError, PolicyLostError, Problem
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.interfaces.policy_traits import Entries, NetworkElsewhere
from isaaclab_arena.paths import given_path
from isaaclab_arena.policy.lerobot.pretrained import KEY, read_features, refuse_another
from isaaclab_arena.workers.policy_elsewhere import PolicyElsewhere, patience_s
from isaaclab_arena.workers.worker_process import (
    RequestError,
    WorkerError,
    WorkerProcess,
    ask_kept_worker,
    asked_worker,
    stop_kept_workers,
)

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

ANSWERS = Path(__file__).with_name("worker")
"""The directory with what the worker answers by."""

NOTHING = np.zeros(0, np.uint8)
"""What is remembered of an episode that begins."""

_MEMORY = "memory"
_VERSIONS = {"request": "versions"}
_VERSIONS_TIMEOUT_S = 60.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Description:
    """The properties of a loaded policy."""

    num_actions: int  # actions that it plays before the next observation
    action_dim: int  # numbers of an action
    takes_batches: bool  # True if one call may cover several env slots
    device_type: str  # `cpu` or `cuda`
    max_batch: int | None = None  # env slots of a call unless options fix them; None for as many as need a chunk
    memory_bytes: int = 0  # size of its memory of an episode, 0 for none; a policy with memory gives one action

    @property
    def remembers(self) -> bool:
        """True if it has a memory of the episode, and so is asked in every control step."""
        return self.memory_bytes > 0


@dataclass(frozen=True, kw_only=True)
class Acted:
    """The actions of a policy in some env slots, and its memory."""

    actions: np.ndarray  # shape (n, num_actions, action_dim), float32, finite
    memories: Sequence[np.ndarray]  # the memory of each episode after the actions; shape of each: (bytes,), uint8


def versions_there(options: LeRobotPolicyCfg) -> Mapping[str, str]:
    """Return the versions of Python and LeRobot's packages in the policy's interpreter; ConfigError without LeRobot."""
    interpreter, variables = options.interpreter, options.environment_variables
    try:
        answer = ask_kept_worker(ANSWERS, interpreter, variables, _VERSIONS, _VERSIONS_TIMEOUT_S)
    except (RequestError, WorkerError) as error:
        raise ConfigError(Problem(f"'{interpreter}' cannot be asked: {error}", key="python")) from error
    found = answer["versions"]
    if "lerobot" not in found:
        message = f"'{interpreter}' (Python {found['python']}) has no LeRobot; name an interpreter that has it"
        raise ConfigError(Problem(message, key="python"))
    return found


class LeRobotNetwork:
    """A LeRobot policy in a worker. Its memory of an episode is part of the question and of the answer."""

    def __init__(self, directory: Path, device: torch.device, options: LeRobotPolicyCfg) -> None:
        # ``directory`` is that of LeRobot's ``save_pretrained``. ConfigError: the policy cannot be loaded.
        self._directory, self._device, self._options = directory, device, options
        self._worker: WorkerProcess | None = None
        self._elsewhere = PolicyElsewhere[Mapping[str, Any]](f"the policy in '{directory}'")
        # The worker that told its versions has started already, so take it.
        told = asked_worker(ANSWERS, options.interpreter, options.environment_variables, _VERSIONS)
        # All questions to the other kept workers have been asked.
        stop_kept_workers()
        self._worker, self.description = self._started(told)

    def actions(
        self,
        shown: Mapping[str, np.ndarray],
        words: Sequence[str],
        noise_seeds: Sequence[int],
        memories: Sequence[np.ndarray] = (),
        *,
        slots_per_call: int | None = None,
    ) -> Acted:
        """Return the next actions of env slots; PolicyLostError without an answer, PolicyError if the policy fails."""
        # ``shown`` maps each input to the last observations, oldest first: (n, num_observations, ...). ``memories`` are
        # `NOTHING` or those of the last answer; a policy with memory is asked about one env slot after the other.
        # Copies of an entry fill a call up to ``slots_per_call``; None for all env slots in one call. A dead worker is
        # restarted and asked once more, because the answer follows from the question alone.
        if self.description.remembers:
            return self._remembered(shown, words, noise_seeds, memories)
        size, parts = slots_per_call or len(words), []
        for first in range(0, len(words), size):
            places = [*range(first, min(first + size, len(words)))]
            filled = places + places[:1] * (size - len(places))
            part = {name: values[filled] for name, values in shown.items()}
            answer, _ = self._called(part, [words[place] for place in filled], [noise_seeds[place] for place in filled])
            parts.append(answer[: len(places)])
        return Acted(actions=np.concatenate(parts), memories=())

    def close(self) -> None:
        """Stop the worker. May be called more than once."""
        if self._worker is not None:
            self._worker.close()

    def _remembered(
        self,
        shown: Mapping[str, np.ndarray],
        words: Sequence[str],
        noise_seeds: Sequence[int],
        memories: Sequence[np.ndarray],
    ) -> Acted:
        answers = []
        for place, memory in enumerate(memories):
            part = {**{name: values[[place]] for name, values in shown.items()}, _MEMORY: memory}
            answers.append(self._called(part, [words[place]], [noise_seeds[place]]))
        actions, kept = zip(*answers, strict=True)
        return Acted(actions=np.concatenate(actions), memories=kept)

    def _called(
        self, shown: Mapping[str, np.ndarray], words: Sequence[str], noise_seeds: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        request = {"request": "predict", "words": list(words), "seeds": list(noise_seeds)}
        try:
            answer = self._elsewhere.asked(
                lambda: self._ask_once(request, shown), (WorkerError,), comes_back=lambda error: error.died
            )
        except RequestError as error:
            raise PolicyError(f"{self._elsewhere.name} failed: {error}\n{error.traceback}") from error
        except ConfigError as error:
            raise PolicyLostError(f"{self._elsewhere.name} is lost: {error}") from error
        due = (len(words), self.description.num_actions, self.description.action_dim)
        return self._checked(answer.get("actions"), due), answer.get(_MEMORY, NOTHING)

    def _ask_once(self, request: Mapping[str, Any], shown: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if self._worker is None:
            self._worker, _ = self._started()
        try:
            return self._worker.ask(request, patience_s(self._options.timeout_s), shown)[1]
        except WorkerError:
            # The failure stopped the worker.
            self._worker = None
            raise

    def _started(self, started: WorkerProcess | None = None) -> tuple[WorkerProcess, Description]:
        options = self._options
        try:
            worker = started or WorkerProcess(ANSWERS, options.interpreter, options.environment_variables)
            return worker, self._loaded(worker)
        except WorkerError as error:
            raise ConfigError(Problem(f"'{self._directory}' cannot be loaded: {error}", key=KEY)) from error

    def _loaded(self, worker: WorkerProcess) -> Description:
        settings = {
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        place = {"directory": str(self._directory), "device": str(self._device)}
        try:
            limit_s = patience_s(self._options.start_timeout_s)
            answer, _ = worker.ask({"request": "load", **place, "settings": settings}, limit_s)
        except RequestError as error:
            worker.close()
            message = f"LeRobot in '{self._options.interpreter}' cannot load '{self._directory}': {error}"
            _LOG.info("%s\n%s", message, error.traceback)
            raise ConfigError(Problem(message, key=KEY)) from error
        try:
            refuse_another(answer, read_features(self._directory), self._directory)
            # The size of the memory in the trial may differ after a restart.
            self._elsewhere.meet({name: value for name, value in answer.items() if name != "memory_bytes"})
        except ArenaError:
            worker.close()
            raise
        said = {name: answer[name] for name in ("num_actions", "action_dim", "takes_batches", "memory_bytes")}
        return Description(**said, device_type=self._device.type)

    def _checked(self, actions: np.ndarray | None, due: tuple[int, int, int]) -> np.ndarray:
        if actions is None or actions.shape != due:
            got = None if actions is None else actions.shape
            raise PolicyError(
                f"{self._elsewhere.name} answered with actions of shape {got}; due is {due}: env slots, "
                "actions, numbers of an action"
            )
        if not np.isfinite(actions).all():
            raise PolicyError(f"{self._elsewhere.name} answered with actions that are not finite")
        return actions


# Ask a LeRobot policy in the run's policy server: the network there, and its stand-in on a rank.

_SHOWN, _WORDS, _SEEDS, _ACTIONS, _MEMORIES = "shown.", "words", "noise_seeds", "actions", "memories"


class SharedNetwork:
    """A LeRobot policy in its worker, as a `Network`. Its memory is part of the entry and of the answer."""

    def __init__(self, network: LeRobotNetwork) -> None:
        self._network = network
        self.about: Mapping[str, Any] = {"slots_per_call": None, **asdict(network.description)}

    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the next actions; see `Network.answer`."""
        shown = {name[len(_SHOWN) :]: np.asarray(entries[name]) for name in entries if name.startswith(_SHOWN)}
        seeds = [int(seed) for seed in entries[_SEEDS]]
        memories = [np.asarray(memory) for memory in entries.get(_MEMORIES, ())]
        acted = self._network.actions(shown, list(map(str, entries[_WORDS])), seeds, memories)
        if not acted.memories:
            return {_ACTIONS: acted.actions}
        return {_ACTIONS: acted.actions, _MEMORIES: _of_one_length(acted.memories, self._network.description)}


class NetworkOnServer:
    """The stand-in for a `LeRobotNetwork` in a policy server."""

    def __init__(self, network: NetworkElsewhere) -> None:
        self._network = network
        said = {name: value for name, value in network.about.items() if name != "slots_per_call"}
        # In a policy server all calls have one size.
        self.description = replace(Description(**said), max_batch=network.max_batch)

    def actions(
        self,
        shown: Mapping[str, np.ndarray],
        words: Sequence[str],
        noise_seeds: Sequence[int],
        memories: Sequence[np.ndarray] = (),
        *,
        slots_per_call: int | None = None,
    ) -> Acted:
        """Return the next actions of env slots; see `LeRobotNetwork.actions` and `NetworkElsewhere.ask`."""
        entries: dict[str, np.ndarray | Sequence[str]] = {f"{_SHOWN}{name}": values for name, values in shown.items()}
        entries |= {_WORDS: list(words), _SEEDS: np.array(noise_seeds, np.int64)}
        if self.description.remembers:
            entries[_MEMORIES] = _of_one_length(memories, self.description)
        answers = self._network.ask(entries, slots_per_call=slots_per_call or len(words))
        return Acted(actions=answers[_ACTIONS], memories=[*answers.get(_MEMORIES, ())])

    def close(self) -> None:
        """Announce that no request will follow now."""
        self._network.close()


def _of_one_length(memories: Sequence[np.ndarray], description: Description) -> np.ndarray:
    """Pad memories with zeros to (n, memory_bytes), uint8; PolicyError if one is longer."""
    size, longest = description.memory_bytes, max(map(len, memories))
    if longest > size:
        raise PolicyError(
            f"the policy remembers more in the course of an episode, {longest} bytes instead of {size}, and a policy "
            "server takes what has one size; leave policy_server out"
        )
    return np.stack([np.pad(memory, (0, size - len(memory))) for memory in memories])
