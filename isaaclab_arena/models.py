"""The networks of policies: rsl_rl's actors, TorchScript and ONNX; and rsl_rl's checkpoints, read without rsl_rl."""

import dataclasses
import math
import re
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import torch

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import read_options
from isaaclab_arena.errors import ConfigError, StorageError, did_you_mean, first_line, problems_at
from isaaclab_arena.interfaces.specs import ArraySpec

Memory: TypeAlias = tuple[torch.Tensor, ...]
"""The memory of a network, empty if it has none. Shape of each part: (num_layers, batch, hidden_size)."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A network's output for a batch of observations."""

    mean: torch.Tensor  # deterministic output, shape (batch, num_outputs)
    memory: Memory  # the memory after this observation
    # Standard deviation of each output if it is Gaussian. Shape: (batch, num_outputs).
    std: torch.Tensor | None = None


class PolicyNetwork(ABC):
    """A network without state: its memory is an argument and a result."""

    num_inputs: int | None = None  # numbers per batch entry; None if only a trial can tell
    knows_std: bool = False  # True if its answers have a standard deviation
    # The shape of each part of one batch entry's memory, (num_layers, 1, hidden_size), and the device of new memory.
    memory_shapes: Sequence[Sequence[int]] = ()
    memory_device: torch.device | None = None
    # The names that its file gives to the outputs, and the observations that its file lists as input, in order.
    stated_actions: tuple[str, ...] | None = None
    stated_terms: tuple[str, ...] | None = None

    @abstractmethod
    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the outputs for observations (batch, num_inputs), float32; the memory is not changed."""

    def new_memory(self, batch_size: int) -> Memory:
        """Return the memory of batch entries before their first observation: zeros for each part."""
        shapes, device = self.memory_shapes, self.memory_device
        return tuple(torch.zeros(num_layers, batch_size, size, device=device) for num_layers, _, size in shapes)

    def close(self) -> None:
        """Announce that no request will follow now; later requests are allowed."""


def forgotten(memory: Memory, entries: torch.Tensor) -> Memory:
    """Return a memory without the history of some batch entries, of shape (n,), int64; `memory` is not changed."""
    return tuple(part.index_fill(1, entries.to(part.device), 0.0) for part in memory)


def remembered(before: Memory, after: Memory, entries: Sequence[int]) -> Memory:
    """Return `after` for the batch entries that saw one more observation, and `before` for the others."""
    if not after or len(entries) == after[0].shape[1]:
        return after
    places = torch.tensor(list(entries), dtype=torch.int64, device=after[0].device)
    return tuple(old.index_copy(1, places, new[:, places]) for old, new in zip(before, after, strict=True))


# The actor of rsl_rl's checkpoints: a normalised observation through an LSTM or a GRU, if it has one, and a multilayer
# perceptron, to actions by the distribution of its training.
# The operations are those of rsl_rl's inference policy, in its order. So a batch entry's action is the same to the last
# bit for a batch of the same size.

_MIN_STD = 1e-6


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Makes actions from the features of a network's last layer, of shape (batch, num_actions)."""

    mean: Callable[[torch.Tensor], torch.Tensor]
    std: Callable[[torch.Tensor], torch.Tensor] | None = None  # None for one without a standard deviation
    features_per_action: int = 1  # the shape of features is (batch, features_per_action, num_actions) if there are more


def std_of(numbers: torch.Tensor, *, is_log: bool, low: float, high: float) -> torch.Tensor:
    """Return the standard deviations that numbers or their logarithms encode, within bounds and in their shape."""
    low = max(low, _MIN_STD)
    return torch.exp(numbers.clamp(math.log(low), math.log(high))) if is_log else numbers.clamp(low, high)


