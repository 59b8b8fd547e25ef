"""Read ``params/agent.yaml``, the settings of an rsl_rl training that its checkpoints lack.

It is read as rsl_rl of any version from 2 on, Isaac Lab, mjlab and this package write it; of all its keys only those
that decide what a policy does.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import read_options
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.models.action_scaling import ActionScaling

AGENT_FILE = Path("params", "agent.yaml")
ENVIRONMENT_FILE = "env.yaml"

_DEFAULT_GROUP = "policy"
# Of what the network is the configuration: of students, of actors since rsl_rl 4, and of both before.
_NETWORK_KEYS = ("student", "actor", "policy")


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """What is known of a network beside its tensors.

    Attributes:
        class_name: Its class in rsl_rl, without module; empty where nobody says.
        activation: One of rsl_rl's names.
        distribution: ``class_name`` and options of its distribution; empty where nobody says.
        module: The module of the class where one is named.
    """

    class_name: str = ""
    activation: str = "elu"
    distribution: Mapping[str, Any] = field(default_factory=dict)
    module: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """What decides how a checkpoint acts, with the keys of the file.

    Attributes:
        class_name: Class of the runner that trained it.
        obs_groups: What each network is shown: groups of the environment, by the name of the set.
        observation_terms: The terms of each group, in the order in which the network was shown them.
        action_scaling: What its numbers mean to the environment.
        clip_actions: Largest absolute value of its numbers that counts, None for no limit.
        actor: Configuration of the actor, since rsl_rl 4.
        student: Configuration of a student that was distilled.
        policy: Configuration of the networks before rsl_rl 4.
    """

    class_name: str = "OnPolicyRunner"
    obs_groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    observation_terms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    action_scaling: ActionScaling = ActionScaling.AS_IS
    clip_actions: float | None = None
    actor: dict[str, Any] | None = None
    student: dict[str, Any] | None = None
    policy: dict[str, Any] | None = None

    @property
    def observation_groups(self) -> tuple[str, ...]:
        """The groups that the policy is shown, one behind the other."""
        for name in _NETWORK_KEYS:
            if getattr(self, name) is not None and self.obs_groups.get(name):
                return self.obs_groups[name]
        return self.obs_groups.get(_DEFAULT_GROUP) or (_DEFAULT_GROUP,)

    @property
    def network(self) -> NetworkSettings:
        """What is said of the policy's network."""
        block = next((found for name in _NETWORK_KEYS if (found := getattr(self, name)) is not None), {})
        module, _, class_name = str(block.get("class_name") or "").replace(":", ".").rpartition(".")
        distribution = block.get("distribution_cfg") or {}
        if not distribution and block.get("state_dependent_std"):
            std_type = block.get("noise_std_type") or "scalar"
            distribution = {"class_name": "HeteroscedasticGaussianDistribution", "std_type": std_type}
        return NetworkSettings(
            class_name=class_name,
            module=module,
            activation=str(block.get("activation") or "elu").lower(),
            distribution=distribution,
        )


def find_agent_file(checkpoint: Path) -> Path | None:
    """Return the configuration that belongs to a checkpoint or an exported network, None where there is none.

    It is looked for beside the file, where Isaac Lab, mjlab and this package put it, and one directory above, because
    exported files lie in a directory of their own.

    Args:
        checkpoint: The file.
    """
    directories = checkpoint.absolute().parents[:2]
    return next((path for directory in directories if (path := directory / AGENT_FILE).is_file()), None)


def trained_environment(agent_file: Path) -> Mapping[str, Any]:
    """Return the environment that a training of this package names beside its configuration, empty for any other.

    Args:
        agent_file: The configuration of the agent.

    Returns:
        ``env_name`` and ``env_kwargs``, as a recording has them.
    """
    path = agent_file.with_name(ENVIRONMENT_FILE)
    try:
        document = read_document(path, python_tags=True) if path.is_file() else {}
    except ConfigError:
        # Nothing of it decides what the network does, and other programs write there what they like.
        return {}
    if not isinstance(document, dict) or not isinstance(document.get("environment"), str):
        return {}
    options = {key: value for key, value in document.items() if key not in ("environment", "num_envs")}
    return {"env_name": document["environment"], "env_kwargs": options}


def read_agent_settings(path: str | Path) -> AgentSettings:
    """Read a configuration; tags of Python's own, which Isaac Lab and mjlab leave in it, are passed over.

    Raises:
        ConfigError: With every problem, each with the file and the key.
    """
    document = read_document(path, python_tags=True)
    file = str(path)
    if not isinstance(document, dict):
        raise ConfigError(Problem("must be a mapping from key to value", file=file))
    known = {entry.name for entry in dataclasses.fields(AgentSettings)}
    options = {key: value for key, value in document.items() if key in known and value is not None}
    try:
        return read_options(AgentSettings, options, owner="the configuration of an agent")
    except ConfigError as error:
        raise ConfigError([dataclasses.replace(problem, file=file) for problem in error.problems]) from error
