"""Has torch calculate so that the same operation on the same input gives the same bits."""

import os
from collections.abc import MutableMapping

import torch

_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REPEATABLE_WORKSPACES = (":4096:8", ":16:8")


def calculate_deterministically(environ: MutableMapping[str, str] = os.environ) -> None:
    """Have torch give the same bits whenever it makes the same operation on the same input on the same machine.

    Operations that cannot do so raise from now on, and say so. Call it before the first operation on a GPU: cuBLAS
    reads its environment variable only once.

    Args:
        environ: Environment variables; a workspace of cuBLAS that is good for this is left as it is.
    """
    if environ.get(_CUBLAS_WORKSPACE) not in _REPEATABLE_WORKSPACES:
        environ[_CUBLAS_WORKSPACE] = _REPEATABLE_WORKSPACES[0]
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # TF32 is repeatable too, but a network would then depend on which GPUs have it.
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
