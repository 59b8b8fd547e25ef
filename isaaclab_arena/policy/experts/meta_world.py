"""Meta-World's own scripted experts, one for each of its tasks."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg
from isaaclab_arena.interfaces.policy_traits import PolicyTraits


@dataclass(frozen=True)
class MetaWorldExpertCfg(PolicyCfg):
    """Options of `MetaWorldExpertPolicy`.

    Attributes:
        task: Whose expert acts, for example ``reach-v3``; the one of the environment's task by default.
    """

    task: str | None = None


class MetaWorldExpertPolicy(PolicyBase[MetaWorldExpertCfg]):
    """Does what Meta-World's expert for the task does; it sees nothing but the observation.

    The expert is asked where the environment's Meta-World is, which may be another interpreter.
    """

    name: ClassVar[str] = "metaworld_expert"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)
    config_class: ClassVar[type | None] = MetaWorldExpertCfg

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the expert's actions. Shape: (num_envs, 4).

        Raises:
            ConfigError: If the environment is none that has experts, or there is none for the task.
        """
        ask = getattr(env, "expert_actions", None)
        if ask is None:
            raise ConfigError(f"metaworld_expert acts in environments metaworld:<task>, and this is {_name(env)}")
        task = self.config.task if self.config is not None and self.config.task is not None else _name(env)
        try:
            actions = ask(task, observation["policy"]["obs"].to("cpu", torch.float32).numpy())
        except ImportError as error:
            message = f"metaworld_expert needs Meta-World where its environment runs ({error})"
            raise ConfigError(f"{message}: docs/how_to/external_environments.md says how to install it") from error
        except LookupError as error:
            raise ConfigError(Problem(str(error), key="task")) from error
        return torch.tensor(actions, device=env.device)


def _name(env: Environment) -> str:
    return str(getattr(env, "task_name", env.task_description))
