"""The benchmark of GR00T policies: what it counts is right, and it measures all that it says."""

import math
import os
import time
from pathlib import Path
from types import ModuleType

import pytest

from isaaclab_arena_gr00t.checkpoints import checkpoint_problems
from isaaclab_arena_gr00t.config import read_policy_config
from tests.benchmarks.loading import BENCHMARKS, load

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(autouse=True)
def beside_its_modules(monkeypatch) -> None:
    """Let the benchmark import its own modules, as it does when it is started as a program."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("gr00t_policy")


@pytest.fixture
def checkpoint() -> ModuleType:
    return load("gr00t_checkpoint")


@pytest.fixture
def queries() -> ModuleType:
    return load("gr00t_queries")


@pytest.fixture
def yaml(checkpoint, folder) -> str:
    """A YAML file with a checkpoint of random weights."""
    if not (folder / "checkpoint").exists():
        assert checkpoint.save_random_checkpoint(folder / "checkpoint") > 1_000_000
    return checkpoint.write_policy_yaml(folder / "panda.yaml", folder / "checkpoint")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_yaml_file_is_the_pandas_with_another_checkpoint(checkpoint, yaml, folder):
    config, pandas = read_policy_config(yaml), read_policy_config(checkpoint.PANDA_YAML)
    assert checkpoint_problems(config.model_path) == []
    assert Path(config.model_path) == folder / "checkpoint"
    assert config.pov_cam_name_sim == pandas.pov_cam_name_sim
    assert config.action_chunk_length == pandas.action_chunk_length


def test_calls_take_turns_and_each_goes_first_as_often_as_the_other(queries):
    order: list[str] = []
    taken = queries.interleaved({name: lambda name=name: order.append(name) for name in "ab"}, repetitions=4)
    assert "".join(order[2 * queries.WARM_UP :]) == "abbaabba"
    assert {name: len(each) for name, each in taken.items()} == {"a": 4, "b": 4}


def test_a_query_costs_what_it_takes_here_and_in_the_server(queries):
    asleep = queries.timed(lambda: time.sleep(0.05), server_pid=os.getpid())
    assert asleep.wall_s >= 0.05
    assert asleep.cpu_s < 0.04
    # The server stands for this process here, so both clocks show the same.
    busy = queries.timed(lambda: sum(range(2_000_000)), server_pid=os.getpid())
    assert busy.elsewhere_cpu_s == pytest.approx(busy.cpu_s, rel=0.2, abs=0.002)


def test_every_size_and_precision_is_asked_and_compared_with_float32(queries, yaml):
    table = queries.latency_table(yaml, devices=["cpu"], batch_sizes=[1, 3], repetitions=1)
    rows = [cells(line) for line in table[2:]]
    assert [row[1:3] for row in rows] == [["float32", "1"], ["float32", "3"], ["bfloat16", "1"], ["bfloat16", "3"]]
    assert [row[-1] for row in rows[:2]] == ["1.00", "1.00"]
    assert all(float(row[3]) > 0 for row in rows)


def test_the_server_computes_what_would_be_computed_here(queries, yaml, folder):
    [line] = queries.remote_table(yaml, folder, devices=["cpu"], batch_sizes=[4], repetitions=3)[2:]
    _, rows, request_kb, _, _, _, _, cpu_here, client, server = cells(line)
    # Two pictures of 64 x 64 a row.
    assert (rows, int(request_kb)) == ("4", pytest.approx(4 * 2 * 64 * 64 * 3 / 1000, rel=0.05))
    assert float(client) < float(cpu_here)
    assert float(server) > 0.3 * float(cpu_here)


def test_rows_are_asked_for_once_a_chunk(checkpoint, folder):
    blind = checkpoint.write_policy_yaml(folder / "blind.yaml", folder / "checkpoint", pov_cam_name_sim={})
    count, lengths = load("gr00t_rows").count_rows(blind, "lift_object", num_envs=3, num_episodes=7, rows_per_query=4)
    chunk_length = read_policy_config(blind).action_chunk_length
    assert len(set(lengths)) > 1
    assert count.rows_needed == sum(math.ceil(length / chunk_length) for length in lengths)
    assert count.rows_asked == 4 * count.queries
    assert count.rows_needed < count.rows_of_all <= 3 * count.queries


def test_a_job_that_fails_stops_the_benchmark_and_is_told(folder):
    jobs = load("gr00t_jobs")
    size = jobs.JobSize(environment="no_such_task", num_envs=1, episodes_per_row=1)
    with pytest.raises(RuntimeError, match="no_such_task"):
        jobs.run_job(folder / "failing", "", size, jobs.ZERO, "cpu")


@pytest.mark.slow
def test_one_command_measures_everything_and_says_how(tmp_path, folder, yaml, capsys):
    program, output = load("gr00t_policy"), tmp_path / "results.md"
    options = program.Options(
        model_path=folder / "checkpoint",
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
    program.main(options)
    text = output.read_text()
    assert f"python benchmarks/gr00t_policy.py --model_path {folder / 'checkpoint'} " in text
    assert f"The model is the checkpoint `{folder / 'checkpoint'}`" in text
    assert text.count("\n## ") == 6
    tables = [[cells(line) for line in part.splitlines() if line.startswith("|")] for part in text.split("\n## ")[1:]]
    assert all(len(row) == len(table[0]) for table in tables for row in table)
    assert [len(table) - 2 for table in tables] == [2, 2, 1, 2, 1, 1]
    shares = [sum(float(cell.strip("% ")) for cell in row if cell.endswith("%")) for row in tables[3][2:]]
    assert shares == pytest.approx([100, 100], abs=3)
    assert float(tables[4][2][2]) > float(tables[4][2][3]) > 100
    assert "Memory of a rank" in capsys.readouterr().out
