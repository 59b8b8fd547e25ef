"""The command as a user types it: what it leaves, how it goes on, and what it refuses."""

import csv
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from gr00t.model.checkpoint import load_processor
from safetensors.torch import load_file

from isaaclab_arena.cli.main import main as isaaclab_arena
from isaaclab_arena.storage.ledger import RunLock
from isaaclab_arena_gr00t.training.finetune import main
from tests.end_to_end.launching import ROOT, command, jobs_table, patience_s, run, write_jobs
from tests.gr00t.training.demonstrations import recording, write_config, write_recordings


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("finetune")
    write_recordings(path / "demos" / "lift", *map(recording, range(5)))
    write_config(path / "policy.yaml")
    return path


@pytest.fixture(scope="module")
def whole(directory) -> Path:
    """A whole training, of which two checkpoints stay."""
    assert main(typed(directory, directory / "whole", "--max_steps", 6, "--kept_checkpoints", 2)) == 0
    return directory / "whole"


def typed(directory: Path, output: Path, *more: object) -> list[str]:
    paths = ["--dataset", directory / "demos", "--output_dir", output]
    paths += ["--policy_config_yaml_path", directory / "policy.yaml"]
    sizes = ["--batch_size", 2, "--noise_draws", 1, "--save_every", 2, "--log_every", 1, "--device", "cpu"]
    return [str(word) for word in (*paths, *sizes, *more)]


def weights(checkpoint: Path) -> bytes:
    return (checkpoint / "model.safetensors").read_bytes()


def test_training_leaves_checkpoints_and_its_losses_and_goes_on_to_the_same_bits_wherever_it_lies(whole, tmp_path):
    assert {path.name for path in whole.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-6"}
    assert ("1", "loss") in measures(whole)
    assert ("6", "validation_loss") in measures(whole)
    parts = shutil.copytree(whole, tmp_path / "parts")
    # As if it had been killed after the first of the checkpoints.
    shutil.rmtree(parts / "checkpoint-6")
    kept = parts / "checkpoint-4" / "model.safetensors"
    written_at = kept.stat().st_mtime_ns
    assert isaaclab_arena(["resume", str(parts)]) == 0
    assert kept.stat().st_mtime_ns == written_at, "steps before the checkpoint were trained again"
    assert measures(parts) == measures(whole)
    assert weights(parts / "checkpoint-6") == weights(whole / "checkpoint-6") != weights(whole / "checkpoint-4")


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--batch_size", ["0"]),
        ("--validation_share", ["1"]),
        ("--learning_rate", ["0"]),
        ("--dataset", ["nowhere"]),
        ("--eval_every", ["4"]),
        ("--eval_jobs_config", ["nowhere.json"]),
        ("--base_model_path", ["nowhere"]),
        ("--resume", []),
        ("--policy_config_yaml_path", ["nowhere.yaml"]),
    ],
)
def test_mistakes_are_told_with_exit_code_2(directory, tmp_path, capsys, option, values):
    assert main([*typed(directory, tmp_path / "out"), option, *values]) == 2
    told = capsys.readouterr().err
    assert option in told or "nowhere" in told or "training.json" in told


def test_another_run_is_not_gone_on_with_and_not_written_over(directory, whole, capsys):
    before = weights(whole / "checkpoint-6")
    assert main(typed(directory, whole, "--max_steps", 6)) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(typed(directory, whole, "--max_steps", 6, "--kept_checkpoints", 2, "--seed", 1, "--resume")) == 2
    assert "seed: was 0" in capsys.readouterr().err
    with RunLock(whole).hold(alone=True):
        assert main(typed(directory, whole, "--max_steps", 6, "--kept_checkpoints", 2, "--resume")) == 2
    assert "another run is at work in this directory" in capsys.readouterr().err
    assert weights(whole / "checkpoint-6") == before


def evaluation_jobs(directory: Path, *names: str) -> Path:
    """Write a job file in which the policy that is trained plays one episode per job."""
    jobs = [
        {
            "name": name,
            "policy_type": "gr00t_closedloop",
            "policy_config_dict": {"policy_config_yaml_path": str(directory / "policy.yaml")},
            "arena_env_args": {"environment": "reach", "camera_size": 16, "enable_cameras": True, "num_envs": 1},
            "num_episodes": 1,
        }
        for name in names
    ]
    return write_jobs(directory / f"{'_'.join(names)}.json", jobs)


