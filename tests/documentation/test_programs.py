"""Every command and every Python block of the documents is run by a test, or stands here with the reason why not."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from isaaclab_arena.results import list_episodes, read_episode
from tests.documentation.reading import Step, blocks, commands_of, follow, steps_of, typed
from tests.end_to_end.launching import ROOT, episodes_table, jobs_table

DOCS = ROOT / "docs"
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}

# Pages whose programs another test runs.
ELSEWHERE = {
    "how_to/external_environments.md": "test_external_environments.py",
    "how_to/gymnasium.md": "test_external_environments.py",
    "how_to/metaworld.md": "test_external_environments.py",
    "how_to/robosuite.md": "test_external_environments.py",
    "how_to/vla_eval_benchmarks.md": "test_external_environments.py",
    "how_to/robustness.md": "test_pages.py",
    "how_to/serving.md": "test_pages.py",
    "how_to/tasks.md": "test_documents.py",
    "how_to/tracking.md": "test_tracking_document.py",
    "index.md": "test_programs.py",
    "bring_your_policy/lerobot.md": "test_pages.py",
}
# Pages whose programs run here, each page in a directory of its own, those of Start in one.
HERE = [page for page in PAGES if page not in ELSEWHERE and steps_of(PAGES[page]) + blocks(PAGES[page], "python")]
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
        "kubectl": "needs Kubernetes; test_slurm_scripts.py reads the file",
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
    "how_to/finetuning.md": {
        "python -m torch.distributed.run": "tests/gr00t/training/test_finetune.py trains on two ranks",
        "python -m benchmarks.success.models": "takes an hour",
        "isaaclab-arena run": "takes minutes; a slow test does",
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
        "isaaclab-arena watch": "needs a training; tests/cli/test_evaluate.py watches one, slowly",
    },
    "how_to/training.md": {
        "isaaclab-arena train reach": "tests/training trains on two ranks",
        "isaaclab-arena train velocity_go1": "trains for a quarter of an hour; its options are read",
        "isaaclab-arena train --task reach": "trains for minutes; its options are read",
        "isaaclab-arena train cartpole --env": "trains for minutes; its options are read",
        "isaaclab-arena train cartpole --resume": "W&B is a service of others; its options are read",
    },
    "start/install.md": {
        "python3 -m venv": "tests/packaging/test_wheel.py does it, slowly",
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
# What is done with less, and the README's lines start ranks in the fast tests.
LESS = {
    "--nproc_per_node=N": "--nproc_per_node=2",
    "--num_episodes 100 --num_envs 16": "--num_episodes 4 --num_envs 4",
    "finetune --dataset": "finetune --max_steps 2 --batch_size 2 --noise_draws 1 --validation_share 0.25 --dataset",
    "--num_episodes 20 lift_object --camera_size": "--num_episodes 1 lift_object --camera_size",
    "checkpoint-10000": "checkpoint-2",
}
SAYS = {
    "isaaclab-arena compare outputs/old outputs/new": "verdict: better",
    "isaaclab-arena compare outputs/old outputs/new --margin 0.05": "no worse",
    "isaaclab-arena replay outputs/lift/lift_object --episodes 0,2-3": "3 of 3 episodes bitwise",
    "isaaclab-arena verify outputs/lift --sample 2": "2 of 2 episodes bitwise",
}


def is_run(page: str, command: str) -> bool:
    return not any(command.startswith(beginning) for beginning in NOT_RUN.get(page, {}))


def nightly(page: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a page's tests: those of Start are run by every change, the others at night."""
    return [] if page.startswith("start/") else [pytest.mark.slow]


STEPS = [
    pytest.param(page, step, id=f"{page}: {step}", marks=nightly(page))
    for page in HERE
    for step in steps_of(PAGES[page])
    if is_run(page, str(step))
]


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory) -> Path:
    """A directory for the directories of all pages, with a run of two jobs to begin with."""
    directory = tmp_path_factory.mktemp("pages")
    (directory / "start").mkdir()
    (directory / "jobs.json").write_text(json.dumps({"jobs": [FIRST, SECOND]}))
    (directory / "noise.json").write_text(json.dumps({"jobs": [NOISY]}))
    for name, job_file in (("first", "jobs.json"), ("noise", "noise.json")):
        typed(f"isaaclab-arena run --eval_jobs_config {job_file} --output_dir {name}", directory)
    return directory


