"""A job that was checked: what it asks for, and the classes that do it."""

import json
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

    @property
    def environment_key(self) -> str:
        """Equal for two jobs that can use the same environment object."""
        config = self.config
        return json.dumps(
            [config.environment, config.environment_args, config.num_envs, config.enable_cameras], sort_keys=True
        )

    @property
    def policy_key(self) -> str:
        """Equal for two jobs that can use the same policy object."""
        return json.dumps([self.config.policy_type, self.policy_options], sort_keys=True)

    def build_policy(self) -> PolicyBase:
        """Build the policy.

        Raises:
            ConfigError: If the policy refuses its options.
        """
        return self.policy_class.from_dict(self.policy_options)

    def environment_option(self, name: str) -> str | None:
        """Return an option of the environment as text, such as ``object``, None where it has no such option."""
        value = getattr(self.environment_config, name, None)
        return None if value is None else str(value)
