"""Chunks of actions, one per env slot: the rest of each, the env slots that need another, and the next action of all.

A `ChunkPlayer` is a value: a step in an env slot's life gives a new one and leaves the old one as it was. `ChunkPolicy`
keeps one for policies that ask for chunks, `ActionChunkScheduler` for a policy that has no env slots at rest, under
Isaac Lab Arena's names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import numpy as np
import torch
from torch.nn.functional import pad

from isaaclab_arena.config.schema import MAX_SEED
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase

OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True, kw_only=True)
class ChunkPlayer:
    """Turns chunks of actions into one action per control step and env slot; env slots at rest get zeros.

    Each env slot plays its chunk to the end, then needs the next. With ``averaging``, it needs a chunk in every step
    and plays the mean of all predictions for that step. The i-th oldest weighs ``exp(-averaging * i)``, the oldest
    being number 0: Zhao et al., Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware (ACT), 2023, IV-A.
    """

    # Newest first. Shape: (num_envs, num_kept, chunk_length, action_dim); one is kept without averaging.
    chunks: torch.Tensor
    # Index of the next action of the newest chunk. Shape: (num_envs,), int64.
    next_step: torch.Tensor
    count: torch.Tensor  # chunks of the episode that are kept; shape (num_envs,), int64
    active: torch.Tensor  # env slots that play, from the start of an episode to its end; shape (num_envs,), bool
    averaging: float | None = None

    @classmethod
    def empty(
        cls,
        num_envs: int,
        *,
        chunk_length: int,
        action_dim: int,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        averaging: float | None = None,
    ) -> Self:
        """Return the player of env slots in which no episode has begun."""
        num_kept = 1 if averaging is None else chunk_length
        return cls(
            chunks=torch.zeros((num_envs, num_kept, chunk_length, action_dim), device=device, dtype=dtype),
            next_step=torch.full((num_envs,), chunk_length, dtype=torch.int64, device=device),
            count=torch.zeros(num_envs, dtype=torch.int64, device=device),
            active=torch.zeros(num_envs, dtype=torch.bool, device=device),
            averaging=averaging,
        )

    @property
    def num_envs(self) -> int:
        """Number of env slots."""
        return len(self.chunks)

    @property
    def num_played(self) -> int:
        """Actions of a chunk that are played before the next one is needed."""
        return self.chunks.shape[2] if self.averaging is None else 1

    def needs_chunk(self) -> torch.Tensor:
        """Mask the env slots that cannot continue without a chunk. Shape: (num_envs,), bool."""
        return self.active & (self.next_step >= self.num_played)

    def refilled(self, env_ids: torch.Tensor, chunks: Sequence[torch.Tensor] | torch.Tensor) -> Self:
        """Return the player with new chunks, each (length, action_dim), in env slots of shape (n,), int64."""
        # A shorter chunk is aligned to the end of its env slot's row, so that all rows end together.
        old, num_kept = self.chunks.shape[2], self.chunks.shape[1]
        if isinstance(chunks, torch.Tensor):
            # One of many env slots is padded as a whole.
            length = max(old, chunks.shape[1])
            rows = pad(chunks, (0, 0, length - chunks.shape[1], 0))
            first = torch.full_like(env_ids, length - chunks.shape[1])
        else:
            length = max(old, *map(len, chunks))
            rows = torch.stack([pad(chunk, (0, 0, length - len(chunk), 0)) for chunk in chunks])
            first = torch.tensor([length - len(chunk) for chunk in chunks], device=self.next_step.device)
        kept = pad(self.chunks, (0, 0, length - old, 0))
        return replace(
            self,
            chunks=kept.index_copy(0, env_ids, torch.cat((rows[:, None], kept[env_ids, :-1]), dim=1)),
            next_step=(self.next_step + length - old).index_copy(0, env_ids, first),
            count=self.count.index_copy(0, env_ids, (self.count[env_ids] + 1).clamp(max=num_kept)),
        )

    def popped(self, acting: torch.Tensor | None = None) -> tuple[torch.Tensor, Self]:
        """Return all env slots' actions (num_envs, action_dim), and the player without those that are played."""
        # ``acting`` masks the env slots whose action is played, None for all; the others keep theirs.
        has_one = self.active & (self.next_step < self.num_played)
        if self.averaging is None:
            step = self.next_step.clamp(max=self.num_played - 1)
            slots = torch.arange(self.num_envs, device=step.device)
            action = torch.where(has_one[:, None], self.chunks[slots, 0, step], 0.0)
        else:
            age = torch.arange(self.chunks.shape[1], device=self.count.device)
            # The chunk of age k was made k steps ago, so its entry number k is about this step.
            predictions = self.chunks[:, age, age]
            rank_from_oldest = self.count[:, None] - 1 - age
            there = (rank_from_oldest >= 0) & self.active[:, None]
            weights = torch.where(there, torch.exp(-self.averaging * rank_from_oldest), 0.0)
            total = weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
            # Stale values from before the episode must have no effect, not even as NaN times zero.
            kept = torch.where(there[:, :, None], predictions, 0.0)
            action = (kept * (weights / total)[:, :, None]).sum(dim=1)
        is_played = has_one if acting is None else has_one & acting
        return action, replace(self, next_step=self.next_step + is_played)

    def planned(self, env_id: int) -> torch.Tensor:
        """Return the actions that an env slot plays whatever it observes. Shape: (n, action_dim)."""
        return self.chunks[env_id, 0, int(self.next_step[env_id]) : self.num_played if self.averaging is None else 0]

    def restarted(self, env_ids: torch.Tensor) -> Self:
        """Return the player with these env slots active and their earlier chunks dropped."""
        return replace(
            self,
            next_step=self.next_step.index_fill(0, env_ids, self.chunks.shape[2]),
            count=self.count.index_fill(0, env_ids, 0),
            active=self.active.index_fill(0, env_ids, True),  # noqa: FBT003  the value to fill in
        )

    def rested(self, env_ids: torch.Tensor) -> Self:
        """Return the player with these env slots no longer active."""
        return replace(self, active=self.active.index_fill(0, env_ids, False))  # noqa: FBT003  the value to fill in


