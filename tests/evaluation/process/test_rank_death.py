"""Ranks of which one is killed: another one takes over, and knows which is dead."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
RANK = """
import json, os, signal, sys, time
from pathlib import Path
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.evaluation.heartbeat import RankState, RankStatus
from isaaclab_arena.evaluation.heartbeat import StatusPublisher
from isaaclab_arena.evaluation.heartbeat import RankWatch, wait_for_ranks
from isaaclab_arena.evaluation.process import watch_for_interruption

directory, victim = Path(sys.argv[1]), int(sys.argv[2])
context = DistributedContext.from_environment(device="cpu")
with initialise(context) as ranks, watch_for_interruption() as interruption:
    run_id = ranks.share_from_rank_zero("run_id", str(os.getpid()))
    with StatusPublisher(directory, RankStatus.of_this_process(rank=context.rank, run_id=run_id)) as publisher:
        publisher.start_job(f"job of rank {context.rank}")
        if context.rank == victim:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        while not interruption.stop_requested():
            time.sleep(0.01)
        publisher.set_state(RankState.INTERRUPTED)
        watch = RankWatch(directory, world_size=context.world_size, run_id=run_id)
        if next(report.rank for report in watch.look() if report.alive) == context.rank:
            reports = wait_for_ranks(watch, stop_requested=interruption.stop_requested)
            (directory / "merged.json").write_text(json.dumps([context.rank, [report.fate for report in reports]]))
sys.exit(interruption.exit_code)
"""


def test_when_rank_zero_is_killed_the_next_one_takes_over_and_knows_who_died(tmp_path):
    """The whole arrangement under torchrun: it stops the other ranks with SIGTERM, and they still meet in files."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node=2",
            str(script),
            tmp_path,
            "0",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 1
    assert json.loads((tmp_path / "merged.json").read_text()) == [1, ["dead", "interrupted"]], finished.stderr
