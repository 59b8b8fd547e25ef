"""Ranks that SLURM's srun or MPI's mpirun has started, and processes that only look like it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from isaaclab_arena.distributed.context import (
    DistributedContext,
    claimed_rank,
    is_a_rank,
    take_rank_of_scheduler,
)
from isaaclab_arena.errors import ConfigError
from tests.end_to_end.launching import write_jobs

ROOT = Path(__file__).parents[2]
RUNNER = "isaaclab_arena.evaluation.eval_runner"
TYPED = ("/usr/bin/python3", "-m", RUNNER, "--eval_jobs_config", "my jobs.json")

ALLOCATION = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NODELIST": "gpu[07-08]",
    "SLURM_NTASKS": "3",
    "SLURM_NNODES": "2",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
"""What a shell of sbatch has, too."""

SRUN = {
    **ALLOCATION,
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",  # the login node's, where srun was typed
}
OF_EACH_TASK = [("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1")]
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-node1-1234@1",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def task(rank: str, local_rank: str, node: str, **changes: str) -> dict[str, str]:
    return {**SRUN, "SLURM_PROCID": rank, "SLURM_LOCALID": local_rank, "SLURM_NODEID": node, **changes}


def context_of(environ: dict[str, str]) -> DistributedContext:
    taken = dict(environ)
    take_rank_of_scheduler(taken)
    return DistributedContext.from_environment(taken, visible_gpus=0)


def refusal(environ: dict[str, str], typed: tuple[str, ...] = TYPED) -> str:
    with pytest.raises(ConfigError) as caught:
        take_rank_of_scheduler(dict(environ), typed)
    return str(caught.value)


def test_each_task_of_srun_is_a_rank_that_meets_the_others_on_the_first_node_of_the_step():
    contexts = [context_of(task(*each)) for each in OF_EACH_TASK]
    assert [context.rank for context in contexts] == [0, 1, 2]
    assert [context.local_rank for context in contexts] == [0, 1, 0]
    assert [context.local_world_size for context in contexts] == [2, 2, 1]
    assert {context.world_size for context in contexts} == {3}
    (address,) = {context.master_address for context in contexts}
    assert re.fullmatch(r"gpu07:2\d{4}", str(address))
    assert [claimed_rank(task(*each)) for each in OF_EACH_TASK] == [0, 1, 2]
    assert is_a_rank(SRUN)


def test_steps_at_the_same_time_meet_at_ports_of_their_own():
    other = task("1", "1", "0", SLURM_STEP_ID="2")
    assert context_of(other).master_address != context_of(SRUN).master_address


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("a-[001-012,020],b1", "a-001"),
        ("rack[3,5]-ib", "rack3-ib"),
        ("n1.example.org,n2.example.org", "n1.example.org"),
    ],
)
def test_rank_0_is_on_the_first_node_that_slurm_lists(nodes, first):
    assert str(context_of(task("0", "0", "0", SLURM_STEP_NODELIST=nodes)).master_address).startswith(f"{first}:")


def test_where_somebody_says_where_the_ranks_meet_it_is_there():
    said = {"MASTER_ADDR": "head", "MASTER_PORT": "1234"}
    assert context_of({**task(*OF_EACH_TASK[1]), **said}).master_address == "head:1234"


def test_tasks_on_one_node_meet_without_a_name():
    one = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "[?", "SLURM_STEP_TASKS_PER_NODE": "3"}
    context = context_of(task("2", "2", "0", **one))
    assert str(context.master_address).startswith("127.0.0.1:")
    assert context.local_world_size == 3


@pytest.mark.parametrize(
    "environ",
    [
        {},
        ALLOCATION,
        {**ALLOCATION, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
        {**SRUN, "WORLD_SIZE": "1"},
        {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
    ],
    ids=["no scheduler", "a shell of sbatch", "a shell of salloc", "a task that is to be alone", "mpirun of one"],
)
def test_a_process_that_is_alone_stays_so(environ):
    assert not context_of(environ).is_distributed
    assert not is_a_rank(environ)


def test_torchrun_in_each_task_of_srun_is_believed():
    torchrun = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    context = context_of({**SRUN, **MPIRUN, **torchrun})
    assert (context.rank, context.world_size, context.master_address) == (1, 8, "node0:29500")


def test_each_process_of_open_mpi_is_a_rank():
    context = context_of(MPIRUN)
    assert (context.rank, context.local_rank, context.world_size, context.local_world_size) == (1, 1, 2, 2)
    assert re.fullmatch(r"127\.0\.0\.1:2\d{4}", str(context.master_address))


@pytest.mark.parametrize("mpirun", [MPIRUN, {**HYDRA, "MASTER_PORT": "29500"}], ids=["Open MPI", "MPICH"])
def test_mpirun_within_slurm_is_not_taken_for_the_step_that_it_starts_its_helpers_with(mpirun):
    assert context_of({**SRUN, **mpirun}).world_size == 2


@pytest.mark.parametrize(
    "environ",
    [
        {**SRUN, "SLURM_DISTRIBUTION": "arbitrary"},
        {**SRUN, "SLURM_STEP_NODELIST": "gpu[?"},
        {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "4"},
    ],
    ids=["tasks on listed hosts", "a list that cannot be read", "mpirun on two nodes"],
)
def test_ranks_whose_meeting_is_not_certain_are_told_the_command_of_torchrun(environ):
    told = refusal(environ)
    assert "set MASTER_ADDR" in told
    assert "once on each node: python -m torch.distributed.run --nnodes=" in told
    assert told.endswith(f"--nproc_per_node=2 -m {RUNNER} --eval_jobs_config 'my jobs.json'")


def test_on_one_node_the_command_can_be_typed_as_it_stands():
    told = refusal(HYDRA, ("/usr/bin/python3", "-u", "/venv/bin/isaaclab-arena", "run", "--eval_jobs_config", "x"))
    assert "mpirun of MPICH started this process 2 times" in told
    assert "set MASTER_PORT, or type once, without mpirun: " in told
    assert told.endswith(
        "python -m torch.distributed.run --nproc_per_node=2 -m isaaclab_arena.cli run --eval_jobs_config x"
    )


def run_tasks(tasks: list[dict[str, str]], jobs: Path, output: Path) -> list[subprocess.CompletedProcess[str]]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI"))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", RUNNER, "--eval_jobs_config", str(jobs), "--output_dir", str(output), "--no_report"],
            cwd=ROOT,
            env={**plain, **each},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for each in tasks
    ]
    ended = [(process, *process.communicate(timeout=240)) for process in processes]
    return [subprocess.CompletedProcess(process.args, process.returncode, out, err) for process, out, err in ended]


def one_node_of_srun(rank: int) -> dict[str, str]:
    one = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    return task(str(rank), str(rank), "0", SLURM_JOB_ID=str(os.getpid()), **one)


def one_node_of_mpirun(rank: int) -> dict[str, str]:
    ranks = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
    return {**MPIRUN, **ranks, "PMIX_NAMESPACE": f"prterun-{os.getpid()}@1"}


@pytest.mark.parametrize("of", [one_node_of_srun, one_node_of_mpirun])
def test_two_processes_of_a_scheduler_share_a_run_and_play_each_episode_once(of, tmp_path):
    short = {"arena_env_args": {"environment": "cartpole"}, "policy_type": "zero_action", "num_episodes": 2}
    jobs = write_jobs(tmp_path / "jobs.json", [{"name": name, **short} for name in ("first", "second")])
    ended = run_tasks([of(rank) for rank in range(2)], jobs, tmp_path / "out")
    assert [each.returncode for each in ended] == [0, 0], [each.stderr for each in ended]
    for rank, name in enumerate(("first", "second")):
        (record,) = (tmp_path / "out" / name).glob("episode_results_rank*.jsonl")
        assert record.name == f"episode_results_rank{rank}.jsonl"
        assert len(record.read_text().splitlines()) == 2


def test_two_processes_whose_meeting_is_not_certain_run_nothing(tmp_path):
    jobs = write_jobs(tmp_path / "jobs.json", [])
    ended = run_tasks([{**one_node_of_mpirun(rank), "OMPI_COMM_WORLD_SIZE": "4"} for rank in range(2)], jobs, tmp_path)
    assert [each.returncode for each in ended] == [2, 2]
    assert all(f"-m {RUNNER} --eval_jobs_config {jobs}" in each.stderr for each in ended)
