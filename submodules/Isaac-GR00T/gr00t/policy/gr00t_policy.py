"""The policy that serves a checkpoint through ``get_action``."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gr00t import HONOURED_OPTIONS
from gr00t.data.embodiment_tags import EmbodimentTag
from gr00t.data.types import ModalityConfig
from gr00t.errors import ObservationError
from gr00t.model.checkpoint import load_model, load_processor
from gr00t.model.networks.flow_matching import seeded_noise
from gr00t.policy.observation_check import check_action, check_continued, check_observation
from gr00t.policy.policy import BasePolicy
from gr00t.policy.sim_policy_wrapper import Gr00tSimPolicyWrapper

__all__ = ["Gr00tPolicy", "Gr00tSimPolicyWrapper"]

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 100


class Gr00tPolicy(BasePolicy):
    """Answers a batch of nested observations with a batch of action chunks, in one call of the model.

    Args:
        embodiment_tag: One of the checkpoint's robots; a tag, or its name or value in any case.
        model_path: A checkpoint's directory.
        device: Device of the model: ``"cpu"``, ``"cuda:1"`` or a CUDA index.
        strict: Whether observations and actions are checked.
        refuse_unknown: Whether an entry that the model does not know is refused. By default it is ignored, as by
            NVIDIA's policy, and one line of the log names it.
        dtype: Precision of the weights; float32 on the CPU and bfloat16 elsewhere if not given.

    Attributes:
        model: The model.
        processor: Its processor.
        embodiment_tag: The robot.
        honoured_options: Supported options of a query: ``noise_seeds``, one per batch entry. An entry's noise depends
            only on its own seed. ``continued`` holds planned actions that the answer continues:
            ``actions`` {key: (B, horizon, D)} in physical units, and ``weights`` (B, horizon), from 0 to 1.
        takes_tensors: Whether pictures and states of an observation may be tensors, on any device. Those on the model's
            own device stay there.

    Raises:
        CheckpointError: If there is no checkpoint at the path, or one that must not be loaded.
        EmbodimentError: If the tag does not exist, or the checkpoint was not made for it.
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
        self.model.compile_flow()

    def check_observation(self, observation: dict[str, Any]) -> None:
        """Raise an ``ObservationError`` that names the problem of an observation."""
        configs = self._embodiment.modality_configs
        ignored = check_observation(observation, configs, self._embodiment.dimensions)
        if ignored and self.refuse_unknown:
            known = ", ".join(f"{modality}.{key}" for modality in configs for key in configs[modality].modality_keys)
            raise ObservationError(f"the model does not know {', '.join(ignored)}; it knows {known}")
        new = [name for name in ignored if name not in self._named]
        # A client that sends new names each time must not flood the log.
        if new and len(self._named) < _MOST_NAMED:
            self._named.update(new)
            _LOG.warning("the model does not know %s of an observation, and ignores it", ", ".join(new))

    def check_action(self, action: dict[str, np.ndarray]) -> None:
        """Raise an ``ActionError`` that names the problem of an action."""
        check_action(action, self._embodiment.modality_configs["action"], self._embodiment.dimensions["action"])

    def _get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Run the model once for the whole batch.

        ``options["noise_seeds"]`` may hold one integer per batch entry. The flow of entry b then starts from the noise
        of seed b, independently of the other entries. Without seeds the noise comes from torch's global generator.
        """
        inputs = self.processor(observation, self.embodiment_tag, device=self.device)
        noise = self._noise(len(inputs["state"]), options or {})
        going_on = (options or {}).get("continued")
        if going_on is None:
            action = self.model.get_action(inputs, noise=noise)
        else:
            check_continued(going_on, self._embodiment.dimensions["action"], batch_size=len(noise))
            target, weights = self.processor.continuation(going_on["actions"], going_on["weights"], self.embodiment_tag)
            action = self.model.continue_action(inputs, noise=noise, target=target, weights=weights)
        return self.processor.decode_action(action, self.embodiment_tag), {}

    def _noise(self, batch_size: int, options: dict[str, Any]) -> Tensor:
        """Return each batch entry's initial noise, drawn on the CPU. Shape: (B, action_horizon, max_action_dim)."""
        shape = (self.model.config.action_horizon, self.model.config.max_action_dim)
        seeds = options.get("noise_seeds")
        if seeds is None:
            return torch.randn(batch_size, *shape)
        if len(seeds) != batch_size:
            raise ObservationError(f"options['noise_seeds'] has {len(seeds)} seeds for a batch of {batch_size}")
        return seeded_noise(seeds, shape)
