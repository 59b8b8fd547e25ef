"""The policy that serves a checkpoint through ``get_action``, with checks of its observations and actions."""

import logging
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gr00t import HONOURED_OPTIONS, ActionError, ObservationError
from gr00t.data.embodiment_tags import EmbodimentTag
from gr00t.data.types import MODALITIES, ModalityConfig, ModalityConfigs
from gr00t.model.checkpoint import load_model, load_processor
from gr00t.model.modeling import seeded_noise
from gr00t.policy.policy import BasePolicy

__all__ = ["Gr00tPolicy", "Gr00tSimPolicyWrapper"]

_LOG = logging.getLogger(__name__)

_COARSE_ACTION = "annotation.human.coarse_action"
"""The name of the instruction in some environments, for models that call it ``task``."""

_MOST_UNKNOWN_LOGGED = 100
_MOST_NAMES_SHOWN = 20
_LONGEST_NAME = 64
_OBSERVED = ("video", "state", "language")


class Gr00tPolicy(BasePolicy):
    """Answers a batch of nested observations with a batch of action chunks, in one call of the model.

    Args:
        embodiment_tag: One of the checkpoint's robots; a tag, or its name or value in any case.
        model_path: A checkpoint's directory.
        device: Device of the model: ``"cpu"``, ``"cuda:1"`` or a CUDA index.
        strict: True to check observations and actions.
        refuse_unknown: True to refuse an entry that the model does not know. By default the policy ignores it, as
            NVIDIA's does, and one line of the log names it.
        dtype: Precision of the weights, by default float32 on the CPU and bfloat16 elsewhere.

    Attributes:
        model: The model.
        processor: Its processor.
        embodiment_tag: The robot.
        honoured_options: Supported options of a query: ``noise_seeds``, one per batch entry. An entry's noise depends
            only on its own seed. ``continued`` holds planned actions that the answer continues:
            ``actions`` {key: (B, horizon, D)} in physical units, and ``weights`` (B, horizon), from 0 to 1.
        takes_tensors: True: pictures and states of an observation may be tensors, on any device. Those on the model's
            own device stay there.

    Raises:
        CheckpointError: If there is no checkpoint at the path, or one that must not be loaded.
        EmbodimentError: If the tag does not exist, or the checkpoint does not know it.
    """

    honoured_options = HONOURED_OPTIONS
    takes_tensors = True

    def __init__(
        self,
        embodiment_tag: EmbodimentTag | str,
        model_path: str | Path,
        *,
        device: int | str | torch.device,
        strict: bool = True,
        refuse_unknown: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(strict=strict)
        self.refuse_unknown = refuse_unknown
        self._named: set[str] = set()
        self.embodiment_tag = EmbodimentTag.resolve(embodiment_tag)
        self.processor = load_processor(model_path)
        self._embodiment = self.processor.embodiment(self.embodiment_tag)
        self.device = torch.device(device)
        if dtype is None:
            dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        self.model = load_model(model_path, device=self.device, dtype=dtype)

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        """Return the policy's inputs and outputs: one entry each for video, state, action and language."""
        return dict(self._embodiment.modality_configs)

    def get_dimensions(self) -> dict[str, dict[str, int]]:
        """Return the size of each key: ``{"state": {key: dimension}, "action": {key: dimension}}``."""
        return {modality: dict(sizes) for modality, sizes in self._embodiment.dimensions.items()}

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:  # noqa: ARG002  the contract's
        """Do nothing: the policy has no state between calls."""
        return {}

    def compile(self) -> None:
        """Have torch compile the flow's step, which takes a minute at the first query.

        On a GPU it becomes a CUDA graph for each batch size, which launches many small kernels at once. The last digits
        of an answer change.
        """
        # A whole query cannot be compiled, because it switches to inference mode, and the encoders alone take minutes.
        mode = "reduce-overhead" if self.model.device.type == "cuda" else "default"
        head: Any = self.model.action_head
        head.velocity = torch.compile(head.velocity, mode=mode, dynamic=False)

    def check_observation(self, observation: dict[str, Any]) -> None:
        """Raise an ``ObservationError`` that names the problem of an observation."""
        configs = self._embodiment.modality_configs
        ignored = check_observation(observation, configs, self._embodiment.dimensions)
        if ignored and self.refuse_unknown:
            known = ", ".join(f"{modality}.{key}" for modality in configs for key in configs[modality].modality_keys)
            raise ObservationError(f"the model does not know {', '.join(ignored)}; it knows {known}")
        new = [name for name in ignored if name not in self._named]
        # A client that sends new names each time must not flood the log.
        if new and len(self._named) < _MOST_UNKNOWN_LOGGED:
            self._named.update(new)
            _LOG.warning("the model does not know %s of an observation, and ignores it", ", ".join(new))

    def check_action(self, action: dict[str, np.ndarray]) -> None:
        """Raise an ``ActionError`` that names the problem of an action."""
        config, dimensions = self._embodiment.modality_configs["action"], self._embodiment.dimensions["action"]
        keys = config.modality_keys
        if set(action) != set(keys):
            raise ActionError(f"the action has the keys {sorted(action)}, and should have {sorted(keys)}")
        for key, values in action.items():
            shape = (len(config.delta_indices), dimensions[key])
            if values.dtype != np.float32 or values.ndim != 3 or values.shape[1:] != shape:
                raise ActionError(
                    f"action '{key}' is {_describe(values)}, and should be float32 of shape (B, {shape[0]}, {shape[1]})"
                )
            if not np.isfinite(values).all():
                raise ActionError(f"action '{key}' holds numbers that are not finite")

    def _get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Run the model once for the whole batch."""
        options = options or {}
        inputs = self.processor(observation, self.embodiment_tag, device=self.device)
        batch_size = len(inputs["state"])
        # The CPU draws the noise: each entry's from its own seed, or all of it from torch's global generator.
        shape = (self.model.config.action_horizon, self.model.config.max_action_dim)
        seeds = options.get("noise_seeds")
        if seeds is None:
            noise = torch.randn(batch_size, *shape)
        elif len(seeds) == batch_size:
            noise = seeded_noise(seeds, shape)
        else:
            raise ObservationError(f"options['noise_seeds'] has {len(seeds)} seeds for a batch of {batch_size}")
        continued = options.get("continued")
        if continued is None:
            action = self.model.get_action(inputs, noise=noise)
        else:
            # Refuse actions and weights of other shapes than an answer can continue.
            given: Mapping[str, Any] = continued if isinstance(continued, Mapping) else {}
            actions, weights = given.get("actions"), np.asarray(given.get("weights", 0.0))
            steps = weights.shape[1] if weights.ndim == 2 else 0
            sizes = self._embodiment.dimensions["action"]
            due = {key: (batch_size, steps, size) for key, size in sizes.items()}
            found = {key: np.shape(values) for key, values in actions.items()} if isinstance(actions, Mapping) else None
            if found != due or weights.shape != (batch_size, steps) or not steps:
                raise ObservationError(
                    f"options['continued'] needs actions of the shapes {due} and weights of shape ({batch_size}, "
                    f"steps), got {found} and {weights.shape}"
                )
            target, weights = self.processor.continuation(
                continued["actions"], continued["weights"], self.embodiment_tag
            )
            action = self.model.continue_action(inputs, noise=noise, target=target, weights=weights)
        return self.processor.decode_action(action, self.embodiment_tag), {}


class Gr00tSimPolicyWrapper(BasePolicy):
    """Lets a policy accept observations with flat keys, and answers these with flat keys too.

    They are ``video.<camera>``, ``state.<key>`` and the instruction's own name with one str per batch entry; the
    answer's are ``action.<key>``. The policy decides about keys that the model does not know. Nested observations reach
    the policy unchanged.

    Args:
        policy: The wrapped policy.
        strict: Accepted for NVIDIA's signature; the policy does the checks.
    """

    def __init__(self, policy: BasePolicy, *, strict: bool = True) -> None:
        del strict
        super().__init__(strict=False)
        self.policy = policy

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        """Return the inputs and outputs of the policy, with the keys of nested observations."""
        return self.policy.get_modality_config()

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Reset the policy, which forgets the state of earlier episodes."""
        return self.policy.reset(options)

    def check_observation(self, observation: dict[str, Any]) -> None:
        """Raise an ``ObservationError`` that names the problem of an observation."""
        self.policy.check_observation(self._nested(observation) if is_flat(observation) else observation)

    def check_action(self, action: dict[str, np.ndarray]) -> None:
        """Raise an ``ActionError`` that names the problem of an action."""
        self.policy.check_action({key.removeprefix("action."): values for key, values in action.items()})

    def _get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        if not is_flat(observation):
            return self.policy.get_action(observation, options)
        action, info = self.policy.get_action(self._nested(observation), options)
        return {f"action.{key}": values for key, values in action.items()}, info

    def _nested(self, observation: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        configs = self.policy.get_modality_config()
        nested = {
            modality: {key: _entry(observation, f"{modality}.{key}") for key in configs[modality].modality_keys}
            for modality in ("video", "state")
        }
        # The policy decides about entries that it does not know.
        for name, entry in observation.items():
            modality, _, key = name.partition(".")
            if modality in nested:
                nested[modality].setdefault(key, entry)
        # A model with several names for the instruction needs only the first.
        (key, *others) = configs["language"].modality_keys
        name = _COARSE_ACTION if key == "task" and _COARSE_ACTION in observation else key
        words = {key: _entry(observation, name)} | {each: observation[each] for each in others if each in observation}
        for each, texts in words.items():
            if not isinstance(texts, (list, tuple, np.ndarray)):
                raise ObservationError(
                    f"'{each}' should be a list of one str per batch entry, and is a {type(texts).__name__}"
                )
        return {**nested, "language": {each: [[text] for text in texts] for each, texts in words.items()}}


def is_flat(observation: object) -> bool:
    """True if an observation has flat keys."""
    return (
        isinstance(observation, Mapping)
        and not any(modality in observation for modality in MODALITIES)
        and any(isinstance(key, str) and key.startswith(("video.", "state.")) for key in observation)
    )


def _entry(observation: Mapping[str, Any], key: str) -> Any:
    if key not in observation:
        found = sorted(name[:_LONGEST_NAME] for name in observation if isinstance(name, str))[:_MOST_NAMES_SHOWN]
        raise ObservationError(f"the observation lacks '{key}'; it has {', '.join(found)}")
    return observation[key]


def check_observation(
    observation: Mapping[str, Any], configs: ModalityConfigs, dimensions: Mapping[str, Mapping[str, int]]
) -> tuple[str, ...]:
    """Check an observation, and return the names of entries that the model ignores, such as ``state.gripper``."""
    # The first problem raises an ObservationError with the entry, its value and the expected one.
    if not isinstance(observation, Mapping):
        raise ObservationError(f"observation should be a dict, and is {_describe(observation)}")
    batch_sizes: dict[str, int] = {}
    ignored: list[str] = []
    for modality in _OBSERVED:
        if modality not in observation:
            raise ObservationError(f"the observation lacks '{modality}'; it needs {', '.join(_OBSERVED)}")
        entries, config = observation[modality], configs[modality]
        if not isinstance(entries, Mapping):
            raise ObservationError(f"observation['{modality}'] should be a dict, and is {_describe(entries)}")
        for place, key in enumerate(config.modality_keys):
            if key not in entries:
                if modality == "language" and place > 0:
                    continue  # The model uses only the first.
                raise ObservationError(
                    f"{modality} lacks '{key}'; it needs {config.modality_keys} and has {_SHORT.repr(list(entries))}"
                )
            batch_sizes[f"{modality} '{key}'"] = _check_entry(modality, key, entries[key], config, dimensions)
        ignored += [f"{modality}.{str(key)[:60]}" for key in entries if key not in config.modality_keys]
    if len(set(batch_sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in batch_sizes.items())
        raise ObservationError(f"the entries of the observation differ in their batch size: {listed}")
    if 0 in batch_sizes.values():
        raise ObservationError("the observation's batch is empty")
    return tuple(ignored)


def _check_entry(
    modality: str, key: str, entry: Any, config: ModalityConfig, dimensions: Mapping[str, Mapping[str, int]]
) -> int:
    """Check one entry and return its batch size."""
    if modality == "language":
        fits = isinstance(entry, (list, tuple)) and all(
            isinstance(texts, (list, tuple)) and len(texts) == 1 and isinstance(texts[0], str) for texts in entry
        )
        if not fits:
            raise ObservationError(
                f"language '{key}' should be a list of B lists of one str each, and is {_describe(entry)}"
            )
        return len(entry)

    # The shape follows the batch dimension; None is any positive size.
    steps, dtype = len(config.delta_indices), "uint8" if modality == "video" else "float32"
    shape = (steps, None, None, 3) if modality == "video" else (steps, dimensions["state"][key])
    fits = (
        isinstance(entry, (np.ndarray, torch.Tensor))
        and str(entry.dtype).removeprefix("torch.") == dtype
        and entry.ndim == len(shape) + 1
        and all(actual > 0 and wanted in (None, actual) for actual, wanted in zip(entry.shape[1:], shape, strict=True))
    )
    if not fits:
        wanted = ", ".join(["B", *("any" if size is None else str(size) for size in shape)])
        raise ObservationError(f"{modality} '{key}' is {_describe(entry)}, and should be {dtype} of shape ({wanted})")
    if modality == "state":
        # Numbers on a GPU count as finite, because the CPU would have to wait for them.
        if isinstance(entry, torch.Tensor):
            is_finite = not entry.is_cpu or bool(torch.isfinite(entry).all())
        else:
            is_finite = bool(np.isfinite(entry).all())
        if not is_finite:
            raise ObservationError(f"state '{key}' holds numbers that are not finite")
    return len(entry)


def _describe(value: Any) -> str:
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    text = _SHORT.repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


class _ShortRepr(reprlib.Repr):
    """Shows only the beginning of a value, which may be as large as a message."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60
        self.maxlist = 20

    def repr_bytes(self, x: bytes, level: int) -> str:
        del level
        return repr(x[:60])


_SHORT = _ShortRepr()
