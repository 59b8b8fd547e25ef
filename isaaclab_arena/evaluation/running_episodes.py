"""A control step around the simulation: the clock, the policy's answer and its checks, and the episodes under way."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from types import TracebackType

import numpy as np
import torch

from isaaclab_arena.distributed.devices import on_cpu
from isaaclab_arena.errors import ArenaError, PolicyError, PolicyLostError
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import POLICY_LOST, SOLVED_AT_START, EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import refuse_misread
from isaaclab_arena.interfaces.specs import CAMERAS, CAMERAS_OFF, ArraySpec, Pictures, SideBySide
from isaaclab_arena.nested import leaves, with_leaves

# Measure how a job's time is divided among its phases.


class Phase(StrEnum):
    """A phase of a job's wall time; the rest of the time is idle."""

    BUILD = "build"
    SIMULATE = "simulate"
    POLICY = "policy"
    RENDER = "render"
    RECORD = "record"


@dataclass(eq=False)
class Stopwatch:
    """Adds up the seconds of each phase."""

    pictures_looked_at: int = 0  # pictures that a policy or an observer announced to read
    seconds: dict[Phase, float] = field(default_factory=partial(dict.fromkeys, Phase, 0.0))
    # Start of a rest while an interleaved job runs, `time.perf_counter` [s]; None while it runs. `go_on` ends a rest.
    rests_since: float | None = None
    _started: float = field(default_factory=time.perf_counter)

    def measure(self, phase: Phase, environment: Environment | None = None) -> "_Block":
        """Count the time inside the `with` block towards a phase. Blocks must not be nested."""
        # The rendering of `environment` within the block counts as `Phase.RENDER` instead.
        return _Block(self, phase, environment)

    def go_on(self) -> None:
        """Continue as if no time had passed."""
        if self.rests_since is not None:
            self._started += time.perf_counter() - self.rests_since
            self.rests_since = None

    def elapsed_s(self) -> float:
        """Return the seconds since the stopwatch was made, without its rests."""
        return (self.rests_since or time.perf_counter()) - self._started


@dataclass(eq=False)
class _Block:
    """A `with` block whose time is counted; see `Stopwatch.measure`."""

    # A class, because a step has several blocks and a generator for each would take three times as long.
    stopwatch: Stopwatch
    phase: Phase
    environment: Environment | None

    def __enter__(self) -> None:
        self._rendered_s = 0.0 if self.environment is None else self.environment.render_s
        self._began_s = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        taken_s = time.perf_counter() - self._began_s
        if self.environment is not None:
            rendered_s = self.environment.render_s - self._rendered_s
            self.stopwatch.seconds[Phase.RENDER] += rendered_s
            taken_s -= rendered_s
        self.stopwatch.seconds[self.phase] += taken_s


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


def checked_answer(
    policy: PolicyBase, environment: Environment, observation: Observation, running: torch.Tensor
) -> PolicyAnswer:
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
    # NumPy takes a third of the time here, and this is done in every step.
    is_sound = action.is_cpu and np.isfinite(action.numpy()).all()
    unusable = None if is_sound else running & ~torch.isfinite(action).reshape(len(action), -1).all(dim=1)
    found = PolicyAnswer(action=action, finished=finished, unusable=unusable)
    # On a GPU the check would wait; `RunningEpisodes.over` reads this mask with the others and raises there.
    if unusable is not None and action.is_cpu:
        found.refuse(unusable.numpy())
    return found


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
    description = asked or environment.task_description
    answer = policy.set_task_description(description)
    if answer is not None and not isinstance(answer, str):
        raise PolicyError(f"set_task_description must return text or None, got {type(answer).__name__}")
    return asked if (answer or description) == description else answer


def checked_action(action: object, environment: Environment) -> torch.Tensor:
    """Return the action as a float32 copy on the environment's device, else raise `PolicyError`."""
    action, spec = action_tensor(action), environment.action_spec
    expected = (environment.num_envs, *spec.shape)
    # Policies of Gymnasium's Discrete spaces give one whole number for each env slot.
    if spec.choices and spec.shape == (1,) and tuple(action.shape) == expected[:1]:
        action = action[:, None]
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
        # The copy has a memory layout and a dtype that torch accepts, for any view.
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


# Define the limits of a rollout.


