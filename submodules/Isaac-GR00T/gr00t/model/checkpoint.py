"""Read and write checkpoints: directories with a configuration, a processor and weights in safetensors."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoProcessor
from transformers.utils import logging as transformers_logging

from gr00t import CheckpointError
from gr00t.model import Gr00tSmallConfig, Gr00tSmallProcessor
from gr00t.model.modeling import Gr00tSmall

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def save_checkpoint(directory: str | Path, model: Gr00tSmall, processor: Gr00tSmallProcessor) -> None:
    """Write everything that ``load_model`` and ``load_processor`` need."""
    with _without_progress_bars():
        model.save_pretrained(directory)
    processor.save_pretrained(directory)


def check_checkpoint(directory: str | Path) -> Path:
    """Return a checkpoint's directory; CheckpointError for another format or pickled weights."""
    path = Path(directory)
    if not path.is_dir():
        raise CheckpointError(f"there is no model at {path}: no such directory")
    if not list(path.glob("*.safetensors")):
        # Pickled weights can run code, so they are never opened.
        pickled = sorted(file.name for pattern in _PICKLED for file in path.glob(pattern))
        if pickled:
            raise CheckpointError(f"{path} holds pickled weights ({', '.join(pickled)}); convert them to safetensors")
        raise CheckpointError(f"{path} is not a checkpoint: it has no .safetensors file")
    for name in ("config.json", "processor_config.json"):
        if not (path / name).is_file():
            raise CheckpointError(f"{path} is not a checkpoint: it has no {name}")
    try:
        content = json.loads((path / "config.json").read_text())
    except ValueError as error:
        raise CheckpointError(f"{path / 'config.json'} is not JSON: {error}") from error
    model_type = str(content.get("model_type", "")) if isinstance(content, dict) else ""
    if model_type != Gr00tSmallConfig.model_type:
        raise CheckpointError(
            f"{path} holds a model of type {model_type!r}, and this package loads only "
            f"{Gr00tSmallConfig.model_type!r}; for NVIDIA's put NVIDIA's Isaac-GR00T on the Python path instead"
        )
    return path


def load_model(directory: str | Path, *, device: int | str | torch.device, dtype: torch.dtype) -> Gr00tSmall:
    """Return a checkpoint's model on a device, in evaluation mode; CheckpointError if this fails."""
    path = check_checkpoint(directory)
    try:
        with _without_progress_bars():
            model, report = AutoModel.from_pretrained(
                path, use_safetensors=True, local_files_only=True, output_loading_info=True
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"the model in {path} cannot be loaded: {error}") from error
    # transformers only warns of weights that do not fit, and draws the missing ones.
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[problem]:
            names = ", ".join(map(str, sorted(report[problem])[:3]))
            raise CheckpointError(f"the weights in {path} do not fit its config.json: {problem} {names}")
    if not isinstance(model, Gr00tSmall):
        raise CheckpointError(f"the model in {path} is a {type(model).__name__}, not a Gr00tSmall")
    torch.nn.Module.to(model, device, dtype=dtype)
    return model.eval()


def load_processor(directory: str | Path) -> Gr00tSmallProcessor:
    """Return a checkpoint's processor, without augmentation; CheckpointError if this fails."""
    path = check_checkpoint(directory)
    try:
        processor = AutoProcessor.from_pretrained(path, local_files_only=True)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the processor in {path} cannot be loaded: {error}") from error
    if not isinstance(processor, Gr00tSmallProcessor):
        raise CheckpointError(f"the processor in {path} is a {type(processor).__name__}, not a Gr00tSmallProcessor")
    return processor.eval()


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Switch off progress bars: small models need none, and they would disturb an evaluation's display."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
