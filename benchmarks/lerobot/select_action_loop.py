"""Ask a policy for one action after the other, as ``lerobot-eval`` does: ``select_action_loop POLICY SHOWN ACTIONS``.

Runs in LeRobot's interpreter. ``SHOWN`` is a directory with the observations of an episode in each of its files, and
``ACTIONS`` one for the actions.
"""

from __future__ import annotations

import pathlib
import sys
import typing

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig  # pyright: ignore[reportMissingImports]
from lerobot.envs.utils import preprocess_observation  # pyright: ignore[reportMissingImports]
from lerobot.policies.factory import get_policy_class, make_pre_post_processors  # pyright: ignore[reportMissingImports]


class Loop:
    """A policy with its processors.

    Args:
        directory: What LeRobot saved.
    """

    def __init__(self, directory: str) -> None:
        config = PreTrainedConfig.from_pretrained(directory)
        self._policy = get_policy_class(config.type).from_pretrained(directory, config=config)
        self._before, self._after = make_pre_post_processors(config, pretrained_path=directory)
        self._config: typing.Any = config

    def actions(self, shown: typing.Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the action after each observation of an episode.

        Args:
            shown: ``state`` of each control step, pictures by the name of the camera, and ``seeds`` of the noise of
                each look.

        Returns:
            Shape: (num_steps, action_dim), float32.
        """
        cameras = shown.keys() - {"state", "seeds"}
        self._policy.reset()
        actions = []
        for step in range(len(shown["state"])):
            seen: typing.Any = {"pixels": {name: shown[name][step] for name in cameras}}
            observation = self._before(preprocess_observation({**seen, "agent_pos": shown["state"][step]}))
            with torch.inference_mode():
                action = self._policy.select_action(observation, **self._noise(step, shown["seeds"]))
            actions.append(self._after(action)[0].numpy())
        return np.stack(actions)

    def _noise(self, step: int, seeds: np.ndarray) -> dict[str, torch.Tensor]:
        """Return the noise of the look at a control step, where the policy takes any."""
        if self._config.type != "diffusion" or step % self._config.n_action_steps:
            return {}
        generator = torch.Generator().manual_seed(int(seeds[step // self._config.n_action_steps]))
        [action_dim] = self._config.action_feature.shape
        return {"noise": torch.randn((self._config.horizon, action_dim), generator=generator)[None]}


def main(policy: str, shown: str, actions: str) -> None:
    """Answer every episode."""
    torch.set_num_threads(1)
    loop = Loop(policy)
    for path in sorted(pathlib.Path(shown).glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            np.save(pathlib.Path(actions) / f"{path.stem}.npy", loop.actions(dict(arrays)))


if __name__ == "__main__":
    main(*sys.argv[1:4])
