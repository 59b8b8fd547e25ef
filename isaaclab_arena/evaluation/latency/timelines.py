"""What each env slot plays, what it waits for and when it asks next, in control steps of its own episode."""

from collections.abc import Sequence

import torch

from isaaclab_arena.interfaces.policy_traits import ChunkTraits

_NEVER = -1


class Timelines:
    """The plans of all env slots, on the CPU.

    An env slot has one query under way at most. Its answer belongs to the step of the query and comes some steps later.

    Args:
        num_envs: Number of env slots.
        traits: How many actions a chunk has.
        action_dim: Numbers of an action.
        lead: How many steps before its chunk is used up an env slot asks for the next one. With 0 it plays every
            action of a chunk, from the first one on, when the chunk is there. Otherwise it goes on with the chunk that
            it has, and of the next one it leaves out the actions that are late.

    Attributes:
        queries: Queries of each env slot's episode so far. Shape: (num_envs,), int64.
        stale_steps: Steps of it in which an answer was awaited. Shape: (num_envs,), int64.
        length: All steps of it. Shape: (num_envs,), int64.
    """

    def __init__(self, num_envs: int, traits: ChunkTraits, action_dim: int, *, lead: int, goes_on: bool) -> None:
        self._traits, self._lead, self._goes_on = traits, lead, goes_on
        self.plans = torch.zeros(num_envs, traits.predicted, action_dim)
        self._answers = torch.zeros_like(self.plans)
        self._begin, self._end, self._asked, self._due = (
            torch.full((num_envs,), _NEVER, dtype=torch.int64) for _ in range(4)
        )
        self._active = torch.zeros(num_envs, dtype=torch.bool)
        self.queries, self.stale_steps, self.length = (torch.zeros(num_envs, dtype=torch.int64) for _ in range(3))

    def restart(self, env_ids: torch.Tensor) -> None:
        """Begin anew in some env slots, without a plan. Shape: (n,), int64."""
        self._active[env_ids] = True
        for numbers in (self._asked, self._due):
            numbers[env_ids] = _NEVER
        for counts in (self._begin, self._end, self.queries, self.stale_steps, self.length):
            counts[env_ids] = 0

    def rest(self, env_ids: Sequence[int]) -> None:
        """Ask for some env slots no more."""
        self._active[list(env_ids)] = False

    @property
    def active(self) -> list[int]:
        """The env slots in which an episode is under way."""
        return torch.nonzero(self._active).flatten().tolist()

    def asking(self) -> list[int]:
        """Return the env slots that ask in their next step."""
        is_waiting = self._due != _NEVER
        return torch.nonzero(self._active & ~is_waiting & (self._end - self.length <= self._lead)).flatten().tolist()

    def played(self, env_ids: Sequence[int]) -> torch.Tensor:
        """Return how many actions of their plans belong to earlier steps; all where there is no plan. Shape: (n,)."""
        slots = torch.tensor(list(env_ids), dtype=torch.int64)
        is_first = self.queries[slots] == 0
        played = (self.length - self._begin)[slots].clamp(max=self._traits.predicted)
        return played.masked_fill(is_first, self._traits.predicted)

    def ask(self, env_ids: Sequence[int], chunks: torch.Tensor, delays: Sequence[int]) -> None:
        """Take the answers to queries of this step, for when they are there.

        Args:
            env_ids: The env slots.
            chunks: Their answers. Shape: (n, predicted, action_dim).
            delays: Control steps until each of them is there.
        """
        slots = torch.tensor(list(env_ids), dtype=torch.int64)
        self._answers[slots] = chunks
        self._asked[slots] = self.length[slots]
        self._due[slots] = self.length[slots] + torch.tensor(list(delays), dtype=torch.int64)
        self.queries[slots] += 1
        self._receive()

    def next_actions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next action of every env slot and which of them have one, and let a step pass.

        Returns:
            Shapes: (num_envs, action_dim), and (num_envs,), bool.
        """
        place = self.length - self._begin
        has_one = self._active & (self.queries > 0) & (place < self._traits.predicted) & (self.length < self._end)
        if self._goes_on:
            has_one = self._active & (self.queries > 0) & (place < self._traits.predicted)
        slots = torch.arange(len(place))
        action = torch.where(has_one[:, None], self.plans[slots, place.clamp(0, self._traits.predicted - 1)], 0.0)
        self.stale_steps += self._active & (self._due != _NEVER)
        self.length += self._active
        self._receive()
        return action, has_one

    def _receive(self) -> None:
        """Make the answers that are there by now the plans."""
        there = (self._due != _NEVER) & (self._due <= self.length)
        late = (self.length - self._asked) if self._goes_on else torch.zeros_like(self.length)
        self._begin = torch.where(there, self.length - late, self._begin)
        most = torch.full_like(late, self._traits.predicted)
        self._end = torch.where(there, self._begin + torch.minimum(late + self._traits.played, most), self._end)
        self.plans = torch.where(there[:, None, None], self._answers, self.plans)
        self._due[there] = _NEVER
