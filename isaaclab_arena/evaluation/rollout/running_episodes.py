"""The episodes under way in the env slots of an environment: their lengths, their returns and their ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from isaaclab_arena.device_reads import on_cpu
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.rollout.endings import Ending, ending_of, out_of_time
from isaaclab_arena.evaluation.rollout.policy_answers import PolicyAnswer
from isaaclab_arena.evaluation.rollout.saturation import SaturatedActions
from isaaclab_arena.evaluation.rollout.soundness import unsound_entry, unsound_slots
from isaaclab_arena.interfaces.environment import Observation, Step
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Transition
from isaaclab_arena.interfaces.specs import ArraySpec


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """What a rollout did.

    Attributes:
        finished_episodes: Episodes that ran to their end.
        cut_episodes: Episodes that had started when the step limit or a stop request ended the rollout.
        env_steps: Control steps summed over running env slots.
        interrupted: Whether a stop request ended it.
    """

    finished_episodes: int
    cut_episodes: int
    env_steps: int
    interrupted: bool


class RunningEpisodes:
    """Which episode each env slot runs, and what it has gathered so far.

    Args:
        num_envs: Number of env slots.
        device: Where masks and sums live.
        action_spec: What an action looks like.

    Attributes:
        running: Env slots in which an episode is under way. Shape: (num_envs,), bool, on the device.
        num_running: Their number.
        num_steps: Control steps counted so far.
    """

    def __init__(self, num_envs: int, device: torch.device, action_spec: ArraySpec) -> None:
        # What is known without asking a GPU is kept on the CPU.
        self._is_running = torch.zeros(num_envs, dtype=torch.bool)
        self.running = self._is_running.to(device)
        self.num_running = 0
        self.num_steps = 0
        self._env_steps = 0
        self._num_finished = 0
        self._starts: list[EpisodeStart | None] = [None] * num_envs
        self._started_s: dict[int, float] = {}
        self._length = torch.zeros(num_envs, dtype=torch.int64)
        # Double precision, so that the sum does not depend on the order of magnitude of what came before.
        self._return = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self._saturated = SaturatedActions(action_spec, num_envs, device)
        self._latest: Step | None = None

    def begin(self, starts: Sequence[EpisodeStart], *, now_s: float) -> None:
        """Begin episodes in env slots that are free."""
        for start in starts:
            self._starts[start.env_id] = start
            self._started_s[start.env_id] = now_s
        begins = torch.zeros_like(self._is_running)
        begins[[start.env_id for start in starts]] = True
        self._set_running(self._is_running | begins)
        self.num_running += len(starts)
        self._length[begins] = 0
        on_device = begins.to(self._return.device, non_blocking=True)
        self._return.masked_fill_(on_device, 0.0)
        self._saturated.begin(on_device)

    def note(self, answer: PolicyAnswer) -> None:
        """Look at what a policy answered, before the environment gets it."""
        self._saturated.note(answer.action)

    def transition(self, observation: Observation, action: torch.Tensor, step: Step) -> Transition:
        """Return what observers are shown of a step that the running episodes made.

        Args:
            observation: What the policy saw.
            action: What it did. Shape: (num_envs, action_dim).
            step: What came of it.
        """
        running = self.running.clone()
        return Transition(
            running=running, num_running=self.num_running, observation=observation, action=action, step=step
        )

    def count(self, step: Step) -> None:
        """Count a step of every episode under way."""
        self._latest = step
        self.num_steps += 1
        self._env_steps += self.num_running
        self._length += self._is_running
        self._return += torch.where(self.running, step.reward, 0.0)
        self._saturated.count()

    def over(self, answer: PolicyAnswer, step: Step, *, max_length: int) -> dict[int, Ending] | None:
        """Return how episodes end with a step that is not counted yet, by env slot; None if the step was not made.

        Args:
            answer: What the policy answered before that step.
            step: What came of it.
            max_length: Control steps after which an episode must be over.

        Raises:
            ArenaError: If one of them is longer.
            PolicyError: If an action of the answer held NaN or infinity.
        """
        said = _said(step, answer)
        # Read together: each time that it is read back what a GPU has computed takes as long as a small network.
        found = (torch.stack([*said.values()]) & self.running).cpu().numpy()
        at_limit = self._length.numpy() + 1 >= max_length
        # Most steps end nothing, and this loop may have less time for one than it takes to look at each mask.
        if not found.any() and not at_limit.any():
            return {}
        nowhere = np.zeros_like(at_limit)
        masks = _Masks(**{**dict.fromkeys(_Masks._fields, nowhere), **dict(zip(said, found, strict=True))})
        answer.refuse(masks.unusable)
        if masks.unmade.any():
            return None
        over = masks.terminated | masks.truncated | masks.diverged | masks.finished | masks.unsound
        overdue = self._is_running.numpy() & ~over & at_limit
        if overdue.any():
            raise ArenaError(
                f"the environment broke its contract: env slot {np.flatnonzero(overdue)[0]} made {max_length} "
                "steps, its max_episode_length, and was not truncated"
            )
        if not over.any():
            return {}
        verdicts = masks.verdicts(step)
        return {env_id: ending_of(verdicts, env_id) for env_id in np.flatnonzero(over).tolist()}

    def late(self, *, now_s: float, limit_s: float | None) -> dict[int, Ending]:
        """Return how episodes end that have taken longer than a limit [s], by env slot; none do without a limit."""
        if limit_s is None:
            return {}
        running = sorted(self._started_s)
        return {env_id: out_of_time(limit_s) for env_id in running if now_s - self._started_s[env_id] > limit_s}

    def tried(self) -> list[int]:
        """Return the env slots of episodes that have made a step."""
        return torch.nonzero(self._is_running & (self._length > 0)).flatten().tolist()

    def end(self, endings: Mapping[int, Ending]) -> list[EpisodeRecord]:
        """End episodes with the step that was counted last, if they made one, and return what is known of them.

        Args:
            endings: Env slot to how its episode ends.
        """
        if not endings:
            return []
        measured = {} if self._latest is None else self._latest.metrics
        returns, saturated, *numbers = on_cpu([self._return, self._saturated.so_far, *measured.values()])
        metrics = dict(zip(measured, numbers, strict=True))
        ends = torch.zeros_like(self._is_running)
        ends[list(endings)] = True
        self._set_running(self._is_running & ~ends)
        self.num_running -= len(endings)
        self._num_finished += len(endings)
        records = []
        for env_id, ending in endings.items():
            start = self._starts[env_id]
            self._started_s.pop(env_id, None)
            if start is None:
                raise RuntimeError(f"env slot {env_id} ended an episode that was never started")
            length = int(self._length[env_id])
            record = EpisodeRecord(
                episode=start.episode,
                env_id=env_id,
                outcome=ending.outcome,
                success=ending.success,
                length=length,
                episode_return=float(returns[env_id]),
                termination=ending.termination,
                conditions=start.conditions,
                language_instruction=start.language_instruction,
                # What was measured last in the env slot of one that made no step belongs to the episode before.
                metrics={name: float(values[env_id]) for name, values in metrics.items()} if length else {},
                error=ending.error,
                saturated_action_share=self._saturated.share(saturated[env_id], length),
            )
            records.append(record)
        return records

    def result(self, *, interrupted: bool) -> RolloutResult:
        """Return what was done so far; episodes under way are cut.

        Args:
            interrupted: Whether a stop request ended it.
        """
        return RolloutResult(
            finished_episodes=self._num_finished,
            cut_episodes=self.num_running,
            env_steps=self._env_steps,
            interrupted=interrupted,
        )

    def _set_running(self, is_running: torch.Tensor) -> None:
        self._is_running = is_running
        self.running = is_running.to(self.running.device, non_blocking=True)


class _Masks(NamedTuple):
    """What became of the running env slots in a step, False where nothing is said. Shape of each: (num_envs,), bool."""

    terminated: np.ndarray
    truncated: np.ndarray
    diverged: np.ndarray
    success: np.ndarray
    finished: np.ndarray
    unusable: np.ndarray
    unmade: np.ndarray
    unsound: np.ndarray

    def verdicts(self, step: Step) -> Step:
        """Return a step with these masks, on the CPU; what is not finite in it is an error as if physics diverged."""
        unsound = np.flatnonzero(self.unsound & ~self.diverged).tolist()
        return replace(
            step,
            terminated=torch.from_numpy(self.terminated),
            truncated=torch.from_numpy(self.truncated),
            diverged=torch.from_numpy(self.diverged | self.unsound),
            success=None if step.success is None else torch.from_numpy(self.success),
            errors={
                **step.errors,
                **{env_id: unsound_entry(step.observation, env_id, step.reward) for env_id in unsound},
            },
        )


def _said(step: Step, answer: PolicyAnswer) -> dict[str, torch.Tensor]:
    """Return what is said of a step and of what led to it, by the names of `_Masks`, but for what is not said."""
    device = step.diverged.device
    said = {
        "terminated": step.terminated,
        "truncated": step.truncated,
        "diverged": step.diverged,
        "success": step.success,
        "finished": None if answer.finished is None else answer.finished.to(device, non_blocking=True),
        "unusable": answer.unusable,
        "unmade": None if step.made is None else ~step.made,
        "unsound": unsound_slots(step.observation, step.reward),
    }
    return {name: mask for name, mask in said.items() if mask is not None}