def workspace(workspaces: Path, page: str) -> Path:
    """Return the directory of a page, with what the page takes for granted."""
    if page.startswith("start/"):
        return workspaces / "start"
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
        (run_of_lift,) = (workspaces / "first" / FIRST["name"]).glob("*.hdf5")
        shutil.copy(run_of_lift, directory / "dataset_lift.hdf5")
        shutil.copy(workspaces / "first" / "episodes.parquet", directory)
    return directory


@pytest.mark.parametrize(("page", "step"), STEPS)
def test_a_step_can_be_done(workspaces, page, step):
    directory, text = workspace(workspaces, page), step.text
    if text == "isaaclab-arena recover out":
        # Which brings a plan back that was lost.
        (directory / "out" / "run.json").unlink()
    if not step.file:
        for much, little in LESS.items():
            text = text.replace(much, little)
    assert SAYS.get(step.text, "") in follow(Step(step.file, text), directory)


@pytest.mark.parametrize("page", [page for page in HERE if blocks(PAGES[page], "python")])
def test_python_of_a_page_can_be_run(workspaces, page, monkeypatch, capsys):
    """Parts of a policy are given what stands around them in a module."""
    monkeypatch.chdir(workspace(workspaces, page))
    around = "from isaaclab_arena.policy.policy_base import PolicyBase, PolicyCfg\nMyCfg = WaveCfg = PolicyCfg"
    names: dict[str, object] = {}
    exec(around, names)
    saved = {step.text for step in steps_of(PAGES[page])}
    for body in blocks(PAGES[page], "python"):
        if body not in saved and ("stable_baselines3" not in body or importlib.util.find_spec("stable_baselines3")):
            exec(body.replace("100_000", "1"), names)
    if page == "how_to/python.md":
        shown = capsys.readouterr().out
        assert "0.0 (0.0, " in shown
        assert "command line: job 'lift_object': --object: no object called 'cann'" in shown


# What is there after the steps of a page, which have to have been done.


def evaluated(directory: Path, runs: str = "*") -> pd.DataFrame:
    """Return the rows of all jobs that a page has run, with a name like ``runs``."""
    return pd.concat(jobs_table(path.parent) for path in (directory / "outputs").glob(f"{runs}/results.parquet"))


SHOWN = [
    ("start/my_policy.md", "my_policy.MyPolicy", "reach", "success_rate", [1.0]),
    ("start/my_policy.md", "my_network.MyNetwork", "reach", "success_rate", [1.0]),
    ("start/my_task.md", "my_solution.MySolution", "hover", "success_rate", [1.0]),
    ("start/my_task.md", "random_action", "hover", "success_rate", [0.0]),
    ("bring_your_policy/function.md", "reach_policy:act", "reach", "success_rate", [1.0, 1.0]),
    ("bring_your_policy/function.md", "network_policy:act", "reach", "success_rate", [1.0]),
    ("how_to/finetuning.md", "gr00t_closedloop", "lift_object", "episodes", [1]),
    ("how_to/training.md", "rsl_rl", "cartpole", "episodes", [20]),
]


@pytest.mark.parametrize(
    ("page", "policy", "environment", "column", "values"),
    [pytest.param(*row, marks=nightly(row[0])) for row in SHOWN],
)
def test_a_policy_of_a_page_is_as_good_as_it_says(workspaces, page, policy, environment, column, values):
    rows = evaluated(workspace(workspaces, page)).set_index(["policy", "environment"])
    assert rows.loc[[(policy, environment)], column].tolist() == values


@pytest.mark.slow
def test_a_training_is_taken_up_again(workspaces):
    assert (workspace(workspaces, "how_to/training.md") / "outputs" / "cartpole" / "model_25.pt").is_file()


