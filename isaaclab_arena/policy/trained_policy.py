"""Read a job's options for a trained policy, and load the network in its files."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from isaaclab_arena.distributed.devices import check_policy_device, resolve_policy_device
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.models.action_scaling import ActionScaling
from isaaclab_arena.models.exported import load_network
from isaaclab_arena.models.network import PolicyNetwork
from isaaclab_arena.models.rsl_rl_checkpoint import AgentSettings, find_agent_file, read_agent_settings
from isaaclab_arena.models.run_directory import checkpoint_file

FILE_KEY = "checkpoint_path"
_AGENT_KEY = "agent_cfg_path"

Result = TypeVar("Result")


@dataclass(frozen=True)
class RslRlPolicyCfg(PolicyCfg):
    """Options of `RslRlPolicy`. Paths are relative to the working directory.

    Attributes:
        checkpoint_path: ``model_<iteration>.pt``, an ONNX or TorchScript file, or the directory of a training.
        checkpoint: Which checkpoint of a directory: ``best``, ``latest`` or an iteration; None for ``model_best.pt``
            where there is one, otherwise the latest.
        agent_cfg_path: The configuration of the training; None for ``params/agent.yaml`` beside the file or one
            directory above.
        policy_device: ``cpu``, ``cuda`` or ``cuda:<index>``.
        policy_device_id: Index of a GPU.
        device: Isaac Lab Arena's name of ``policy_device``.
        observation_groups: Groups of the environment that the network is shown, one behind the other; None for what
            the configuration says.
        observation_terms: The terms of each group in the order in which the network was shown them; None for what the
            configuration says, and where that says nothing, all in the environment's order.
        action_scaling: ``as_is`` or ``within_bounds``; None for what the configuration says.
        clip_actions: Largest absolute value of the network's numbers that counts; None for what the configuration
            says.
        stochastic: Whether actions are drawn, as in training, instead of the mean being taken.
    """

    checkpoint_path: str
    checkpoint: int | str | None = None
    agent_cfg_path: str | None = None
    policy_device: str | None = None
    policy_device_id: int | None = None
    device: str | None = None
    observation_groups: tuple[str, ...] | None = None
    observation_terms: dict[str, tuple[str, ...]] | None = None
    action_scaling: ActionScaling | None = None
    clip_actions: float | None = None
    stochastic: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainedPolicy:
    """A network, and how it is to act.

    Attributes:
        file: Where it comes from.
        network: The network.
        observation_groups: Groups that it is shown, one behind the other.
        observation_terms: The terms of each group, in order.
        action_scaling: What its numbers mean to the environment.
        clip_actions: Largest absolute value of its numbers that counts, None for no limit.
    """

    file: Path
    network: PolicyNetwork
    observation_groups: tuple[str, ...]
    observation_terms: Mapping[str, Sequence[str]]
    action_scaling: ActionScaling
    clip_actions: float | None


def policy_device(config: RslRlPolicyCfg) -> torch.device:
    """Return where the network runs: as LOCAL_RANK says, or an option.

    Raises:
        ConfigError: If there is no such device, or two options name different ones.
    """
    named = {name for name in (config.policy_device, config.device) if name is not None}
    if len(named) > 1:
        message = f"is '{config.device}', but policy_device is '{config.policy_device}'; give one of them"
        raise ConfigError(Problem(message, key="device"))
    key = "device" if config.policy_device is None and config.policy_device_id is None else None
    name = next(iter(named), None)
    _with_key(key, lambda: check_policy_device(policy_device_id=config.policy_device_id, policy_device=name))
    return _with_key(key, lambda: resolve_policy_device(policy_device_id=config.policy_device_id, policy_device=name))


def load_trained(
    config: RslRlPolicyCfg, device: torch.device, *, network: PolicyNetwork | None = None
) -> TrainedPolicy:
    """Return the network, and how it acts as far as the files and the options tell.

    Args:
        config: Options of the job.
        device: Where the network is to run.
        network: The network, where it need not be loaded.

    Raises:
        ConfigError: With ``key`` set to the option at fault.
    """
    file = checkpoint_file(config.checkpoint_path, config.checkpoint)
    agent_file = find_agent_file(file) if config.agent_cfg_path is None else Path(config.agent_cfg_path)
    told = None if agent_file is None else _with_key(_AGENT_KEY, lambda: read_agent_settings(agent_file))
    network = network or _with_key(FILE_KEY, lambda: load_network(file, told, device))
    if config.stochastic and not network.knows_std:
        message = "actions can only be drawn from the Gaussian of a checkpoint; this network has none"
        raise ConfigError(Problem(message, key="stochastic"))
    settings = told or AgentSettings()
    clip = settings.clip_actions if config.clip_actions is None else config.clip_actions
    if clip is not None and clip <= 0:
        raise ConfigError(Problem(f"must be above 0, got {clip:g}", key="clip_actions"))
    return TrainedPolicy(
        file=file,
        network=network,
        observation_groups=tuple(config.observation_groups or settings.observation_groups),
        observation_terms=settings.observation_terms if config.observation_terms is None else config.observation_terms,
        action_scaling=_scaling(config.action_scaling or settings.action_scaling),
        clip_actions=clip,
    )


def _scaling(name: str) -> ActionScaling:
    if name not in set(ActionScaling):
        raise ConfigError(Problem(f"no such scaling '{name}'{did_you_mean(name, ActionScaling)}", key="action_scaling"))
    return ActionScaling(name)


def _with_key(key: str | None, act: Callable[[], Result]) -> Result:
    """Do something, and say which option of the job is at fault where a file or a device is."""
    try:
        return act()
    except ConfigError as error:
        if key is None:
            raise
        # A job names the file, so that is the key there; the message says where in the file to look.
        problems = [
            dataclasses.replace(problem, key=None) if not problem.file else problem for problem in error.problems
        ]
        raise ConfigError([Problem(str(problem), key=key) for problem in problems]) from error