def measures(output: Path) -> list[tuple[str, str]]:
    with (output / "progress.csv").open() as file:
        return [(line["step"], line["measure"]) for line in csv.DictReader(file)]


@pytest.mark.slow
def test_checkpoints_are_evaluated_on_all_ranks_while_training_goes_on(directory, tmp_path):
    jobs = evaluation_jobs(directory, "first", "second")
    arguments = typed(directory, tmp_path / "out", "--max_steps", 2, "--eval_jobs_config", jobs)
    finished = run(
        command(*arguments, ranks=2, module=["-m", "isaaclab_arena_gr00t.training.finetune"]),
        extra={"PYTHONPATH": f"{ROOT}:{ROOT / 'submodules' / 'Isaac-GR00T'}"},
        timeout_s=patience_s(120),
    )
    assert finished.returncode == 0, finished.stderr
    evaluation = tmp_path / "out" / "evaluations" / "step-2"
    table = jobs_table(evaluation)
    assert table["status"].tolist() == ["completed", "completed"]
    assert pd.read_csv(evaluation / "timing.csv")["rank"].tolist() == [0, 1]
    planned = json.loads((evaluation / "run.json").read_text())["jobs"]
    assert {job["policy_config"]["model_path"] for job in planned} == {str(tmp_path / "out" / "checkpoint-2")}
    assert [name for step, name in measures(tmp_path / "out") if step == "2"][-2:] == [
        "success_rate/first",
        "success_rate/second",
    ]


# Takes seconds, since an environment with cameras is built for each of the two evaluations.
@pytest.mark.slow
def test_an_evaluation_that_was_interrupted_is_completed_when_training_is_taken_up(directory, tmp_path):
    output = tmp_path / "out"
    arguments = typed(directory, output, "--max_steps", 2, "--eval_jobs_config", evaluation_jobs(directory, "only"))
    assert main(arguments) == 0
    before = jobs_table(output / "evaluations" / "step-2")
    shutil.rmtree(output / "evaluations" / "step-2" / "only")
    (output / "evaluations" / "step-2" / "results.json").unlink()
    assert main([*arguments, "--resume"]) == 0
    pd.testing.assert_frame_equal(jobs_table(output / "evaluations" / "step-2"), before)
    assert measures(output).count(("2", "loss")) == 1


@pytest.mark.parametrize(("environment", "says"), [("reach", "gr00t_closedloop"), ("rech", "rech")])
def test_jobs_that_cannot_be_evaluated_are_refused_before_training(directory, tmp_path, capsys, environment, says):
    job = {"policy_type": "zero_action", "arena_env_args": {"environment": environment}, "num_episodes": 1}
    jobs = write_jobs(tmp_path / "jobs.json", [{"name": "zero", **job}])
    assert main(typed(directory, tmp_path / "out", "--eval_jobs_config", jobs)) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_training_begins_with_another_models_weights(directory, whole, tmp_path):
    # A learning rate that changes next to nothing shows what training began with.
    still = ("--max_steps", 1, "--learning_rate", 1e-12, "--base_model_path", whole / "checkpoint-6")
    assert main(typed(directory, tmp_path, *still)) == 0
    expected = load_file(whole / "checkpoint-6" / "model.safetensors")
    found = load_file(tmp_path / "checkpoint-1" / "model.safetensors")
    assert all(torch.allclose(found[name], expected[name], atol=1e-6) for name in expected)


def test_a_robot_that_the_base_model_does_not_know_is_added_to_it(directory, whole, tmp_path):
    other = write_config(directory / "other.yaml", embodiment_tag="OXE_DROID")
    arguments = ("--max_steps", 1, "--base_model_path", whole / "checkpoint-6", "--policy_config_yaml_path", other)
    assert main(typed(directory, tmp_path, *arguments)) == 0
    assert set(load_processor(tmp_path / "checkpoint-1").embodiments) == {"new_embodiment", "oxe_droid"}
