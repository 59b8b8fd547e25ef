"""What a process knows of its rank: from torchrun, from a scheduler, alone."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isaaclab_arena.distributed.context import (
    DistributedContext,
    claimed_rank,
    is_a_rank,
    process_is_running,
    process_start_ticks,
    take_rank_of_scheduler,
    variables_of_child,
    variables_of_worker,
)
from isaaclab_arena.distributed.ranks import DistributedError, initialise
from isaaclab_arena.errors import ConfigError
from tests.end_to_end.launching import ROOT, environment, run, wait_until, write_jobs
from tests.preloaded.interpreter import preloaded_python

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in TORCHRUN.items() if name not in names}


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}])
def test_a_world_of_one_needs_nothing_else(environ):
    context = DistributedContext.from_environment(environ, visible_gpus=0)
    assert (context.rank, context.local_rank, context.world_size, context.local_world_size) == (0, 0, 1, 1)
    assert (context.is_distributed, context.is_rank_zero, context.launched_by_torchrun) == (False, True, False)
    assert (str(context.device), context.master_address) == ("cpu", None)


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"])
def test_only_plain_whole_numbers_are_accepted(name):
    with pytest.raises(ConfigError, match=f"{name}='1"):
        DistributedContext.from_environment({**TORCHRUN, name: "1\n"}, visible_gpus=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "8"}, "RANK must be below WORLD_SIZE"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be at least 1"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK must be below"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE must be from 1"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE must be from 1"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT must be from 1"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT must be from 1"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR must be set"),
        ({"MASTER_ADDR": None, "MASTER_PORT": None}, "MASTER_ADDR and MASTER_PORT must"),
        *(({name: None}, f"{name} not set") for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")),
    ],
)
def test_contradictions_are_refused_with_the_variables_seen(changes, message):
    environ = {name: value for name, value in {**TORCHRUN, **changes}.items() if value is not None}
    with pytest.raises(ConfigError, match=message) as caught:
        DistributedContext.from_environment(environ, visible_gpus=0)
    for name in {"RANK", "WORLD_SIZE"} & environ.keys():
        assert f"{name}='{environ[name]}'" in str(caught.value)


def test_torchruns_variables_are_read():
    context = DistributedContext.from_environment(TORCHRUN, visible_gpus=4)
    assert (context.rank, context.local_rank, context.world_size, context.local_world_size) == (5, 1, 8, 4)
    assert (str(context.device), context.master_address, context.attempt) == ("cuda:1", "node0:29500", "2")
    assert (context.is_distributed, context.is_rank_zero, context.launched_by_torchrun) == (True, False, True)
    assert DistributedContext.from_environment(without("LOCAL_WORLD_SIZE"), visible_gpus=0).local_world_size == 8


@pytest.mark.parametrize("own", [{}, {"PYTHONPATH": "mine:yours"}])
def test_a_worker_of_another_interpreter_looks_for_modules_where_the_user_said_and_nowhere_else(own):
    plain = {"HOME": "/home/me", **own}
    child = variables_of_child(["", "/site-packages"], plain)
    assert child["PYTHONPATH"] == ".:/site-packages"
    grandchild = variables_of_child(["/elsewhere"], child)
    for variables in (plain, child, grandchild):
        assert variables_of_worker(variables) == plain


# Ranks that SLURM's srun or MPI's mpirun has started, and processes that only look like it.


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


def test_each_task_of_srun_is_a_rank_that_meets_the_others_on_the_first_node_of_the_step():
    contexts = [context_of(task(*each)) for each in OF_EACH_TASK]
    placed = [(each.rank, each.local_rank, each.local_world_size, each.world_size) for each in contexts]
    assert placed == [(0, 0, 2, 3), (1, 1, 2, 3), (2, 0, 1, 3)]
    (address,) = {context.master_address for context in contexts}
    assert re.fullmatch(r"gpu07:2\d{4}", str(address))
    assert context_of(task("1", "1", "0", SLURM_STEP_ID="2")).master_address != address, "of a step at the same time"
    assert [claimed_rank(task(*each)) for each in OF_EACH_TASK] == [0, 1, 2]
    assert is_a_rank(SRUN)


ON_ONE_NODE = {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "[?", "SLURM_STEP_TASKS_PER_NODE": "3"}


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"SLURM_STEP_NODELIST": "node1"}, "node1:"),
        ({"SLURM_STEP_NODELIST": "node1,node2"}, "node1:"),
        ({"SLURM_STEP_NODELIST": "a-[001-012,020],b1"}, "a-001:"),
        ({"SLURM_STEP_NODELIST": "rack[3,5]-ib"}, "rack3-ib:"),
        ({"SLURM_STEP_NODELIST": "n1.example.org,n2.example.org"}, "n1.example.org:"),
        (ON_ONE_NODE, "127.0.0.1:"),
        ({"MASTER_ADDR": "head", "MASTER_PORT": "1234"}, "head:1234"),
    ],
)
def test_ranks_meet_on_the_first_node_that_slurm_lists_or_where_the_user_says(changes, first):
    assert str(context_of(task("0", "0", "0", **changes)).master_address).startswith(first)
    assert context_of(task("0", "0", "0", **changes)).local_world_size == (3 if changes is ON_ONE_NODE else 2)


ALONE = {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}
OF_SALLOC = {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}


@pytest.mark.parametrize(
    "environ", [{}, ALLOCATION, {**ALLOCATION, **OF_SALLOC}, {**SRUN, "WORLD_SIZE": "1"}, {**MPIRUN, **ALONE}]
)
def test_a_process_that_is_alone_stays_so(environ):
    assert not context_of(environ).is_distributed
    assert not is_a_rank(environ)


def test_each_process_of_mpi_is_a_rank_also_within_slurm_and_torchrun_counts_more():
    context = context_of(MPIRUN)
    assert (context.rank, context.local_rank, context.world_size, context.local_world_size) == (1, 1, 2, 2)
    assert re.fullmatch(r"127\.0\.0\.1:2\d{4}", str(context.master_address))
    for mpirun in (MPIRUN, {**HYDRA, "MASTER_PORT": "29500"}):
        # A step that mpirun starts its helpers with is none of its ranks.
        assert context_of({**SRUN, **mpirun}).world_size == 2
    context = context_of({**SRUN, **MPIRUN, **TORCHRUN})
    assert (context.rank, context.world_size, context.master_address) == (5, 8, "node0:29500")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({**SRUN, "SLURM_DISTRIBUTION": "arbitrary"}, ("MASTER_ADDR", "--nnodes=")),
        ({**SRUN, "SLURM_STEP_NODELIST": "gpu[?"}, ("MASTER_ADDR", "--nnodes=")),
        ({**MPIRUN, "OMPI_COMM_WORLD_SIZE": "4"}, ("MASTER_ADDR", "--nnodes=")),
        (HYDRA, ("MPICH", "2 times", "MASTER_PORT")),
    ],
)
def test_ranks_whose_meeting_is_not_certain_are_told_the_command_of_torchrun(environ, words):
    program = ("/usr/bin/python3", "-u", "/venv/bin/isaaclab-arena", "run", "--eval_jobs_config", "x")
    for typed, end in (
        (TYPED, f"--nproc_per_node=2 -m {RUNNER} --eval_jobs_config 'my jobs.json'"),
        (program, "-m isaaclab_arena.cli run --eval_jobs_config x"),
    ):
        with pytest.raises(ConfigError) as caught:
            take_rank_of_scheduler(dict(environ), typed)
        told = str(caught.value)
        assert all(word in told for word in (*words, "python -m torch.distributed.run"))
        assert told.endswith(end)


def test_two_processes_of_a_scheduler_share_a_run_and_play_each_episode_once(tmp_path):
    short = {"arena_env_args": {"environment": "cartpole"}, "policy_type": "zero_action", "num_episodes": 2}
    jobs = write_jobs(tmp_path / "jobs.json", [{"name": name, **short} for name in ("first", "second")])
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI"))}
    line = [preloaded_python(), "-m", RUNNER, "--eval_jobs_config", str(jobs), "--output_dir", str(tmp_path / "out")]
    processes = []
    for rank in range(2):
        ranks = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
        own = {**plain, **MPIRUN, **ranks, "PMIX_NAMESPACE": f"prterun-{os.getpid()}@1"}
        processes.append(subprocess.Popen([*line, "--no_report"], env=own, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    for rank, name in enumerate(("first", "second")):
        (record,) = (tmp_path / "out" / name).glob("episode_results_rank*.jsonl")
        assert record.name == f"episode_results_rank{rank}.jsonl"
        assert len(record.read_text().splitlines()) == 2


CHILD = """
import os, signal, time
from isaaclab_arena.distributed.context import die_with_parent
"""
CHILDREN = {
    "obeys": f"{CHILD}\nprint(die_with_parent(), os.getpid(), flush=True)\ntime.sleep(600)",
    "is busy": f"""{CHILD}
