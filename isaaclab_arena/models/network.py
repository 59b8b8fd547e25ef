"""The networks of policies: their interface, rsl_rl's actors, TorchScript and ONNX, and the scaling of actions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import torch

from isaaclab_arena.errors import ConfigError, first_line
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
