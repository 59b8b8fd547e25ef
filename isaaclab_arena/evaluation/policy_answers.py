"""Questions to a policy, the checks of its answers, and the clock of a job's phases."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType

import numpy as np
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.pictures import CAMERAS, CAMERAS_OFF
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import MeasuresEpisodes
from isaaclab_arena.nested import with_leaves

# Measure how a job's time is divided among its phases.


class Phase(StrEnum):
    """What a job's wall time is spent on; the rest of it is idle."""

    BUILD = "build"
    SIMULATE = "simulate"
    POLICY = "policy"
    RENDER = "render"
    RECORD = "record"


class Stopwatch:
    """Adds up the seconds of each phase.

    Attributes:
        pictures_looked_at: Pictures at which a policy or an observer said that it would look.
    """

    def __init__(self) -> None:
        self.pictures_looked_at = 0
        self._seconds = dict.fromkeys(Phase, 0.0)
        self._started = time.perf_counter()
        self._rests_since: float | None = None

    def measure(self, phase: Phase, environment: Environment | None = None) -> "_Block":
        """Count the time inside the ``with`` block towards a phase. Blocks must not be nested.

        Args:
            phase: The phase.
            environment: What it renders within the block counts as `Phase.RENDER` instead.
        """
        return _Block(self, phase, environment)

    def add(self, phase: Phase, seconds: float) -> None:
        """Count seconds towards a phase that were measured elsewhere."""
        self._seconds[phase] += seconds

    def seconds(self, phase: Phase) -> float:
        """Return the seconds counted towards ``phase``."""
        return self._seconds[phase]

    def rest(self) -> None:
        """Stand still until `go_on`, because others have their turn."""
        self._rests_since = time.perf_counter()

    def go_on(self) -> None:
        """Run again, as if no time had passed."""
        if self._rests_since is not None:
            self._started += time.perf_counter() - self._rests_since
            self._rests_since = None

    def elapsed_s(self) -> float:
        """Return the seconds since the stopwatch was made in which it did not rest."""
        return (self._rests_since or time.perf_counter()) - self._started

    def idle_s(self) -> float:
        """Return the seconds of `elapsed_s` that belong to no phase."""
        return max(0.0, self.elapsed_s() - sum(self._seconds.values()))


class _Block:
    """A ``with`` block whose time is counted. A step has several, and a generator for each takes three times as long.

    Args:
        stopwatch: What counts.
        phase: See `Stopwatch.measure`.
        environment: The same.
    """

    def __init__(self, stopwatch: Stopwatch, phase: Phase, environment: Environment | None) -> None:
        self._stopwatch, self._phase, self._environment = stopwatch, phase, environment

    def __enter__(self) -> None:
        self._rendered_s = 0.0 if self._environment is None else self._environment.render_s
        self._began_s = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        taken_s = time.perf_counter() - self._began_s
        if self._environment is not None:
            rendered_s = self._environment.render_s - self._rendered_s
            self._stopwatch.add(Phase.RENDER, rendered_s)
            taken_s -= rendered_s
        self._stopwatch.add(self._phase, taken_s)


# Asks a policy: it is shown a copy of the observation, and what it answers is checked.


@dataclass(frozen=True, kw_only=True)
class PolicyAnswer:
    """What a policy answered to one observation.

    Attributes:
        action: What it does. Shape: (num_envs, action_dim), float32, on the environment's device.
        finished: Env slots in which it has nothing more to do, None for none. Shape: (num_envs,), bool.
        unusable: Running env slots whose action holds NaN or infinity, None where it is known that there are none.
            Shape: (num_envs,), bool.
    """

    action: torch.Tensor
    finished: torch.Tensor | None
    unusable: torch.Tensor | None

    def refuse(self, unusable: np.ndarray) -> None:
        """Raise what is to be said of env slots that are ``unusable``, if there are any.

        Args:
            unusable: Shape: (num_envs,), bool.

        Raises:
            PolicyError: With the first of them, and its action.
        """
        if unusable.any():
            env_id = int(np.flatnonzero(unusable)[0])
            raise PolicyError(
                f"get_action returned NaN or infinity in env slot {env_id}: {self.action[env_id].tolist()}"
            )


def ask(policy: PolicyBase, environment: Environment, observation: Observation, running: torch.Tensor) -> PolicyAnswer:
    """Show a policy an observation and return its checked answer.

    Args:
        policy: What is asked. It gets tensors of its own: what it does to them must not reach a recording.
        environment: Gives the shape of an action.
        observation: The observation of all env slots.
        running: Env slots whose values matter. Shape: (num_envs,), bool.

    Raises:
        PolicyError: If the action has the wrong shape or, on the CPU, holds NaN or infinity. Of an action on a GPU
            `RunningEpisodes.over` tells, as the CPU waits for the GPU then in any case.
        PolicyLostError: If the policy answers no more.
    """
    try:
        answer = policy.get_action(environment, copied(observation))
    except KeyError as error:
        refuse_unknown_entry(error, observation)
        raise
    action = checked_action(answer, environment)
    finished = checked_finished(policy.finished(), environment)
    if action.is_cpu:
        # NumPy takes a third of the time here, and this is done in every step.
        sound = np.isfinite(action.numpy())
        if sound.all():
            return PolicyAnswer(action=action, finished=finished, unusable=None)
        unusable = running & torch.from_numpy(~sound.reshape(len(action), -1).all(axis=1))
        answer = PolicyAnswer(action=action, finished=finished, unusable=unusable)
        answer.refuse(unusable.numpy())
        return answer
    unusable = running & ~torch.isfinite(action).flatten(1).all(dim=1)
    return PolicyAnswer(action=action, finished=finished, unusable=unusable)


