"""What the benchmark of wires measures."""

from typing import Any

import numpy as np
import pytest

from benchmarks.gr00t import wires
from benchmarks.gr00t.wire_worker.answers import ACTION_DIM, NUM_STEPS


@pytest.mark.slow
def test_each_way_answers_for_all_env_slots_and_costs_what_both_processes_take():
    picture = np.zeros((4, 4, 3), np.uint8)
    with wires.ExitStack() as stack:
        found = wires.ways(stack, {"front": picture, "side": picture}, wires.Options())
        assert set(found) == {
            *("in this process", "gr00t", "openpi", "vla_eval, raw", "vla_eval, png", "vla_eval, jpeg"),
            *("policy server", "lerobot"),
        }
        answers: dict[str, Any] = {name: way.ask(2) for name, way in found.items()}
        cost = wires.measured(found["openpi"], num_slots=2, num_queries=8)
    chunk = (NUM_STEPS, ACTION_DIM)
    assert np.shape(answers["in this process"]) == (2, *chunk)
    assert answers["policy server"]["actions"].shape == (2, *chunk)
    assert answers["gr00t"][0]["action"].shape == (2, *chunk)
    assert answers["lerobot"][1]["actions"].shape == (2, *chunk)
    for name in ("openpi", "vla_eval, raw", "vla_eval, png", "vla_eval, jpeg"):
        assert [answer["actions"].shape for answer in answers[name]] == [chunk, chunk]
    assert min(cost.client_ms, cost.server_ms) > 0
    assert cost.cpu_ms == pytest.approx(cost.client_ms + cost.server_ms)


def test_the_smaller_formats_are_smaller():
    ramp = np.broadcast_to(np.arange(224, dtype=np.uint8)[:, None, None], (224, 224, 3))
    raw, png, jpeg = (wires.kilobytes({"front": ramp}, each) for each in wires.FORMATS)
    assert raw > 150 > max(png, jpeg)
