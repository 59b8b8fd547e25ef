"""The last frames of env slots, for policies that see more than the present step."""

from collections.abc import Mapping, Sequence

import torch


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
