"""Says what the interpreters of other benchmarks draw with in tests: the same as the workers of a run."""

import torch

from isaaclab_arena.distributed.devices.opengl import choose_opengl


def opengl_variables() -> dict[str, str]:
    """Return the environment variables."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    return choose_opengl(device, {}).variables
