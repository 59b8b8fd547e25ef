"""A policy of LeRobot with its processors, loaded and asked in LeRobot's own interpreter, which lacks this package."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import pathlib
import struct
import typing

import numpy as np
import safetensors
import torch
from torch.overrides import TorchFunctionMode

# Tell a policy whose weights all come from a file from one with weights that LeRobot initialised randomly.

_SHOWN = 5
_PREFIX = "model."
"""The prefix that LeRobot adds to names of weights from other programs."""


def surely_loaded(load: typing.Callable[[], typing.Any], file: str) -> typing.Any:
    """Load a policy whose weights do not depend on chance; ValueError if any are random instead of from `file`."""
    # LeRobot warns about weights that a file lacks or that it cannot read, and continues with random ones. Weights that
    # do not appear in the file may come from elsewhere, or be converted. So the policy is loaded twice, with different
    # seeds: only random weights differ.
    torch.manual_seed(0)
    policy = load()
    doubtful = [*_not_seen_in(file, policy)]
    if not doubtful:
        return policy
    # Tied weights appear under each of their names.
    weights = dict(policy.named_parameters(remove_duplicate=False))
    first = {name: value.detach().cpu().clone() for name, value in weights.items() if name in doubtful}
    del policy, weights
    torch.manual_seed(1)
    policy = load()
    again = dict(policy.named_parameters(remove_duplicate=False))
    by_chance = [name for name, value in first.items() if not torch.equal(value, again[name].detach().cpu())]
    if by_chance:
        names = ", ".join(by_chance[:_SHOWN]) + (", ..." if len(by_chance) > _SHOWN else "")
        raise ValueError(
            f"LeRobot leaves {len(by_chance)} of {len(again)} weights to chance, which {file} lacks: {names}"
        )
    return policy


def _not_seen_in(file: str, policy: typing.Any) -> typing.Iterator[str]:
    """Yield the names of weights that the file lacks or whose first row differs in it."""
    weights = dict(policy.named_parameters(remove_duplicate=False))
    if not weights:
        return
    with safetensors.safe_open(file, "pt") as saved:
        names = {name.removeprefix(_PREFIX): name for name in saved.keys()}  # noqa: SIM118  it is no mapping
        # Compared by memory, because tied weights have several names but are saved under one.
        seen = set()
        for name, value in weights.items():
            saved_as = names.get(name.removeprefix(_PREFIX))
            part = None if saved_as is None else saved.get_slice(saved_as)
            if part is not None and list(part.get_shape()) == [*value.shape]:
                begin = part[:1] if value.ndim else part[...]
                if torch.equal(begin.to(value.dtype), (value[:1] if value.ndim else value).detach().cpu()):
                    seen.add(value.data_ptr())
    yield from (name for name, value in weights.items() if value.data_ptr() not in seen)


# Load a LeRobot policy with its processors.

_DEVICE_STEP = "device_processor"
_WEIGHTS = "model.safetensors"


def loaded(directory: str, device: str) -> tuple[typing.Any, typing.Any, typing.Any]:
    """Load a policy with its pre- and postprocessor, which ``save_pretrained`` wrote, on e.g. ``cuda:1``."""
    # Types of other packages register themselves as plugins.
    plugins = importlib.import_module("lerobot.utils.import_utils")
    getattr(plugins, "register_third_party_plugins", lambda: None)()
    factory = importlib.import_module("lerobot.policies.factory")
    configurations = importlib.import_module("lerobot.configs.policies")
    kind = json.loads((pathlib.Path(directory) / "config.json").read_text())["type"]
    policy_class = factory.get_policy_class(kind)
    config = configurations.PreTrainedConfig.from_pretrained(directory)
    config.device = device
    # LeRobot refuses an override of a step that the saved processor lacks.
    has_device_step = _DEVICE_STEP in saved_steps(directory, "policy_preprocessor")
    before, after = factory.make_pre_post_processors(
        config,
        pretrained_path=directory,
        preprocessor_overrides={_DEVICE_STEP: {"device": device}} if has_device_step else {},
    )
    file = str(pathlib.Path(directory, _WEIGHTS))
    policy = surely_loaded(lambda: policy_class.from_pretrained(directory, config=config), file)
    return policy, before, after


def saved_steps(directory: str, processor: str) -> set[str]:
    """Return the step names of a saved processor, ``policy_preprocessor`` or ``policy_postprocessor``."""
    saved = json.loads((pathlib.Path(directory) / f"{processor}.json").read_text())
    return {step.get("registry_name") for step in saved["steps"]}


# Serialise a policy's memory: numbers, texts, tensors, arrays, and containers of them.

_HEADER = struct.Struct("<I")


def packed(value: typing.Any) -> bytes:
    """Serialise a value; TypeError if it contains an unsupported type."""
    blobs: list[bytes] = []
    header = json.dumps(_described(value, blobs)).encode()
    return b"".join([_HEADER.pack(len(header)), header, *blobs])


def unpacked(data: bytes, device: torch.device) -> typing.Any:
    """Deserialise the result of `packed`, into new memory; bytes after it are ignored."""
    # Tensors keep their memory layout, because the last digits of a result may depend on it. Those that were not on the
    # CPU go to ``device``. The arrays follow the header in the order in which they were packed.
    (size,) = _HEADER.unpack_from(data)
    position = _HEADER.size + size

    def elements(dtype: typing.Any, shape: list[int]) -> bytes:
        nonlocal position
        first, position = position, position + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        return data[first:position]

    return _restored(json.loads(data[_HEADER.size : position]), elements, device)


def _restored(described: typing.Any, elements: typing.Callable, device: torch.device) -> typing.Any:
    """Return the value of a description by `_described`; ``elements`` gives the next bytes for a type and a shape."""
    if not isinstance(described, dict):
        return described
    kind, of = described["kind"], described["of"]
    if kind == "tensor":
        name, shape, stride, place = of
        dtype = getattr(torch, name)
        taken = elements(dtype, shape)
        flat = torch.frombuffer(bytearray(taken), dtype=dtype) if taken else torch.empty(0, dtype=dtype)
        # An expanded tensor (stride 0) shares memory between elements, so it cannot be filled in its own layout.
        is_spread = any(step == 0 and length > 1 for step, length in zip(stride, shape, strict=True))
        laid_out = torch.empty(shape, dtype=dtype) if is_spread else torch.empty_strided(shape, stride, dtype=dtype)
        laid_out.copy_(flat.reshape(shape))
        return laid_out if place == "cpu" else laid_out.to(device)
    if kind == "array":
        return np.frombuffer(elements(np.dtype(of[0]), of[1]), of[0]).reshape(of[1]).copy()
    if kind == "dict":
        return {_restored(key, elements, device): _restored(each, elements, device) for key, each in of}
    values = [_restored(each, elements, device) for each in of]
    if kind == "deque":
        return collections.deque(values, described["maxlen"])
    return tuple(values) if kind == "tuple" else values


def raw(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's elements."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _described(value: typing.Any, blobs: list[bytes]) -> typing.Any:
    """Return a value as JSON, and append the bytes of its arrays to `blobs`."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is torch.Tensor:
        blobs.append(raw(value))
        name = str(value.dtype).removeprefix("torch.")
        place = "cpu" if value.device.type == "cpu" else "device"
        return {"kind": "tensor", "of": [name, list(value.shape), list(value.stride()), place]}
    if kind is np.ndarray and value.dtype.kind in "biuf":
        blobs.append(value.tobytes())
        return {"kind": "array", "of": [value.dtype.str, list(value.shape)]}
    if kind is dict:
        return {"kind": "dict", "of": [[_described(each, blobs) for each in pair] for pair in value.items()]}
    if kind in (list, tuple, collections.deque):
        described = {"kind": kind.__name__, "of": [_described(each, blobs) for each in value]}
        return {**described, "maxlen": value.maxlen} if kind is collections.deque else described
    raise TypeError(f"a {kind.__name__} is kept, which cannot be carried from one step to the next")


