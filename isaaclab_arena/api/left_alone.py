"""Run something inside somebody else's program, and leave everything that the process shares as it was."""

import gc
import logging
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from isaaclab_arena.distributed.devices.determinism import determinism_restored

_LOGGER = "isaaclab_arena"


@contextmanager
def left_alone() -> Iterator[None]:
    """Restore at the end of a ``with`` block what belongs to the whole process.

    That is the state of all global generators, the default type and device of tensors, gradients, torch's threads and
    settings of determinism, the working directory, ``sys.path``, garbage collection, and logging.
    """
    with ExitStack() as stack:
        stack.enter_context(_generators_restored())
        stack.enter_context(_torch_restored())
        stack.enter_context(determinism_restored())
        stack.enter_context(_process_restored())
        stack.enter_context(_logging_restored())
        yield


@contextmanager
def _generators_restored() -> Iterator[None]:
    # torch's own global generators are restored too, in `_torch_restored`.
    python, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


@contextmanager
def _torch_restored() -> Iterator[None]:
    has_cuda = torch.cuda.is_initialized()
    gpu = torch.cuda.current_device() if has_cuda else None
    num_threads, dtype, device = torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(range(torch.cuda.device_count()) if has_cuda else ()))
        stack.enter_context(torch.no_grad())
        if device.type != "cpu":
            # Costs a little in every call of torch, so only where it is needed.
            stack.enter_context(torch.device("cpu"))
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(num_threads)
            if gpu is not None:
                torch.cuda.set_device(gpu)


@contextmanager
def _process_restored() -> Iterator[None]:
    directory, path, collects = os.getcwd(), list(sys.path), gc.isenabled()  # noqa: PTH109
    try:
        yield
    finally:
        # A policy may have gone elsewhere, and the directory may be gone meanwhile.
        if os.path.isdir(directory):  # noqa: PTH112
            os.chdir(directory)
        sys.path[:] = path
        if collects:
            gc.enable()


@contextmanager
def _logging_restored() -> Iterator[None]:
    """Let the files of a run have all lines, and whoever heard this package before hear what it heard."""
    logger = logging.getLogger(_LOGGER)
    before = list(logger.handlers), logger.level, logger.propagate
    logger.handlers = [_AsBefore(logger.getEffectiveLevel(), before[0], propagates=logger.propagate)]
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.handlers, level, logger.propagate = before
        logger.setLevel(level)


class _AsBefore(logging.Handler):
    """Hands lines to those who would have heard them."""

    def __init__(self, level: int, handlers: Sequence[logging.Handler], *, propagates: bool) -> None:
        super().__init__(level)
        self._handlers = handlers
        self._propagates = propagates

    def emit(self, record: logging.LogRecord) -> None:
        for handler in self._handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
        if self._propagates:
            logging.getLogger().callHandlers(record)
