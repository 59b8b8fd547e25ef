"""The batch scripts for SLURM, whose `srun` runs its tasks here one after the other, and KubeRay's description."""

import json
import os
import shlex
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from isaaclab_arena.evaluation.eval_runner import main
from tests.end_to_end.launching import ROOT

PROGRAM = "isaaclab_arena.evaluation.eval_runner"
SCRIPTS = ROOT / "jobs" / "slurm"
OPTIONS = {"eval_jobs_config": "my jobs.json", "output_dir": "/shared/run 1", "resume": "", "split_jobs": ""}
SCONTROL = 'printf "%s\\n" node1 node2 node3\n'
DROP_OPTIONS = "while [[ $1 == --* ]]; do shift; done\n"
SRUN = (
    DROP_OPTIONS
    + """
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$((task % SLURM_NTASKS_PER_NODE)) SLURM_NODEID=$((task / SLURM_NTASKS_PER_NODE)) \
        "$@" || exit
done
exit 3
"""
)
SLEEPING_SRUN = "trap 'exit 5' USR1\nsleep 0.2\ntouch sleeping\nwhile true; do sleep 0.02; done\n"
PYTHON = """#!/usr/bin/env python3
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
with open("called.jsonl", "a") as file:
    file.write(json.dumps([sys.argv[1:], {name: os.environ[name] for name in names if name in os.environ}]) + "\\n")
"""
# The run ends once all nodes have joined.
PATIENT_PYTHON = (
    PYTHON
    + """
import time
while "--cluster" in sys.argv and open("called.jsonl").read().count('"start"') < 3:
    time.sleep(0.02)
"""
)


class Cluster:
    """What a batch script finds on the first node of its three."""

    def __init__(self, directory: Path, *, tasks_per_node: int, srun: str = SRUN, python: str = PYTHON) -> None:
        self.directory = directory
        for name, text in (("scontrol", SCONTROL), ("srun", srun)):
            self._program(name, f"#!/usr/bin/env bash\n{text}")
        self._program("its_python", python)
        plain = {name: value for name, value in os.environ.items() if name not in {"MASTER_ADDR", "MASTER_PORT"}}
        self.environment = {
            **plain,
            "PATH": f"{directory}:{os.environ['PATH']}",
            "PYTHON": "its_python",
            "SLURM_JOB_NODELIST": "node[1-3]",
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_GPUS_PER_NODE": "h200:8",
            "SLURM_NTASKS": str(3 * tasks_per_node),
            "SLURM_NTASKS_PER_NODE": str(tasks_per_node),
            "SLURM_CPUS_PER_TASK": "4",
        }

    def _program(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)
        (self.directory / name).chmod(0o755)

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        line = ["bash", str(SCRIPTS / script), *arguments]
        return subprocess.Popen(line, cwd=self.directory, env=self.environment, stderr=subprocess.PIPE, text=True)

    def calls(self) -> list[tuple[list[str], dict[str, str]]]:
        """Return each start of Python: its arguments, and the variables that say which rank it is."""
        return [tuple(json.loads(line)) for line in (self.directory / "called.jsonl").read_text().splitlines()]


def given(arguments: list[str]) -> dict[str, str]:
    """Return the options of the evaluation that follows ``python``, with their values."""
    assert arguments[:2] == ["-m", PROGRAM]
    return {
        word.removeprefix("--"): "" if following.startswith("--") else following
        for word, following in pairwise([*arguments[2:], "--"])
        if word.startswith("--")
    }


def accepted(arguments: list[str]) -> dict[str, str]:
    """Return them after the evaluation has taken all of them, with its jobs in another file."""
    options, jobs_file = given(arguments), str(ROOT / "jobs" / "quickstart.json")
    words = [jobs_file if word == options["eval_jobs_config"] else word for word in arguments[2:]]
    assert main([*words, "--list_variations"]) == 0
    return options


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.iterdir()))
def test_a_batch_script_is_valid_bash_and_says_how_it_is_used(script, tmp_path):
    assert subprocess.run(["bash", "-n", SCRIPTS / script], check=False).returncode == 0
    process = Cluster(tmp_path, tasks_per_node=1).start(script)
    told = process.communicate(timeout=60)[1].rstrip()
    assert told.endswith(f"usage: sbatch {script} JOBS_FILE OUTPUT_DIR [OPTION...]")
    assert process.returncode != 0


