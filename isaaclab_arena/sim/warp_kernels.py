"""Warp as this package uses it: quiet, on the device that a caller names, its kernels compiled once for all ranks."""

import fcntl
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import warp

from isaaclab_arena.distributed.devices import gpu_address
from isaaclab_arena.errors import EnvironmentBuildError

_LOG = logging.getLogger(__name__)
_LOCK_FILE = "isaaclab_arena.lock"
_TURN = threading.RLock()


def warp_device(device: torch.device) -> warp.Device:
    """Return Warp's name for a device of torch, Warp started quietly.

    Raises:
        EnvironmentBuildError: If that is another GPU than torch's.
    """
    warp.config.log_level = warp.LOG_ERROR
    warp.init()
    found = warp.device_from_torch(device)
    if device.type == "cuda":
        check_same_gpu(device, gpu_address(device), str(found.pci_bus_id))
        _LOG.info("worlds live on %s, which Warp calls %s, at PCI %s", device, found.alias, found.pci_bus_id)
    return found


def check_same_gpu(device: torch.device, torch_address: str, warp_address: str) -> None:
    """Refuse to simulate on another GPU than networks run on.

    Args:
        device: Its name in torch.
        torch_address: Where on the PCI bus torch sees it.
        warp_address: Where Warp sees the one that has the same index.

    Raises:
        EnvironmentBuildError: If these are two.
    """
    if torch_address.upper() != warp_address.upper():
        raise EnvironmentBuildError(
            f"torch's {device} is the GPU at PCI {torch_address}, and Warp's the one at {warp_address}: they count "
            "GPUs differently; set CUDA_DEVICE_ORDER=PCI_BUS_ID, and CUDA_VISIBLE_DEVICES to one GPU for each rank"
        )


@contextmanager
def warp_turn(device: warp.Device | str) -> Iterator[None]:
    """Let this thread use Warp on a device while other threads of the process wait.

    Warp's current device, and the current stream of each device, belong to the whole process. On a GPU the turn is
    short: it takes only as long as telling the device what to do.
    """
    with _TURN, warp.ScopedDevice(device):
        yield


@contextmanager
def one_compiler_at_a_time() -> Iterator[None]:
    """Let one process of this machine compile Warp's kernels while the others wait and then take what it compiled."""
    warp.config.log_level = warp.LOG_ERROR
    warp.init()
    path = Path(str(warp.config.kernel_cache_dir)) / _LOCK_FILE
    try:
        lock = path.open("a")
    except OSError as error:
        _LOG.debug("no lock on Warp's kernels, so ranks may compile them several times: %s", error)
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
