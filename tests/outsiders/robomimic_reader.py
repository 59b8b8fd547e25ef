"""How robomimic meets a file and an environment: what its loader reads, and what it asks of Gym."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np

DATASET_KEYS = ("actions", "rewards", "dones")


def loaded(path: Path, keys: Sequence[str], *, mask: str | None = None) -> dict[str, dict[str, np.ndarray]]:
    """Return the arrays of each demonstration, in the order and by the calls of the default loader."""
    with h5py.File(path, "r", swmr=True, libver="latest") as opened:
        file: Any = opened
        if mask is None:
            names = list(file["data"])
        else:
            names = [name.decode("utf-8") for name in np.array(file[f"mask/{mask}"][:])]
        names = [names[position] for position in np.argsort([int(name[5:]) for name in names])]
        found = {}
        for name in names:
            demo = file[f"data/{name}"]
            arrays = {key: demo[key][()].astype("float32") for key in DATASET_KEYS}
            for group in ("obs", "next_obs"):
                arrays |= {f"{group}/{key}": demo[f"{group}/{key}"][()] for key in keys}
            assert {len(array) for array in arrays.values()} == {int(demo.attrs["num_samples"])}
            found[name] = arrays
        return found


def environment_metadata(path: Path) -> dict[str, Any]:
    """Return the arguments that build the environment of a file."""
    with h5py.File(path) as file:
        return json.loads(str(file["data"].attrs["env_args"]))


@contextmanager
def gym_registry() -> Iterator[ModuleType]:
    """Stand in for the package `gym`, which is not installed here: a registry that imports the module before an id."""
    entries: dict[str, tuple[str, dict[str, Any]]] = {}

    def register(id: str, *, entry_point: str, kwargs: dict[str, Any], **wrappers: bool) -> None:  # noqa: A002
        assert wrappers == {"disable_env_checker": True, "order_enforce": False}
        entries[id] = entry_point, kwargs

    def make(name: str, **kwargs: Any) -> Any:
        module, name = name.split(":")
        import_module(module)
        entry_point, own = entries[name]
        maker, attribute = entry_point.split(":")
        return getattr(import_module(maker), attribute)(**{**own, **kwargs})

    gym: Any = ModuleType("gym")
    gym.register, gym.make = register, make
    ids = "isaaclab_arena.evaluation.gym_ids.robomimic_ids"
    before = sys.modules.get("gym")
    sys.modules["gym"] = gym
    sys.modules.pop(ids, None)
    try:
        yield gym
    finally:
        sys.modules.pop(ids, None)
        sys.modules.pop("gym")
        if before is not None:
            sys.modules["gym"] = before
