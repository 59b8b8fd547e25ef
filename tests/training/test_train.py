import csv
import json
import os
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from isaaclab_arena.models.rsl_rl_checkpoint import numbered_checkpoints
from isaaclab_arena.storage.run_directory import RunLock
from isaaclab_arena.training.checkpoints import read_learned
from isaaclab_arena.training.config import TrainOptions, read_train_options
from isaaclab_arena.training.learner import named_digests
from isaaclab_arena.training.train import main
from tests.end_to_end.launching import ROOT, TORCHRUN, command, patience_s, run, start, write_jobs

TRAIN = ["-m", "isaaclab_arena.training.train"]
SMALL = (
    "agent.num_steps_per_env=16",
    "agent.actor.hidden_dims=[16]",
    "agent.critic.hidden_dims=[16]",
    "checkpoints.export=false",
)
EVALUATED = ("evaluation.interval=2", "evaluation.num_episodes=5", "evaluation.num_envs=2")
NOT_EVALUATED = ("evaluation.interval=0",)


def train(tmp_path: Path, *words: object, ranks: int = 1, extra: dict[str, str] | None = None, fresh: bool = False):
    """Train cartpole in a directory."""
    return run(
        command(
            "cartpole", "--log_root", tmp_path / "logs", "--num_envs", 8, *SMALL, *words, ranks=ranks, module=TRAIN
        ),
        timeout_s=patience_s(120),
        extra=extra,
        fresh=fresh,
    )


def run_directory_of(tmp_path: Path) -> Path:
    (directory,) = [path for path in (tmp_path / "logs" / "cartpole").iterdir() if path.is_dir()]
    return directory


def learned(directory: Path, iterations: int) -> dict[str, int]:
    content = read_learned(directory / f"model_{iterations}.pt")
    return named_digests({name: value for name, value in content.items() if name != "infos"})


def measures(directory: Path) -> dict[tuple[int, str], float]:
    with (directory / "progress.csv").open() as file:
        return {(int(line["step"]), line["measure"]): float(line["value"]) for line in csv.DictReader(file)}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    """A run of six iterations in one go."""
    tmp_path = tmp_path_factory.mktemp("undisturbed")
    finished = train(tmp_path, "--max_iterations", 6, "agent.save_interval=2", *EVALUATED)
    assert finished.returncode == 0, finished.stderr
    return run_directory_of(tmp_path)


def test_a_run_leaves_checkpoints_settings_and_measures(undisturbed):
    assert list(numbered_checkpoints(undisturbed)) == [2, 4, 6]
    agent = yaml.safe_load((undisturbed / "params" / "agent.yaml").read_text())
    assert agent["observation_terms"] == {"policy": ["cart_pos", "pole_angle", "cart_vel", "pole_vel"]}
    assert yaml.safe_load((undisturbed / "params" / "env.yaml").read_text())["environment"] == "cartpole"
    told = measures(undisturbed)
    assert told[6, "Perf/total_steps"] == 6 * 8 * 16
    assert {(step, name) for step, name in told if "success_rate" in name and name.startswith("Eval")} == {
        (step, "Eval/cartpole/success_rate") for step in (2, 4, 6)
    }
    assert (undisturbed / "model_best.pt").is_file()
    assert list(undisturbed.glob("events.out.tfevents.*"))


def test_an_evaluation_that_nobody_took_note_of_is_made_up_for(tmp_path):
    assert train(tmp_path, "--max_iterations", 2, *EVALUATED).returncode == 0
    directory = run_directory_of(tmp_path)
    before = {key: value for key, value in measures(directory).items() if key[1].startswith("Eval/")}
    assert before
    lines = (directory / "progress.csv").read_text().splitlines(keepends=True)
    (directory / "progress.csv").write_text(
        "".join(line for line in lines if "Eval/" not in line and "evaluation" not in line)
    )
    (directory / "model_best.pt").unlink()
    (directory / "model_best.json").unlink()
    assert main(["--resume", str(directory)]) == 0
    assert {key: value for key, value in measures(directory).items() if key[1].startswith("Eval/")} == before
    assert (directory / "model_best.pt").is_file()