def refuse_unknown_entry(error: KeyError, observation: Observation) -> None:
    """Raise what a policy looked for and what an observation holds, if it may have looked there.

    Args:
        error: What it raised.
        observation: What it was shown.

    Raises:
        PolicyError: If the code that failed holds the observation, or wants pictures, and there is no such key.
    """
    key, trace = error.args[0] if error.args else None, error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    held = trace.tb_frame.f_locals.values() if trace is not None else ()
    holds = any(isinstance(each, Mapping) and each.keys() == observation.keys() for each in held)
    if not isinstance(key, str) or key in observation or not (holds or key == CAMERAS):
        return
    groups = "; ".join(
        f"{name}: {', '.join(group)}" if isinstance(group, Mapping) else name for name, group in observation.items()
    )
    hint = f". Of pictures: {CAMERAS_OFF}" if CAMERAS not in observation else ""
    raise PolicyError(f"get_action fails with KeyError: '{key}'; the observation holds {groups}{hint}") from error


def agreed_instruction(policy: PolicyBase, environment: Environment, asked: str | None) -> str | None:
    """Return what the policy is told in every episode, None if the environment says it for each.

    Args:
        policy: It may insist on an instruction of its own.
        environment: Describes the task.
        asked: The job's instruction, None where it has none.

    Raises:
        PolicyError: If the policy will follow something that is no text.
    """
    told = asked or environment.task_description
    answer = checked_instruction(policy.set_task_description(told), told)
    return asked if answer == told else answer


def checked_action(action: object, environment: Environment) -> torch.Tensor:
    """Return a policy's action as the environment takes it: float32, on its device, in a tensor of its own.

    Args:
        action: What the policy returned.
        environment: Gives the shape that is due.

    Raises:
        PolicyError: If it is neither a tensor nor an array of numbers, is complex or has the wrong shape.
    """
    action = action_tensor(action)
    expected = (environment.num_envs, *environment.action_spec.shape)
    if tuple(action.shape) != expected:
        raise PolicyError(
            f"get_action returned shape {tuple(action.shape)}, the environment takes {expected}: (num_envs, action_dim)"
        )
    if action.is_complex():
        raise PolicyError(f"get_action returned {action.dtype}, actions are real numbers")
    return action.detach().to(device=environment.device, dtype=torch.float32, copy=True)


def action_tensor(action: object) -> torch.Tensor:
    """Return what `PolicyBase.get_action` returned as a tensor, whatever its shape.

    Raises:
        PolicyError: If it is neither a tensor nor an array of real numbers.
    """
    if isinstance(action, np.ndarray) and action.dtype.kind in "fiub":
        # In an order and a size that torch can take, whatever view of whatever array it is.
        return torch.from_numpy(action.astype(np.float32, order="C"))
    if isinstance(action, torch.Tensor):
        return action
    kind = f"an array of {action.dtype}" if isinstance(action, np.ndarray) else type(action).__name__
    raise PolicyError(f"get_action must return a torch.Tensor, or a numpy array of real numbers, got {kind}")


def checked_finished(finished: object, environment: Environment) -> torch.Tensor | None:
    """Return what `PolicyBase.finished` returned, if it is what it should be: None, or shape (num_envs,), bool.

    Raises:
        PolicyError: If it is anything else.
    """
    if finished is None:
        return None
    if not isinstance(finished, torch.Tensor) or finished.dtype != torch.bool:
        kind = finished.dtype if isinstance(finished, torch.Tensor) else type(finished).__name__
        raise PolicyError(f"finished must return None or a bool tensor, got {kind}")
    if tuple(finished.shape) != (environment.num_envs,):
        raise PolicyError(f"finished returned shape {tuple(finished.shape)}, it must be ({environment.num_envs},)")
    return finished


def checked_instruction(answer: object, instruction: str) -> str:
    """Return the instruction that a policy says it follows, the given one where it says nothing.

    Raises:
        PolicyError: If `PolicyBase.set_task_description` returned neither text nor None.
    """
    if answer is not None and not isinstance(answer, str):
        raise PolicyError(f"set_task_description must return text or None, got {type(answer).__name__}")
    return answer or instruction


def with_policy_metrics(policy: PolicyBase, records: Sequence[EpisodeRecord]) -> list[EpisodeRecord]:
    """Return records of episodes with what the policy measured of each, while it still knows them."""
    if not isinstance(policy, MeasuresEpisodes):
        return list(records)
    return [replace(record, metrics={**record.metrics, **policy.episode_metrics(record.env_id)}) for record in records]


def copied(observation: Observation) -> Observation:
    """Return an observation in dicts and tensors of its own."""
    return with_leaves(observation, lambda part: part.clone() if isinstance(part, torch.Tensor) else part)
