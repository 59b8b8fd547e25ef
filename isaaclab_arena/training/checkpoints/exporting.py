"""Exports the learned policy to files that other programs load: TorchScript and ONNX."""

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from isaaclab_arena.errors import first_line
from isaaclab_arena.storage.atomic import written_in_place

_LOG = logging.getLogger(__name__)
DIRECTORY = "exported"
_OPSET = 18


def export_policy(algorithm: Any, run_directory: Path) -> list[Path]:
    """Write ``exported/policy.pt`` and ``exported/policy.onnx``, and return what could be written.

    They hold the deterministic policy with its normaliser. What a network cannot be exported to is said in the log.

    Args:
        algorithm: rsl_rl's algorithm.
        run_directory: Directory of the training run.

    Raises:
        StorageError: If a file cannot be written.
    """
    policy = algorithm.get_policy()
    written = []
    for name, write in (("policy.pt", _write_torchscript), ("policy.onnx", _write_onnx)):
        path = run_directory / DIRECTORY / name
        try:
            with written_in_place(path, overwrite=True) as temporary:
                write(policy, temporary)
        except (NotImplementedError, RuntimeError, ImportError, AttributeError) as error:
            _LOG.warning("the policy is not exported as %s: %s", name, first_line(error))
        else:
            written.append(path)
    return written


def _write_torchscript(policy: Any, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(policy.as_jit().to("cpu")).save(str(path))


def _write_onnx(policy: Any, path: Path) -> None:
    exported = policy.as_onnx(verbose=False).to("cpu").eval()
    # The exporter warns of each operator of torchvision, which nothing here needs.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            exported,
            exported.get_dummy_inputs(),
            str(path),
            input_names=exported.input_names,
            output_names=exported.output_names,
            opset_version=_OPSET,
            external_data=False,
            verbose=False,
        )
