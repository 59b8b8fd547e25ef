"""Every command and every Python block of the documents is run by a test, or stands here with the reason why not."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.documentation.reading import blocks, commands_of
from tests.documentation.story import follow, steps_of, typed
from tests.end_to_end.launching import ROOT

DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
TESTS = {path.name: path.read_text() for path in Path(__file__).parent.glob("test_*.py")}

# Pages whose programs another test runs, one after the other.
ELSEWHERE = {
    "how_to/compare.md": "test_compare_document.py",
    "how_to/external_environments.md": "test_external_environments.py",
    "how_to/gymnasium.md": "test_external_environments.py",
    "how_to/metaworld.md": "test_external_environments.py",
    "how_to/robosuite.md": "test_external_environments.py",
    "how_to/vla_eval_benchmarks.md": "test_external_environments.py",
    "how_to/finetuning.md": "test_finetuning_document.py",
    "how_to/python.md": "test_python_document.py",
    "how_to/robustness.md": "test_robustness_document.py",
    "how_to/serving.md": "test_serving_document.py",
    "how_to/tasks.md": "test_documents.py",
    "how_to/tracking.md": "test_tracking_document.py",
    "how_to/training.md": "test_training_document.py",
    "how_to/verification.md": "test_verification_document.py",
    "index.md": "test_start.py",
    "start/first_run.md": "test_start.py",
    "start/install.md": "test_start.py",
    "start/my_policy.md": "test_start.py",
    "start/my_task.md": "test_start.py",
    "start/read_the_results.md": "test_start.py",
    "users/lerobot.md": "test_lerobot_document.py",
    "bring_your_policy/function.md": "test_bring_your_policy.py",
    "bring_your_policy/exported_networks.md": "test_bring_your_policy.py",
    "bring_your_policy/lerobot.md": "test_lerobot_policy_document.py",
}
# Pages whose programs run here, each page in a directory of its own.
HERE = (
    "bring_your_policy/gr00t.md",
    "bring_your_policy/index.md",
    "bring_your_policy/openpi.md",
    "bring_your_policy/rsl_rl.md",
    "bring_your_policy/vla_eval.md",
    "concepts/batches.md",
    "how_to/cameras.md",
    "how_to/distributed.md",
    "how_to/latency.md",
    "how_to/libero.md",
    "how_to/policies.md",
    "how_to/ray.md",
    "how_to/report.md",
    "how_to/resuming.md",
    "how_to/robots.md",
    "how_to/slurm.md",
    "how_to/variations.md",
    "how_to/watching.md",
    "reference/jobs.md",
    "reference/recordings.md",
    "reference/results.md",
    "users/arena.md",
    "users/mjlab.md",
)
# How a command begins that no test types as it stands, and why.
NOT_RUN = {
    "how_to/cameras.md": {
        "isaaclab-arena view pick_and_place --object can": "opens a window",
        "isaaclab-arena film": "tests/cli/test_files.py films such runs; those of the page take minutes",
    },
    "how_to/report.md": {
        "isaaclab-arena report": "tests/cli/test_look.py writes pages of runs like these",
    },
    "how_to/distributed.md": {
        "isaaclab-arena run jobs.json --gpu_ids 0 1": "needs two GPUs",
        "python -m torch.distributed.run --nnodes=2": "needs two nodes; tests/end_to_end has ranks of several nodes",
    },
    "how_to/ray.md": {
        "kubectl": "needs Kubernetes; test_kuberay.py reads the file",
        "ray st": "needs several nodes; tests/evaluation/cluster has a cluster of two",
        "ray job submit": "needs a cluster with a dashboard; tests/evaluation/cluster has one without",
        "isaaclab-arena run jobs.json --cluster": "needs GPUs",
    },
    "how_to/slurm.md": {
        "python -m torch.distributed.run --signals-to-handle": "a scheduler's; test_slurm_scripts.py has the signal",
        "srun": "needs SLURM; test_slurm_scripts.py runs the scripts with an srun of its own",
        "sbatch": "needs SLURM; test_slurm_scripts.py runs the scripts with an srun of its own",
        "python -m torch.distributed.run ...": "a line of a batch script",
        "trap": "a line of a batch script",
        "wait": "a line of a batch script",
    },
    "how_to/external_environments.md": {
        "python3 -m venv": "loads packages from the network",
        "isaaclab-arena run jobs/benchmarks/": "needs packages; test_benchmarks_with_job_files.py has them",
    },
    "how_to/gymnasium.md": {"pip install": "loads packages from the network"},
    "how_to/metaworld.md": {
        "pip install": "loads packages from the network",
        "python3 -m venv": "loads packages from the network",
    },
    "how_to/robosuite.md": {"python3 -m venv": "loads packages from the network"},
    "how_to/vla_eval_benchmarks.md": {"python3 -m venv": "loads packages from the network"},
    "how_to/finetuning.md": {
        "python -m torch.distributed.run": "tests/gr00t/training/test_finetune.py trains on two ranks",
        "python -m benchmarks.success.models": "takes an hour",
    },
    "how_to/latency.md": {
        "isaaclab-arena run": "plays 1000 episodes; tests/evaluation/test_latency.py plays a few",
    },
    "how_to/libero.md": {
        "make libero": "loads packages from the network",
        "isaaclab-arena run": "needs LIBERO; tests/outsiders/test_libero.py plays it",
        "python3 -m venv": "is followed by packages from the network",
        "~/libero/bin/pip install": "loads packages from the network",
    },
    "bring_your_policy/openpi.md": {
        "isaaclab-arena run": "needs openpi's server; tests/outsiders/test_commands_of_documents.py starts one",
    },
    "bring_your_policy/vla_eval.md": {
        "isaaclab-arena run": "needs vla-eval's server; tests/outsiders/test_commands_of_documents.py starts one",
    },
    "bring_your_policy/gr00t.md": {
        "pip install -e submodules/Isaac-GR00T": "is installed already",
        "gr00t-server": "serves until it is stopped; tests/gr00t starts servers",
        "isaaclab-arena run": "takes a minute; test_documents.py runs such jobs of the README",
    },
    "how_to/watching.md": {
        "isaaclab-arena watch": "needs a training; tests/cli/test_watch.py watches one, slowly",
    },
    "bring_your_policy/lerobot.md": {
        "python3 -m venv": "is followed by packages from the network",
        "~/lerobot/bin/pip install": "loads packages from the network",
    },
    "how_to/tracking.md": {
        "isaaclab-arena export outputs/tracked --wandb": "W&B is a service of others; tests/tracking has a client",
        "isaaclab-arena export outputs/tracked --mlflow": "needs MLflow; tests/tracking runs where it is installed",
        "isaaclab-arena export outputs/tracked --rerun": "needs Rerun; tests/results/exports runs where it is",
    },
    "how_to/training.md": {
        "isaaclab-arena train reach": "tests/training trains on two ranks",
        "isaaclab-arena train velocity_go1": "trains for a quarter of an hour; its options are read",
        "isaaclab-arena train --task reach": "trains for minutes; its options are read",
        "isaaclab-arena train cartpole --env": "trains for minutes; its options are read",
        "isaaclab-arena train cartpole --resume": "W&B is a service of others; its options are read",
    },
    "index.md": {"pip install": "tests/packaging/test_start_from_a_wheel.py does it, slowly"},
    "start/install.md": {
        "python3 -m venv": "tests/packaging/test_start_from_a_wheel.py does it, slowly",
        "source": "as above",
        "pip install": "as above",
    },
}
FIRST = {"name": "lift-cube-scripted", "policy_type": "scripted", "num_episodes": 2,
         "arena_env_args": {"environment": "lift_object", "object": "cube", "num_envs": 2}}  # fmt: skip
SECOND = {"name": "push", "policy_type": "random_action", "num_episodes": 1, "arena_env_args": {"environment": "reach"}}
NOISE = "variations.action.noise.sampler_cfg.high"
NOISY = {**SECOND, "name": "noise", "variations": {"action.noise.enabled": True}, "sweep": {NOISE: [0.0, 0.01]}}
# What a page takes for granted, by the name under which it is spoken of.
JOB_FILES = {"how_to/distributed.md": "jobs.json", "how_to/ray.md": "jobs.json", "how_to/resuming.md": "jobs.json",
             "how_to/policies.md": "jobs.yaml", "concepts/batches.md": "jobs.yaml"}  # fmt: skip
OWN_FILES = {"reference/jobs.md": "jobs.yaml", "users/arena.md": "experiment.yaml"}


def is_run(page: str, command: str) -> bool:
    return not any(command.startswith(beginning) for beginning in NOT_RUN.get(page, {}))


# The README's lines start ranks in the fast tests.
SLOW = re.compile("--nproc_per_node|--cluster ray|--output lift.mp4")
RUN = [
    pytest.param(page, command, id=f"{page}: {command}", marks=[pytest.mark.slow] if SLOW.search(command) else [])
    for page in HERE
    for command in commands_of(PAGES[page])
    if is_run(page, command)
]


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory) -> Path:
    """A directory for the directories of all pages, with a run of two jobs to begin with."""
    directory = tmp_path_factory.mktemp("pages")
    (directory / "jobs.json").write_text(json.dumps({"jobs": [FIRST, SECOND]}))
    (directory / "noise.json").write_text(json.dumps({"jobs": [NOISY]}))
    for name, job_file in (("first", "jobs.json"), ("noise", "noise.json")):
        line = f"isaaclab-arena run --eval_jobs_config {job_file} --output_dir {name}"
        finished = typed(line, directory)
        assert finished.returncode == 0, finished.stderr
    return directory


def workspace(workspaces: Path, page: str) -> Path:
    """Return the directory of a page, with what the page takes for granted."""
    directory = workspaces / page.replace("/", "_").removesuffix(".md")
    if not directory.exists():
        for name in ("first", "noise"):
            shutil.copytree(workspaces / name, directory / "outputs" / name)
        for name in ("jobs", "models", "isaaclab_arena_gr00t"):
            (directory / name).symlink_to(ROOT / name)
        if page in JOB_FILES:
            shutil.copy(workspaces / "jobs.json", directory / JOB_FILES[page])
        if page in OWN_FILES:
            (directory / OWN_FILES[page]).write_text(blocks(PAGES[page], "yaml")[0])
        for step in steps_of(PAGES[page]):
            if step.file.endswith(".yaml"):
                follow(step, directory)
        (run_of_lift,) = (workspaces / "first" / FIRST["name"]).glob("*.hdf5")
        shutil.copy(run_of_lift, directory / "dataset_lift.hdf5")
        shutil.copy(workspaces / "first" / "episodes.parquet", directory)
    return directory


@pytest.mark.parametrize(("page", "command"), RUN)
def test_a_command_can_be_typed(workspaces, page, command):
    line = command.replace("--nproc_per_node=N", "--nproc_per_node=2")
    directory = workspace(workspaces, page)
    if command == "isaaclab-arena recover out":
        # Which brings a plan back that was lost.
        (directory / "out" / "run.json").unlink()
    finished = typed(line, directory)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize("page", [page for page in HERE if blocks(PAGES[page], "python")])
def test_python_of_a_page_can_be_run(workspaces, page, monkeypatch):
    """Parts of a policy are given what stands around them in a module."""
    monkeypatch.chdir(workspace(workspaces, page))
    around = "from isaaclab_arena.policy.policy_base import PolicyBase, PolicyCfg\nMyCfg = WaveCfg = PolicyCfg"
    names: dict[str, object] = {}
    exec(around, names)
    for body in blocks(PAGES[page], "python"):
        if not body.startswith("# my_package/"):
            exec(body, names)


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(PAGES[page]) or blocks(PAGES[page], "python")])
def test_a_page_with_programs_is_run_here_or_by_a_test_of_its_own(page):
    """A new page goes into HERE, or is run by a test of its own and goes into ELSEWHERE."""
    assert (page in HERE) != (page in ELSEWHERE)
    if page in ELSEWHERE:
        name = page.rpartition("/")[2]
        spellings = (page, page.replace("/", '" / "'), name, f'"{name.removesuffix(".md")}"')
        assert any(spelling in TESTS[ELSEWHERE[page]] for spelling in spellings)


@pytest.mark.parametrize("page", NOT_RUN)
def test_what_is_not_run_stands_on_its_page(page):
    commands = commands_of(PAGES[page])
    for beginning in NOT_RUN[page]:
        assert any(command.startswith(beginning) for command in commands), f"{page} has no command {beginning}"


@pytest.mark.parametrize("page", PAGES)
def test_no_program_hides_among_lines_that_are_merely_shown(page):
    """Programs stand in blocks of bash and python, where they are found; indented lines are what a program says."""
    for line in PAGES[page].splitlines():
        assert not line.startswith(("    python ", "    isaaclab-arena ", "    pip ", "    import ", "    from ")), line
