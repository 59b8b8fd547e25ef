"""Meta-World's own scripted experts, one for each of its tasks."""

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.policy.policy_base import PolicyBase, PolicyCfg

INSTALL = "pip install imageio && pip install --no-deps metaworld==3.1.1"


@dataclass(frozen=True)
class MetaWorldExpertCfg(PolicyCfg):
    """Options of `MetaWorldExpertPolicy`.

    Attributes:
        task: Whose expert acts, for example ``reach-v3``; the one of the environment's task by default.
    """

    task: str | None = None


class MetaWorldExpertPolicy(PolicyBase[MetaWorldExpertCfg]):
    """Does what Meta-World's expert for the task does; it sees nothing but the observation.

    Raises:
        ConfigError: If Meta-World is not installed, or has no expert of that name.
    """

    name: ClassVar[str] = "metaworld_expert"
    reproducible = True
    batch_invariant: ClassVar[bool] = True
    config_class: ClassVar[type | None] = MetaWorldExpertCfg

    def __init__(self, config: MetaWorldExpertCfg | None = None) -> None:
        super().__init__(config)
        self._experts = _expert_classes()
        self._task: str | None = None
        self._expert: Any = None
        if config is not None and config.task is not None:
            self._choose(config.task)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the expert's actions. Shape: (num_envs, 4)."""
        if self.config is None or self.config.task is None:
            self._choose(str(getattr(env, "task_name", "")))
        seen = observation["policy"]["obs"].to("cpu", torch.float64).numpy()
        with warnings.catch_warnings():
            # The experts ask for more than the environment takes, and say so at every step.
            warnings.simplefilter("ignore")
            # Experts keep nothing between steps, so one serves all rows.
            actions = [self._expert.get_action(row) for row in seen]
        return torch.from_numpy(np.stack(actions).astype(np.float32)).clamp(-1.0, 1.0).to(env.device)

    def _choose(self, task: str) -> None:
        if task == self._task:
            return
        if task not in self._experts:
            raise ConfigError(Problem(f"no expert for '{task}'{did_you_mean(task, self._experts)}", key="task"))
        self._expert = self._experts[task]()
        self._task = task


def _expert_classes() -> Mapping[str, type]:
    """Return the experts by the name of their task."""
    try:
        return importlib.import_module("metaworld.policies").ENV_POLICY_MAP
    except ImportError as error:
        raise ConfigError(f"metaworld_expert needs Meta-World ({error}): {INSTALL}") from error