@dataclass(frozen=True, kw_only=True)
class RolloutLimits:
    """The limits of a rollout; None is no limit."""

    # Control steps of the batch; then the rollout ends and cuts the episodes under way.
    max_steps: int | None = None
    max_envs: int | None = None  # env slots used at once; the others rest
    # Wall time of an episode [s]. A longer one ends as an error after the current step, and its env slot takes the
    # next.
    episode_timeout_s: float | None = None


NO_LIMITS = RolloutLimits()


# Decide how an episode ended.

OUT_OF_TIME = "episode_timeout"
"""Termination of an episode that took longer than its wall time allowed."""

POLICY_FINISHED = "policy_finished"
"""Termination of an episode that ended because its policy had nothing more to do."""

RANKS_LOST = "ranks_lost"
"""Termination of an episode over which ranks died, one after the other."""

BAD_START = "bad_start"
"""Termination of an episode whose first observation cannot be shown to a policy."""

BROKEN_OFF = frozenset({OUT_OF_TIME, POLICY_LOST, RANKS_LOST, SOLVED_AT_START, BAD_START})
"""Terminations that do not follow from an episode's actions, so that to play these again does not repeat them."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of an episode; see `EpisodeRecord` for the attributes."""

    outcome: Outcome | None
    success: bool | None
    termination: str
    error: str | None = None


def failed(termination: str, error: str) -> Ending:
    """Return the end of an episode that is an error."""
    return Ending(outcome=Outcome.ERROR, success=None, termination=termination, error=error)


def ending_of(step: Step, env_id: int) -> Ending:
    """Return the end of the episode in env slot `env_id` that ended with `step`."""
    # A diverged env slot is an error, also if the task found its state good.
    if bool(step.diverged[env_id]):
        return failed("diverged", step.errors.get(env_id, "the physics diverged"))
    terminated, truncated = bool(step.terminated[env_id]), bool(step.truncated[env_id])
    termination = "terminated" if terminated else "time_limit" if truncated else POLICY_FINISHED
    timed_out = truncated and not terminated
    # Success that is not measured stays None: the episode is a time-out or has no outcome, but never a failure.
    if step.success is None:
        return Ending(outcome=Outcome.TIMEOUT if timed_out else None, success=None, termination=termination)
    if bool(step.success[env_id]):
        return Ending(outcome=Outcome.SUCCESS, success=True, termination=termination)
    outcome = Outcome.TIMEOUT if timed_out else Outcome.FAILURE
    return Ending(outcome=outcome, success=False, termination=termination)


# Find NaN and infinity in observations and rewards. They end an episode as an error, and nothing else.


