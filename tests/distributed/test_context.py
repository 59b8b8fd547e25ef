"""What a process knows of its rank: from torchrun, from a scheduler, alone."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

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
from tests.end_to_end.launching import ROOT, environment, run, write_jobs
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


def test_without_a_launcher_there_is_one_process():
    context = DistributedContext.from_environment({}, visible_gpus=0)
    assert (context.rank, context.local_rank, context.world_size, context.local_world_size) == (0, 0, 1, 1)
    assert context.device == torch.device("cpu")
    assert not context.is_distributed
    assert context.is_rank_zero
    assert not context.launched_by_torchrun


@pytest.mark.parametrize("rank", range(6))
def test_a_task_that_slurm_gives_one_gpu_has_that_one_whatever_its_local_rank(rank):
    environ = {
        "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "node1", "MASTER_PORT": "29500",
    }  # fmt: skip
    context = DistributedContext.from_environment(environ, visible_gpus=1)
    assert (context.rank, context.local_rank) == (rank, rank % 2)
    assert (context.world_size, context.local_world_size) == (6, 2)
    assert (context.master_address, str(context.device)) == ("node1:29500", "cuda:0")


def test_torchruns_variables_are_read():
    context = DistributedContext.from_environment(TORCHRUN, visible_gpus=4)
    assert (context.rank, context.local_rank, context.world_size, context.local_world_size) == (5, 1, 8, 4)
    assert context.device == torch.device("cuda", 1)
    assert context.master_address == "node0:29500"
    assert context.attempt == "2"
    assert context.launched_by_torchrun


@pytest.mark.parametrize(
    "environ",
    [{"WORLD_SIZE": "1"}, {"WORLD_SIZE": "1", "RANK": "0"}, {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}],
)
def test_a_world_of_one_needs_nothing_else(environ):
    context = DistributedContext.from_environment(environ, visible_gpus=0)
    assert not context.is_distributed
    assert context.master_address is None


def test_all_ranks_are_on_this_machine_where_the_launcher_does_not_say():
    assert DistributedContext.from_environment(without("LOCAL_WORLD_SIZE"), visible_gpus=0).local_world_size == 8


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_a_missing_variable_is_named(name):
    with pytest.raises(ConfigError, match=f"{name} not set.*seen: "):
        DistributedContext.from_environment(without(name), visible_gpus=0)


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("text", ["abc", "9" * 5000, "1\n"])
def test_only_plain_whole_numbers_are_accepted(name, text):
    with pytest.raises(ConfigError, match=name):
        DistributedContext.from_environment({**TORCHRUN, name: text}, visible_gpus=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "8"}, "RANK must be below WORLD_SIZE"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be at least 1"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK must be below"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE must be from 1"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE must be from 1"),
        ({"WORLD_SIZE": "1", "RANK": "1"}, "RANK must be below WORLD_SIZE"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT must be from 1 to 65535"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT must be from 1 to 65535"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR must be set too"),
    ],
)
def test_contradictions_are_refused_with_the_variables_seen(changes, message):
    environ = {**TORCHRUN, **changes}
    with pytest.raises(ConfigError, match=message) as caught:
        DistributedContext.from_environment(environ, visible_gpus=0)
    for name in ("RANK", "WORLD_SIZE"):
        assert re.search(rf"\b{name}='{environ[name]}'", str(caught.value))


def test_several_ranks_need_an_address():
    with pytest.raises(ConfigError, match="MASTER_ADDR and MASTER_PORT must be set too"):
        DistributedContext.from_environment(without("MASTER_ADDR", "MASTER_PORT"), visible_gpus=0)


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


def run_tasks(
    python: str, tasks: list[dict[str, str]], jobs: Path, output: Path
) -> list[subprocess.CompletedProcess[str]]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_", "PMI"))}
    processes = [
        subprocess.Popen(
            [python, "-m", RUNNER, "--eval_jobs_config", str(jobs), "--output_dir", str(output), "--no_report"],
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
    ended = run_tasks(preloaded_python(), [of(rank) for rank in range(2)], jobs, tmp_path / "out")
    assert [each.returncode for each in ended] == [0, 0], [each.stderr for each in ended]
    for rank, name in enumerate(("first", "second")):
        (record,) = (tmp_path / "out" / name).glob("episode_results_rank*.jsonl")
        assert record.name == f"episode_results_rank{rank}.jsonl"
        assert len(record.read_text().splitlines()) == 2


def test_a_process_whose_meeting_with_others_is_not_certain_runs_nothing(tmp_path):
    jobs = write_jobs(tmp_path / "jobs.json", [])
    # A fresh interpreter: the message has the command line of the process.
    (ended,) = run_tasks(sys.executable, [{**one_node_of_mpirun(1), "OMPI_COMM_WORLD_SIZE": "4"}], jobs, tmp_path)
    assert ended.returncode == 2
    assert f"-m {RUNNER} --eval_jobs_config {jobs}" in ended.stderr


CHILD_THAT_OBEYS = """
import os, time
from isaaclab_arena.distributed.context import die_with_parent
print(die_with_parent(), os.getpid(), flush=True)
time.sleep(600)
"""
CHILD_THAT_IS_BUSY = """
import os, signal, time
from isaaclab_arena.distributed.context import die_with_parent
signal.signal(signal.SIGTERM, lambda number, frame: None)
print(die_with_parent(grace_s=1.0), os.getpid(), flush=True)
while True:
    time.sleep(600)
