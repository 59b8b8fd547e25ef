"""The policy that acts as an rsl_rl checkpoint or an exported network does, here or in the run's policy server."""

import dataclasses
import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from isaaclab_arena import models
from isaaclab_arena.checkpoints import checkpoint_file
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import ContentSources, read_options
from isaaclab_arena.distributed.devices import check_policy_device, resolve_policy_device
from isaaclab_arena.distributed.ranks import DistributedError
from isaaclab_arena.errors import ConfigError, PolicyLostError, Problem, did_you_mean, placed, refuse
from isaaclab_arena.interfaces.connections import Connections, Description, set_entries
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits
from isaaclab_arena.interfaces.policy_traits import Entries, NetworkElsewhere
from isaaclab_arena.interfaces.specs import CAMERAS, CAMERAS_OFF, ArraySpec, ObservationSpec

# Choose a network's observations and their order.

DEFAULT_GROUP = "policy"


@dataclass(frozen=True, kw_only=True)
class NetworkInputs:
    """The observations that a network sees of an environment."""

    # Each group with its terms, all in the order of the network's input, which may take a group more than once.
    groups: Sequence[tuple[str, Mapping[str, ArraySpec]]]
    missing: tuple[Problem, ...] = ()  # one for each observation of the training that the environment lacks

    @property
    def size(self) -> int:
        """Numbers per env slot."""
        return sum(prod(spec.shape) for _, terms in self.groups for spec in terms.values())

    def flat(self, observation: Observation, num_envs: int, device: torch.device) -> torch.Tensor:
        """Return the network's input. Shape: (num_envs, size), float32."""
        parts = [
            flattened(observation[name], tuple(terms), num_envs=num_envs, device=device) for name, terms in self.groups
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def network_inputs(spec: ObservationSpec, groups: Sequence[str], terms: Mapping[str, Sequence[str]]) -> NetworkInputs:
    """Return the observations of an environment that a network sees, by the groups and terms of its training."""
    # Groups without a list in ``terms`` show all their terms in the environment's order.
    # A single group that the environment lacks stands for the group ``policy``: mjlab calls it ``actor``.
    here = {name: group for name, group in spec.items() if not isinstance(group, ArraySpec)}
    if len(groups) == 1 and groups[0] not in here and DEFAULT_GROUP in here:
        order = terms.get(DEFAULT_GROUP, terms.get(groups[0]))
        groups, terms = (DEFAULT_GROUP,), {} if order is None else {DEFAULT_GROUP: order}
    found: list[tuple[str, dict[str, ArraySpec]]] = []
    missing = [
        Problem(
            f"the network was trained on the observation group '{name}', this environment has "
            f"{', '.join(here)}; choose one with observation_groups" + (f"; {CAMERAS_OFF}" if name == CAMERAS else "")
        )
        for name in groups
        if name not in here
    ]
    for name in groups:
        if name not in here:
            continue
        available = {term: spec for term, spec in here[name].items() if isinstance(spec, ArraySpec)}
        shown = terms.get(name, tuple(available))
        found.append((name, {term: available[term] for term in shown if term in available}))
        missing += [
            Problem(
                f"the network was trained on '{term}', which group '{name}' of this environment lacks; it has "
                f"{', '.join(available)}; choose one with observation_terms"
            )
            for term in shown
            if term not in available
        ]
    return NetworkInputs(groups=found, missing=tuple(missing))


def flattened(
    group: Mapping[str, torch.Tensor], terms: Sequence[str], *, num_envs: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Concatenate terms (num_envs, ...) of a group to (num_envs, sum of sizes), float32; KeyError if one is missing."""
    parts = [group[name].reshape(num_envs, -1).to(torch.float32) for name in terms]
    # Without terms the vector has no numbers, and ``device`` decides its place.
    return torch.cat(parts, dim=1) if parts else torch.zeros(num_envs, 0, device=device)


# Ask a policy's network in the run's policy server: the network there, and its stand-in on a rank.

_OBSERVATION, _MEAN, _STD = "observation", "mean", "std"


class SharedNetwork:
    """A policy's network as a `Network`: its memory of an episode is part of the entry and of the answer."""

    def __init__(self, network: models.PolicyNetwork, device: torch.device) -> None:
        self._network, self._device = network, device
        self.about: Mapping[str, Any] = {
            "slots_per_call": None,
            "num_inputs": network.num_inputs,
            "knows_std": network.knows_std,
            "memory": [[part.shape[0], part.shape[2]] for part in network.new_memory(1)],
        }

    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the outputs and the new memory; see `Network.answer`."""
        tensors = {name: torch.from_numpy(np.asarray(values)).to(self._device) for name, values in entries.items()}
        answer = self._network.answer(tensors[_OBSERVATION], _memory_in(tensors, len(self.about["memory"])))
        outputs = {_MEAN: answer.mean} | ({} if answer.std is None else {_STD: answer.std})
        return {name: tensor.cpu().numpy() for name, tensor in {**outputs, **_by_entry(answer.memory)}.items()}


class NetworkOnServer(models.PolicyNetwork):
    """The stand-in for a network in a policy server. Its memory stays on the rank."""

    def __init__(self, network: NetworkElsewhere) -> None:
        # One call covers all entries of a batch, so an answer has the same bits as without a server.
        self._network = network
        self.num_inputs, self.knows_std = network.about["num_inputs"], network.about["knows_std"]
        self.memory_shapes = [(num_layers, 1, size) for num_layers, size in network.about["memory"]]

    def answer(self, observation: torch.Tensor, memory: models.Memory) -> models.Answer:
        """Return the outputs for a batch; see `PolicyNetwork.answer`, and `NetworkElsewhere.ask` for the errors."""
        asked = {_OBSERVATION: observation, **_by_entry(memory)}
        entries = {name: tensor.contiguous().numpy() for name, tensor in asked.items()}
        said = self._network.ask(entries, slots_per_call=len(observation))
        tensors = {name: torch.from_numpy(values) for name, values in said.items()}
        return models.Answer(mean=tensors[_MEAN], std=tensors.get(_STD), memory=_memory_in(tensors, len(memory)))

    def close(self) -> None:
        """Announce that no request will follow now."""
        self._network.close()


def _by_entry(memory: models.Memory) -> dict[str, torch.Tensor]:
    """Return the parts of a memory by name, entries first. Shape of each: (batch, num_layers, hidden_size)."""
    return {f"memory.{index}": part.transpose(0, 1) for index, part in enumerate(memory)}


def _memory_in(tensors: Mapping[str, torch.Tensor], num_parts: int) -> models.Memory:
    return tuple(tensors[f"memory.{index}"].transpose(0, 1).contiguous() for index in range(num_parts))


# Read a job's options for a trained policy, and load the network from its files.

FILE_KEY = "checkpoint_path"
_AGENT_KEY = "agent_cfg_path"


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
    action_scaling: models.ActionScaling | None = None
    clip_actions: float | None = None
    stochastic: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainedPolicy:
    """A network, and the settings of its actions."""

    file: Path  # the file that it was loaded from
    network: models.PolicyNetwork
    observation_groups: tuple[str, ...]  # groups of the network's input, concatenated
    observation_terms: Mapping[str, Sequence[str]]  # the terms of each group, in order
    action_scaling: models.ActionScaling  # the meaning of the network's output to the environment
    clip_actions: float | None  # limit of the absolute output, None for no limit


def policy_device(config: RslRlPolicyCfg) -> torch.device:
    """Return the network's device, by LOCAL_RANK or an option; ConfigError if missing or contradictory."""
    named = {name for name in (config.policy_device, config.device) if name is not None}
    if len(named) > 1:
        message = f"is '{config.device}', but policy_device is '{config.policy_device}'; give one of them"
        raise ConfigError(message, key="device")
    # The message names the option that the user wrote.
    key = "device" if config.policy_device is None and config.policy_device_id is None else None
    name = next(iter(named), None)
    with _named_by_option(key):
        check_policy_device(policy_device_id=config.policy_device_id, policy_device=name)
        return resolve_policy_device(policy_device_id=config.policy_device_id, policy_device=name)


def load_trained(
    config: RslRlPolicyCfg, device: torch.device, *, network: models.PolicyNetwork | None = None
) -> TrainedPolicy:
    """Load the network and its settings from files and options; ConfigError with ``key`` of the wrong option."""
    # Options of the job take precedence over the training's configuration. A given ``network`` is not loaded again.
    file = checkpoint_file(config.checkpoint_path, config.checkpoint)
    named = config.agent_cfg_path
    agent_file = models.find_agent_file(file) if named is None else Path(named)
    with _named_by_option(_AGENT_KEY):
        told = None if agent_file is None else models.read_agent_settings(agent_file)
    if network is None:
        with _named_by_option(FILE_KEY):
            network = models.load_network(file, told, device)
    if config.stochastic and not network.knows_std:
        message = "actions can only be drawn from the Gaussian of a checkpoint; this network has none"
        raise ConfigError(message, key="stochastic")
    settings = told or models.AgentSettings()
    clip = settings.clip_actions if config.clip_actions is None else config.clip_actions
    if clip is not None and clip <= 0:
        raise ConfigError(f"must be above 0, got {clip:g}", key="clip_actions")
    scaling = config.action_scaling or settings.action_scaling
    if scaling not in set(models.ActionScaling):
        message = f"no such scaling '{scaling}'{did_you_mean(scaling, models.ActionScaling)}"
        raise ConfigError(message, key="action_scaling")
    return TrainedPolicy(
        file=file,
        network=network,
        observation_groups=tuple(config.observation_groups or settings.observation_groups),
        observation_terms=settings.observation_terms if config.observation_terms is None else config.observation_terms,
        action_scaling=models.ActionScaling(scaling),
        clip_actions=clip,
    )


@contextmanager
def _named_by_option(key: str | None) -> Iterator[None]:
    """Report ConfigErrors of a ``with`` block under the job's option `key`, unchanged for None."""
    try:
        yield
    except ConfigError as error:
        if key is None:
            raise
        # A job names the file, so that is the key; the message shows the place in the file.
        problems = [
            dataclasses.replace(problem, key=None) if not problem.file else problem for problem in error.problems
        ]
        raise ConfigError([Problem(str(problem), key=key) for problem in problems]) from error


# The policy that acts like an rsl_rl checkpoint, or like a network exported from one.

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")


class RslRlPolicy(PolicyBase[RslRlPolicyCfg]):
    """Acts as a trained network does, without the library that trained it."""

    # The action is the mean of the network's distribution. With ``stochastic`` the noise of each env slot comes from
    # its episode's own stream. A recurrent network has a memory per env slot, from the start of its episode.
    name: ClassVar[str] = "rsl_rl"
    traits = PolicyTraits(reproducible=True)

    def __init__(
        self, config: RslRlPolicyCfg, *, trained: TrainedPolicy | None = None, device: torch.device | None = None
    ) -> None:
        super().__init__(config)
        # ``trained`` is given if another policy with the same options has loaded the network. ``device`` is None for
        # the device of the options. ConfigError: the file or the device does not exist, or the network is unknown.
        self.device = device or policy_device(config)
        if trained is None:
            trained = load_trained(config, self.device)
            with trained.file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            logger.info("the network of %s (SHA-256 %s) runs on %s", trained.file, digest, self.device)
        self._trained = trained
        self._memory: models.Memory | None = None
        self._num_envs = 0
        self._generators: dict[int, np.random.Generator] = {}
        # The inputs and the action scaling of the network in one environment.
        self._meeting: tuple[Environment, NetworkInputs, models.ActionScaler] | None = None

    @classmethod
    def check_options(cls, config: RslRlPolicyCfg) -> None:
        """Refuse options that the files show to be wrong; ConfigError with ``key`` of the option."""
        policy_device(config)
        load_trained(config, _CPU)

    @classmethod
    def check_fit(cls, config: RslRlPolicyCfg, env: Environment) -> Connections:
        """Return the connections with an environment; ConfigError at the checkpoint's key for a misfit."""
        # The check asks about one env slot of zeros, so the CPU is enough.
        policy = cls(config, trained=load_trained(config, _CPU), device=_CPU)
        with _named_by_option(FILE_KEY):
            policy.refuse_misfit(env)
            return policy.connections(env)

    @classmethod
    def description(cls, config: RslRlPolicyCfg) -> Description:
        """Return the environment that the network was trained in, if known; see `PolicyBase.description`."""
        file = checkpoint_file(config.checkpoint_path, config.checkpoint)
        agent_file = Path(config.agent_cfg_path) if config.agent_cfg_path else models.find_agent_file(file)
        # Only a training of this package states its environment. The file decides nothing about the network, and other
        # programs write other contents there.
        document: Any = {}
        beside = None if agent_file is None else agent_file.with_name(models.ENVIRONMENT_FILE)
        if beside is not None:
            with suppress(ConfigError):
                document = read_document(beside, python_tags=True) if beside.is_file() else {}
        environment: Mapping[str, Any] = {}
        if isinstance(document, dict) and isinstance(document.get("environment"), str):
            options = {key: value for key, value in document.items() if key not in ("environment", "num_envs")}
            environment = {"env_name": document["environment"], "env_kwargs": options}
        return Description(source=str(file), environment=environment)

    @classmethod
    def content_sources(cls, options: Mapping[str, Any]) -> ContentSources:
        """Return the checkpoint and the training's configuration; see `PolicyBase.content_sources`."""
        file = checkpoint_file(options[FILE_KEY], options.get("checkpoint"))
        agent_file = options.get("agent_cfg_path") or models.find_agent_file(file)
        # An ONNX file may keep its tensors in a file beside it.
        beside = file.with_name(f"{file.name}.data")
        files = {f"{FILE_KEY} {file.name}": file}
        files |= {f"{FILE_KEY} {beside.name}": beside} if beside.is_file() else {}
        files |= {f"agent_cfg_path {Path(agent_file).name}": Path(agent_file)} if agent_file else {}
        return ContentSources(files=files, checkpoint=str(file))

    @classmethod
    def foreign_code(cls, config: RslRlPolicyCfg) -> Sequence[Problem]:
        """Return a problem if the file is a program: TorchScript can read and write files."""
        path = checkpoint_file(config.checkpoint_path, config.checkpoint)
        if not models.is_torchscript(path):
            return ()
        return (Problem(f"'{path}' is TorchScript, which can run code", key=FILE_KEY),)

    def check_environment(self, env: Environment) -> None:
        """Refuse by ConfigError an environment that the network does not fit; warn if it shows other groups."""
        self.refuse_misfit(env)
        inputs, _ = self._meeting_with(env)
        trained_on = tuple(self._trained.observation_groups)
        shown = tuple(name for name, _ in inputs.groups)
        if trained_on != shown:
            logger.warning(
                "%s was trained on group '%s', which this environment lacks, and gets '%s'; check that both mean the "
                "same",
                self._trained.file,
                "', '".join(trained_on),
                "', '".join(shown),
            )

    def connections(self, env: Environment) -> Connections:
        """Return the network's inputs and the entries that its output sets; see `PolicyBase.connections`."""
        inputs, _ = self._meeting_with(env)
        terms = [term if name == DEFAULT_GROUP else f"{name}.{term}" for name, group in inputs.groups for term in group]
        stated, shown = self._trained.network.stated_terms, [term for _, group in inputs.groups for term in group]
        # The file states the same terms in another order, which sizes alone do not show.
        is_other = stated is not None and list(stated) != shown and sorted(stated) == sorted(shown)
        order = f"{self._trained.file} takes {', '.join(stated or ())} in this order, but gets {', '.join(shown)}"
        return Connections(
            action_names=self._trained.network.stated_actions,
            notes=(order,) if is_other else (),
            states={f"input of {inputs.size} numbers": " + ".join(terms) or "nothing"},
            actions=set_entries(env),
            source=str(self._trained.file),
        )

    def refuse_misfit(self, env: Environment) -> None:
        """Refuse by ConfigError an environment that the network does not fit; see `check_environment`."""
        inputs, _ = self._meeting_with(env)
        network, shape = self._trained.network, env.action_spec.shape
        problems = list(inputs.missing)
        # Sizes are comparable only if all groups and terms exist.
        if not problems and network.num_inputs not in {None, inputs.size}:
            shown = []
            for name, terms in inputs.groups:
                sizes = {term: prod(spec.shape) for term, spec in terms.items()}
                listed = ", ".join(f"{term} {size}" for term, size in sizes.items())
                shown.append(f"group '{name}' with {sum(sizes.values())} numbers ({listed})")
            message = f"the network takes {network.num_inputs} numbers, this environment gives "
            problems.append(Problem(message + " and ".join(shown)))
        if not problems:
            # Ask about one env slot of zeros.
            try:
                answer = network.answer(torch.zeros(1, inputs.size, device=self.device), network.new_memory(1))
            except (torch.OutOfMemoryError, PolicyLostError, DistributedError):
                raise
            except Exception as error:
                # An exported program may raise any error; for a rebuilt network the sizes were compared before.
                reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
                message = (
                    f"the network fails on {inputs.size} numbers: {reason[0]}; it must take one float32 tensor "
                    f"(batch, {inputs.size}) and return one (batch, {shape[0]})"
                )
                raise ConfigError(message, file=str(self._trained.file)) from error
            given = answer.mean.shape[1:]
            if given != shape and answer.mean.dim() > 2:
                message = f"the network gives (batch, {', '.join(map(str, given))}), and must give one action, "
                message += f"(batch, {shape[0]}); ActionChunkScheduler plays chunks in a policy of your own"
                problems.append(Problem(message))
            elif given != shape:
                message = f"the network gives {answer.mean[0].numel()} actions, the environment takes {shape[0]}"
                problems.append(Problem(message))
        refuse(placed(problems, file=str(self._trained.file)))

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Reset the memory of env slots whose episode begins, and take over the episodes' random streams."""
        if self._num_envs != env.num_envs:
            self._memory = None
        super().start_episodes(env, starts)
        if self.config.stochastic:
            for start in starts:
                self._generators[start.env_id] = start.episode.policy_generator()

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Reset the memory of the named env slots, None for all."""
        if env_ids is None:
            self._memory = None
            self._generators.clear()
            return
        if self._memory is not None:
            self._memory = models.forgotten(self._memory, env_ids)
        for env_id in env_ids.tolist():
            self._generators.pop(env_id, None)

    def with_own_memory(self) -> "RslRlPolicy":
        """Return a policy with the same network for other env slots."""
        return RslRlPolicy(self.config, trained=self._trained, device=self.device)

    def network(self) -> SharedNetwork:
        """Return the network in the form that ranks can share; see `AsksNetwork`."""
        return SharedNetwork(self._trained.network, self.device)

    @classmethod
    def asking(cls, options: Mapping[str, Any], network: NetworkElsewhere) -> "RslRlPolicy":
        """Return a policy that asks a policy server's network (see `network`); ConfigError for a wrong option."""
        config = read_options(RslRlPolicyCfg, options, owner=cls.__name__)
        return cls(config, trained=load_trained(config, _CPU, network=NetworkOnServer(network)), device=_CPU)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the network's action in every env slot. Shape: (num_envs, action_dim)."""
        return self.act_in_some(env, observation, range(env.num_envs))

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        """Return every env slot's action, but update the memory of the acting ones only."""
        inputs, scaler = self._meeting_with(env)
        seen = inputs.flat(observation, env.num_envs, env.device).to(self.device)
        if self._memory is None or self._num_envs != env.num_envs:
            self._memory, self._num_envs = self._trained.network.new_memory(env.num_envs), env.num_envs
        answer = self._trained.network.answer(seen, self._memory)
        self._memory = models.remembered(self._memory, answer.memory, env_ids)
        output = answer.mean.to(env.device)
        if answer.std is not None and self.config.stochastic:
            # Each episode draws from its own stream, and only in the env slots that act.
            noise = np.zeros(output.shape, np.float32)
            for slot in self._generators.keys() & env_ids:
                noise[slot] = self._generators[slot].standard_normal(output.shape[1], np.float32)
            output = output + answer.std.to(env.device) * torch.from_numpy(noise).to(output.device)
        return scaler(output)

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return None (all env slots) for a network that sees pictures, and no env slots for any other."""
        del starting
        inputs, _ = self._meeting_with(env)
        return None if any(name == CAMERAS for name, _ in inputs.groups) else ()

    def close(self) -> None:
        """Release the environment and the memory, and close the network."""
        self.reset()
        self._meeting = None
        self._trained.network.close()

    def _meeting_with(self, env: Environment) -> tuple[NetworkInputs, models.ActionScaler]:
        if self._meeting is None or self._meeting[0] is not env:
            trained, spec = self._trained, env.action_spec
            inputs = network_inputs(env.observation_spec, trained.observation_groups, trained.observation_terms)
            scaler = models.ActionScaler(spec, trained.action_scaling, clip=trained.clip_actions, device=env.device)
            self._meeting = env, inputs, scaler
        return self._meeting[1:]
