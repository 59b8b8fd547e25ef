"""Questions to a policy, the checks of its answers, and the clock of a job's phases."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType

import numpy as np
import torch

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.pictures import CAMERAS, CAMERAS_OFF, Pictures
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import refuse_misread
from isaaclab_arena.nested import with_leaves

# Measure how a job's time is divided among its phases.


class Phase(StrEnum):
    """A phase of a job's wall time; the rest of the time is idle."""

    BUILD = "build"
    SIMULATE = "simulate"
    POLICY = "policy"
    RENDER = "render"
    RECORD = "record"


class Stopwatch:
    """Adds up the seconds of each phase."""

    def __init__(self) -> None:
        # Pictures that a policy or an observer announced to read.
        self.pictures_looked_at = 0
        self.seconds = dict.fromkeys(Phase, 0.0)  # counted towards each phase
        self._started = time.perf_counter()
        self._rests_since: float | None = None

    def measure(self, phase: Phase, environment: Environment | None = None) -> "_Block":
        """Count the time inside the `with` block towards a phase. Blocks must not be nested."""
        # The rendering of `environment` within the block counts as `Phase.RENDER` instead.
        return _Block(self, phase, environment)

    def rest(self) -> None:
        """Stop until `go_on`, because another job has its turn."""
        self._rests_since = time.perf_counter()

    def go_on(self) -> None:
        """Continue as if no time had passed."""
        if self._rests_since is not None:
            self._started += time.perf_counter() - self._rests_since
            self._rests_since = None

    def elapsed_s(self) -> float:
        """Return the seconds since the stopwatch was made, without its rests."""
        return (self._rests_since or time.perf_counter()) - self._started


class _Block:
    """A `with` block whose time is counted; see `Stopwatch.measure`."""

    def __init__(self, stopwatch: Stopwatch, phase: Phase, environment: Environment | None) -> None:
        # A class, because a step has several blocks and a generator for each would take three times as long.
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
            self._stopwatch.seconds[Phase.RENDER] += rendered_s
            taken_s -= rendered_s
        self._stopwatch.seconds[self._phase] += taken_s


# Ask a policy: it sees a copy of the observation, and its answer is checked.


@dataclass(frozen=True, kw_only=True)
class PolicyAnswer:
    """The policy's answer to one observation."""

    action: torch.Tensor  # (num_envs, action_dim), float32, on the environment's device
    # Env slots in which the policy has nothing more to do, None for none. Shape: (num_envs,), bool.
    finished: torch.Tensor | None
    # Running env slots whose action holds NaN or infinity, None if known to be empty. Shape: (num_envs,), bool.
    unusable: torch.Tensor | None

    def refuse(self, unusable: np.ndarray) -> None:
        """Raise `PolicyError` for the first env slot in the mask, if any. Shape: (num_envs,), bool."""
        if unusable.any():
            env_id = int(np.flatnonzero(unusable)[0])
            raise PolicyError(
                f"get_action returned NaN or infinity in env slot {env_id}: {self.action[env_id].tolist()}"
            )


def ask(policy: PolicyBase, environment: Environment, observation: Observation, running: torch.Tensor) -> PolicyAnswer:
    """Return the policy's checked answer; `PolicyError` if it is invalid, `PolicyLostError` if the policy is lost."""
    try:
        # The policy gets copies of the tensors: its changes must not reach a recording.
        answer = policy.get_action(
            environment,
            with_leaves(
                observation,
                lambda part: (
                    replace(part, frames=part.frames.clone())
                    if isinstance(part, Pictures)
                    else part.clone()
                    if isinstance(part, torch.Tensor)
                    else part
                ),
            ),
        )
    except KeyError as error:
        refuse_unknown_entry(error, observation)
        raise
    except AttributeError as error:
        refuse_misread(error)
        raise
    action = checked_action(answer, environment)
    finished = checked_finished(policy.finished(), environment)
    # On a GPU the check would wait; `RunningEpisodes.over` reads this mask with the others and raises there.
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
    """Raise `PolicyError` if a `KeyError` shows that the policy looked for a missing observation."""
    key, trace = error.args[0] if error.args else None, error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    # The key was looked up in the observation only if the frame that failed holds it; pictures are the exception.
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
    """Return the instruction of every episode, None if the environment states one for each."""
    # The policy may insist on an instruction of its own; `PolicyError` if that is no text.
    told = asked or environment.task_description
    answer = policy.set_task_description(told)
    if answer is not None and not isinstance(answer, str):
        raise PolicyError(f"set_task_description must return text or None, got {type(answer).__name__}")
    return asked if (answer or told) == told else answer


def checked_action(action: object, environment: Environment) -> torch.Tensor:
    """Return the action as a float32 copy on the environment's device, else raise `PolicyError`."""
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
    """Return an answer of `get_action` as a tensor of any shape; `PolicyError` if it holds no real numbers."""
    if isinstance(action, np.ndarray) and action.dtype.kind in "fiub":
        # The copy has a memory layout and a dtype that torch accepts, whatever view the array is.
        return torch.from_numpy(action.astype(np.float32, order="C"))
    if isinstance(action, torch.Tensor):
        return action
    kind = f"an array of {action.dtype}" if isinstance(action, np.ndarray) else type(action).__name__
    raise PolicyError(f"get_action must return a torch.Tensor, or a numpy array of real numbers, got {kind}")


def checked_finished(finished: object, environment: Environment) -> torch.Tensor | None:
    """Return the answer of `finished`: None or shape (num_envs,), bool; else raise `PolicyError`."""
    if finished is None:
        return None
    if not isinstance(finished, torch.Tensor) or finished.dtype != torch.bool:
        kind = finished.dtype if isinstance(finished, torch.Tensor) else type(finished).__name__
        raise PolicyError(f"finished must return None or a bool tensor, got {kind}")
    if tuple(finished.shape) != (environment.num_envs,):
        raise PolicyError(f"finished returned shape {tuple(finished.shape)}, it must be ({environment.num_envs},)")
    return finished
