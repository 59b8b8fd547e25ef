"""A policy to serve whose right answers are known, and a server of it in a thread."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from gr00t.data.types import ModalityConfig
from gr00t.policy.server_client import PolicyServer


class Echo:
    """Answers each batch entry with its own state, its noise seed and the batch size of the call, over two steps."""

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []
        self.options: list[Any] = []
        self.resets = 0
        self.hold_s = 0.0

    def get_action(
        self, observation: dict[str, Any], options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        state = observation["state"]["arm"]
        if np.isnan(state).any():
            raise ValueError("state.arm holds NaN")
        time.sleep(self.hold_s)
        batch_size = len(state)
        self.batch_sizes.append(batch_size)
        self.options.append(options)
        seeds = (options or {}).get("noise_seeds", [0] * batch_size)
        answer = np.stack(
            [state[:, 0, 0], np.asarray(seeds, np.float32), np.full(batch_size, batch_size, np.float32)], axis=1
        )
        return {"arm": np.repeat(answer[:, None], 2, axis=1).astype(np.float32)}, {"seeds": seeds, "model": "echo"}

    def get_modality_config(self) -> dict[str, ModalityConfig]:
        return {
            "video": ModalityConfig(delta_indices=[0], modality_keys=["front"]),
            "state": ModalityConfig(delta_indices=[0], modality_keys=["arm"]),
            "action": ModalityConfig(delta_indices=[0, 1], modality_keys=["arm"]),
            "language": ModalityConfig(delta_indices=[0], modality_keys=["annotation.human.task_description"]),
        }

    def reset(self, options: dict[str, Any] | None = None) -> dict[str, Any]:
        del options
        self.resets += 1
        return {}


def observation(*values: float, size: int = 4) -> dict[str, Any]:
    """Return an observation with one batch entry for each value of its state."""
    batch_size = len(values)
    return {
        "video": {"front": np.zeros((batch_size, 1, size, size, 3), np.uint8)},
        "state": {"arm": np.asarray(values, np.float32).reshape(batch_size, 1, 1)},
        "language": {"annotation.human.task_description": [["lift the cube"]] * batch_size},
    }


@contextmanager
def serving(policy: Any, **options: Any) -> Iterator[PolicyServer]:
    """Serve a policy on a free port of this machine, in a thread, for the length of a ``with`` block."""
    server = PolicyServer(policy, port=options.pop("port", 0), **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(timeout=60)
        assert not thread.is_alive()