# Find and carry a policy's memory of an episode besides its last observations and its queued actions.

NOTHING = np.zeros(0, np.uint8)
"""The memory of an episode that begins."""

QUEUES = (("", "_queues"), ("", "_action_queue"))
"""The queues of LeRobot's policies for observations and actions; a question and its answer hold their content."""

_FURTHER_ACTIONS = 3
"""Further actions before the memory is compared: a policy may only keep something from the second action on."""

_OF_MODULES = frozenset(vars(torch.nn.Module()))

_Path = tuple[str, ...]
"""A module of a policy, then the attribute in it, or in an object in one of its attributes."""


class EpisodeMemory:
    """The attributes of a policy that an action changes and that `reset` restores."""

    def __init__(self, policy: typing.Any) -> None:
        # ``paths`` locates the policy's memory; empty if it has none beyond its queues.
        self._policy, self.paths = policy, list[_Path]()

    def find(self, act: typing.Callable[[], object]) -> None:
        """Find the policy's memory by a trial; `act` makes the policy act, and it has acted once already."""
        found = self._changed()
        if found <= {*QUEUES}:
            return
        for _ in range(_FURTHER_ACTIONS):
            act()
        acted = _states(self._policy)
        found |= self._changed(acted)
        self.paths = sorted(found | {path for path in QUEUES if path in acted})

    def kept(self) -> np.ndarray:
        """Return the policy's memory, shape (bytes,), uint8; TypeError if it contains an unsupported type."""
        parts = []
        # An attribute may not exist at this time; `recall` then deletes it.
        for number, path in enumerate(self.paths):
            owner = functools.reduce(getattr, path[1:-1], self._policy.get_submodule(path[0]))
            if hasattr(owner, path[-1]):
                parts.append((number, getattr(owner, path[-1])))
        try:
            return np.frombuffer(packed(parts), np.uint8)
        except TypeError as error:
            names = ", ".join(".".join(filter(None, path)) for path in self.paths)
            raise TypeError(f"what the policy remembers is in {names}: {error}") from error

    def recall(self, kept: np.ndarray, device: torch.device) -> None:
        """Restore the memory that `kept` returned (trailing zeros allowed); empty or all zeros for a new episode."""
        self._policy.reset()
        if not kept.any():
            return
        values = dict(unpacked(kept.tobytes(), device))
        for number, path in enumerate(self.paths):
            owner = functools.reduce(getattr, path[1:-1], self._policy.get_submodule(path[0]))
            if number in values:
                setattr(owner, path[-1], values[number])
            elif hasattr(owner, path[-1]):
                delattr(owner, path[-1])

    def _changed(self, acted: dict[_Path, object] | None = None) -> set[_Path]:
        """Reset the policy, and return the paths that differ from its state after acting (`acted`, default now)."""
        before = _states(self._policy) if acted is None else acted
        self._policy.reset()
        after = _states(self._policy)
        return {path for path in before.keys() | after.keys() if before.get(path, _Path) != after.get(path, _Path)}