"""
CHILD_THAT_ASKS_LATE = """
import os, time
from isaaclab_arena.distributed.context import die_with_parent
parent = os.getppid()
print(True, os.getpid(), flush=True)
while os.getppid() == parent:
    time.sleep(0.01)
die_with_parent(grace_s=600.0)
time.sleep(600)
"""
LAUNCHER = "import subprocess, sys; subprocess.run(sys.argv[1:])"


def wait_until_gone(pid: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process_start_ticks(pid) is None:
            return True
        time.sleep(0.02)
    return False


def child_of_killed_launcher(directory: Path, program: str) -> int:
    """Start a launcher and its child, kill the launcher once the child has spoken, and return the child's number."""
    (directory / "child.py").write_text(program)
    command = [sys.executable, "-c", LAUNCHER, preloaded_python(), str(directory / "child.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as launcher:
        assert launcher.stdout is not None
        asked, child = launcher.stdout.readline().split()
        assert asked == "True"
        assert process_start_ticks(int(child)) is not None
        launcher.kill()
    return int(child)


on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells a child of its parent's death"
)


@on_linux
def test_a_rank_does_not_outlive_a_killed_launcher(tmp_path):
    assert wait_until_gone(child_of_killed_launcher(tmp_path, CHILD_THAT_OBEYS), timeout_s=60.0)


@on_linux
def test_a_rank_that_goes_on_after_the_signal_leaves_soon_all_the_same(tmp_path):
    child = child_of_killed_launcher(tmp_path, CHILD_THAT_IS_BUSY)
    time.sleep(0.3)
    assert process_start_ticks(child) is not None
    assert wait_until_gone(child, timeout_s=60.0)


@on_linux
def test_a_rank_whose_launcher_died_before_it_asked_leaves_too(tmp_path):
    if b"python" in Path("/proc/1/cmdline").read_bytes():
        pytest.skip("here orphans get a Python program for a parent")
    assert wait_until_gone(child_of_killed_launcher(tmp_path, CHILD_THAT_ASKS_LATE), timeout_s=60.0)


def test_a_process_is_known_by_its_number_and_its_start():
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    assert process_is_running(os.getpid(), ticks)
    assert not process_is_running(os.getpid(), ticks + 1)
    assert process_is_running(os.getpid(), None)


@on_linux
def test_a_process_knows_how_old_it_is(tmp_path):
    began = time.perf_counter()
    output = ran(
        tmp_path, "from isaaclab_arena.distributed.context import process_age_s; print(process_age_s())"
    ).stdout
    taken_s = time.perf_counter() - began
    assert 0 < float(output) <= taken_s + 0.02


def test_a_process_that_has_ended_is_not_running_though_nobody_collected_it():
    with subprocess.Popen(["true"]) as process:
        assert wait_until_gone(process.pid, timeout_s=60.0)
    assert not process_is_running(process.pid, None)


def ran(directory: Path, program: str) -> subprocess.CompletedProcess[str]:
    (directory / "program.py").write_text(program)
    return run([sys.executable, str(directory / "program.py")])


def left_with_a_busy_thread(directory: Path, last_words: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import sys, threading, time\n"
        "from isaaclab_arena.distributed.context import leave_process, leave_process_on_error\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        f"{last_words}\n"
    )
    return ran(directory, program)


def test_a_process_that_leaves_has_said_everything_and_keeps_its_exit_code(tmp_path):
    left = left_with_a_busy_thread(tmp_path, "sys.stdout.write('the last word'); leave_process(3)")
    assert (left.returncode, left.stdout, left.stderr) == (3, "the last word", "")


def test_a_process_that_leaves_on_an_error_shows_where_it_was_and_waits_for_nobody(tmp_path):
    left = left_with_a_busy_thread(tmp_path, "leave_process_on_error(); [][0]")
    assert left.returncode == 1
    assert left.stderr.startswith("Traceback")
    assert left.stderr.endswith("IndexError: list index out of range\n")


def test_threads_that_nobody_limits_are_limited_here(tmp_path):
    script = (
        "import os, torch\nfrom isaaclab_arena.distributed.devices import set_up_torch\n"
        "os.environ.pop('OMP_NUM_THREADS', None)\ntorch.set_num_threads(2)\n"
        "set_up_torch(1)\nprint(torch.get_num_threads())"
    )
    assert ran(tmp_path, script).stdout.strip() == "1"


# A machine whose name cannot be resolved is named in time.


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 300])
def test_a_host_name_that_nobody_knows_is_told_within_the_timeout(monkeypatch, host):
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", "29511")
    context = DistributedContext(rank=1, world_size=2, master_address=f"{host}:29511")
    with (
        pytest.raises(DistributedError, match=r"rank 1 of 2 cannot find the host .*; correct MASTER_ADDR"),
        initialise(context, timeout_s=0.5),
    ):
        pass
