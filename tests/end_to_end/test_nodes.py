"""Several nodes, played by launchers on this machine."""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.end_to_end.launching import (
    EVAL_RUNNER,
    TORCHRUN,
    command,
    committed,
    end,
    episodes_table,
    free_port,
    job,
    patience_s,
    start,
    start_rank,
    wait_until,
    write_jobs,
)

JOBS = [
    job("reach", num_episodes=4, name="reach"),
    job("lift_object", "random_action", 4, name="lift"),
    job("open_drawer", "random_action", 4, name="drawer"),
]


def exit_codes(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    try:
        return [process.wait(timeout=patience_s(60)) for process in processes]
    finally:
        for process in processes:
            end(process)


def launch_one_by_one(jobs: Path, outputs: Sequence[Path]) -> list[subprocess.Popen[bytes]]:
    """Start a rank for each directory without torchrun: rank 0 itself holds the store."""
    port, ranks = free_port(), len(outputs)
    lines = [command("--eval_jobs_config", jobs, "--output_dir", output) for output in outputs]
    logs = [jobs.with_name(f"rank{rank}.log") for rank in range(ranks)]
    return [
        start_rank(line, log, rank=rank, ranks=ranks, port=port, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1)
        for rank, (line, log) in enumerate(zip(lines, logs, strict=True))
    ]


def test_two_launchers_that_share_a_disk_write_into_one_directory(tmp_path):
    jobs, output = write_jobs(tmp_path / "jobs.json", JOBS), tmp_path / "out"
    meeting = ["--master_addr=127.0.0.1", f"--master_port={free_port()}", "--nproc_per_node=1", "--nnodes=2"]
    runner = [*EVAL_RUNNER, "--eval_jobs_config", str(jobs), "--output_dir", str(output), "--split_jobs"]
    lines = [[*TORCHRUN, f"--node_rank={node}", *meeting, *runner] for node in range(2)]
    codes = exit_codes([start(line, tmp_path / f"launcher{node}.log") for node, line in enumerate(lines)])
    assert codes == [0, 0], (tmp_path / "launcher0.log").read_text()
    for name in ("reach", "lift", "drawer"):
        assert len([*(output / name).glob(f"dataset_{name}_rank[01].hdf5")]) == 2


def test_nodes_that_share_no_disk_are_refused_before_anything_starts(tmp_path):
    outputs = [tmp_path / "first" / "out", tmp_path / "second" / "out"]
    assert exit_codes(launch_one_by_one(write_jobs(tmp_path / "jobs.json", JOBS), outputs)) == [2, 2]
    said = (tmp_path / "rank0.log").read_text()
    for words in (f"--output_dir: rank 0 made {outputs[0]} on ", "rank 1 on", "--cluster ray"):
        assert words in said
    assert not outputs[1].exists()
    assert [path.name for path in outputs[0].iterdir()] == [".lock"]


@pytest.mark.slow
def test_a_node_goes_on_when_that_of_rank_0_has_died_and_makes_the_tables(tmp_path):
    jobs = [job("lift_object", "random_action", number, name=name) for name, number in (("long", 5000), ("short", 30))]
    output = tmp_path / "out"
    processes = launch_one_by_one(write_jobs(tmp_path / "jobs.json", jobs), [output, output])
    try:
        wait_until(lambda: committed(output, "short", 1).total() >= 2)
    finally:
        processes[0].send_signal(signal.SIGKILL)
    assert exit_codes(processes) == [-signal.SIGKILL, 1]
    assert len(episodes_table(output).query("job == 'short'")) == 30