def unsound_slots(observation: Observation, reward: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return the mask of env slots with a NaN or infinite number, None if known to be empty. Shape: (num_envs,)."""
    # Pictures are left out. On a GPU the mask is always returned: to test it would make the CPU wait.
    parts = [] if reward is None else [reward]
    for group, terms in observation.items():
        if isinstance(terms, SideBySide):
            parts.append(terms.together)
        elif group != CAMERAS:
            tensors = (part for _, part in leaves(terms) if isinstance(part, torch.Tensor))
            parts += [part for part in tensors if part.is_floating_point()]
    if not parts:
        return None
    # On a CPU NumPy takes a third of the time, but has no bfloat16.
    if parts[0].is_cpu and all(
        bool(torch.isfinite(part).all())
        if part.dtype == torch.bfloat16 or part.requires_grad
        else np.isfinite(part.numpy()).all()
        for part in parts
    ):
        return None
    # In double precision no sum of finite numbers is infinite, and one NaN or infinity makes the whole sum so.
    sums = [part.reshape(len(part), -1).sum(1, dtype=torch.float64) for part in parts]
    return ~torch.isfinite(sum(sums[1:], start=sums[0]))


def unsound_entry(observation: Observation, env_id: int, reward: torch.Tensor | None = None) -> str:
    """Name the NaN or infinite observation or reward of an env slot that `unsound_slots` found."""
    for (group, *path), part in leaves(observation):
        is_number = group != CAMERAS and isinstance(part, torch.Tensor) and part.is_floating_point()
        if is_number and not bool(torch.isfinite(part[env_id]).all()):
            name = ".".join(map(str, path if group == "policy" and path else (group, *path)))
            return f"observation '{name}' holds NaN or infinity"
    return "the observation is not finite" if reward is None else f"the reward is {float(reward[env_id])}"


# The episodes under way in the env slots of an environment: their lengths, their returns and their ends.


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """The counters of a rollout."""

    finished_episodes: int  # ran to their end
    # Episodes under way when the step limit or a stop request ended the rollout.
    cut_episodes: int
    interrupted: bool  # by a stop request


class RunningEpisodes:
    """The episode of each env slot, with its length, return and other sums so far."""

    def __init__(self, num_envs: int, device: torch.device, action_spec: ArraySpec) -> None:
        # A copy of the mask on the CPU: to read it never waits for the GPU.
        self._is_running = torch.zeros(num_envs, dtype=torch.bool)
        # Env slots with an episode under way. Shape: (num_envs,), bool, on the device.
        self.running = self._is_running.to(device)
        self.num_running = 0
        self.num_steps = 0  # counted control steps of the batch
        self.num_finished = 0
        self._starts: list[EpisodeStart | None] = [None] * num_envs
        self._started_s: dict[int, float] = {}
        self._length = torch.zeros(num_envs, dtype=torch.int64)
        # Double precision, so that small rewards still count after large ones.
        self._return = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self._latest: Step | None = None

        # The policy's actions at or beyond their bounds are counted, by env slot and element. Elements without bounds,
        # and those with a single possible value, do not count.
        low, high = (
            np.full(action_spec.shape, default, np.float32)
            if bound is None
            else np.reshape(bound, action_spec.shape).astype(np.float32)
            for bound, default in ((action_spec.low, -np.inf), (action_spec.high, np.inf))
        )
        # A number in single precision lies at a bound if it is closer than a millionth of the element's range.
        near = np.where(np.isfinite(low) & np.isfinite(high), 1e-6 * (high - low), 0.0).astype(np.float32)
        counts = (np.isfinite(low) | np.isfinite(high)) & (low < high)
        least = np.where(counts, np.maximum(np.nextafter(low, np.float32(np.inf)), low + near), -np.inf)
        most = np.where(counts, np.minimum(np.nextafter(high, np.float32(-np.inf)), high - near), np.inf)
        self._least, self._most = (torch.as_tensor(end, device=device) for end in (least, most))
        self._num_counted = int(counts.sum())
        # Shape: (num_envs, action_dim), int32, on the device.
        self._saturated = torch.zeros((num_envs, *action_spec.shape), dtype=torch.int32, device=device)
        self._is_saturated: torch.Tensor | None = None  # that of the action under way

    def begin(self, starts: Sequence[EpisodeStart], *, now_s: float) -> None:
        """Begin episodes in env slots that are free."""
        for start in starts:
            self._starts[start.env_id] = start
            self._started_s[start.env_id] = now_s
        begins = torch.zeros_like(self._is_running)
        begins[[start.env_id for start in starts]] = True
        self._is_running = self._is_running | begins
        self.running = self._is_running.to(self.running.device, non_blocking=True)
        self.num_running += len(starts)
        self._length[begins] = 0
        on_device = begins.to(self._return.device, non_blocking=True)
        self._return.masked_fill_(on_device, 0.0)
        self._saturated.masked_fill_(on_device.reshape(-1, *(1 for _ in self._saturated.shape[1:])), 0)

    def note(self, action: torch.Tensor) -> None:
        """Compare an action, before the environment may clip it, with the bounds. Shape: (num_envs, action_dim)."""
        if self._num_counted:
            self._is_saturated = action.clamp(self._least, self._most) != action

    def count(self, step: Step) -> None:
        """Add a step to every episode under way."""
        self._latest = step
        self.num_steps += 1
        self._length += self._is_running
        self._return += torch.where(self.running, step.reward, 0.0)
        if self._is_saturated is not None:
            self._saturated += self._is_saturated

    def over(self, answer: PolicyAnswer, step: Step, *, max_length: int) -> dict[int, Ending] | None:
        """Map env slots to their endings after a step not yet counted; None if the step must be made again."""
        # `PolicyError` if the action held NaN or infinity; `ArenaError` if an episode exceeds `max_length` control
        # steps.
        finished = answer.finished
        reported = {
            "terminated": step.terminated,
            "truncated": step.truncated,
            "diverged": step.diverged,
            "success": step.success,
            # The policy has nothing more to do.
            "finished": None if finished is None else finished.to(step.diverged.device, non_blocking=True),
            "unusable": answer.unusable,  # the action holds NaN or infinity
            "not_made": None if step.made is None else ~step.made,  # the step must be made again
            # Observation or reward holds NaN or infinity.
            "unsound": unsound_slots(step.observation, step.reward),
        }
        # Read all masks at once: each read-back from a GPU takes as long as the inference of a small network.
        known = {name: mask for name, mask in reported.items() if mask is not None}
        found = (torch.stack([*known.values()]) & self.running).cpu().numpy()
        at_limit = self._length.numpy() + 1 >= max_length
        # Most steps end no episode, and looking at each mask may take longer than the step itself.
        if not found.any() and not at_limit.any():
            return {}

        # A mask that was not set is False for every env slot. Shape of each: (num_envs,).
        masks = {**dict.fromkeys(reported, np.zeros_like(at_limit)), **dict(zip(known, found, strict=True))}
        answer.refuse(masks["unusable"])
        if masks["not_made"].any():
            return None
        diverged, unsound = masks["diverged"], masks["unsound"]
        over = masks["terminated"] | masks["truncated"] | diverged | masks["finished"] | unsound
        overdue = self._is_running.numpy() & ~over & at_limit
        if overdue.any():
            raise ArenaError(
                f"the environment broke its contract: env slot {np.flatnonzero(overdue)[0]} made {max_length} "
                "steps, its max_episode_length, and was not truncated"
            )
        if not over.any():
            return {}

        # An unsound env slot counts as diverged, with its reason.
        env_ids = np.flatnonzero(unsound & ~diverged).tolist()
        errors = {env_id: unsound_entry(step.observation, env_id, step.reward) for env_id in env_ids}
        verdicts = replace(
            step,
            terminated=torch.from_numpy(masks["terminated"]),
            truncated=torch.from_numpy(masks["truncated"]),
            diverged=torch.from_numpy(diverged | unsound),
            success=None if step.success is None else torch.from_numpy(masks["success"]),
            errors={**step.errors, **errors},
        )
        return {env_id: ending_of(verdicts, env_id) for env_id in np.flatnonzero(over).tolist()}

    def late(self, *, now_s: float, limit_s: float | None) -> dict[int, Ending]:
        """Map env slots to the endings of episodes that exceed a wall time limit [s]; None is no limit."""
        if limit_s is None:
            return {}
        late = failed(OUT_OF_TIME, f"the episode took longer than {limit_s:g} s, its episode_timeout_s")
        return {env_id: late for env_id, started_s in sorted(self._started_s.items()) if now_s - started_s > limit_s}

    def lost(self, error: PolicyLostError) -> list[EpisodeRecord]:
        """End the episodes that lost their policy, and return their records."""
        # An episode without a step was not tried, and stays missing.
        tried = torch.nonzero(self._is_running & (self._length > 0)).flatten().tolist()
        return self.end(dict.fromkeys(tried, failed(POLICY_LOST, f"the policy was lost: {error}")))

    def end(self, endings: Mapping[int, Ending]) -> list[EpisodeRecord]:
        """End the episodes of these env slots after the last counted step, and return their records."""
        if not endings:
            return []
        # One read-back for all sums and metrics.
        measured = {} if self._latest is None else self._latest.metrics
        returns, saturated, *numbers = on_cpu([self._return, self._saturated, *measured.values()])
        metrics = dict(zip(measured, numbers, strict=True))
        ends = torch.zeros_like(self._is_running)
        ends[list(endings)] = True
        self._is_running = self._is_running & ~ends
        self.running = self._is_running.to(self.running.device, non_blocking=True)
        self.num_running -= len(endings)
        self.num_finished += len(endings)
        records = []
        for env_id, ending in endings.items():
            # A recording that is played again is in its start, and large.
            start, self._starts[env_id] = self._starts[env_id], None
            self._started_s.pop(env_id, None)
            if start is None:
                raise RuntimeError(f"env slot {env_id} ended an episode that was never started")
            length = int(self._length[env_id])
            num_asked = length * self._num_counted
            record = EpisodeRecord(
                **vars(ending),
                episode=start.episode,
                env_id=env_id,
                length=length,
                episode_return=float(returns[env_id]),
                conditions=start.conditions,
                language_instruction=start.language_instruction,
                # Without a step, the last metrics of the env slot belong to the episode before.
                metrics={name: float(values[env_id]) for name, values in metrics.items()} if length else {},
                saturated_action_share=int(saturated[env_id].sum()) / num_asked if num_asked else None,
            )
            records.append(record)
        return records