def test_the_table_that_start_shows_is_the_one_that_the_command_gives(workspaces):
    (shown,) = [body for body in blocks(PAGES["start/first_run.md"], "") if "status" in body]
    rows = evaluated(workspaces / "start", "20*").set_index("name")
    (row,) = json.loads(str(rows.loc[["lift_object"]].to_json(orient="records")))
    assert f"{100 * row['success_rate']:.1f} [{100 * row['success_low']:.1f}, {100 * row['success_high']:.1f}]" in shown
    assert f"{row['mean_length']:.1f} ±{row['std_length']:.1f}" in shown


@pytest.mark.slow
def test_the_columns_that_the_page_of_comparisons_names_are_those_of_the_table(workspaces):
    page = "how_to/compare.md"
    heading = (workspace(workspaces, page) / "outputs" / "new" / "comparison.md").read_text().splitlines()[2]
    for cell in heading.strip("|").split("|")[1:]:
        assert cell.strip().partition(" [")[0] in PAGES[page]


@pytest.mark.slow
def test_recordings_come_back_from_lerobots_format_and_play_as_they_were(workspaces):
    outputs = workspace(workspaces, "users/lerobot.md") / "outputs"
    columns = ["episode_index", "outcome", "length", "return"]
    played, demos = (episodes_table(outputs / name)[columns] for name in ("played", "demos"))
    assert len(played) == 3
    assert played.equals(demos)
    (source,), (back,) = (list((outputs / directory).glob("*/dataset_*.hdf5")) for directory in ("demos", "back"))
    assert list_episodes(back) == [0, 1, 2]
    for index in range(3):
        recorded, found = read_episode(source, index).arrays, read_episode(back, index).arrays
        assert {"actions", "obs/robot_joint_pos", "camera_obs/wrist_cam_rgb"} <= found.keys()
        assert all(np.array_equal(array, recorded[name]) for name, array in found.items())


@pytest.mark.slow
def test_the_models_that_come_along_solve_their_tasks(tmp_path):
    (line,) = [line for line in commands_of(PAGES["how_to/finetuning.md"]) if "arena run" in line]
    typed(f"{line} --output_dir {tmp_path / 'out'} --device cpu", ROOT)
    rates = jobs_table(tmp_path / "out").set_index("name")["success_rate"]
    assert set(rates.index) == {"lift", "place", "drawer", "colour"}
    assert all(rates >= 0.6)


# No page is forgotten.


def test_a_page_with_programs_is_run_here_or_by_a_test_of_its_own():
    for page, test in ELSEWHERE.items():
        name = page.rpartition("/")[2].removesuffix(".md")
        text = (Path(__file__).parent / test).read_text()
        assert f'"{name}.md"' in text or f'"{name}"' in text or f'"{page}"' in text, page


@pytest.mark.parametrize("page", NOT_RUN)
def test_what_is_not_run_stands_on_its_page(page):
    commands = commands_of(PAGES[page])
    for beginning in NOT_RUN[page]:
        assert any(command.startswith(beginning) for command in commands), f"{page} has no command {beginning}"


def test_what_a_command_is_to_say_is_asked_of_a_command():
    commands = {command for text in PAGES.values() for command in commands_of(text)}
    assert set(SAYS) <= commands
    assert all(any(much in command for command in commands) for much in LESS)


def test_the_front_page_shows_what_start_begins_with():
    front, install = commands_of(PAGES["index.md"]), commands_of(PAGES["start/install.md"])
    assert set(front) - set(install) == {"isaaclab-arena quickstart"}
    assert any(line.startswith(front[-1]) for line in install)


@pytest.mark.parametrize("page", PAGES)
def test_no_program_hides_among_lines_that_are_merely_shown(page):
    """Programs stand in blocks of bash and python, where they are found; indented lines are what a program says."""
    for line in PAGES[page].splitlines():
        assert not line.startswith(("    python ", "    isaaclab-arena ", "    pip ", "    import ", "    from ")), line