def test_a_run_that_is_under_way_is_left_alone(undisturbed, capsys):
    lock = RunLock(undisturbed).hold(alone=True)
    try:
        assert main(["--resume", str(undisturbed), "--max_iterations", "7"]) == 2
    finally:
        lock.release()
    assert "error" in capsys.readouterr().err
    assert max(numbered_checkpoints(undisturbed)) == 6


def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(undisturbed, tmp_path):
    assert train(tmp_path, "--max_iterations", 4, "agent.save_interval=2", *EVALUATED).returncode == 0
    directory = run_directory_of(tmp_path)
    resumed = run(
        command("cartpole", "--resume", directory, "--max_iterations", 6, module=TRAIN), timeout_s=patience_s(120)
    )
    assert resumed.returncode == 0, resumed.stderr
    assert "going on from" in resumed.stderr
    assert learned(directory, 6) == learned(undisturbed, 6)
    lines = yaml.safe_load((directory / "params" / "train.yaml").read_text())["command_lines"]
    assert ["--resume" in line for line in lines] == [False, True]
    told, before = measures(directory), measures(undisturbed)
    assert {key: value for key, value in told.items() if "Perf" not in key[1]} == {
        key: value for key, value in before.items() if "Perf" not in key[1]
    }


def test_a_launcher_changes_nothing_for_a_single_process(undisturbed, tmp_path):
    arguments = [
        "cartpole",
        "--log_root",
        tmp_path / "logs",
        "--num_envs",
        8,
        "--max_iterations",
        2,
        *SMALL,
        *NOT_EVALUATED,
    ]
    launched = [*TORCHRUN, "--standalone", "--nproc_per_node=1", *TRAIN, *map(str, arguments)]
    finished = run(launched, timeout_s=patience_s(120))
    assert finished.returncode == 0, finished.stderr
    assert learned(run_directory_of(tmp_path), 2) == learned(undisturbed, 2)


def test_evaluation_gives_the_same_results_for_any_number_of_ranks(undisturbed, tmp_path):
    """Rank 0 of two starts from the same weights, and evaluates them before anything is learned."""
    jobs = tmp_path / "jobs.json"
    job = {
        "name": "cartpole",
        "arena_env_args": {"environment": "cartpole", "num_envs": 2},
        "policy_type": "rsl_rl",
        "policy_config_dict": {"checkpoint_path": str(undisturbed / "model_6.pt")},
        "num_episodes": 5,
        "seed": 10_000,
    }
    jobs.write_text(json.dumps({"jobs": [job]}))
    tables = []
    for ranks in (1, 2):
        directory = tmp_path / f"ranks{ranks}"
        arguments = [
            "--eval_jobs_config",
            jobs,
            "--output_dir",
            directory,
            "--split_jobs",
            "--deterministic",
            "--policy_batch",
            2,
        ]
        finished = run(command(*arguments, ranks=ranks), timeout_s=patience_s(120))
        assert finished.returncode == 0, finished.stderr
        tables.append(episodes(directory))
    assert tables[0] == tables[1]
    assert tables[0] == episodes(undisturbed / "evaluations" / "step-6")


def episodes(directory: Path) -> list[tuple[str, ...]]:
    """Deciding values of each episode of an evaluation."""
    with (directory / "episodes.csv").open() as file:
        return [
            (line["episode_index"], line["outcome"], line["length"], line["return"]) for line in csv.DictReader(file)
        ]


SPY = """
import os, sys
_LOG = os.open(os.environ["SPY_FILE"] + os.environ.get("RANK", "0"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def _note(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        os.write(_LOG, (str(arguments[0]) + "\\n").encode())
    elif event == "os.rename":
        os.write(_LOG, (str(arguments[1]) + "\\n").encode())
    elif event == "os.mkdir":
        os.write(_LOG, (str(arguments[0]) + "/\\n").encode())
sys.addaudithook(_note)
"""


