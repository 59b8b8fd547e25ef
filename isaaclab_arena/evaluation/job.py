"""A job that was checked: what it asks for, and the classes that do it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.interfaces.environment import EnvironmentBuilder
from isaaclab_arena.policy.policy_base import PolicyBase


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job, ready to run.

    Attributes:
        config: What the job file says.
        builder: Builds the environment.
        environment_config: Instance of the builder's ``config_class``.
        policy_class: Class of the policy.
        policy_options: What ``policy_class.from_dict`` takes: the job's options, with ``num_envs`` and what the
            command line gives where the policy has such options.
    """

    config: JobConfig
    builder: EnvironmentBuilder
    environment_config: Any
    policy_class: type[PolicyBase]
    policy_options: Mapping[str, Any]

    def environment_option(self, name: str) -> str | None:
        """Return an option of the environment as text, such as ``object``, None where it has no such option."""
        value = getattr(self.environment_config, name, None)
        return None if value is None else str(value)
