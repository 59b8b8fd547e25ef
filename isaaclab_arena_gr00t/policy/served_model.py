"""Ask a GR00T model in the run's policy server: the network that is served there, and what stands for it on a rank."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from isaaclab_arena.interfaces.policy_traits import Entries, NetworkElsewhere
from isaaclab_arena_gr00t.modality import Dimensions, Modality, StatedModality

NOISE_SEEDS = "noise_seeds"
"""The option of a query with each env slot's noise seed, if the model package supports it."""

CONTINUED = "continued"
"""The option of a query with the actions that its answers go on from, if the model package supports it."""

_ARRAYS = ("video", "state")
_GOING_ON = "continued_action"
_WEIGHTS = "continued_weights"


class Gr00tNetwork:
    """A loaded model as a `Network`.

    Args:
        ask: Asks the model about an observation, with a noise seed for each env slot, and what answers go on from, None
            for nothing; see `isaaclab_arena_gr00t.observations.continued`.
        modalities: What the model takes and gives.
        dimensions: Sizes of its states and actions, None where it does not say.
        slots_per_call: Env slots in each call, None where that may be chosen.
        plan_because: Why an answer does not follow from its entry alone; None if it does.
        can_continue: Whether the model can be given what its answers go on from.
    """

    def __init__(
        self,
        ask: Callable[[dict[str, Any], list[int], Mapping[str, Any] | None], Mapping[str, np.ndarray]],
        *,
        modalities: Mapping[str, Modality],
        dimensions: Dimensions | None,
        slots_per_call: int | None,
        plan_because: str | None,
        can_continue: bool,
    ) -> None:
        self._ask = ask
        self.about: Mapping[str, Any] = {
            "modalities": {name: dataclasses.asdict(_stated(each)) for name, each in modalities.items()},
            "dimensions": None if dimensions is None else {name: dict(sizes) for name, sizes in dimensions.items()},
            "slots_per_call": slots_per_call,
            "plan_because": plan_because,
            "can_continue": can_continue,
        }

    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the actions; see `Network.answer`."""
        observation: dict[str, Any] = {"video": {}, "state": {}, "language": {}}
        planned: dict[str, Any] = {}
        for name, values in entries.items():
            modality, _, key = name.partition(".")
            if modality in _ARRAYS:
                observation[modality][key] = values
            elif modality == "language":
                observation[modality][key] = [[text] for text in values]
            elif modality == _GOING_ON:
                planned[key] = values
        going_on = {"actions": planned, "weights": entries[_WEIGHTS]} if planned else None
        return self._ask(observation, [int(seed) for seed in entries[NOISE_SEEDS]], going_on)


class ServedModel:
    """Stands for a ``Gr00tPolicy`` that a policy server has.

    Args:
        network: The network there.

    Attributes:
        honoured_options: Options of a query that the model there heeds.
        slots_per_call: Env slots in each call of the model there.
        plan_because: See `Gr00tNetwork`.
    """

    takes_tensors = False

    def __init__(self, network: NetworkElsewhere) -> None:
        self._network = network
        self.honoured_options = (NOISE_SEEDS, CONTINUED) if network.about["can_continue"] else (NOISE_SEEDS,)
        self._own_slots = network.about["slots_per_call"] or network.max_batch
        self.slots_per_call: int = self._own_slots
        self.plan_because: str | None = network.about["plan_because"]

    def get_modality_config(self) -> Mapping[str, Modality]:
        """Return what the model takes and gives."""
        return {name: StatedModality(**said) for name, said in self._network.about["modalities"].items()}

    def get_dimensions(self) -> Dimensions | None:
        """Return the size of each state and action key, None where the model does not say."""
        return self._network.about["dimensions"]

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        """Have calls made of so many env slots from now on, None for what the server says."""
        self.slots_per_call = num_slots or self._own_slots

    def get_action(
        self, observation: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the actions, for any number of env slots, and nothing else; see ``Gr00tPolicy.get_action``."""
        entries: dict[str, np.ndarray | Sequence[str]] = {
            f"{modality}.{key}": values for modality in _ARRAYS for key, values in observation[modality].items()
        }
        entries |= {f"language.{key}": [text for (text,) in texts] for key, texts in observation["language"].items()}
        entries[NOISE_SEEDS] = np.array(options[NOISE_SEEDS], np.int64)
        if CONTINUED in options:
            going_on = options[CONTINUED]
            entries |= {f"{_GOING_ON}.{key}": values for key, values in going_on["actions"].items()}
            entries[_WEIGHTS] = going_on["weights"]
        return self._network.ask(entries, slots_per_call=self.slots_per_call), {}

    def close(self) -> None:
        """Say that nothing will be asked for now."""
        self._network.close()


def _stated(modality: Modality) -> StatedModality:
    return StatedModality(
        delta_indices=[int(step) for step in modality.delta_indices],
        modality_keys=[str(key) for key in modality.modality_keys],
    )
