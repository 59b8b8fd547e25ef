"""Make torch give the same bits for the same operation on the same input."""

import os
from collections.abc import MutableMapping

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
