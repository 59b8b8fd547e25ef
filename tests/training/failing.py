"""An algorithm that fails on one rank."""

from typing import Any

import torch.distributed as dist

from isaaclab_arena.training.algorithms import PPO


class Failing(PPO):
    """PPO whose second rank breaks down in its first update, while the first one waits for it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def update(self) -> dict[str, float]:
        if dist.is_initialized() and dist.get_rank() == 1:
            raise LookupError("rank 1 cannot go on")
        return super().update()
