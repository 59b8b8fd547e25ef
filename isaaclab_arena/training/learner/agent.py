"""Checks the settings of rsl_rl's algorithm and networks, and builds them."""

import contextlib
import inspect
import io
import logging
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from rsl_rl.utils import resolve_callable
from tensordict import TensorDict
from torch import nn

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, first_line
from isaaclab_arena.training.learner.algorithms.grpo import GRPO
from isaaclab_arena.training.learner.algorithms.ppo import PPO
from isaaclab_arena.training.learner.vec_env import TrainingEnvironment
from isaaclab_arena.training.settings.config import TrainingConfig

_LOG = logging.getLogger(__name__)
_OWN_ALGORITHMS: Mapping[str, type] = {"PPO": PPO, "GRPO": GRPO}
_SCHEDULES = ("adaptive", "fixed", "linear")
_CLASS_NAME = "class_name"
_DISTRIBUTION = "distribution_cfg"
_SETTINGS_CLASS = "settings_class"
_MADE_HERE = {
    "algorithm": (
        "self",
        "actor",
        "critic",
        "storage",
        "device",
        "multi_gpu_cfg",
        "grad_sync_period",
        "max_iterations",
    ),
    "actor": ("self", "obs", "obs_groups", "obs_set", "output_dim"),
    "critic": ("self", "obs", "obs_groups", "obs_set", "output_dim"),
}
"""Arguments of the classes that this module sets, not the user."""


def check_agent(config: TrainingConfig) -> None:
    """Refuse classes that do not exist, options that they do not have, and sizes that do not go together.

    Raises:
        ConfigError: With every problem, each with its key.
    """
    agent = config.agent
    problems = []
    for role in _MADE_HERE:
        problems += [Problem(str(each.message), key=f"agent.{role}.{each.key}") for each in _wrong_options(role, agent)]
    if not isinstance(agent.actor.get(_DISTRIBUTION), Mapping):
        message = (
            "a policy that learns draws its actions; give one, as {class_name: GaussianDistribution, init_std: 1.0}"
        )
        problems.append(Problem(message, key=f"agent.actor.{_DISTRIBUTION}"))
    problems += [*_wrong_numbers(config), *_wrong_sizes(config)]
    if problems:
        raise ConfigError(problems)


def build_algorithm(config: TrainingConfig, environment: TrainingEnvironment, context: DistributedContext) -> Any:
    """Return the algorithm with its networks and its storage, on the rank's device.

    Args:
        config: What is asked for; `check_agent` has accepted it.
        environment: The rank's env slots.
        context: Who this process is.

    Raises:
        ConfigError: If the groups of observations are wrong, or a class does not take its options after all.
    """
    agent = config.agent
    algorithm_class = _class_of(agent.algorithm, "algorithm")
    parameters = _taken_by(algorithm_class) or set()
    of_the_run = {"grad_sync_period": config.distributed.grad_sync_period, "max_iterations": agent.max_iterations}
    algorithm = {
        **agent.algorithm,
        _CLASS_NAME: algorithm_class,
        **{name: value for name, value in of_the_run.items() if name in parameters},
    }
    settings = {
        "algorithm": algorithm,
        "actor": dict(agent.actor),
        "critic": dict(agent.critic),
        "obs_groups": {role: list(groups) for role, groups in agent.obs_groups.items()},
        "num_steps_per_env": agent.num_steps_per_env,
        "torch_compile_mode": agent.torch_compile_mode,
        "multi_gpu": _ranks(context),
    }
    observation = environment.get_observations()
    _check_groups(settings["obs_groups"], observation)
    with _quiet():
        try:
            return algorithm_class.construct_algorithm(observation, environment, settings, str(context.device))
        except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            message = f"the agent cannot be built: {first_line(error)}"
            raise ConfigError(Problem(message, key="agent")) from error


def networks_of(algorithm: Any) -> dict[str, nn.Module]:
    """Return the networks of an algorithm by their role."""
    found = {role: getattr(algorithm, f"_raw_{role}", getattr(algorithm, role, None)) for role in ("actor", "critic")}
    return {role: network for role, network in found.items() if isinstance(network, nn.Module)}


def learned_state(algorithm: Any) -> dict[str, Any]:
    """Return the state that is equal on all ranks: weights, normalisers, optimiser, learning rate."""
    return {**algorithm.save(), "learning_rate": float(algorithm.learning_rate)}


def _ranks(context: DistributedContext) -> dict[str, int] | None:
    if not context.is_distributed:
        return None
    return {"global_rank": context.rank, "local_rank": context.local_rank, "world_size": context.world_size}


