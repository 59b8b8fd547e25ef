"""Networks in files: TorchScript, ONNX, or a checkpoint."""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from isaaclab_arena.errors import ConfigError, first_line
from isaaclab_arena.models import rsl_rl_checkpoint
from isaaclab_arena.models.network import Answer, Memory, PolicyNetwork

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
        self._shapes = [tuple(buffers[name].shape) for name in self._names]
        self._device = device
        self._one_by_one: bool | None = None
        parameters = dict(self._module.named_parameters())
        first = next((parameters[name] for name in _FIRST_WEIGHTS if name in parameters), None)
        self.num_inputs = None if first is None else first.shape[1]

    def new_memory(self, batch_size: int) -> Memory:
        """Return zeros for each part of the program's memory."""
        return tuple(
            torch.zeros(num_layers, batch_size, size, device=self._device) for num_layers, _, size in self._shapes
        )

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
                self._asked(*_entry(observation, memory, 0))
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
        self._sizes = [(each.shape[0], each.shape[2]) for each in inputs[1:]]
        # Most files were exported for a batch of one; then each entry gets its own call.
        self._one_by_one = _ONE_BY_ONE in batches
        self.num_inputs = shape[1] if isinstance(shape[1], int) else None
        # mjlab and Isaac Lab write lists of names into a file's metadata.
        said: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.stated_actions, self.stated_terms = (
            tuple(part.strip() for part in said[name].split(",")) if said.get(name) else None
            for name in ("joint_names", "observation_names")
        )

    def new_memory(self, batch_size: int) -> Memory:
        """Return zeros for each part of the program's memory."""
        return tuple(torch.zeros(num_layers, batch_size, size) for num_layers, size in self._sizes)

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
    answers = [ask(*_entry(observation, memory, entry)) for entry in range(observation.shape[0])]
    mean = torch.cat([each.mean for each in answers])
    parts = zip(*(each.memory for each in answers), strict=True)
    return Answer(mean=mean, memory=tuple(torch.cat(part, dim=1) for part in parts))


def _entry(observation: torch.Tensor, memory: Memory, entry: int) -> tuple[torch.Tensor, Memory]:
    return observation[entry : entry + 1], tuple(part[:, entry : entry + 1] for part in memory)


def is_torchscript(path: Path) -> bool:
    """True if a file contains a TorchScript program, which has code where a checkpoint has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.partition("/")[2].startswith(("code/", "constants.pkl")) for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def load_network(path: Path, settings: rsl_rl_checkpoint.AgentSettings | None, device: torch.device) -> PolicyNetwork:
    """Load the network of an rsl_rl checkpoint, an ONNX or TorchScript file; ConfigError for other files."""
    # Exported files do without ``settings``, the training's configuration. ONNX runs on the CPU, whatever ``device``
    # is.
    if path.suffix.lower() == ".onnx":
        return OnnxNetwork(path)
    if is_torchscript(path):
        return TorchScriptNetwork(path, device)
    if settings is None:
        rsl_rl_checkpoint.refuse_other_trainers(rsl_rl_checkpoint.read_checkpoint(path), path)
        message = f"has no {rsl_rl_checkpoint.AGENT_FILE} beside it or one directory above, and without its training's "
        message += "configuration its activation is unknown; name the file as agent_cfg_path"
        raise ConfigError(message, file=str(path))
    return rsl_rl_checkpoint.load_actor(path, settings, device)
