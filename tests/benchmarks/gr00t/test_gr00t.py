"""Benchmarks of GR00T policies."""

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.gr00t import wires
from benchmarks.gr00t.checkpoint import write_policy_yaml
from benchmarks.gr00t.policy import (
    ZERO,
    JobSize,
    Options,
    count_requests,
    latency_table,
    main,
    remote_table,
    run_job,
)
from benchmarks.gr00t.wire_worker.answers import ACTION_DIM, NUM_STEPS
from isaaclab_arena_gr00t.config import read_policy_config
from tests.benchmarks.gr00t.tables import cells


def test_every_size_and_precision_is_asked_and_compared_with_float32(yaml):
    table = latency_table(yaml, devices=["cpu"], batch_sizes=[1, 3], repetitions=1)
    lines = [cells(line) for line in table[2:]]
    assert [line[1:3] for line in lines] == [["float32", "1"], ["float32", "3"], ["bfloat16", "1"], ["bfloat16", "3"]]
    assert [line[-1] for line in lines[:2]] == ["1.00", "1.00"]
    assert all(float(line[3]) > 0 for line in lines)


@pytest.mark.slow
def test_the_server_computes_what_would_be_computed_here(yaml, tmp_path):
    [line] = remote_table(yaml, tmp_path, devices=["cpu"], batch_sizes=[4], repetitions=3)[2:]
    _, slots, request_kb, _, _, _, _, cpu_here, client, server = cells(line)
    # Two pictures of 64 x 64 a slot.
    assert (slots, int(request_kb)) == ("4", pytest.approx(4 * 2 * 64 * 64 * 3 / 1000, rel=0.05))
    assert float(client) < float(cpu_here)
    assert float(server) > 0.3 * float(cpu_here)


def test_slots_are_asked_for_once_a_chunk(model_path, tmp_path):
    blind = write_policy_yaml(tmp_path / "blind.yaml", model_path, pov_cam_name_sim={})
    count, found = count_requests(blind, "lift_object", num_envs=3, num_episodes=7, per_query=4)
    chunk_length = read_policy_config(blind).action_chunk_length
    lengths = [record.length for record in found.records]
    assert len(set(lengths)) > 1
    assert count.slots_needed == sum(math.ceil(length / chunk_length) for length in lengths)
    # Each query is filled up to four env slots, and three env slots make one query at most.
    assert count.slots_asked % 4 == 0
    assert count.slots_needed < count.slots_of_all <= 3 * count.slots_asked // 4


@pytest.mark.slow
def test_one_command_measures_everything_and_says_how(tmp_path, model_path, capsys):
    output = tmp_path / "results.md"
    options = Options(
        model_path=model_path,
        devices=("cpu",),
        batch_sizes=(1,),
        num_envs=(2,),
        counted_num_envs=(2,),
        repetitions=1,
        starts=1,
        runs=1,
        counted_episodes=2,
        compiled_on=(),
        output=output,
    )
    main(options)
    text = output.read_text()
    assert f"python -m benchmarks.gr00t.policy --model_path {model_path} " in text
    assert f"The model is the checkpoint `{model_path}`" in text
    assert text.count("\n## ") == 6
    tables = [[cells(line) for line in part.splitlines() if line.startswith("|")] for part in text.split("\n## ")[1:]]
    assert all(len(line) == len(table[0]) for table in tables for line in table)
    assert [len(table) - 2 for table in tables] == [2, 2, 1, 2, 1, 1]
    shares = [sum(float(cell.strip("% ")) for cell in line if cell.endswith("%")) for line in tables[3][2:]]
    assert shares == pytest.approx([100, 100], abs=3)
    assert float(tables[4][2][2]) > float(tables[4][2][3]) > 100
    assert "Memory of a rank" in capsys.readouterr().out


# Last, because the quick interpreter of this test is that of its module from then on.
@pytest.mark.usefixtures("quick_python")
def test_a_job_that_fails_stops_the_benchmark_and_is_told(tmp_path):
    size = JobSize(environment="no_such_task", num_envs=1, episodes_per_slot=1)
    with pytest.raises(RuntimeError, match="no_such_task"):
        run_job(tmp_path / "failing", "", size, ZERO, "cpu")


# What the benchmark of wires measures.


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