def _class_of(options: Mapping[str, Any], role: str) -> Any:
    name = options[_CLASS_NAME]
    if role == "algorithm" and name in _OWN_ALGORITHMS:
        return _OWN_ALGORITHMS[name]
    try:
        return resolve_callable(name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        known = ", ".join(_OWN_ALGORITHMS) if role == "algorithm" else "MLPModel, RNNModel"
        message = f"there is no '{name}' ({first_line(error)}); use {known}, or module.path:Class"
        raise ConfigError(Problem(message, key=_CLASS_NAME)) from error


def _wrong_options(role: str, agent: Any) -> Iterator[Problem]:
    options = getattr(agent, role)
    try:
        found = _class_of(options, role)
    except ConfigError as error:
        yield from error.problems
        return
    parameters = _taken_by(found)
    if parameters is None:
        return
    parameters -= set(_MADE_HERE[role])
    hints = _hints(found)
    for name, value in options.items():
        if name == _CLASS_NAME:
            continue
        if name not in parameters:
            yield Problem(f"{options[_CLASS_NAME]} has no such option{did_you_mean(name, parameters)}", key=name)
        elif name in hints and not _fits(hints[name], value):
            told = str(hints[name]).replace("<class '", "").replace("'>", "")
            yield Problem(f"must be {told}, got {value!r}", key=name)


def _taken_by(found: Callable[..., Any]) -> set[str] | None:
    """Return the names of a class's arguments, None if it takes any."""
    found = getattr(found, _SETTINGS_CLASS, found)
    names: set[str] = set()
    classes = found.__mro__ if isinstance(found, type) else (found,)
    for each in classes:
        function = each.__dict__.get("__init__") if isinstance(each, type) else each
        if function is None:
            continue
        parameters = inspect.signature(function).parameters.values()
        names |= {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            return names
    return None


def _hints(found: Callable[..., Any]) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    found = getattr(found, _SETTINGS_CLASS, found)
    for each in reversed(found.__mro__ if isinstance(found, type) else ()):
        with contextlib.suppress(NameError, TypeError, AttributeError):
            hints |= typing.get_type_hints(each.__init__)
    return hints


def _fits(hint: Any, value: Any) -> bool:
    try:
        TypeAdapter(hint).validate_python(value, strict=False)
    except ValidationError:
        return False
    except PydanticUserError:
        # A type that pydantic has no schema for says nothing about the value.
        return True
    return True


def _wrong_numbers(config: TrainingConfig) -> Iterator[Problem]:
    options = config.agent.algorithm
    for name, (is_right, words) in _NUMBERS.items():
        value = options.get(name)
        if value is not None and not is_right(value):
            yield Problem(f"must be {words}, got {value!r}", key=f"agent.algorithm.{name}")
    schedule = options.get("schedule", _SCHEDULES[0])
    if options[_CLASS_NAME] in _OWN_ALGORITHMS and schedule not in _SCHEDULES:
        message = f"there is no '{schedule}'{did_you_mean(str(schedule), _SCHEDULES)}"
        yield Problem(message, key="agent.algorithm.schedule")
    for role in ("actor", "critic"):
        sizes = getattr(config.agent, role).get("hidden_dims", [1])
        if not isinstance(sizes, list | tuple) or not sizes or not all(_is_count(size) for size in sizes):
            yield Problem(f"must be sizes of layers, at least one, got {sizes!r}", key=f"agent.{role}.hidden_dims")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


_NUMBERS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "num_mini_batches": (_is_count, "a whole number from 1"),
    "num_learning_epochs": (_is_count, "a whole number from 1"),
    "group_size": (lambda value: _is_count(value) and value > 1, "a whole number from 2"),
    "gamma": (_is_share, "from 0 to 1"),
    "lam": (_is_share, "from 0 to 1"),
}
"""Number of an algorithm to its check and its description."""


def _wrong_sizes(config: TrainingConfig) -> Iterator[Problem]:
    parts = config.agent.algorithm.get("num_mini_batches", 4)
    num_envs, steps = config.num_envs, config.agent.num_steps_per_env
    samples, what = num_envs * steps, f"{num_envs} env slots x {steps} steps = {num_envs * steps} samples"
    if any(_is_recurrent(getattr(config.agent, role)) for role in ("actor", "critic")):
        # Memory goes through whole env slots, so rsl_rl divides those.
        samples, what = num_envs, f"{num_envs} env slots of a recurrent policy"
    if _is_count(parts) and samples % parts:
        nearest = [number for number in range(1, samples + 1) if samples % number == 0]
        below = max((number for number in nearest if number < parts), default=1)
        above = min((number for number in nearest if number > parts), default=below)
        yield Problem(
            f"{what} do not divide into {parts} mini-batches, and {samples % parts} would never be learned from; use "
            f"{below} or {above}",
            key="agent.algorithm.num_mini_batches",
        )
    group_size = config.agent.algorithm.get("group_size", 0)
    if _is_count(group_size) and num_envs % group_size:
        nearest = [number for number in range(2, num_envs + 1) if num_envs % number == 0]
        shown = " or ".join(map(str, sorted(nearest, key=lambda number: abs(number - group_size))[:2]))
        yield Problem(
            f"{num_envs} env slots do not divide into groups of {group_size}; use {shown}",
            key="agent.algorithm.group_size",
        )


def _is_recurrent(options: Mapping[str, Any]) -> bool:
    try:
        return bool(getattr(_class_of(options, "network"), "is_recurrent", False))
    except ConfigError:
        return False


def _check_groups(groups: Mapping[str, list[str]], observation: TensorDict) -> None:
    known = [str(name) for name in observation.keys()]  # noqa: SIM118  a TensorDict iterates over entries
    problems = [
        Problem(f"the environment has no group '{name}'{did_you_mean(name, known)}", key=f"agent.obs_groups.{role}")
        for role, names in groups.items()
        for name in names
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Send what rsl_rl prints and warns of while it builds to the log."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    _LOG.debug("%s", printed.getvalue().strip())


def set_random_seed(seed: int) -> None:
    """Seed what rsl_rl draws actions and mini-batches from: torch's own generators."""
    torch.manual_seed(seed)  # noqa: TID251  rsl_rl draws from the global generator
