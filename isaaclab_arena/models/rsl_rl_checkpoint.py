"""rsl_rl's checkpoints, of version 2 to 5, read without rsl_rl."""

import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import torch

from isaaclab_arena.errors import ConfigError, Problem, StorageError, first_line
from isaaclab_arena.models.actor import Actor
from isaaclab_arena.models.agent_settings import AgentSettings, NetworkSettings
from isaaclab_arena.models.rebuilt_actor import CLASSES, EXPORT, rebuilt_actor

State: TypeAlias = dict[str, torch.Tensor]

_TRACE = (
    "to evaluate it, trace its actor and name that file, torch.jit.trace(actor, torch.zeros(2, num_inputs))"
    ".save('actor.pt'), or write a policy of your own"
)
_OTHER_ARCHIVES = {
    "_stable_baselines3_version": f"is a model of Stable-Baselines3; {_TRACE}",
    "archive_format": f"is a program of torch.export (.pt2), which is not loaded here; {_TRACE}",
}
"""Names in archives of other programs, to what is said of them."""
_ROLES = ("actor", "student", "critic", "teacher", "memory_", "std", "log_std")
_LFS = b"version https://git-lfs"

_STATE_KEYS = ("student_state_dict", "actor_state_dict", "model_state_dict")
_CRITIC_KEY = "critic_state_dict"
# What is left of the names of versions 2 to 4 when they have those of version 5.
_RENAMED = {
    "critic": {"critic.": "mlp.", "critic_obs_normalizer.": "obs_normalizer.", "memory_c.rnn.": "rnn.rnn."},
    "actor": {"actor.": "mlp.", "actor_obs_normalizer.": "obs_normalizer.", "memory_a.rnn.": "rnn.rnn."},
    "student": {"student.": "mlp.", "student_obs_normalizer.": "obs_normalizer.", "memory_s.rnn.": "rnn.rnn."},
}
_STD = {"std": "distribution.std_param", "log_std": "distribution.log_std_param"}
_OF_OTHERS = ("critic", "memory_c.", "teacher", "memory_t.")
_NORMALIZER = "obs_normalizer."
_CRITIC_NORMALIZERS = ("critic_obs_norm_state_dict", "privileged_obs_norm_state_dict")


def load_actor(path: Path, settings: AgentSettings, device: torch.device) -> Actor:
    """Return the actor of a checkpoint.

    Args:
        path: A file ``model_<iteration>.pt``.
        settings: The configuration that it was trained with.
        device: Where it is to run.

    Raises:
        ConfigError: If the file is no such checkpoint, or its network is of a kind that is not known here.
    """
    network = settings.network
    _check_class(network, path)
    state = actor_state(read_checkpoint(path), path)
    moved = {name: tensor.to(device, torch.float32, copy=True) for name, tensor in state.items()}
    try:
        return rebuilt_actor(moved, network)
    except ConfigError as error:
        raise ConfigError([Problem(problem.message, file=str(path)) for problem in error.problems]) from error


