"""The episodes under way in the rows of a batch: how long each of them is, and what it has earned."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.rollout.endings import Ending, ending_of
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart


class RunningEpisodes:
    """Which episode each row runs, and what it has gathered so far.

    Args:
        num_rows: Number of rows.
        device: Where masks and sums live.

    Attributes:
        running: Rows in which an episode is under way. Shape: (num_rows,), bool.
        num_running: Their number.
        num_finished: Episodes that ran to their end.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.running = torch.zeros(num_rows, dtype=torch.bool, device=device)
        self.num_running = 0
        self.num_finished = 0
        self._starts: list[EpisodeStart | None] = [None] * num_rows
        self._started_s = [0.0] * num_rows
        self._length = torch.zeros(num_rows, dtype=torch.int64, device=device)
        # Double precision, so that the sum does not depend on the order of magnitude of what came before.
        self._return = torch.zeros(num_rows, dtype=torch.float64, device=device)

    def begin(self, starts: Sequence[EpisodeStart], *, now_s: float) -> None:
        """Begin episodes in rows that are free."""
        rows = torch.tensor([start.env_id for start in starts], dtype=torch.int64, device=self.running.device)
        for start in starts:
            self._starts[start.env_id] = start
            self._started_s[start.env_id] = now_s
        self.running[rows] = True
        self.num_running += len(starts)
        self._length[rows] = 0
        self._return[rows] = 0.0

    def count(self, step: Step) -> None:
        """Count a step of every episode under way."""
        self._length += self.running
        self._return += torch.where(self.running, step.reward, 0.0)

    def over(self, step: Step, policy_finished: torch.Tensor | None, *, max_length: int) -> dict[int, Ending]:
        """Return how episodes ended with a step, by row.

        Args:
            step: The step.
            policy_finished: Rows in which the policy has nothing more to do, None for none. Shape: (num_rows,), bool.
            max_length: Control steps after which an episode must be over.

        Raises:
            ArenaError: If one of them is longer.
        """
        over = step.terminated | step.truncated | step.diverged
        if policy_finished is not None:
            over = over | policy_finished.to(over.device)
        overdue = ~over & (self._length >= max_length)
        # Together, because each time that it is read back what a GPU has computed takes as long as a small network.
        over, overdue = (torch.stack((over, overdue)) & self.running).cpu()
        if bool(overdue.any()):
            raise ArenaError(
                f"the environment broke its contract: row {int(torch.nonzero(overdue)[0])} made {max_length} steps, "
                "its max_episode_length, and was not truncated"
            )
        if not bool(over.any()):
            return {}
        verdicts = _on_cpu(step)
        return {env_id: ending_of(verdicts, env_id) for env_id in torch.nonzero(over).flatten().tolist()}

    def late(self, *, now_s: float, limit_s: float) -> list[int]:
        """Return the rows of episodes that have taken longer than a limit [s]."""
        running = torch.nonzero(self.running).flatten().tolist()
        return [env_id for env_id in running if now_s - self._started_s[env_id] > limit_s]

    def tried(self) -> list[int]:
        """Return the rows of episodes that have made a step."""
        return torch.nonzero(self.running & (self._length > 0)).flatten().tolist()

    def end(self, endings: Mapping[int, Ending], step: Step) -> list[EpisodeRecord]:
        """End episodes, and return what is known of them.

        Args:
            endings: Row to how its episode ends.
            step: The last step, for its metrics.
        """
        if not endings:
            return []
        lengths, returns = self._length.cpu(), self._return.cpu()
        metrics = {name: values.cpu() for name, values in step.metrics.items()}
        self.running[torch.tensor(list(endings), device=self.running.device)] = False
        self.num_running -= len(endings)
        self.num_finished += len(endings)
        records = []
        for env_id, ending in endings.items():
            start = self._starts[env_id]
            if start is None:
                raise RuntimeError(f"row {env_id} ended an episode that was never started")
            record = EpisodeRecord(
                episode=start.episode,
                env_id=env_id,
                outcome=ending.outcome,
                success=ending.success,
                length=int(lengths[env_id]),
                episode_return=float(returns[env_id]),
                termination=ending.termination,
                conditions=start.conditions,
                language_instruction=start.language_instruction,
                metrics={name: float(values[env_id]) for name, values in metrics.items()},
                error=ending.error,
                first_row=start.first_row,
            )
            records.append(record)
        return records


def _on_cpu(step: Step) -> Step:
    """Return a step whose verdicts on the rows are read once, and not row by row."""
    return replace(
        step,
        terminated=step.terminated.cpu(),
        truncated=step.truncated.cpu(),
        success=None if step.success is None else step.success.cpu(),
        diverged=step.diverged.cpu(),
    )
