import csv
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
import yaml

from isaaclab_arena.checkpoints import numbered_checkpoints
from isaaclab_arena.storage.ledger import RunLock
from isaaclab_arena.training.checkpoints import read_learned
from isaaclab_arena.training.config import TrainOptions, read_train_options
from isaaclab_arena.training.learner import named_digests
from isaaclab_arena.training.train import main
from tests.end_to_end.launching import TORCHRUN, command, patience_s, run, start, wait_until, write_jobs

TRAIN = ["-m", "isaaclab_arena.training.train"]
WATCHED = ["-m", "tests.training.watched_rank"]
SMALL = (
    *("--num_envs", "8", "agent.num_steps_per_env=16", "checkpoints.export=false"),
    *("agent.actor.hidden_dims=[16]", "agent.critic.hidden_dims=[16]"),
)
EVALUATED = ("evaluation.interval=2", "evaluation.num_episodes=5", "evaluation.num_envs=2")
NOT_EVALUATED = ("evaluation.interval=0",)

# The tests with processes take some seconds each: what is tested is what several processes do together.


def finished(line: list[str], extra: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run(line, timeout_s=patience_s(120), extra=extra)


def train(
    tmp_path: Path, *words: object, ranks: int = 1, module: Sequence[str] = TRAIN, extra: dict[str, str] | None = None
) -> Path:
    """Train cartpole, and return the directory of the run."""
    line = command("cartpole", "--log_root", tmp_path / "logs", *SMALL, *words, ranks=ranks, module=module)
    done = finished(line, extra)
    assert done.returncode == 0, done.stderr
    directory = run_directory_of(tmp_path)
    (directory / "stderr").write_text(done.stderr)
    return directory


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
    return train(tmp_path, "--max_iterations", 6, "agent.save_interval=2", *EVALUATED)


@pytest.fixture
def copied(undisturbed, tmp_path) -> Path:
    """The same run in a directory that a test may change."""
    return shutil.copytree(undisturbed, tmp_path / "copied")


@pytest.fixture(scope="module")
def by_two_ranks(tmp_path_factory) -> Path:
    """A run of two ranks under torchrun, whose files are noted beside it."""
    tmp_path = tmp_path_factory.mktemp("ranks")
    words = ("--logger", "wandb", "agent.save_interval=1", "distributed.check_sync_every=1", "checkpoints.export=true")
    spied = {"SPY_FILE": str(tmp_path / "written_by_rank")}
    return train(tmp_path, "--max_iterations", 2, *words, *NOT_EVALUATED, ranks=2, module=WATCHED, extra=spied)


def test_a_run_leaves_checkpoints_settings_and_measures(undisturbed):
    assert list(numbered_checkpoints(undisturbed)) == [2, 4, 6]
    agent = yaml.safe_load((undisturbed / "params" / "agent.yaml").read_text())
    assert agent["observation_terms"] == {"policy": ["cart_pos", "pole_angle", "cart_vel", "pole_vel"]}
    assert yaml.safe_load((undisturbed / "params" / "env.yaml").read_text())["environment"] == "cartpole"
    found = measures(undisturbed)
    assert found[6, "Perf/total_steps"] == 6 * 8 * 16
    assert [step for step, name in found if name == "Eval/cartpole/success_rate"] == [2, 4, 6]
    assert (undisturbed / "model_best.pt").is_file()
    assert list(undisturbed.glob("events.out.tfevents.*"))


def test_an_evaluation_that_is_not_in_the_measures_is_made_up_for_unless_the_run_is_under_way(copied, capsys):
    before = measures(copied)
    lines = (copied / "progress.csv").read_text().splitlines(keepends=True)
    rest = [line for line in lines if not line.startswith(("6,Eval/", "6,Perf/evaluation"))]
    (copied / "progress.csv").write_text("".join(rest))
    for name in ("model_best.pt", "model_best.json"):
        (copied / name).unlink()
    lock = RunLock(copied).hold(alone=True)
    assert main(["--resume", str(copied)]) == 2
    assert "error" in capsys.readouterr().err
    assert (copied / "progress.csv").read_text() == "".join(rest)
    lock.release()
    assert main(["--resume", str(copied)]) == 0
    assert {key: value for key, value in measures(copied).items() if "Perf" not in key[1]}.items() <= before.items()
    assert (6, "Eval/cartpole/success_rate") in measures(copied)
    assert (copied / "model_best.pt").is_file()


def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(undisturbed, copied):
    """It was killed in its last iterations: what it had written of them is there beside the fourth's checkpoint."""
    for name in ("model_6.pt", "state_6.pt", "model_best.pt", "model_best.json"):
        (copied / name).unlink(missing_ok=True)
    shutil.rmtree(copied / "evaluations" / "step-6")
    resumed = finished(command("cartpole", "--resume", copied, module=TRAIN))
    assert resumed.returncode == 0, resumed.stderr
    assert learned(copied, 6) == learned(undisturbed, 6)
    lines = yaml.safe_load((copied / "params" / "train.yaml").read_text())["command_lines"]
    assert ["--resume" in line for line in lines] == [False, True]
    told, before = (
        {key: value for key, value in measures(run).items() if "Perf" not in key[1]} for run in (copied, undisturbed)
    )
    assert told == before


def test_a_launcher_changes_nothing_for_a_single_process(undisturbed, tmp_path):
    arguments = ["cartpole", "--log_root", str(tmp_path / "logs"), "--max_iterations", "2", *SMALL, *NOT_EVALUATED]
    done = finished([*TORCHRUN, "--standalone", "--nproc_per_node=1", *TRAIN, *arguments])
    assert done.returncode == 0, done.stderr
    assert learned(run_directory_of(tmp_path), 2) == learned(undisturbed, 2)


def test_evaluation_gives_the_same_results_for_any_number_of_ranks(undisturbed, tmp_path):
    """Two ranks give what the training, a single process, got for its last checkpoint."""
    job = {
        "name": "cartpole",
        "arena_env_args": {"environment": "cartpole", "num_envs": 2},
        "policy_type": "rsl_rl",
        "policy_config_dict": {"checkpoint_path": str(undisturbed / "model_6.pt")},
        "num_episodes": 5,
        "seed": 10_000,
    }
    words = ("--output_dir", tmp_path / "out", "--split_jobs", "--deterministic", "--policy_batch", 2)
    done = finished(command("--eval_jobs_config", write_jobs(tmp_path / "jobs.json", [job]), *words, ranks=2))
    assert done.returncode == 0, done.stderr
    tables = [pd.read_csv(each / "episodes.csv") for each in (tmp_path / "out", undisturbed / "evaluations" / "step-6")]
    for column in ("episode_index", "outcome", "length", "return"):
        assert tables[0][column].tolist() == tables[1][column].tolist()


def test_rank_zero_alone_writes_and_logs_and_all_ranks_use_one_directory(by_two_ranks):
    noted = [(by_two_ranks.parents[2] / f"written_by_rank{rank}").read_text().splitlines() for rank in range(2)]
    first, second = ({Path(line).name for line in lines if line.startswith(str(by_two_ranks))} for lines in noted)
    settings = {"agent.yaml", "train.yaml", "progress.csv"}
    assert {"model_2.pt", "state_2.pt", "policy.onnx", "policy.pt"} | settings <= first
    assert second == {"rank1.log"}
    assert ["wandb" in lines for lines in noted] == [True, False]
    settings = yaml.safe_load((by_two_ranks / "params" / "train.yaml").read_text())
    assert settings["devices"] == settings["simulation_devices"] == ["cpu", "cpu"]
    assert measures(by_two_ranks)[2, "Perf/total_steps"] == 2 * 2 * 8 * 16
    assert read_learned(by_two_ranks / "model_2.pt")["infos"]["isaaclab_arena"]["world_size"] == 2


def test_a_checkpoint_that_one_rank_cannot_read_ends_the_run_before_a_step(copied, tmp_path):
    before = {path.name: path.read_bytes() for path in copied.glob("*.pt")}
    line = command("--resume", copied, "--max_iterations", 9, *NOT_EVALUATED, ranks=2, module=WATCHED)
    failed = finished(line, {"SPY_FILE": str(tmp_path / "spy"), "FAILING_NAME": "copied/model_6.pt"})
    assert failed.returncode == 1
    assert f"{copied / 'model_6.pt'}: Input/output error" in failed.stderr
    assert {path.name: path.read_bytes() for path in copied.glob("*.pt")} == before
    assert max(step for step, _ in measures(copied)) == 6


def test_ranks_begin_with_the_same_checkpoint_evaluate_together_and_film_each_episode_once(undisturbed, tmp_path):
    filmed = ("--load_checkpoint", undisturbed / "model_6.pt", "evaluation.video_episodes=2")
    directory = train(tmp_path, "--max_iterations", 2, *EVALUATED, *filmed, ranks=2)
    assert "training begins with the actor" in (directory / "stderr").read_text()
    evaluation = directory / "evaluations" / "step-2"
    films = [path.stem.rpartition("-")[2] for path in evaluation.glob("**/*.mp4")]
    assert sorted(films) == ["0", "1"], "each film is made by the one rank that runs the episode"
    results = json.loads((evaluation / "results.json").read_text())
    assert (results["complete"], results["jobs"][0]["episodes"]) == (True, 5)
    assert len(list((evaluation / "cartpole").glob("episode_results_rank*.jsonl"))) == 2, "every rank ran a share"


@pytest.mark.parametrize(
    ("ranks", "code"), [(1, 143), pytest.param(2, 0, marks=pytest.mark.slow)], ids=["signal", "stop file"]
)
def test_a_signal_saves_first(tmp_path, ranks, code):
    stop_file, log = tmp_path / "stop", tmp_path / "log"
    endless = ("--log_root", tmp_path / "logs", "--max_iterations", 100_000, "--stop_file", stop_file)
    process = start(command("cartpole", *endless, *SMALL, *NOT_EVALUATED, ranks=ranks, module=TRAIN), log)
    wait_until(lambda: "iteration 5/" in log.read_text())
    if ranks == 1:
        os.kill(process.pid, signal.SIGTERM)
    else:
        stop_file.touch()
    assert process.wait(timeout=patience_s(60)) == code, log.read_text()
    directory = run_directory_of(tmp_path)
    last = max(step for step, _ in measures(directory))
    assert max(numbered_checkpoints(directory)) == last
    assert (directory / f"state_{last}.pt").is_file(), "it can go on"


def test_one_option_starts_ranks_that_give_what_torchrun_gives_and_a_failing_one_is_told(by_two_ranks, tmp_path):
    words = ("--max_iterations", 2, *NOT_EVALUATED, "--nproc_per_node", 2)
    directory = train(tmp_path, *words)
    assert learned(directory, 2) == learned(by_two_ranks, 2)
    assert "iteration 2/2" in (directory / "stderr").read_text()
    assert {path.name for path in directory.glob("launcher/*/rank*.log")} == {"rank0.log", "rank1.log"}
    words = (*words, "agent.algorithm.class_name=tests.training.failing:Failing", "--log_root", tmp_path / "failing")
    failed = finished(command("cartpole", *SMALL, *words, module=TRAIN))
    assert failed.returncode == 1
    assert "[rank 1]" in failed.stderr
    assert "LookupError: rank 1 cannot go on" in failed.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cartpol"], "did you mean 'cartpole'?"),
        ([], "TASK: name a task (cartpole"),
        (["cartpole", "env.start=sideways"], 'env.start: "sideways"'),
        (["cartpole", "agent.learning_rat=1"], "agent.algorithm.learning_rat: PPO"),
        (["cartpole", "--resume", "/nowhere"], "'/nowhere'"),
        (["cartpole", "--resume", "EMPTY"], "no checkpoint"),
        (["reach", "--resume", "EMPTY"], "'cartpole', not of 'reach'"),
        (["cartpole", "--eval_jobs_config", "JOBS"], "policy_type rsl_rl"),
        (["cartpole", "--config", "/nowhere.yaml"], "/nowhere.yaml"),
        (["cartpole", "--device", "cuda"], "'cuda'"),
        (["cartpole", "agent.logger=wandbb"], "agent.logger: 'wandbb'"),
        (["cartpole", "--gpu-ids", "999"], "--gpu_ids: "),
        (["cartpole", "--stop_file", "JOBS"], "--stop_file: "),
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


def test_a_film_of_evaluations_that_are_not_made_is_said_to_be_none(tmp_path, capsys):
    words = ["--max_iterations", "0", "--video", "--logger", "none", *SMALL, *NOT_EVALUATED]
    assert main(["cartpole", "--log_root", str(tmp_path), *words]) == 0
    assert "nothing is filmed" in capsys.readouterr().err


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
    assert (options.resume, options.load_run) == (None, None)
    assert options.load_checkpoint == str(run_before / "model_50.pt")
    assert options.run_directory not in {None, run_before}