def _states(policy: typing.Any) -> dict[_Path, object]:
    """Map each attribute path of a policy's modules and their objects to a comparable form of its value."""
    # Objects of other packages than the modules' own are compared by identity only.
    modules = dict(policy.named_modules())
    packages = {type(module).__module__.partition(".")[0] for module in modules.values()}
    states: dict[_Path, object] = {}
    seen: set[int] = set()

    def look_at(values: dict[str, object], path: _Path) -> None:
        for name, value in values.items():
            own = (*path, name)
            states[own] = _form(value)
            is_object = not isinstance(value, (type, torch.nn.Module, torch.Tensor)) and hasattr(value, "__dict__")
            is_known = is_object and type(value).__module__.partition(".")[0] in packages
            if is_known and id(value) not in seen:
                seen.add(id(value))
                states[own] = type(value)
                look_at(vars(value), own)

    for name, module in modules.items():
        own = {key: value for key, value in vars(module).items() if key not in _OF_MODULES}
        look_at({**own, **dict(module.named_buffers(recurse=False))}, (name,))
    return states


def _form(value: typing.Any) -> object:
    """Return a form that is equal for equal values; other objects equal only themselves."""
    kind = type(value)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type != "meta":
        return torch.Tensor, value.dtype, value.shape, raw(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return np.ndarray, value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return kind, [(key, _form(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return kind, [_form(each) for each in value]
    # The repr makes a NaN equal to itself.
    return (kind, repr(value)) if value is None or kind in (bool, int, float, str) else _Same(value)


class _Same:
    """Equality by identity. It holds the object, so that no other can get its address."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


# Draw the noise of each batch entry from its own seed, so that it does not depend on the batch.

_LIKE = {torch.randn_like: torch.randn, torch.rand_like: torch.rand}
_SIZED = {torch.randn: torch.randn, torch.rand: torch.rand}
_REFUSED = frozenset(
    {
        torch.randint,
        torch.randint_like,
        torch.randperm,
        torch.multinomial,
        torch.bernoulli,
        torch.poisson,
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
        torch.Tensor.bernoulli_,
        torch.Tensor.exponential_,
        torch.Tensor.random_,
    }
)
_DRAWING = _REFUSED.union(_LIKE, _SIZED, [torch.normal])


class NoiseOfEntries(TorchFunctionMode):
    """Mode in which torch draws noise with one seed per entry of the batch, which is the first dimension."""

    def __init__(self, seeds: typing.Sequence[int]) -> None:
        super().__init__()
        # Generators live on the CPU for any device, so that a seed gives the same noise everywhere.
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __torch_function__(
        self, function: typing.Any, types: typing.Any, args: tuple = (), kwargs: dict | None = None
    ) -> typing.Any:
        """Draw noise per entry, and pass all other calls on; RuntimeError if a draw cannot be split by entries."""
        given = kwargs or {}
        if function not in _DRAWING:
            return function(*args, **given)
        if function in _LIKE:
            like = args[0]
            wanted = given.get("dtype") or like.dtype, given.get("device") or like.device
            return self._drawn(_LIKE[function], like.shape, *wanted)
        if function in _SIZED:
            size = given.get("size", args[0] if len(args) == 1 else args)
            return self._drawn(_SIZED[function], size, given.get("dtype"), given.get("device"))
        if function is torch.normal:
            mean, std = given.get("mean", args[0] if args else 0.0), given.get("std", args[1] if len(args) > 1 else 1.0)
            size = given.get("size", args[2] if len(args) > 2 else None)
            if size is None:
                size = (mean if isinstance(mean, torch.Tensor) else std).shape
            return self._drawn(torch.randn, size, given.get("dtype"), given.get("device")) * std + mean
        raise RuntimeError(f"the policy draws with {function.__name__}, which is not known to be drawn by entries")

    def _drawn(self, draw: typing.Any, size: typing.Any, dtype: typing.Any, device: typing.Any) -> torch.Tensor:
        shape = (size,) if isinstance(size, int) else tuple(size)
        if len(shape) == 0 or shape[0] != len(self._generators):
            raise RuntimeError(f"the policy draws noise of shape {shape} for {len(self._generators)} entries")
        # Torch does not apply the mode while it handles a call, so these draws do not recurse.
        drawn = torch.stack([draw(shape[1:], generator=each, dtype=dtype) for each in self._generators])
        return drawn if device is None else drawn.to(device)


# A LeRobot policy with its processors, asked for chunks of actions.


class Answers:
    """One policy, and the requests to it."""

    def __init__(self, memory: int, told: typing.Callable[[Exception], dict]) -> None:
        # Neither is needed: observations and memory arrive with each request, and the caller reports errors.
        del memory, told
        self._network: typing.Any = None

    def answer(self, message: dict, arrays: dict) -> tuple[dict, dict]:
        """Return message and arrays of the answer to a request."""
        if message["request"] == "load":
            self._network = Network(message["directory"], message["device"], message["settings"])
            return self._network.description(), {}
        asked = message["words"], message["seeds"]
        if not self._network.remembers:
            return {}, {"actions": self._network.actions(arrays, *asked)}
        memory = arrays.pop("memories")
        action, memory = self._network.next_action(arrays, *asked, memory)
        return {}, {"actions": action, "memories": memory}


DRAWN_BY_ENTRY = frozenset({"act", "diffusion", "pi0", "pi05", "smolvla", "xvla"})
"""Types whose noise, if they draw any, has the batch as its first dimension. Others are asked about one entry each."""

_ACTION = "action"

_ROOM = 2
"""Factor by which a memory may outgrow its size after the first action, such as by the digits of a counter."""

_ENTRYWISE = frozenset(
    {"rename_observations_processor", "to_batch_processor", "normalizer_processor", "device_processor"}
)
"""Steps before a policy that make no entry longer because of others, as a tokenizer may."""

_ELEMENTWISE = frozenset({"unnormalizer_processor", "device_processor"})
"""Steps after a policy that do the same with each action, however many there are."""


class Network:
    """A policy with its saved pre- and postprocessor, on one device."""

    def __init__(self, directory: str, device: str, settings: dict) -> None:
        # ``settings``: torch's number of ``threads``, and True or False for ``deterministic`` algorithms.
        torch.set_num_threads(settings["threads"])
        if settings["deterministic"]:
            # Setting False, which is the default, would import torch's compiler.
            torch.use_deterministic_algorithms(mode=True)
        if device != "cpu":
            torch.cuda.set_device(torch.device(device))
        self._policy, self._before, self._after = loaded(directory, device)
        self._before_is_entrywise = saved_steps(directory, "policy_preprocessor") <= _ENTRYWISE
        self._after_is_elementwise = saved_steps(directory, "policy_postprocessor") <= _ELEMENTWISE
        self._device = torch.device(device)
        self._memory = EpisodeMemory(self._policy)

    @property
    def remembers(self) -> bool:
        """True if the policy remembers more than observations and actions; it then gives one action per call."""
        return bool(self._memory.paths)

    @property
    def takes_batches(self) -> bool:
        """True if one call may cover several entries."""
        return self._policy.config.type in DRAWN_BY_ENTRY and not self.remembers

    def description(self) -> dict:
        """Return the policy's inputs and outputs, found by a trial with blank observations."""
        config = self._policy.config
        inputs = {
            name: {"type": feature.type.value, "shape": list(feature.shape)}
            for name, feature in config.input_features.items()
        }
        arrays: dict[str, np.ndarray] = {}
        for name, feature in inputs.items():
            shape = feature["shape"]
            if feature["type"] == "VISUAL":
                channels, height, width = shape
                arrays[name] = np.zeros((1, config.n_obs_steps, height, width, channels), np.uint8)
            else:
                arrays[name] = np.zeros((1, config.n_obs_steps, *shape), np.float32)
        actions, memory = self.actions(arrays, ["nothing"], [0]), NOTHING
        self._memory.find(lambda: self._acted(arrays, ["nothing"], [0], one_step=True))
        if self.remembers:
            actions, memory = self.next_action(arrays, ["nothing"], [0], NOTHING)
        return {
            "type": config.type,
            "inputs": inputs,
            "num_observations": config.n_obs_steps,
            "num_actions": actions.shape[1],
            "action_dim": actions.shape[2],
            "takes_batches": self.takes_batches,
            "memory_bytes": _ROOM * len(memory),
        }

    def actions(self, arrays: dict, words: list[str], seeds: list[int]) -> np.ndarray:
        """Return the chunk that the policy plays before the next observation: (n, num_actions, action_dim), float32."""
        # ``arrays`` maps each feature to the last observations of each entry, oldest first: (n, num_observations, ...).
        # Pictures are uint8 with channels last.
        # Entries of different forms, such as instructions of different lengths, get separate calls of the same size,
        # filled up with copies. So no entry is padded because of others, which would change its last digits.
        groups: dict[tuple, list[int]] = {}
        for place, said in enumerate(() if len(words) == 1 or self._before_is_entrywise else words):
            alone = self._shown({name: array[[place]] for name, array in arrays.items()}, [said])
            processed = [self._before(step) for step in alone]
            shapes = [
                (name, value.shape) for step in processed for name, value in step.items() if hasattr(value, "shape")
            ]
            groups.setdefault(tuple(shapes), []).append(place)
        if len(groups) <= 1:
            return self._acted(arrays, words, seeds)
        found: dict[int, np.ndarray] = {}
        for places in groups.values():
            filled = places + places[:1] * (len(words) - len(places))
            part = {name: array[filled] for name, array in arrays.items()}
            asked = [words[place] for place in filled], [seeds[place] for place in filled]
            found.update(zip(places, self._acted(part, *asked), strict=False))
        return np.stack([found[place] for place in range(len(words))])

    def next_action(
        self, arrays: dict, words: list[str], seeds: list[int], memory: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the next action (1, 1, action_dim), float32, and the new memory (bytes,), uint8, of one entry."""
        # Some policies draw at the start of an episode. That seed must differ from the seed of the first action.
        torch.manual_seed(seeds[0] ^ 1)
        self._memory.recall(memory, self._device)
        return self._acted(arrays, words, seeds, one_step=True), self._memory.kept()

    def _acted(self, arrays: dict, words: list[str], seeds: list[int], *, one_step: bool = False) -> np.ndarray:
        """Return the processed actions of LeRobot's own loop for some observations, with one noise seed per entry."""
        # They are the action after the last observation, and unless `one_step` those that are queued.
        steps = self._shown(arrays, words)
        if self.takes_batches:
            noise: typing.Any = NoiseOfEntries(seeds)
        else:
            noise = contextlib.nullcontext()
            torch.manual_seed(seeds[0])
        amp = torch.autocast(self._device.type) if self._policy.config.use_amp else contextlib.nullcontext()
        with torch.inference_mode(), amp, noise:
            observations = [self._before(step) for step in steps]
            # A policy with memory has seen the earlier observations. Others keep their last observations themselves,
            # and act after each unless an action is queued. So they get a blank action to play after all observations
            # but the last.
            if not one_step:
                self._policy.reset()
                for observation in observations[:-1]:
                    self._kept().append(None)
                    self._policy.select_action(observation)
            actions = [self._policy.select_action(observations[-1])]
            actions += [] if one_step else self._kept()
            if self._after_is_elementwise:
                stacked = torch.stack(actions, dim=1)
                played = self._after(stacked.flatten(0, 1)).unflatten(0, stacked.shape[:2])
            else:
                played = torch.stack([self._after(action) for action in actions], dim=1)
        return played.to("cpu", torch.float32).numpy()

    def _shown(self, arrays: dict, words: list[str]) -> list[dict]:
        """Return each observation in the form of LeRobot's own loop: pictures as floats in [0, 1], channels first."""
        shown = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        for name, tensor in shown.items():
            if tensor.dtype is torch.uint8:
                shown[name] = tensor.movedim(-1, -3).contiguous().to(torch.float32) / 255
        steps = range(self._policy.config.n_obs_steps)
        return [{**{name: each[:, step] for name, each in shown.items()}, "task": words} for step in steps]

    def _kept(self) -> typing.Any:
        """Return the queue of actions that the policy has still to play, always empty if it keeps none."""
        queue = getattr(self._policy, "_action_queue", None)
        return getattr(self._policy, "_queues", {}).get(_ACTION, []) if queue is None else queue