FAILING_READS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int fails(int file) {
    char link[64], path[4096];
    const char *name = getenv("FAILING_NAME"), *rank = getenv("RANK");
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1), last = name ? strlen(name) : 0;
    return rank && !strcmp(rank, "1") && last && length > last && !memcmp(path + length - last, name, last);
}
ssize_t read(int file, void *into, size_t size) {
    if (fails(file)) { errno = EIO; return -1; }
    return ((ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read"))(file, into, size);
}
"""


WANDB = """
import os

def _said(*arguments, **options):
    with open(os.environ["SPY_FILE"] + "_wandb", "a") as file:
        file.write(os.environ.get("RANK", "0") + "\\n")

class config:
    update = staticmethod(_said)

init = log = finish = _said
"""


def test_rank_zero_alone_writes_and_logs_and_all_ranks_use_one_directory(tmp_path):
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(textwrap.dedent(SPY))
    (tmp_path / "spy" / "wandb.py").write_text(WANDB)
    spied = {"PYTHONPATH": f"{tmp_path / 'spy'}:{ROOT}", "SPY_FILE": str(tmp_path / "written_by_rank")}
    words = (
        "--logger",
        "wandb",
        "agent.save_interval=1",
        "distributed.check_sync_every=1",
        "checkpoints.export=true",
        *NOT_EVALUATED,
    )
    finished = train(tmp_path, "--max_iterations", 2, *words, ranks=2, extra=spied, fresh=True)
    assert finished.returncode == 0, finished.stderr
    directory = run_directory_of(tmp_path)
    written = [
        {
            Path(line).name
            for line in (tmp_path / f"written_by_rank{rank}").read_text().splitlines()
            if line.startswith(str(directory)) and not line.endswith("/")
        }
        for rank in range(2)
    ]
    assert {
        "model_2.pt",
        "state_2.pt",
        "agent.yaml",
        "train.yaml",
        "progress.csv",
        "policy.onnx",
        "policy.pt",
    } <= written[0]
    assert written[1] == {"rank1.log"}
    assert set((tmp_path / "written_by_rank_wandb").read_text().split()) == {"0"}
    settings = yaml.safe_load((directory / "params" / "train.yaml").read_text())
    assert settings["devices"] == settings["simulation_devices"] == ["cpu", "cpu"]
    assert measures(directory)[2, "Perf/total_steps"] == 2 * 2 * 8 * 16
    assert read_learned(directory / "model_2.pt")["infos"]["isaaclab_arena"]["world_size"] == 2


@pytest.mark.skipif(shutil.which("cc") is None, reason="reads are made to fail by a library, which needs cc")
def test_a_checkpoint_that_one_rank_cannot_read_ends_the_run_before_a_step(undisturbed, tmp_path):
    (tmp_path / "failing.c").write_text(FAILING_READS)
    library = tmp_path / "failing.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "failing.c", "-ldl"], check=True)
    directory = tmp_path / "run"
    shutil.copytree(undisturbed, directory, ignore=shutil.ignore_patterns("evaluations"))
    before = {path.name: path.read_bytes() for path in directory.glob("*.pt")}
    failed = run(
        command("--resume", directory, "--max_iterations", 9, *NOT_EVALUATED, ranks=2, module=TRAIN),
        timeout_s=patience_s(120),
        extra={"LD_PRELOAD": str(library), "FAILING_NAME": "model_6.pt"},
        fresh=True,
    )
    assert failed.returncode == 1
    assert f"cannot read {directory / 'model_6.pt'}: Input/output error" in failed.stderr
    assert {path.name: path.read_bytes() for path in directory.glob("*.pt")} == before
    assert max(step for step, _ in measures(directory)) == 6


def test_ranks_begin_with_the_same_checkpoint_evaluate_together_and_film_each_episode_once(undisturbed, tmp_path):
    filmed = ("--load_checkpoint", undisturbed / "model_6.pt", "evaluation.video_episodes=2")
    finished = train(tmp_path, "--max_iterations", 2, *EVALUATED, *filmed, ranks=2)
    assert finished.returncode == 0, finished.stderr
    assert "training begins with the actor and the critic and the optimiser of" in finished.stderr
    directory = run_directory_of(tmp_path)
    films = [path.stem.rpartition("-")[2] for path in directory.glob("evaluations/step-2/**/*.mp4")]
    assert sorted(films) == ["0", "1"], "each film is made by the one rank that runs the episode"
    results = json.loads((directory / "evaluations" / "step-2" / "results.json").read_text())
    assert results["complete"]
    assert results["jobs"][0]["episodes"] == 5
    ranks = {
        path.name for path in (directory / "evaluations" / "step-2" / "cartpole").glob("episode_results_rank*.jsonl")
    }
    assert len(ranks) == 2, "every rank ran a share"


def test_a_signal_saves_first(tmp_path):
    arguments = ["cartpole", "--log_root", tmp_path / "logs", "--num_envs", 8, "--max_iterations", 100_000]
    process = start(command(*arguments, *SMALL, *NOT_EVALUATED, module=TRAIN), tmp_path / "log")
    deadline = time.monotonic() + patience_s(60)
    while "iteration 5/" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=patience_s(60)) == 143, (tmp_path / "log").read_text()
    directory = run_directory_of(tmp_path)
    last = max(step for step, _ in measures(directory))
    assert last in numbered_checkpoints(directory), "the last iteration that was told is saved"


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stop_file_ends_all_ranks_after_one_iteration_with_a_checkpoint(tmp_path, ranks):
    words = ["--log_root", tmp_path / "logs", "--num_envs", 8, "--max_iterations", 100_000]
    words += ["--stop_file", tmp_path / "stop", *SMALL, *NOT_EVALUATED]
    process = start(command("cartpole", *words, ranks=ranks, module=TRAIN), tmp_path / "log")
    deadline = time.monotonic() + patience_s(60)
    while "iteration 5/" not in (tmp_path / "log").read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    (tmp_path / "stop").write_text("step 5: 97.0 %\n")
    assert process.wait(timeout=patience_s(60)) == 0, (tmp_path / "log").read_text()
    directory = run_directory_of(tmp_path)
    last = max(step for step, _ in measures(directory))
    assert max(numbered_checkpoints(directory)) == last
    assert (directory / f"state_{last}.pt").is_file(), "it can go on"
    resumed = train(tmp_path, "--resume", directory, "--stop_file", tmp_path / "stop")
    assert resumed.returncode == 2
    assert "is there already and would end the training at once; remove it" in resumed.stderr


def test_one_option_starts_ranks_that_give_what_torchrun_gives_and_a_failing_one_is_told(tmp_path):
    words = ("--max_iterations", 2, *NOT_EVALUATED)
    by_torchrun, by_option, failing = tmp_path / "torchrun", tmp_path / "option", tmp_path / "failing"
    assert train(by_torchrun, *words, ranks=2).returncode == 0
    finished = train(by_option, "--agent.max-iterations", 2, *NOT_EVALUATED, "--nproc_per_node", 2)
    assert finished.returncode == 0, finished.stderr
    directory = run_directory_of(by_option)
    assert learned(directory, 2) == learned(run_directory_of(by_torchrun), 2)
    assert "iteration 2/2" in finished.stderr
    assert {path.name for path in directory.glob("launcher/*/rank*.log")} == {"rank0.log", "rank1.log"}
    finished = train(
        failing, *words, "--nproc_per_node", 2, "agent.algorithm.class_name=tests.training.failing:Failing"
    )
    assert finished.returncode == 1
    assert "[rank 1]" in finished.stderr
    assert "LookupError: rank 1 cannot go on" in finished.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cartpol"], "no training task called 'cartpol'; did you mean 'cartpole'?"),
        ([], "TASK: name a task (cartpole"),
        (["cartpole", "env.start=sideways"], "env.start: \"sideways\" is none of 'upright' or 'hanging'"),
        (["cartpole", "agent.learning_rat=1"], "agent.algorithm.learning_rat: PPO has no such option; did you mean"),
        (["cartpole", "--resume", "/nowhere"], "'/nowhere' holds no training run"),
        (["cartpole", "--resume", "EMPTY"], "holds no checkpoint to go on from; begin a new run"),
        (["reach", "--resume", "EMPTY"], "is a run of 'cartpole', not of 'reach'; leave the task out"),
        (["cartpole", "--eval_jobs_config", "JOBS"], "no job's policy takes a checkpoint; use policy_type rsl_rl"),
        (["cartpole", "--config", "/nowhere.yaml"], "/nowhere.yaml: there is no such file"),
        (["cartpole", "--device", "cuda"], "'cuda' does not exist"),
        (["cartpole", "agent.logger=wandbb"], "agent.logger: 'wandbb' cannot be used"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(words, told, tmp_path, capsys):
    jobs = {"name": "idle", "arena_env_args": {"environment": "cartpole"}, "policy_type": "zero_action", "num_steps": 1}
    write_jobs(tmp_path / "JOBS", [jobs])
    empty = tmp_path / "EMPTY" / "params" / "train.yaml"
    empty.parent.mkdir(parents=True)
    empty.write_text("task: cartpole\nenvironment: cartpole\n")
    words = [str(tmp_path / word) if word in {"EMPTY", "JOBS"} else word for word in words]
    assert main([*words, "--log_root", str(tmp_path / "logs")]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert told in line
    assert not list(tmp_path.glob("logs/*/*/model_*"))


@pytest.mark.parametrize(
    "resumed", [["--resume"], ["--agent.resume=True", "--agent.load-run=20.*"], ["--resume", "RUN"]]
)
def test_ranks_are_told_the_very_checkpoint_to_begin_with(resumed, tmp_path):
    run_before = tmp_path / "cartpole" / "2026-01-01"
    (run_before / "params").mkdir(parents=True)
    (run_before / "params" / "train.yaml").write_text("task: cartpole\nenvironment: cartpole\n")
    for iterations in (50, 100):
        (run_before / f"model_{iterations}.pt").touch()
    told: list[str] = []

    def launch(options: TrainOptions, *, arguments: Sequence[str], **_: object) -> int:
        told.extend(arguments)
        return 0

    resumed = [str(run_before) if word == "RUN" else word for word in resumed]
    line = ["cartpole", "--log_root", str(tmp_path), *resumed, "--load_checkpoint", "model_50.pt"]
    assert main([*line, "--nproc_per_node", "2"], launch=launch) == 0
    options, _, _ = read_train_options(told, program="train")
    options.check()
    assert (options.resume, options.load_run) == (None, None)
    assert options.load_checkpoint == str(run_before / "model_50.pt")
    assert options.run_directory not in {None, run_before}


def test_a_launch_that_is_refused_leaves_no_directory(tmp_path, capsys):
    assert main(["cartpole", "--gpu-ids", "999", "--log_root", str(tmp_path)]) == 2
    assert "--gpu_ids" in capsys.readouterr().err
    assert not list(tmp_path.glob("cartpole/*"))


def test_a_film_of_evaluations_that_are_not_made_is_said_to_be_none(tmp_path, capsys):
    words = ["--max_iterations", "0", "--video", "--logger", "none", *SMALL, *NOT_EVALUATED]
    assert main(["cartpole", "--num_envs", "8", "--log_root", str(tmp_path), *words]) == 0
    assert (
        "nothing is filmed: evaluations are, and with evaluation.interval=0 there are none" in capsys.readouterr().err
    )
