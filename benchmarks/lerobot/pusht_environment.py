"""PushT with the initial states that ``lerobot-eval`` gives its episodes, and pictures only where they are looked at.

Runs in LeRobot's interpreter; importing it registers ``arena_benchmarks/PushT-v0``.
"""

from __future__ import annotations

import typing

import gymnasium
import numpy as np
from gym_pusht.envs import PushTEnv  # pyright: ignore[reportMissingImports]

ID = "arena_benchmarks/PushT-v0"
STEPS = 300


class PushT(PushTEnv):
    """gym-pusht's environment; episode ``i`` starts from the seed ``start_seed + i``."""

    def __init__(self, start_seed: int = 1000, **arguments: typing.Any) -> None:
        super().__init__(**arguments)
        self._start_seed = start_seed
        self._pictures_wanted = True

    def draw_pictures(self, wanted: bool) -> None:  # noqa: FBT001  as the hook has it
        """Draw the next pictures only if they are wanted."""
        self._pictures_wanted = wanted

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[typing.Any, dict]:
        """Start the episode that ``options`` names, for any seed."""
        del seed
        index = (options or {})["episode_index"]
        return super().reset(seed=self._start_seed + index)

    def get_obs(self) -> dict[str, np.ndarray]:
        """Return the observation, without its picture if it has no reader."""
        if self._pictures_wanted:
            return super().get_obs()
        return {"agent_pos": np.array(self.agent.position)}


gymnasium.register(
    ID,
    entry_point=PushT,
    max_episode_steps=STEPS,
    disable_env_checker=True,
    kwargs={"obs_type": "pixels_agent_pos", "render_mode": "rgb_array"},
)