def beta_mean(features: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Return the mean of a Beta distribution within bounds: (batch, 2, num_actions) to (batch, num_actions)."""
    # As in rsl_rl, both parameters are above 1, so that the distribution has one peak.
    raw_alpha, raw_beta = torch.unbind(features, dim=-2)
    alpha = torch.nn.functional.softplus(raw_alpha) + 1.0
    beta = torch.nn.functional.softplus(raw_beta) + 1.0
    return (alpha / (alpha + beta)) * (high - low) + low


ACTIVATIONS = {
    "elu": torch.nn.functional.elu,
    "selu": torch.selu,
    "relu": torch.relu,
    "crelu": torch.celu,
    "lrelu": torch.nn.functional.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "gelu": torch.nn.functional.gelu,
    "swish": torch.nn.functional.silu,
    "mish": torch.nn.functional.mish,
    "identity": torch.clone,
}
"""The activation functions by rsl_rl's names."""

NORMALIZER_EPSILON = 1e-2
"""Added to every standard deviation of an observation; rsl_rl's number."""

Parameters: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""A layer's weight (num_outputs, num_inputs) and bias (num_outputs,), or a normaliser's mean and standard deviation,
both of shape (1, num_inputs)."""


class Actor(PolicyNetwork):
    """rsl_rl's normaliser (None for none), recurrent part (None for none), perceptron and distribution."""

    def __init__(
        self,
        layers: Sequence[Parameters],
        *,
        activation: str,
        normalizer: Parameters | None,
        rnn: torch.nn.LSTM | torch.nn.GRU | None,
        distribution: Distribution,
    ) -> None:
        # From the observation to the features; the last layer has no activation.
        self._layers = tuple(layers)
        self._activation = ACTIVATIONS[activation]
        self._normalizer, self._rnn, self._distribution = normalizer, rnn, distribution
        self.num_inputs = layers[0][0].shape[1] if rnn is None else rnn.input_size
        self.knows_std = distribution.std is not None
        if rnn is not None:
            # A GRU has a hidden state, an LSTM a cell state too.
            self.memory_shapes = [(rnn.num_layers, 1, rnn.hidden_size)] * (2 if isinstance(rnn, torch.nn.LSTM) else 1)
            self.memory_device = next(rnn.parameters()).device

    @torch.no_grad()
    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the actions for a batch and its new memory; see `PolicyNetwork.answer`."""
        features = observation
        if self._normalizer is not None:
            mean, std = self._normalizer
            features = (observation - mean) / (std + NORMALIZER_EPSILON)
        if isinstance(self._rnn, torch.nn.LSTM):
            hidden, cell = memory
            latent, memory = self._rnn(features.unsqueeze(0), (hidden, cell))
            features = latent.squeeze(0)
        elif self._rnn is not None:
            latent, hidden = self._rnn(features.unsqueeze(0), memory[0])
            features, memory = latent.squeeze(0), (hidden,)
        for weight, bias in self._layers[:-1]:
            features = self._activation(torch.nn.functional.linear(features, weight, bias))
        features = torch.nn.functional.linear(features, *self._layers[-1])
        distribution = self._distribution
        if distribution.features_per_action > 1:
            features = features.unflatten(-1, (distribution.features_per_action, -1))
        std = None if distribution.std is None else distribution.std(features)
        return Answer(mean=distribution.mean(features), memory=memory, std=std)


# Networks in files: TorchScript and ONNX.

_MEMORY_NAMES = ("hidden_state", "cell_state")
_FIRST_WEIGHTS = ("rnn.weight_ih_l0", "mlp.0.weight", "actor.0.weight", "student.0.weight")
_ONE_BY_ONE = 1


class TorchScriptNetwork(PolicyNetwork):
    """A TorchScript file of rsl_rl, Isaac Lab or mjlab: one vector per batch entry in, one out."""

    def __init__(self, path: Path, device: torch.device) -> None:
        # Loading the file loads a program, which runs with the user's rights. ConfigError: it cannot be loaded.
        try:
            self._module = torch.jit.load(str(path), map_location=device).eval()
        except (RuntimeError, ValueError, OSError) as error:
            raise ConfigError(f"cannot be loaded as TorchScript: {first_line(error)}", file=str(path)) from error
        buffers = dict(self._module.named_buffers())
        # Recurrent programs keep the memory of a single batch entry in buffers. Here each batch entry has its own
        # memory, which is put in and taken out around every call.
        self._names = tuple(name for name in _MEMORY_NAMES if name in buffers)
        self.memory_shapes, self.memory_device = [buffers[name].shape for name in self._names], device
        self._one_by_one: bool | None = None
        parameters = dict(self._module.named_parameters())
        first = next((parameters[name] for name in _FIRST_WEIGHTS if name in parameters), None)
        self.num_inputs = None if first is None else first.shape[1]

    @torch.no_grad()
    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the outputs for a batch; see `PolicyNetwork.answer`."""
        # A program that was traced for a single batch entry may fail for more; then each entry gets its own call.
        if self._one_by_one is None and observation.shape[0] > 1:
            try:
                self._one_by_one = self._asked(observation, memory).mean.shape[0] != observation.shape[0]
            except (torch.OutOfMemoryError, TypeError):
                raise
            except (RuntimeError, torch.jit.Error):
                # A program that also fails for one entry raises here.
                self._asked(observation[:1], tuple(part[:, :1] for part in memory))
                self._one_by_one = True
        return one_by_one(self._asked, observation, memory) if self._one_by_one else self._asked(observation, memory)

    def _asked(self, observation: torch.Tensor, memory: Memory) -> Answer:
        for name, part in zip(self._names, memory, strict=True):
            setattr(self._module, name, part.clone())
        # The optimiser may fuse operations after the first calls, and the last digits would then change.
        with torch.jit.optimized_execution(False):  # noqa: FBT003  # pyright: ignore[reportPrivateImportUsage]
            mean = self._module(observation)
        if not isinstance(mean, torch.Tensor):
            raise TypeError(f"it gives a {type(mean).__name__}, not one tensor")
        return Answer(mean=mean, memory=tuple(getattr(self._module, name).clone() for name in self._names))


class OnnxNetwork(PolicyNetwork):
    """An ONNX file of rsl_rl, Isaac Lab or mjlab, on the CPU; ConfigError if it or onnxruntime cannot be loaded."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime  # noqa: PLC0415  an optional package, and slow to load
        except ImportError as error:
            message = "needs the package onnxruntime; install it with: pip install isaaclab-arena-mujoco[onnx]"
            raise ConfigError(message, file=str(path)) from error
        options = onnxruntime.SessionOptions()
        # One thread, so that a sum always has the same order.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            # onnxruntime has a dozen exceptions for a bad file, with no public base class but this one.
            raise ConfigError(f"cannot be loaded as ONNX: {first_line(error)}", file=str(path)) from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()

        # Refuse a program that does not map one vector per batch entry, with or without a memory, to one.
        ranks = [len(each.shape) for each in inputs]
        if ranks not in ([2], [2, 3], [2, 3, 3]) or len(outputs) < len(inputs):
            wanted = ", ".join(f"{each.name} {each.shape}" for each in inputs) or "nothing"
            message = (
                f"takes {wanted} and gives {len(outputs)} tensors; it has to take one vector per batch entry and, if "
                "it is recurrent, its memory, and give as many back; write a policy of your own for others"
            )
            raise ConfigError(message, file=str(path))
        # The batch size of each input: a number, or a name or None for any size.
        batches = [inputs[0].shape[0], *(each.shape[1] for each in inputs[1:])]
        fixed = next((size for size in batches if isinstance(size, int) and size != _ONE_BY_ONE), None)
        if fixed is not None:
            message = f"is for a batch of {fixed}; export it for a batch of 1, or of any size (dynamic_axes)"
            raise ConfigError(message, file=str(path))

        shape = inputs[0].shape
        # Recurrent networks take their memory as inputs ``h_in`` and ``c_in``, and return it.
        self._inputs = [each.name for each in inputs]
        self._outputs = [each.name for each in outputs[: len(inputs)]]
        self.memory_shapes = [each.shape for each in inputs[1:]]
        # Most files were exported for a batch of one; then each entry gets its own call.
        self._one_by_one = _ONE_BY_ONE in batches
        self.num_inputs = shape[1] if isinstance(shape[1], int) else None
        # mjlab and Isaac Lab write lists of names into a file's metadata.
        said: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.stated_actions, self.stated_terms = (
            tuple(part.strip() for part in said[name].split(",")) if said.get(name) else None
            for name in ("joint_names", "observation_names")
        )

    def answer(self, observation: torch.Tensor, memory: Memory) -> Answer:
        """Return the outputs for a batch; see `PolicyNetwork.answer`."""
        batch = observation.cpu()
        return one_by_one(self._asked, batch, memory) if self._one_by_one else self._asked(batch, memory)

    def _asked(self, observation: torch.Tensor, memory: Memory) -> Answer:
        fed = [observation, *memory]
        values = {name: part.contiguous().numpy() for name, part in zip(self._inputs, fed, strict=True)}
        mean, *parts = self._session.run(self._outputs, values)
        return Answer(mean=torch.from_numpy(mean), memory=tuple(map(torch.from_numpy, parts)))


def one_by_one(ask: Callable[[torch.Tensor, Memory], Answer], observation: torch.Tensor, memory: Memory) -> Answer:
    """Return the answer to a batch from a program that takes one entry at a time."""
    entries = range(observation.shape[0])
    answers = [ask(observation[at : at + 1], tuple(part[:, at : at + 1] for part in memory)) for at in entries]
    mean = torch.cat([each.mean for each in answers])
    parts = zip(*(each.memory for each in answers), strict=True)
    return Answer(mean=mean, memory=tuple(torch.cat(part, dim=1) for part in parts))


# The scaling of a network's output to actions.


class ActionScaling(StrEnum):
    """The mapping from a network's output to an action."""

    # Unchanged, as in Isaac Lab and mjlab, where environments scale.
    AS_IS = "as_is"
    # Map -1 and 1 to the environment's lowest and highest action, and clip beyond; numbers without bounds stay.
    WITHIN_BOUNDS = "within_bounds"


class ActionScaler:
    """Turns a network's output into actions of one environment."""

    def __init__(
        self, spec: ArraySpec, scaling: ActionScaling, *, clip: float | None = None, device: torch.device
    ) -> None:
        # rsl_rl's ``clip_actions``: limit of the absolute output, None for no limit.
        self._clip = clip
        self._scales = scaling is ActionScaling.WITHIN_BOUNDS
        low, high = (
            torch.full(spec.shape, without, device=device)
            if bounds is None
            else torch.as_tensor(bounds, dtype=torch.float32, device=device)
            for bounds, without in ((spec.low, -torch.inf), (spec.high, torch.inf))
        )
        self._bounded = torch.isfinite(low) & torch.isfinite(high)
        self._middle, self._half_range = (low + high) / 2, (high - low) / 2

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        """Return the action for a network's output. Shapes: (num_envs, action_dim)."""
        if self._clip is not None:
            output = output.clamp(-self._clip, self._clip)
        if not self._scales:
            return output
        within = self._middle + self._half_range * output.clamp(-1.0, 1.0)
        return torch.where(self._bounded, within, output)

    def output_of(self, action: torch.Tensor) -> torch.Tensor:
        """Return the output for an action (..., action_dim), clipped to [-1, 1] if actions have bounds."""
        if not self._scales:
            return action
        share = (action - self._middle) / self._half_range.clamp(min=torch.finfo(torch.float32).tiny)
        return torch.where(self._bounded, share.clamp(-1.0, 1.0), action)


# Read ``params/agent.yaml``, the settings of an rsl_rl training that its checkpoints lack.
# It accepts the files of rsl_rl from version 2 on, Isaac Lab, mjlab and this package. It reads only the keys that
# decide the policy's actions.

AGENT_FILE = Path("params", "agent.yaml")
ENVIRONMENT_FILE = "env.yaml"

_DEFAULT_GROUP = "policy"
# The network whose configuration each key holds: students, actors since rsl_rl 4, and both before.
_NETWORK_KEYS = ("student", "actor", "policy")


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The settings that decide how a checkpoint acts, with the keys of the file."""

    class_name: str = "OnPolicyRunner"  # class of the runner that trained it
    # Groups of the environment that each network sees, by the name of the set.
    obs_groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # The terms of each group, in the order of the network's input.
    observation_terms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    action_scaling: ActionScaling = ActionScaling.AS_IS
    clip_actions: float | None = None  # limit of the network's absolute output, None for no limit
    actor: dict[str, Any] | None = None  # configuration of the actor, since rsl_rl 4
    student: dict[str, Any] | None = None  # configuration of a student that was distilled
    policy: dict[str, Any] | None = None  # configuration of the networks before rsl_rl 4

    @property
    def observation_groups(self) -> tuple[str, ...]:
        """The groups that the policy sees, concatenated in this order."""
        for name in _NETWORK_KEYS:
            if getattr(self, name) is not None and self.obs_groups.get(name):
                return self.obs_groups[name]
        return self.obs_groups.get(_DEFAULT_GROUP) or (_DEFAULT_GROUP,)

    @property
    def network(self) -> tuple[str, str, Mapping[str, Any]]:
        """The path of the network's class, its activation, and its distribution with options; empty if unknown."""
        block = next((found for name in _NETWORK_KEYS if (found := getattr(self, name)) is not None), {})
        distribution = block.get("distribution_cfg") or {}
        if not distribution and block.get("state_dependent_std"):
            std_type = block.get("noise_std_type") or "scalar"
            distribution = {"class_name": "HeteroscedasticGaussianDistribution", "std_type": std_type}
        class_path = str(block.get("class_name") or "").replace(":", ".")
        return class_path, str(block.get("activation") or "elu").lower(), distribution


def find_agent_file(checkpoint: Path) -> Path | None:
    """Return the configuration that belongs to a checkpoint or an exported network, None if there is none."""
    # Isaac Lab, mjlab and this package put it beside the file. Exported files lie in a directory of their own, so the
    # directory above counts too.
    directories = checkpoint.absolute().parents[:2]
    return next((path for directory in directories if (path := directory / AGENT_FILE).is_file()), None)


def files_of_checkpoint(checkpoint: Path) -> dict[Path, Path]:
    """Map a checkpoint and the files needed beside it by their paths in a copy of its directory."""
    if checkpoint.is_dir():
        return {Path(): checkpoint}
    agent, tensors = find_agent_file(checkpoint), checkpoint.with_name(f"{checkpoint.name}.data")
    found = {Path(checkpoint.name): checkpoint} | ({} if agent is None else {AGENT_FILE: agent})
    # An ONNX file may keep its tensors in a file beside it.
    return found | ({Path(tensors.name): tensors} if tensors.is_file() else {})


def read_agent_settings(path: str | Path) -> AgentSettings:
    """Read a configuration, ignoring Python's own YAML tags; ConfigError lists every problem with file and key."""
    document = read_document(path, python_tags=True)
    file = str(path)
    if not isinstance(document, dict):
        raise ConfigError("must be a mapping from key to value", file=file)
    known = {entry.name for entry in dataclasses.fields(AgentSettings)}
    options = {key: value for key, value in document.items() if key in known and value is not None}
    with problems_at(file=file):
        return read_options(AgentSettings, options, owner="the configuration of an agent")


# Actors rebuilt from the tensors of rsl_rl's networks.
# Sizes come from the tensors. The activation and the distribution come from the agent's configuration.

State: TypeAlias = dict[str, torch.Tensor]

CLASSES = ("MLPModel", "RNNModel", "ActorCritic", "ActorCriticRecurrent", "StudentTeacher", "StudentTeacherRecurrent")
"""Classes of rsl_rl that are rebuilt here; the last four are those of versions 2 and 3."""

EXPORT = (
    "if it takes one vector and gives one, export it (export_policy_to_onnx or export_policy_to_jit of rsl_rl's "
    "runner) and name that file; otherwise write a policy of your own"
)
"""The way out for networks of other kinds."""

_LAYER = re.compile(r"mlp\.(\d+)\.weight")
_RNN_GATES: dict[int, type[torch.nn.LSTM] | type[torch.nn.GRU]] = {4: torch.nn.LSTM, 3: torch.nn.GRU}


def rebuilt_actor(
    tensors: Mapping[str, torch.Tensor], activation: str, distribution_options: Mapping[str, Any]
) -> Actor:
    """Rebuild an actor from tensors (names of rsl_rl 5, float32); ConfigError for missing or unknown parts."""
    # Each part takes its tensors out; the rest is unknown.
    state = dict(tensors)
    if activation not in ACTIVATIONS:
        raise ConfigError(f"there is no activation '{activation}'{did_you_mean(activation, ACTIVATIONS)}")

    # Linear layers: an activation, which has no tensors but counts, separates two of them.
    indices = sorted(int(match[1]) for name in state if (match := _LAYER.fullmatch(name)))
    if not indices or indices != list(range(0, 2 * len(indices), 2)):
        raise ConfigError(f"has no multilayer perceptron of rsl_rl: its linear layers are {indices}; {EXPORT}")
    layers = []
    for index in indices:
        weight, bias = state.pop(f"mlp.{index}.weight"), state.pop(f"mlp.{index}.bias", None)
        if weight.dim() != 2 or bias is None or bias.shape != weight.shape[:1]:
            raise ConfigError(f"has a layer mlp.{index} that is not linear with a bias; {EXPORT}")
        layers.append((weight, bias))

    rnn = _take_rnn(state)
    prefix, normalizer = "obs_normalizer.", None
    parts = {name: state.pop(name) for name in list(state) if name.startswith(prefix)}
    if parts:
        mean, std = parts.get(f"{prefix}_mean"), parts.get(f"{prefix}_std")
        if mean is None or std is None:
            raise ConfigError(f"has an observation normaliser that is not rsl_rl's EmpiricalNormalization; {EXPORT}")
        normalizer = mean.reshape(1, -1), std.reshape(1, -1)

    distribution = _take_distribution(state, distribution_options)
    if state:
        names = ", ".join(sorted(state)[:5])
        raise ConfigError(f"has parts that are not known here ({names}), so it is no network of {CLASSES[0]}; {EXPORT}")
    # Some distributions need two network outputs per action.
    num_features = layers[-1][0].shape[0]
    if num_features % distribution.features_per_action:
        raise ConfigError(
            f"gives {num_features} numbers, which cannot be two for each action, as "
            f"{distribution_options.get('class_name')} needs; its configuration is of another network"
        )
    found = {"normalizer": normalizer, "rnn": rnn, "distribution": distribution}
    actor = Actor(layers, activation=activation, **found)

    # Each part takes as many numbers as the part before it gives.
    inputs, outputs = ([weight.shape[side] for weight, _ in layers] for side in (1, 0))
    joints = list(zip([] if rnn is None else [rnn.hidden_size], inputs, strict=False))
    joints += zip(outputs, inputs[1:], strict=False)
    joints += [(part.shape[1], actor.num_inputs or 0) for part in normalizer or ()]
    if wrong := [f"{given} numbers meet {taken}" for given, taken in joints if given != taken]:
        raise ConfigError(f"has parts whose sizes do not fit: {', '.join(wrong)}; the file is damaged or mixed up")

    return actor


def _take_rnn(state: State) -> torch.nn.LSTM | torch.nn.GRU | None:
    prefix = "rnn.rnn."
    names = [name for name in state if name.startswith(prefix)]
    if not names:
        return None
    tensors = {name.removeprefix(prefix): state.pop(name) for name in names}
    hidden, inputs = tensors.get("weight_hh_l0"), tensors.get("weight_ih_l0")
    if hidden is None or inputs is None or hidden.shape[0] // hidden.shape[1] not in _RNN_GATES:
        raise ConfigError(f"has a recurrent part that is neither an LSTM nor a GRU; {EXPORT}")
    kind = _RNN_GATES[hidden.shape[0] // hidden.shape[1]]
    num_layers = sum(name.startswith("weight_hh_l") for name in tensors)
    sizes = {"input_size": inputs.shape[1], "hidden_size": hidden.shape[1], "num_layers": num_layers}
    # On the meta device no weights are drawn, so the process-wide generator stays untouched.
    rnn = kind(**sizes, device="meta")
    try:
        rnn.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise ConfigError(
            f"has an {kind.__name__} that is not one of rsl_rl's: {first_line(error)}; {EXPORT}"
        ) from error
    rnn.flatten_parameters()
    return rnn.requires_grad_(requires_grad=False).eval()


def _take_distribution(state: State, options: Mapping[str, Any]) -> Distribution:
    std, log_std = state.pop("distribution.std_param", None), state.pop("distribution.log_std_param", None)
    name = str(options.get("class_name") or "GaussianDistribution").replace(":", ".").rpartition(".")[2]
    is_beta = name == "BetaDistribution"
    key, default = ("action_range", (-1.0, 1.0)) if is_beta else ("std_range", (1e-6, 1e6))
    try:
        low, high = map(float, options.get(key) or default)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"has a distribution whose {key} is no pair of numbers: {options[key]!r}") from error
    if is_beta:
        return Distribution(mean=lambda raw: beta_mean(raw, low, high), features_per_action=2)
    if name == "GaussianDistribution":
        # The standard deviation does not depend on the observation.
        numbers = std if log_std is None else log_std
        if numbers is None:
            return Distribution(mean=lambda features: features)
        learned = std_of(numbers, is_log=log_std is not None, low=low, high=high)
        return Distribution(mean=lambda features: features, std=learned.expand_as)
    if name == "HeteroscedasticGaussianDistribution":
        # The first half of the features is the mean, the second encodes the standard deviation.
        encoding = {"is_log": options.get("std_type") == "log", "low": low, "high": high}
        return Distribution(
            mean=lambda features: features[..., 0, :],
            std=lambda features: std_of(features[..., 1, :], **encoding),
            features_per_action=2,
        )
    known = "GaussianDistribution, HeteroscedasticGaussianDistribution, BetaDistribution"
    raise ConfigError(f"has the distribution '{name}'; known are {known}; {EXPORT}")


# rsl_rl's checkpoints, of version 2 to 5, read without rsl_rl.

_TRACE = (
    "to evaluate it, trace its actor and name that file, torch.jit.trace(actor, torch.zeros(2, num_inputs))"
    ".save('actor.pt'), or write a policy of your own"
)
_OTHER_ARCHIVES = {
    "_stable_baselines3_version": f"is a model of Stable-Baselines3; {_TRACE}",
    "archive_format": f"is a program of torch.export (.pt2), which is not loaded here; {_TRACE}",
}
"""Names in archives of other programs, and the message about each program."""
_ROLES = ("actor", "student", "critic", "teacher", "memory_", "std", "log_std")
_LFS = b"version https://git-lfs"

_STATE_KEYS = ("student_state_dict", "actor_state_dict", "model_state_dict")
_CRITIC_KEY = "critic_state_dict"
# The new prefixes in version 5 for the prefixes of versions 2 to 4.
_RENAMED = {
    "critic": {"critic.": "mlp.", "critic_obs_normalizer.": "obs_normalizer.", "memory_c.rnn.": "rnn.rnn."},
    "actor": {"actor.": "mlp.", "actor_obs_normalizer.": "obs_normalizer.", "memory_a.rnn.": "rnn.rnn."},
    "student": {"student.": "mlp.", "student_obs_normalizer.": "obs_normalizer.", "memory_s.rnn.": "rnn.rnn."},
}
_STD = {"std": "distribution.std_param", "log_std": "distribution.log_std_param"}
_OF_OTHERS = ("critic", "memory_c.", "teacher", "memory_t.")
_NORMALIZER = "obs_normalizer."
_CRITIC_NORMALIZERS = ("critic_obs_norm_state_dict", "privileged_obs_norm_state_dict")


def is_torchscript(path: Path) -> bool:
    """True if a file contains a TorchScript program, which has code where a checkpoint has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.partition("/")[2].startswith(("code/", "constants.pkl")) for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def load_network(path: Path, settings: AgentSettings | None, device: torch.device) -> PolicyNetwork:
    """Load the network of an rsl_rl checkpoint, an ONNX or TorchScript file; ConfigError for other files."""
    # Exported files do without ``settings``, the training's configuration. ONNX runs on the CPU, whatever ``device``
    # is.
    if path.suffix.lower() == ".onnx":
        return OnnxNetwork(path)
    if is_torchscript(path):
        return TorchScriptNetwork(path, device)
    if settings is None:
        refuse_other_trainers(read_checkpoint(path), path)
        message = f"has no {AGENT_FILE} beside it or one directory above, and without its training's "
        message += "configuration its activation is unknown; name the file as agent_cfg_path"
        raise ConfigError(message, file=str(path))

    class_path, activation, distribution = settings.network
    module, _, class_name = class_path.rpartition(".")
    is_foreign = module and module.partition(".")[0] != "rsl_rl"
    if is_foreign or class_name not in {"", *CLASSES}:
        message = f"is a network of the class '{class_path}'; known are {', '.join(CLASSES)}; {EXPORT}"
        raise ConfigError(message, file=str(path))

    state = actor_state(read_checkpoint(path), path)
    moved = {name: tensor.to(device, torch.float32, copy=True) for name, tensor in state.items()}
    with problems_at(file=str(path)):
        return rebuilt_actor(moved, activation, distribution)


def read_checkpoint(path: Path) -> Mapping[str, Any]:
    """Read a checkpoint without executing its content; ConfigError if it is none, StorageError if unreadable."""
    # Refuse a file that is not an archive of torch, by its beginning, its entries and its size.
    try:
        with path.open("rb") as stream:
            begin = stream.read(len(_LFS))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    message = None
    if not begin:
        message = "is no checkpoint: it is empty"
    elif begin == _LFS:
        message = "is no checkpoint but a pointer of Git LFS; git lfs pull brings the file"
    else:
        # A file that is no archive is a checkpoint of an old torch, or none at all, as loading will show.
        with suppress(OSError, ValueError, NotImplementedError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
            message = next((said for name, said in _OTHER_ARCHIVES.items() if name in names), None)
            # Torch writes no compressed archive, and a few bytes of one can expand to any number.
            num_bytes = sum(entry.file_size for entry in archive.infolist())
            if message is None and num_bytes > path.stat().st_size:
                message = f"is no checkpoint: it is compressed, and would unfold to {num_bytes} bytes; "
                message += "torch writes none like it"
    if message is not None:
        raise ConfigError(message, file=str(path))
    try:
        with warnings.catch_warnings():
            # The warning concerns pickles of other programs, which the errors below explain.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    except (RuntimeError, ValueError, EOFError, KeyError, IndexError, zipfile.BadZipFile) as error:
        message = "is no checkpoint, or a damaged one: torch.load cannot read it; name a file that torch.save wrote"
        raise ConfigError(message, file=str(path)) from error
    except Exception as error:
        # The restricted unpickler's error has no public name: its class is in the module that this project must not
        # use.
        if type(error).__name__ != "UnpicklingError":
            raise
        message = (
            "is no checkpoint, or holds more than tensors and plain values, which is not loaded: it could run code; "
            f"of a whole module {_TRACE}"
        )
        raise ConfigError(message, file=str(path)) from error
    if not isinstance(checkpoint, Mapping):
        raise ConfigError(f"is no checkpoint of rsl_rl but a {type(checkpoint).__name__}", file=str(path))
    return checkpoint


def actor_state(checkpoint: Mapping[str, Any], path: Path) -> State:
    """Return the tensors of a checkpoint's actor or student under rsl_rl 5's names; ConfigError if there is none."""
    refuse_other_trainers(checkpoint, path)
    key = next(key for key in _STATE_KEYS if _is_state(checkpoint.get(key)))
    state: State = dict(checkpoint[key])
    if key == "model_state_dict":
        # Versions 2 and 3 keep all networks in one state, under other names.
        role = "student" if any(name.startswith("student.") for name in state) else "actor"
        own = {name: tensor for name, tensor in state.items() if not name.startswith(_OF_OTHERS)}
        state = {_new_name(role, name) or name: tensor for name, tensor in own.items()}
    return _whole_state(state, checkpoint.get("obs_norm_state_dict"), path)


def refuse_other_trainers(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Refuse by ConfigError a checkpoint without an rsl_rl actor; name the library that wrote it if possible."""
    states = [checkpoint[key] for key in _STATE_KEYS if _is_state(checkpoint.get(key))]
    # Versions 2 and 3 keep all networks in one state, whose names tell the role. Other libraries use that key too.
    if states and ("model_state_dict" not in checkpoint or any(name.startswith(_ROLES) for name in states[0])):
        return
    networks = {key: value for key, value in checkpoint.items() if isinstance(value, Mapping)}
    keys = ", ".join(map(str, list(checkpoint)[:8])) or "nothing"
    if any(str(name).startswith("a2c_network.") for name in networks.get("model", ())):
        message = "is a checkpoint of rl_games"
    elif "policy" in networks and {"value", "state_preprocessor", "optimizer"} & checkpoint.keys():
        message = "is a checkpoint of skrl"
    elif states or _is_state(checkpoint):
        names = ", ".join(list(states[0] if states else checkpoint)[:4])
        message = f"holds weights alone ({names}), and not of which network"
    else:
        message = f"holds no {' or '.join(_STATE_KEYS)} of rsl_rl; it holds {keys}"
    raise ConfigError(f"{message}; {_TRACE}", file=str(path))


def critic_state(checkpoint: Mapping[str, Any], path: Path) -> State | None:
    """Return the critic's tensors under rsl_rl 5's names, None without a critic; ConfigError for a wrong tensor."""
    if _is_state(checkpoint.get(_CRITIC_KEY)):
        state = dict(checkpoint[_CRITIC_KEY])
    else:
        state = {new: tensor for role, new, tensor in _of_old_versions(checkpoint) if role == "critic"}
    if not state:
        return None
    normalizer = next((checkpoint[key] for key in _CRITIC_NORMALIZERS if key in checkpoint), None)
    return _whole_state(state, normalizer, path)


def moments_by_name(checkpoint: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the optimiser's state by (role, weight name) of rsl_rl 5, empty if it cannot be assigned."""
    # An optimiser knows weights only by their place, which differs between versions of rsl_rl.
    optimizer = checkpoint.get("optimizer_state_dict")
    if not isinstance(optimizer, Mapping):
        return {}
    kept, groups = optimizer.get("state"), optimizer.get("param_groups")
    if not isinstance(kept, Mapping) or not isinstance(groups, list):
        return {}
    # The places of all groups' weights in the optimiser.
    places: list[int] = []
    for group in groups:
        found = group.get("params") if isinstance(group, Mapping) else None
        places += [place for place in found if isinstance(place, int)] if isinstance(found, list) else []
    if _is_state(checkpoint.get("actor_state_dict")):
        networks = [("actor", checkpoint["actor_state_dict"]), ("critic", checkpoint.get(_CRITIC_KEY))]
        named = [(role, _STD.get(name, name)) for role, state in networks if _is_state(state) for name in state]
    else:
        named = [(role, name) for role, name, _ in _of_old_versions(checkpoint)]
    # The order of the networks' parameters is that of the optimiser.
    weights = [(role, name) for role, name in named if not name.startswith(_NORMALIZER)]
    # The state of a weight is numbers, and tensors that can be copied.
    states = [state for place in places if isinstance(state := kept.get(place), Mapping)]
    are_sound = all(
        isinstance(each, int | float) or (isinstance(each, torch.Tensor) and _wrong_with_tensor(each) is None)
        for state in states
        for each in state.values()
    )
    if not len(places) == len(states) == len(weights) or not are_sound:
        return {}
    return {weight: dict(state) for weight, state in zip(weights, states, strict=True)}


def _of_old_versions(checkpoint: Mapping[str, Any]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield role, new name and tensor of actor and critic, which versions 2 and 3 keep in one state."""
    state = checkpoint.get("model_state_dict")
    for name, tensor in state.items() if _is_state(state) else ():
        for role in ("actor", "critic"):
            if (new := _new_name(role, name)) is not None:
                yield role, new, tensor
        if name in _STD:
            yield "actor", _STD[name], tensor


def _new_name(role: str, name: str) -> str | None:
    """Return rsl_rl 5's name of a role's tensor in an older version, None for one of another role."""
    return next((new + name.removeprefix(old) for old, new in _RENAMED[role].items() if name.startswith(old)), None)


def _whole_state(state: Mapping[str, torch.Tensor], normalizer: Any, path: Path) -> State:
    """Return a network's checked tensors, with the normaliser that version 2 kept outside."""
    whole = {_STD.get(name, name): tensor for name, tensor in state.items()}
    if _is_state(normalizer):
        whole |= {f"{_NORMALIZER}{name}": value for name, value in normalizer.items()}
    for name, tensor in whole.items():
        if (wrong := _wrong_with_tensor(tensor)) is not None:
            raise ConfigError(f"has a tensor {name!r} that {wrong}; no training writes that", file=str(path))
    return whole


def _wrong_with_tensor(tensor: torch.Tensor) -> str | None:
    """Return the reason why a tensor cannot be copied, None if it can: no values, or more than the file holds."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return "is sparse, quantised or without numbers"
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return f"claims {tensor.numel()} numbers and has fewer: they overlap"
    return "holds complex numbers" if tensor.is_complex() else None


def _is_state(value: Any) -> TypeGuard[Mapping[str, torch.Tensor]]:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(each, torch.Tensor) for name, each in value.items()
    )