def test_one_torchrun_per_node_meets_the_others_on_the_first_one(tmp_path):
    cluster = Cluster(tmp_path, tasks_per_node=1)
    process = cluster.start("evaluate_torchrun.sbatch", "my jobs.json", "/shared/run 1", "--split_jobs")
    assert process.wait(timeout=60) == 3
    calls = cluster.calls()
    assert len(calls) == 3
    for node, (arguments, _) in enumerate(calls):
        assert arguments[:2] == ["-m", "torch.distributed.run"]
        launch = get_args_parser().parse_args(arguments[2:])
        assert (launch.nnodes, launch.nproc_per_node, launch.node_rank) == ("3", "8", node)
        assert (launch.master_addr, launch.master_port) == ("node1", 29500)
        assert "SIGUSR1" in launch.signals_to_handle
        assert accepted(["-m", launch.training_script, *launch.training_script_args]) == OPTIONS


@pytest.mark.slow
def test_one_task_per_gpu_knows_which_rank_it_is(tmp_path, monkeypatch):
    cluster = Cluster(tmp_path, tasks_per_node=2)
    process = cluster.start("evaluate_srun.sbatch", "my jobs.json", "/shared/run 1", "--split_jobs")
    assert process.wait(timeout=60) == 3
    calls = cluster.calls()
    assert [variables for _, variables in calls] == [
        {
            "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "node1", "MASTER_PORT": "29500",
        }
        for rank in range(6)
    ]  # fmt: skip
    for arguments, variables in calls:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert accepted(arguments) == OPTIONS


@pytest.mark.slow
def test_a_node_of_ray_starts_on_each_node_and_one_run_uses_them_all(tmp_path):
    start = pytest.importorskip("ray.scripts.scripts").start
    cluster = Cluster(tmp_path, tasks_per_node=1, python=PATIENT_PYTHON)
    cluster.environment["SLURM_CPUS_PER_TASK"] = "16"
    process = cluster.start("evaluate_ray.sbatch", "my jobs.json", "/data/run 1", "--record_trajectories")
    assert process.wait(timeout=60) == 0
    calls = [arguments for arguments, _ in cluster.calls()]
    of_ray = [arguments[2:] for arguments in calls if arguments[:2] == ["-m", "ray.scripts.scripts"]]
    head, *others = (start.make_context("start", words[1:]).params for words in of_ray if words[0] == "start")
    assert (head["head"], head["node_ip_address"], head["port"]) == (True, "node1", 6379)
    assert [(each["head"], each["address"]) for each in others] == [(False, "node1:6379")] * 2
    assert {(each["num_cpus"], each["num_gpus"], each["block"]) for each in (head, *others)} == {(16, 8, True)}
    assert ["health-check", "--address", "node1:6379"] in of_ray
    (run,) = (arguments for arguments in calls if arguments[1] == PROGRAM)
    options = accepted(run)
    assert (options["eval_jobs_config"], options["output_dir"]) == ("my jobs.json", "/data/run 1")
    assert options["resume"] == options["record_trajectories"] == ""
    assert (options["cluster"], options["ray_address"]) == ("ray", "node1:6379")
    assert (options["num_ranks"], options["gpus_per_rank"], options["cpus_per_rank"]) == ("24", "1", "2")


def test_the_signal_before_the_end_reaches_the_step_and_its_exit_code_comes_back(tmp_path):
    process = Cluster(tmp_path, tasks_per_node=1, srun=SLEEPING_SRUN).start("evaluate_torchrun.sbatch", "jobs", "out")
    deadline = time.monotonic() + 60
    while not (tmp_path / "sleeping").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=60) == 5


# KubeRay.


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "jobs" / "kuberay" / "rayjob.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayJob")
    return document["spec"]


def test_every_option_of_its_command_exists(spec):
    pytest.importorskip("ray")
    program, *arguments = shlex.split(spec["entrypoint"])
    assert program == "python"
    assert accepted(arguments)["resume"] == ""


def test_a_rank_fits_on_a_worker_and_each_has_its_own_with_all_that_the_command_names_mounted(spec):
    options = given(shlex.split(spec["entrypoint"])[1:])
    cluster = spec["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    head, worker = (each["template"]["spec"] for each in (cluster["headGroupSpec"], workers))
    limits = worker["containers"][0]["resources"]["limits"]
    assert float(options["gpus_per_rank"]) == float(limits["nvidia.com/gpu"])
    assert float(options["cpus_per_rank"]) == float(limits["cpu"])
    assert int(options["num_ranks"]) == workers["maxReplicas"]
    for pod in (head, worker):
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    needed = [str(Path(options[name]).parent) for name in ("eval_jobs_config", "output_dir")]
    assert {mount["mountPath"] for mount in head["containers"][0]["volumeMounts"]} == set(needed)
    assert needed[0] in {mount["mountPath"] for mount in worker["containers"][0]["volumeMounts"]}