signal.signal(signal.SIGTERM, lambda number, frame: None)
print(die_with_parent(grace_s=1.0), os.getpid(), flush=True)
while True:
    time.sleep(600)
""",
    "asks late": f"""{CHILD}
parent = os.getppid()
print(True, os.getpid(), flush=True)
while os.getppid() == parent:
    time.sleep(0.01)
die_with_parent(grace_s=600.0)
time.sleep(600)
""",
}
LAUNCHER = "import subprocess, sys; subprocess.run(sys.argv[1:])"


def is_gone(pid: int) -> bool:
    return process_start_ticks(pid) is None


on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells a child of its parent's death"
)


@on_linux
@pytest.mark.parametrize("kind", CHILDREN)
def test_a_rank_does_not_outlive_a_killed_launcher(kind, tmp_path):
    if kind == "asks late" and b"python" in Path("/proc/1/cmdline").read_bytes():
        pytest.skip("here orphans get a Python program for a parent")
    (tmp_path / "child.py").write_text(CHILDREN[kind])
    command = [sys.executable, "-c", LAUNCHER, preloaded_python(), str(tmp_path / "child.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as launcher:
        assert launcher.stdout is not None
        asked, child = launcher.stdout.readline().split()
        assert (asked, is_gone(int(child))) == ("True", False)
        launcher.kill()
    if kind == "is busy":
        time.sleep(0.3)
        assert not is_gone(int(child)), "it has a second left"
    wait_until(lambda: is_gone(int(child)))


def test_a_process_is_known_by_its_number_and_its_start_until_it_ends():
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    assert process_is_running(os.getpid(), ticks)
    assert not process_is_running(os.getpid(), ticks + 1)
    with subprocess.Popen(["true"]) as process:
        wait_until(lambda: is_gone(process.pid))
    assert not process_is_running(process.pid, None), "it has ended, though nobody collected it"


def ran(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    words = "process_age_s, leave_process, leave_process_on_error"
    imports = f"import sys, threading, time\nfrom isaaclab_arena.distributed.context import {words}\n"
    (directory / "program.py").write_text(imports + program)
    return run([sys.executable, str(directory / "program.py")])


@on_linux
def test_a_process_knows_how_old_it_is(tmp_path):
    began = time.perf_counter()
    output = ran(tmp_path, "print(process_age_s())").stdout
    assert 0 < float(output) <= time.perf_counter() - began + 0.02


@pytest.mark.parametrize(
    ("last_words", "code", "said", "error"),
    [
        ("sys.stdout.write('the last word'); leave_process(3)", 3, "the last word", ""),
        ("leave_process_on_error(); [][0]", 1, "", "IndexError: list index out of range"),
    ],
)
def test_a_process_that_leaves_has_said_everything_and_waits_for_nobody(tmp_path, last_words, code, said, error):
    left = ran(tmp_path, f"threading.Thread(target=time.sleep, args=(600,)).start()\n{last_words}\n")
    assert (left.returncode, left.stdout) == (code, said)
    assert left.stderr.splitlines()[-1:] == [error] * bool(error)
    assert left.stderr.startswith("Traceback") is bool(error)


# A machine whose name cannot be resolved is named in time.


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 300])
def test_a_host_name_that_nobody_knows_is_told_within_the_timeout(monkeypatch, host):
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", "29511")
    context = DistributedContext(rank=1, world_size=2, master_address=f"{host}:29511")
    with pytest.raises(DistributedError, match="correct MASTER_ADDR"), initialise(context, timeout_s=0.5):
        pass