class ChunkPolicy(PolicyBase[OptionsT]):
    """Plays a chunk of actions in each env slot, and asks for the next one when it is used up.

    A subclass defines `PolicyBase.chunks` and `PolicyBase.chunk_traits`, and `look` if a query shows earlier steps.
    """

    _num_played: int  # actions of a chunk that are played before the next query; each policy sets its own
    _averaging: float | None = None  # see `ChunkPlayer`
    # The observations that a query shows: 0 is the one at that step, -1 the one before it.
    _shown_steps: Sequence[int] = (0,)

    def __init__(self, config: OptionsT) -> None:
        super().__init__(config)
        # Each env slot has its own chunk, instruction and stream of seeds, which begin with its episode.
        self._instructions: dict[int, str | None] = {}  # None for an episode that states none
        self._generators: dict[int, np.random.Generator] = {}
        self._player: ChunkPlayer | None = None
        # Env slots up to which calls of the network are filled, None for `slots_per_call`.
        self._filled_up_to: int | None = None

    def look(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> None:
        """Do nothing: a query shows the present step alone."""

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        """Fill every later call up to so many env slots, None for `slots_per_call`."""
        self._filled_up_to = num_slots

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Store instructions and noise streams of the episodes that begin, and drop their env slots' old chunks."""
        self._player = self._player_for(env, all_active=False)
        for start in starts:
            # Words that a variation took away stay away.
            said = start.language_instruction
            self._instructions[start.env_id] = said if said or "instruction.words" in start.conditions else None
            self._generators[start.env_id] = start.episode.policy_generator()
        self._restart(torch.tensor([start.env_id for start in starts], dtype=torch.int64))

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Stop queries for env slots that rest."""
        del env
        if self._player is not None:
            self._player = self._player.rested(torch.tensor(list(env_ids), dtype=torch.int64))

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Drop the rest of the named env slots' chunks; with None also instructions and noise streams."""
        if env_ids is None:
            self._instructions, self._generators, self._player = {}, {}, None
        else:
            self._restart(env_ids.cpu())

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return every env slot's action; PolicyLostError if the network is lost, PolicyError for a wrong answer."""
        return self.act_in_some(env, observation, range(env.num_envs))

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        """Return actions as `get_action` does, but advance only the named env slots."""
        player = self._player_for(env, all_active=True)
        acting = torch.zeros(env.num_envs, dtype=torch.bool)
        acting[list(env_ids)] = True
        # First store the observations that a later query needs, then ask for the chunks that are used up.
        self.look(env, observation, env_ids)
        used_up = torch.nonzero(player.needs_chunk() & acting).flatten()
        if len(used_up):
            player = player.refilled(used_up, self._next_chunks(env, observation, used_up.tolist()))
        action, self._player = player.popped(acting)
        return action.to(env.device, non_blocking=True)

    def _next_chunks(
        self, env: Environment, observation: Observation, env_ids: Sequence[int]
    ) -> Sequence[torch.Tensor] | torch.Tensor:
        """Return the next chunks of env slots that have used theirs up, each (length, action_dim)."""
        return self.chunks(env, observation, env_ids)[:, : self._num_played]

    def planned(self, env_id: int) -> torch.Tensor:
        """Return the rest of an env slot's chunk."""
        if self._player is None:
            raise PolicyError("no action was asked for yet")
        return self._player.planned(env_id)

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return the env slots that start, and those whose next observation a query shows."""
        if self._player is None or self._player.num_envs != env.num_envs:
            return starting
        # A step of 0 is a query's own, -15 the one 15 steps before it. The next query comes when the rest of a chunk is
        # played.
        player = self._player
        shown = [(player.next_step - step) % player.num_played == 0 for step in self._shown_steps]
        return [*starting, *torch.nonzero(player.active & torch.stack(shown).any(dim=0)).flatten().tolist()]

    def _words_for(self, env: Environment, env_id: int) -> str:
        """Return the instruction of the episode in an env slot."""
        said = self._instructions.get(env_id)
        return self.task_description or env.task_description if said is None else said

    def _draw_seed(self, env_id: int, entropy: int = 0) -> int:
        """Draw the seed of an env slot's next query from its episode's stream."""
        # A loop that does not announce its episodes has no streams; ``entropy`` then seeds one per env slot.
        if env_id not in self._generators:
            sequence = np.random.SeedSequence(entropy=entropy, spawn_key=(env_id,))
            self._generators[env_id] = np.random.default_rng(sequence)
        return int(self._generators[env_id].integers(MAX_SEED, endpoint=True))

    def _restart(self, env_ids: torch.Tensor) -> None:
        """Drop the rest of these env slots' chunks."""
        if self._player is not None:
            self._player = self._player.restarted(env_ids)

    def _player_for(self, env: Environment, *, all_active: bool) -> ChunkPlayer:
        if self._player is not None and self._player.num_envs == env.num_envs:
            return self._player
        (action_dim,) = env.action_spec.shape
        # Answers arrive on the CPU. With chunks on a GPU, the check for used-up ones would wait for the GPU.
        player = ChunkPlayer.empty(
            env.num_envs, chunk_length=self._num_played, action_dim=action_dim, averaging=self._averaging
        )
        # A loop that does not announce its episodes plays in all env slots.
        return player.restarted(torch.arange(env.num_envs)) if all_active else player


def answered(values: object, what: str) -> np.ndarray:
    """Return an array of real numbers from an answer; PolicyError with the name `what` for any other type."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise PolicyError(f"{what} must be an array of real numbers, got {type(values).__name__} of {array.dtype}")
    return array


def in_float32(array: np.ndarray, what: str) -> np.ndarray:
    """Return the array as contiguous float32; PolicyError if a number is not finite in float32."""
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(array, dtype=np.float32)
    unsound = ~np.isfinite(numbers)
    if unsound.any():
        raise PolicyError(f"{what} holds numbers that are not finite in float32, such as {array[unsound][0]}")
    return numbers


class FrameHistory:
    """The last frames of every env slot, as far back as `steps` need: 0 is the last one pushed, -15 the 15th before."""

    # Push one frame per control step for the env slots that are looked at. The first frame of an episode fills the
    # history. An env slot that makes no step keeps its frames. Pictures are large, so tensors change in place.

    def __init__(self, steps: Sequence[int], num_envs: int) -> None:
        self._steps = tuple(steps)
        self._length = 1 - min(steps)
        self.num_envs = num_envs
        self._newest = torch.zeros(num_envs, dtype=torch.int64)
        self._begins = torch.ones(num_envs, dtype=torch.bool)
        self._known = torch.zeros((num_envs, self._length), dtype=torch.bool)
        self._kept: dict[str, torch.Tensor] = {}

    def restart(self, env_ids: torch.Tensor) -> None:
        """Forget the frames of `env_ids`; the next frame fills their history."""
        self._begins[env_ids.to(self._begins.device)] = True

    def push(
        self, frames: Mapping[str, torch.Tensor], env_ids: Sequence[int], stepping: Sequence[int] | None = None
    ) -> None:
        """Add the next frame of `env_ids`; `stepping` contains all env slots that make a step (None: all of them)."""
        # A stepping env slot without a frame gets a gap, which `frames` refuses to read.
        moved = torch.tensor(range(len(self._newest)) if stepping is None else list(stepping), dtype=torch.int64)
        self._newest[moved] = (self._newest[moved] + 1) % self._length
        self._known[moved, self._newest[moved]] = False
        pushed = torch.tensor(list(env_ids), dtype=torch.int64)
        begins, newest = self._begins[pushed], self._newest[pushed]
        self._known[pushed, newest] = True
        self._known[pushed[begins]] = True
        for key, frame in frames.items():
            if key not in self._kept:
                self._kept[key] = frame.new_zeros((len(self._begins), self._length, *frame.shape[1:]))
            kept = self._kept[key]
            device = frame.device
            kept[pushed.to(device, non_blocking=True), newest.to(device, non_blocking=True)] = frame
            # Index by numbers: a mask would make the CPU wait for its length on the GPU.
            first = frame[begins.nonzero()[:, 0].to(device, non_blocking=True), None]
            anew = pushed[begins].to(device, non_blocking=True)
            kept[anew] = first.expand(-1, self._length, *frame.shape[1:])
        self._begins[pushed] = False

    def frames(self, env_ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return frames of `env_ids`, each (len(env_ids), number of steps, ...); ValueError if one was never pushed."""
        slots = torch.tensor(list(env_ids), dtype=torch.int64)[:, None]
        places = (self._newest[slots] + torch.tensor(self._steps)) % self._length
        if not bool(self._known[slots, places].all()):
            raise ValueError(f"the frames of steps {self._steps} of env slots {list(env_ids)} were not all pushed")
        return {
            key: kept[slots.to(kept.device, non_blocking=True), places.to(kept.device, non_blocking=True)]
            for key, kept in self._kept.items()
        }


class ActionChunkScheduler:
    """Turns a network's chunks, one per env slot, into one action per call and env slot, as in Isaac Lab Arena.

    Args:
        num_envs: Number of env slots.
        action_chunk_length: Actions of a chunk that are played before the env slot needs another.
        action_horizon: Actions that the network predicts, at least as many.
        action_dim: Numbers of an action.
        device: Where the chunks are kept.
        dtype: Of the actions.

    Raises:
        ValueError: If more actions are to be played than are predicted.
    """

    def __init__(
        self,
        num_envs: int,
        action_chunk_length: int,
        action_horizon: int,
        action_dim: int,
        device: str | torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not 1 <= action_chunk_length <= action_horizon:
            raise ValueError(
                f"action_chunk_length is {action_chunk_length}, it must be between 1 and action_horizon, "
                f"which is {action_horizon}"
            )
        self.num_envs = num_envs
        self.action_chunk_length = action_chunk_length
        self.action_horizon = action_horizon
        self.action_dim = action_dim
        self.device = torch.device(device)
        self.dtype = dtype
        self._player = ChunkPlayer.empty(
            num_envs, chunk_length=action_chunk_length, action_dim=action_dim, device=self.device, dtype=dtype
        )
        self.reset()

    @property
    def env_requires_new_chunk(self) -> torch.Tensor:
        """The env slots that have used up their chunk. Shape: (num_envs,), bool."""
        return self._player.needs_chunk()

    @property
    def current_action_index(self) -> torch.Tensor:
        """The index of each env slot's next action, -1 if it needs a chunk. Shape: (num_envs,), int64."""
        return self._player.next_step.masked_fill(self._player.needs_chunk(), -1)

    @property
    def current_action_chunk(self) -> torch.Tensor:
        """The chunks. Shape: (num_envs, action_chunk_length, action_dim)."""
        return self._player.chunks[:, 0]

    def get_action(self, fetch_chunk_fn: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the next action of every env slot, asking for chunks if any env slot needs one.

        Args:
            fetch_chunk_fn: Asks the network for all env slots. Returns shape (num_envs, at least action_chunk_length,
                action_dim); only the env slots that need a chunk take theirs.

        Returns:
            Shape: (num_envs, action_dim).

        Raises:
            PolicyError: If the answer has another shape.
        """
        env_ids = torch.nonzero(self._player.needs_chunk()).flatten()
        if len(env_ids):
            fetched = fetch_chunk_fn()
            shape = tuple(fetched.shape)
            fits = len(shape) == 3 and (shape[0], shape[2]) == (self.num_envs, self.action_dim)
            if not fits or shape[1] < self.action_chunk_length:
                raise PolicyError(
                    f"a chunk of shape {shape} was fetched; expected ({self.num_envs}, {self.action_chunk_length} or "
                    f"more, {self.action_dim}): env slots, actions, numbers of an action"
                )
            chunks = fetched[:, : self.action_chunk_length][env_ids].to(self.device, self.dtype)
            self._player = self._player.refilled(env_ids, chunks)
        action, self._player = self._player.popped()
        return action

    def reset(self, env_ids: torch.Tensor | slice | None = None) -> None:
        """Drop the rest of the named env slots' chunks, None for all. Shape of ``env_ids``: (n,), int64."""
        if env_ids is None:
            # No number of an earlier chunk stays.
            self._player = replace(self._player, chunks=torch.zeros_like(self._player.chunks))
        slots = torch.arange(self.num_envs, device=self.device)
        self._player = self._player.restarted(slots if env_ids is None else slots[env_ids])


ActionChunkingState = ActionChunkScheduler
"""Its first name in Isaac Lab Arena."""
