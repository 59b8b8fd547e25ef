"""Ask an ACT policy in its own process, as often as a line says: ``query_loop POLICY EDGE PICTURE...``.

Runs in LeRobot's interpreter.
"""

from __future__ import annotations

import sys
import time
import typing

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig  # pyright: ignore[reportMissingImports]
from lerobot.envs.utils import preprocess_observation  # pyright: ignore[reportMissingImports]
from lerobot.policies.factory import get_policy_class, make_pre_post_processors  # pyright: ignore[reportMissingImports]

from benchmarks.harness.workers import serve


def main(directory: str, edge_px: int, pictures: typing.Sequence[str]) -> None:
    """Answer each line, the number of env slots, with what the query took."""
    torch.set_num_threads(1)
    config = PreTrainedConfig.from_pretrained(directory)
    policy = get_policy_class(config.type).from_pretrained(directory, config=config)
    before, after = make_pre_post_processors(config, pretrained_path=directory)

    def ask(num_slots: int) -> dict[str, float]:
        pixels = {name.rpartition(".")[2]: np.zeros((num_slots, edge_px, edge_px, 3), np.uint8) for name in pictures}
        seen: typing.Any = {"pixels": pixels, "agent_pos": np.zeros((num_slots, 2), np.float32)}
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        with torch.inference_mode():
            after(policy.predict_action_chunk(before(preprocess_observation(seen)))).numpy()
        return {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s}

    serve({"ready": True}, ask)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
