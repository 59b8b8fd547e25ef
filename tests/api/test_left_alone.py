"""An evaluation in the middle of somebody's program leaves what that shares as it was."""

import random
import threading
from typing import Any

import torch

import isaaclab_arena as arena
from tests.api.policies import push
from tests.evaluation.process.test_left_alone import GENERATORS, SHARED

FEW: dict[str, Any] = {"num_episodes": 2, "num_envs": 2}
LOOKS = {**SHARED, **GENERATORS, "process group": torch.distributed.is_initialized}


def test_an_evaluation_leaves_it_as_it_was():
    # To import it is no evaluation yet, and rich draws a number when it is imported.
    evaluate = arena.evaluate
    random.seed(1)
    torch.set_num_threads(2)
    before = {name: look() for name, look in LOOKS.items()}
    results = evaluate(environment="cartpole", policy=push, deterministic=True, policy_batch=2, **FEW)
    assert results.complete
    assert {name: look() for name, look in LOOKS.items()} == before


def test_what_the_program_has_set_does_not_reach_the_results():
    expected = arena.evaluate(environment="cartpole", policy=push, **FEW).episodes
    torch.set_default_dtype(torch.float64)
    try:
        found = arena.evaluate(environment="cartpole", policy=push, **FEW).episodes
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.equals(expected)


def test_another_thread_may_evaluate():
    found = []
    asked: dict[str, Any] = {"environment": "cartpole", "policy": push, **FEW}
    thread = threading.Thread(target=lambda: found.append(arena.evaluate(**asked)))
    thread.start()
    thread.join()
    assert found[0].complete
