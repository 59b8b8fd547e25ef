"""Make torch give the same bits for the same operation on the same input."""

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

import torch

_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPEATABLE_WORKSPACES = (":4096:8", ":16:8")


def calculate_deterministically(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make torch give the same bits for the same operation on the same input and machine.

    Operations that cannot do so raise an error from now on. Call it before the first operation on a GPU: cuBLAS reads
    its environment variable only once.

    Args:
        environ: Environment variables; a suitable cuBLAS workspace is kept.
    """
    if environ.get(_CUBLAS_WORKSPACE) not in _REPEATABLE_WORKSPACES:
        environ[_CUBLAS_WORKSPACE] = _REPEATABLE_WORKSPACES[0]
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # TF32 is deterministic too, but results would then depend on the type of GPU.
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


@contextmanager
def determinism_restored(environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Restore at the end of a ``with`` block what `calculate_deterministically` changes.

    Args:
        environ: Environment variables.
    """
    cudnn = torch.backends.cudnn
    workspace = environ.get(_CUBLAS_WORKSPACE)
    mode = _mode()
    before = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32
    precision = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        if _mode() != mode:
            # Only where it has to be: it imports torch's compiler.
            torch.use_deterministic_algorithms(mode=mode[0], warn_only=mode[1])
        cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = before
        torch.set_float32_matmul_precision(precision)
        environ.pop(_CUBLAS_WORKSPACE, None)
        if workspace is not None:
            environ[_CUBLAS_WORKSPACE] = workspace


def _mode() -> tuple[bool, bool]:
    """Return whether torch calculates deterministically, and whether it then only warns of what it cannot."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