def read_checkpoint(path: Path) -> Mapping[str, Any]:
    """Read a checkpoint, without running anything that it may hold.

    Raises:
        ConfigError: If it is none, or it holds more than tensors and plain values.
        StorageError: If the system cannot read it, which says nothing about what it holds.
    """
    _refuse_other_files(path)
    _refuse_what_unfolds(path)
    try:
        with warnings.catch_warnings():
            # Of pickles that are not torch's own; what is wrong with them is said below.
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    except (RuntimeError, ValueError, EOFError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise ConfigError(Problem(f"is no checkpoint: {first_line(error)}", file=str(path))) from error
    except Exception as error:
        # What the restricted unpickler raises has no public name: it is a class of the module that must not be used.
        if type(error).__name__ != "UnpicklingError":
            raise
        message = (
            "is no checkpoint, or holds more than tensors and plain values, which is not loaded: it could run code; "
            f"of a whole module {_TRACE}"
        )
        raise ConfigError(Problem(message, file=str(path))) from error
    if not isinstance(checkpoint, Mapping):
        message = f"is no checkpoint of rsl_rl but a {type(checkpoint).__name__}"
        raise ConfigError(Problem(message, file=str(path)))
    return checkpoint


def actor_state(checkpoint: Mapping[str, Any], path: Path) -> State:
    """Return the tensors of a checkpoint's actor, or of its student, under the names of rsl_rl 5.

    Args:
        checkpoint: What the file holds, as any version of rsl_rl from 2 on writes it.
        path: The file, for messages.

    Raises:
        ConfigError: If there is no actor in it.
    """
    refuse_other_trainers(checkpoint, path)
    key = next(key for key in _STATE_KEYS if _is_state(checkpoint.get(key)))
    state = _with_new_names(checkpoint[key]) if key == "model_state_dict" else dict(checkpoint[key])
    return _whole_state(state, checkpoint.get("obs_norm_state_dict"), path)


def refuse_other_trainers(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint that rsl_rl did not write, with the library that did, as far as its keys tell.

    Raises:
        ConfigError: If no actor of rsl_rl is in it.
    """
    states = [checkpoint[key] for key in _STATE_KEYS if _is_state(checkpoint.get(key))]
    # Versions 2 and 3 keep all networks in one state, whose names say which is which; others have that key too.
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
    raise ConfigError(Problem(f"{message}; {_TRACE}", file=str(path)))


def critic_state(checkpoint: Mapping[str, Any], path: Path) -> State | None:
    """Return the tensors of a checkpoint's critic under the names of rsl_rl 5, None where it has no critic.

    Args:
        checkpoint: What the file holds, as any version of rsl_rl from 2 on writes it.
        path: The file, for messages.

    Raises:
        ConfigError: If a tensor is none that a training writes.
    """
    if _is_state(checkpoint.get(_CRITIC_KEY)):
        state = dict(checkpoint[_CRITIC_KEY])
    else:
        state = {new: tensor for role, new, tensor in _of_old_versions(checkpoint) if role == "critic"}
    if not state:
        return None
    normalizer = next((checkpoint[key] for key in _CRITIC_NORMALIZERS if key in checkpoint), None)
    return _whole_state(state, normalizer, path)


def moments_by_name(checkpoint: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what a checkpoint's optimiser keeps of each weight, empty where that cannot be told.

    An optimiser knows weights by their place only, which is another one in each version of rsl_rl.

    Args:
        checkpoint: What the file holds, as any version of rsl_rl from 2 on writes it.

    Returns:
        Role of the network and name of the weight in it, as rsl_rl 5 has them, to what is kept of it.
    """
    optimizer = checkpoint.get("optimizer_state_dict")
    if not isinstance(optimizer, Mapping):
        return {}
    kept, groups = optimizer.get("state"), optimizer.get("param_groups")
    if not isinstance(kept, Mapping) or not isinstance(groups, list):
        return {}
    places = [place for group in groups for place in _places(group)]
    weights = [(role, name) for role, name, _ in _named_weights(checkpoint) if not name.startswith(_NORMALIZER)]
    if len(places) != len(weights) or not all(_is_kept(kept.get(place)) for place in places):
        return {}
    return {weight: dict(kept[place]) for weight, place in zip(weights, places, strict=True)}


def _places(group: Any) -> list[int]:
    """Return the places of a group's weights in an optimiser."""
    places = group.get("params") if isinstance(group, Mapping) else None
    return [place for place in places if isinstance(place, int)] if isinstance(places, list) else []


def _is_kept(value: Any) -> bool:
    """Whether this is what an optimiser keeps of a weight: numbers, and tensors that can be copied."""
    return isinstance(value, Mapping) and all(
        isinstance(each, int | float) or (isinstance(each, torch.Tensor) and _wrong_with_tensor(each) is None)
        for each in value.values()
    )


def _named_weights(checkpoint: Mapping[str, Any]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield role, name and tensor of all that a checkpoint's networks hold, in the order of their parameters."""
    if _is_state(checkpoint.get("actor_state_dict")):
        for role, key in (("actor", "actor_state_dict"), ("critic", _CRITIC_KEY)):
            state = checkpoint.get(key)
            for name, tensor in state.items() if _is_state(state) else ():
                yield role, _STD.get(name, name), tensor
    else:
        yield from _of_old_versions(checkpoint)


def _of_old_versions(checkpoint: Mapping[str, Any]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield role, new name and tensor of actor and critic, which versions 2 and 3 keep in one."""
    state = checkpoint.get("model_state_dict")
    for name, tensor in state.items() if _is_state(state) else ():
        for role in ("actor", "critic"):
            old = next((prefix for prefix in _RENAMED[role] if name.startswith(prefix)), None)
            if old is not None:
                yield role, _RENAMED[role][old] + name.removeprefix(old), tensor
        if name in _STD:
            yield "actor", _STD[name], tensor


def _whole_state(state: Mapping[str, torch.Tensor], normalizer: Any, path: Path) -> State:
    """Return a network's tensors, checked, with the normaliser that version 2 kept outside."""
    whole = {_STD.get(name, name): tensor for name, tensor in state.items()}
    if _is_state(normalizer):
        whole |= {f"{_NORMALIZER}{name}": value for name, value in normalizer.items()}
    for name, tensor in whole.items():
        wrong = _wrong_with_tensor(tensor)
        if wrong is not None:
            raise ConfigError(Problem(f"has a tensor {name!r} that {wrong}; no training writes that", file=str(path)))
    return whole


def _refuse_other_files(path: Path) -> None:
    """Refuse a file that is no archive of torch's, by how it begins and what its archive holds."""
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
        with suppress(OSError, ValueError, NotImplementedError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
            message = next((said for name, said in _OTHER_ARCHIVES.items() if name in names), None)
    if message is not None:
        raise ConfigError(Problem(message, file=str(path)))


def _refuse_what_unfolds(path: Path) -> None:
    """Refuse a compressed archive: torch writes none, and a few bytes of one can become any number of bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            num_bytes = sum(entry.file_size for entry in archive.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        # No archive: a checkpoint of an old torch, or none, as loading will tell.
        return
    if num_bytes > path.stat().st_size:
        message = (
            f"is no checkpoint: it is compressed, and would unfold to {num_bytes} bytes; torch writes none like it"
        )
        raise ConfigError(Problem(message, file=str(path)))


def _wrong_with_tensor(tensor: torch.Tensor) -> str | None:
    """Return why a tensor cannot be copied: its numbers are not there, or it has many more of them than the file."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return "is sparse, quantised or without numbers"
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return f"claims {tensor.numel()} numbers and has fewer: they overlap"
    return "holds complex numbers" if tensor.is_complex() else None


def _is_state(value: Any) -> TypeGuard[Mapping[str, torch.Tensor]]:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(each, torch.Tensor) for name, each in value.items()
    )


def _with_new_names(state: Mapping[str, torch.Tensor]) -> State:
    role = "student" if any(name.startswith("student.") for name in state) else "actor"
    renamed = {}
    for name, tensor in state.items():
        if name.startswith(_OF_OTHERS):
            continue
        old = next((prefix for prefix in _RENAMED[role] if name.startswith(prefix)), None)
        renamed[name if old is None else _RENAMED[role][old] + name.removeprefix(old)] = tensor
    return renamed


def _check_class(network: NetworkSettings, path: Path) -> None:
    foreign = network.module and network.module.partition(".")[0] != "rsl_rl"
    if foreign or network.class_name not in {"", *CLASSES}:
        name = f"{network.module}.{network.class_name}" if network.module else network.class_name
        message = f"is a network of the class '{name}'; known are {', '.join(CLASSES)}; {EXPORT}"
        raise ConfigError(Problem(message, file=str(path)))
