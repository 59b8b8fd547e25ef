"""Check and describe a checkpoint before loading it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isaaclab_arena.checkpoints import wrong_with_weights
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.paths import not_a_plain_file
from isaaclab_arena_gr00t.modality import StatedModality

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_LOADED = frozenset({".safetensors", ".json", ".jinja", ".model", ".txt", ".yaml", ".yml", ".py"})
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_PROCESSOR = "processor_config.json"


@dataclass(frozen=True, kw_only=True)
class StatedEmbodiment:
    """One embodiment in a checkpoint's files.

    Attributes:
        modalities: ``video``, ``state``, ``action`` and ``language``, as far as present.
        dimensions: Size of each key of ``state`` and ``action``, None if the files do not say.
    """

    modalities: Mapping[str, StatedModality]
    dimensions: Mapping[str, Mapping[str, int]] | None


def checkpoint_problems(
    model_path: str, *, searched: str = "neither beside this file nor in the working directory"
) -> list[Problem]:
    """Return why a directory cannot be loaded as a checkpoint; empty if no problem is found.

    A name ``owner/name`` that is not a directory is left to the model package, which may fetch it from the hub.

    Args:
        model_path: The directory.
        searched: Searched locations, for the message if it is missing.
    """
    key = "model_path"
    if not model_path:
        return [Problem("is missing; the model's directory has to be named", key=key)]
    directory = Path(model_path)
    if not directory.exists() and _HUB_NAME.fullmatch(model_path) and not directory.parent.exists():
        return []
    if not directory.exists():
        return [Problem(f"'{model_path}' does not exist, {searched}", key=key)]
    wrong = _wrong_with_directory(directory)
    return [] if wrong is None else [Problem(f"'{model_path}' {wrong}", key=key)]


def checkpoint_files(model_path: str) -> dict[str, Path]:
    """Return the files of a checkpoint's directory from which a model is loaded, by their role.

    Files for resuming a training are left out; a name on the hub has no files.
    """
    directory = Path(model_path)
    if not directory.is_dir():
        return {}
    files = (path for path in sorted(directory.rglob("*")) if path.suffix in _LOADED and not path.is_dir())
    return {f"model_path {path.relative_to(directory).as_posix()}": path for path in files}


def stated_embodiments(model_path: str) -> dict[str, StatedEmbodiment]:
    """Return the embodiments in a checkpoint's ``processor_config.json``, by the value of their tag.

    The included package and NVIDIA's write it in two different ways. Any other content is left to the model package to
    judge; it gives no embodiments and no error.
    """
    try:
        document = read_document(Path(model_path) / _PROCESSOR)
        if "embodiments" in document:
            found: Mapping[str, Any] = document["embodiments"]
            return {tag: _stated(each["modality_configs"], each["statistics"]) for tag, each in found.items()}
        found = document["processor_kwargs"]["modality_configs"]
        return {tag: _stated(modalities, None) for tag, modalities in found.items()}
    except (ConfigError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def embodiment_problems(model_path: str, tag: str) -> list[Problem]:
    """Return why a checkpoint cannot serve an embodiment; empty if no problem is found.

    Args:
        model_path: The directory.
        tag: Value of the embodiment's tag.
    """
    known = stated_embodiments(model_path)
    if not known or tag in known:
        return []
    return [Problem(f"'{model_path}' knows no embodiment '{tag}'{did_you_mean(tag, known)}", key="embodiment_tag")]


def _stated(modalities: Mapping[str, Any], statistics: Mapping[str, Any] | None) -> StatedEmbodiment:
    found = {
        name: StatedModality(
            delta_indices=tuple(map(int, each["delta_indices"])), modality_keys=tuple(map(str, each["modality_keys"]))
        )
        for name, each in modalities.items()
    }
    dimensions = statistics and {
        kind: {key: len(statistics[kind][key]["min"]) for key in found[kind].modality_keys}
        for kind in ("state", "action")
    }
    return StatedEmbodiment(modalities=found, dimensions=dimensions)


def _wrong_with_directory(directory: Path) -> str | None:
    if not directory.is_dir():
        return "is a file; name the directory that holds it"
    if not (directory / "config.json").exists():
        return "is no checkpoint: it has no config.json"
    wrong = not_a_plain_file(directory / "config.json")
    if wrong is not None:
        return f"is no checkpoint: its config.json {wrong}"
    if any(directory.glob("*.safetensors")):
        wrong = wrong_with_weights(directory)
        return None if wrong is None else f"cannot be loaded: {wrong}"
    pickled = sorted(path.name for pattern in _PICKLED for path in directory.glob(pattern))
    found = f" but {pickled[0]}, and loading that could run code; save the model as safetensors" if pickled else ""
    return f"has no weights in a *.safetensors file{found}"
