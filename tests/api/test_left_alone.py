"""What a process shares is afterwards as it was, whatever a policy or the runner does to it."""

import gc
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import isaaclab_arena as arena
from isaaclab_arena.api.left_alone import left_alone
from tests.api.policies import push

FEW: dict[str, Any] = {"num_episodes": 2, "num_envs": 2}

SHARED: dict[str, Callable[[], Any]] = {
    "random": random.getstate,
    "numpy": lambda: str(np.random.get_state()),
    "torch": lambda: torch.get_rng_state().tolist(),
    "threads": torch.get_num_threads,
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "determinism": torch.are_deterministic_algorithms_enabled,
    "cudnn": lambda: (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
    "precision": torch.get_float32_matmul_precision,
    "cublas": lambda: os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    "gradients": torch.is_grad_enabled,
    "directory": os.getcwd,
    "path": lambda: list(sys.path),
    "garbage": gc.isenabled,
    "root logger": lambda: (list(logging.getLogger().handlers), logging.getLogger().level),
    "logger": lambda: (list(logging.getLogger("isaaclab_arena").handlers), logging.getLogger("isaaclab_arena").level),
    "propagation": lambda: logging.getLogger("isaaclab_arena").propagate,
    "signals": lambda: [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
    "process group": torch.distributed.is_initialized,
}


def meddle(tmp_path) -> None:
    """Change everything that is shared."""
    random.random()
    np.random.rand()
    torch.rand(1)
    torch.set_num_threads(3)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("medium")
    torch.set_grad_enabled(mode=False)
    os.chdir(tmp_path)
    sys.path.append("nowhere")
    gc.disable()
    logging.getLogger("isaaclab_arena").addHandler(logging.NullHandler())


def test_what_a_block_changes_is_restored(tmp_path):
    before = {name: look() for name, look in SHARED.items()}
    with left_alone():
        meddle(tmp_path)
    assert {name: look() for name, look in SHARED.items()} == before


def test_an_error_restores_it_too(tmp_path):
    before = {name: look() for name, look in SHARED.items()}

    def meddle_and_fail() -> None:
        with left_alone():
            meddle(tmp_path)
            raise ValueError("on the way")

    with pytest.raises(ValueError, match="on the way"):
        meddle_and_fail()
    assert {name: look() for name, look in SHARED.items()} == before


def test_an_evaluation_leaves_it_as_it_was():
    # To import it is no evaluation yet, and rich draws a number when it is imported.
    evaluate = arena.evaluate
    random.seed(1)
    torch.set_num_threads(2)
    before = {name: look() for name, look in SHARED.items()}
    results = evaluate(environment="cartpole", policy=push, deterministic=True, policy_batch=2, **FEW)
    assert results.complete
    assert {name: look() for name, look in SHARED.items()} == before


def test_what_the_program_has_set_does_not_reach_the_results():
    expected = arena.evaluate(environment="cartpole", policy=push, **FEW).episodes
    torch.set_default_dtype(torch.float64)
    try:
        found = arena.evaluate(environment="cartpole", policy=push, **FEW).episodes
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.equals(expected)


def test_warnings_reach_whoever_listened_and_debugging_reaches_nobody_new(caplog):
    logger = logging.getLogger("isaaclab_arena.some.room")
    with left_alone():
        logger.debug("a detail")
        logger.warning("a doubt")
    assert caplog.messages == ["a doubt"]


def test_another_thread_may_evaluate():
    found = []
    asked: dict[str, Any] = {"environment": "cartpole", "policy": push, **FEW}
    thread = threading.Thread(target=lambda: found.append(arena.evaluate(**asked)))
    thread.start()
    thread.join()
    assert found[0].complete
