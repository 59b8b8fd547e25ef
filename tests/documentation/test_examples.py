"""The programs in examples/ run as their first lines say, here with less to do."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from isaaclab_arena.environments import ENVIRONMENTS
from tests.end_to_end.launching import ROOT, TORCHRUN, jobs_table, patience_s, run

EXAMPLES = ROOT / "examples"
SMALL = ("--max_iterations=1", "agent.num_steps_per_env=8", "agent.actor.hidden_dims=[16]",
         "agent.critic.hidden_dims=[16]", "checkpoints.export=false", "evaluation.interval=0")  # fmt: skip


def run_as_program(name: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert left.value.code == 0


def test_one_device_trains_and_evaluates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_as_program("train_on_one_device", monkeypatch, "--num_envs=4", *SMALL)
    (evaluated,) = (tmp_path / "outputs").glob("20*")
    assert jobs_table(evaluated)["episodes"].tolist() == [20]


@pytest.mark.parametrize(
    "launcher",
    [[sys.executable], pytest.param([*TORCHRUN, "--standalone", "--nproc_per_node=2"], marks=pytest.mark.slow)],
)
def test_many_devices_train_together(tmp_path, launcher):
    arguments = ["--num_envs_total=8", "--run_directory", str(tmp_path / "run"), *SMALL]
    program = [*launcher, str(EXAMPLES / "train_on_many_devices.py"), *arguments]
    finished = run(program, timeout_s=patience_s(120), extra={"CUDA_VISIBLE_DEVICES": ""})
    assert finished.returncode == 0, finished.stderr
    assert sorted(path.name for path in (tmp_path / "run").glob("model_*.pt")) == ["model_0.pt", "model_1.pt"]
    settings = yaml.safe_load((tmp_path / "run" / "params" / "train.yaml").read_text())
    assert settings["devices"] == ["cpu", "cpu"]


@pytest.mark.parametrize("options", [("--iterations=2",), ("--with_stable_baselines3", "--iterations=1")])
def test_a_loop_of_ones_own_or_of_another_library_is_evaluated_every_few_iterations(options, monkeypatch, capsys):
    if "--with_stable_baselines3" in options:
        pytest.importorskip("stable_baselines3")
    run_as_program("evaluate_while_training", monkeypatch, *options, "--evaluate_every=1", "--num_episodes=1")
    assert f"--iterations={capsys.readouterr().out.count('mean return ')}" in options


def returned_by(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the ``main`` of a program in a directory, as Python would, and return its result."""
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(EXAMPLES)
    with ENVIRONMENTS.restored_afterwards():
        return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]()


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        *((name, 1.0) for name in ("policy_of_a_network", "recurrent_policy", "policy_behind_a_server")),
        ("robot_with_torque_motors", 1.0),
        ("own_task", {"goes_to_both": 1.0, "random_action": 0.0}),
    ],
)
def test_a_program_solves_its_task(name, rate, tmp_path, monkeypatch):
    assert returned_by(name, tmp_path, monkeypatch) == rate


@pytest.mark.slow
def test_tables_of_a_sweep_of_recordings_and_of_a_comparison_show_what_they_are_for(tmp_path, monkeypatch):
    table = returned_by("sweep_over_checkpoints", tmp_path, monkeypatch)
    assert table["success_rate"].iloc[0] < table["success_rate"].iloc[-1] == 1.0
    assert table["policy_sha256"].is_unique
    table = returned_by("reading_recordings", tmp_path, monkeypatch)
    assert table["episode_index"].tolist() == list(range(6))
    assert (table["cube_lifted_m"] > 0.1).all()
    table = returned_by("compare_two_policies", tmp_path, monkeypatch)
    assert table.to_numpy().sum() == table.loc[True].sum() == 40, "the quick one solves all"
    assert 0 < table.loc[True, False] < 40, "the slow one does not"


def test_every_program_is_named_in_a_document_with_what_it_shows():
    documents = "\n".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    for path in EXAMPLES.glob("*.py"):
        assert f"examples/{path.name}" in documents, path.name
