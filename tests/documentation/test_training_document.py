"""docs/how_to/training.md shows commands that work one after the other, and a file with every part of them."""

import shlex

import yaml

from isaaclab_arena.training import TASKS
from isaaclab_arena.training.train import main
from tests.documentation.reading import as_arguments, blocks, commands_of
from tests.end_to_end.launching import ROOT, jobs_table, patience_s, run

DOCUMENT = (ROOT / "docs" / "how_to" / "training.md").read_text()


def test_a_policy_is_trained_taken_up_again_and_evaluated(tmp_path):
    own, _, others = DOCUMENT.partition("## Coming from")
    lines = [*commands_of(own), *commands_of(others.partition("\n## ")[2])]
    # Training on two ranks has tests of its own, and takes three times as long.
    lines = [line for line in lines if "--nproc_per_node" not in line]
    assert len(lines) == 3
    for line in lines:
        finished = run(as_arguments(line), timeout_s=patience_s(120), directory=tmp_path)
        assert finished.returncode == 0, finished.stderr
    (evaluated,) = (tmp_path / "outputs").glob("20*")
    assert jobs_table(evaluated)["episodes"].tolist() == [20]
    assert (tmp_path / "outputs" / "cartpole" / "model_25.pt").is_file()


def test_the_file_that_is_shown_is_right(tmp_path, monkeypatch):
    block = blocks(DOCUMENT, "yaml")[0]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shown.yaml").write_text(block)
    few = ["--max_iterations", "1", "checkpoints.export=false", "evaluation.interval=0", "--device", "cpu"]
    assert main(["--config", "shown.yaml", "--run_directory", "run", *few]) == 0
    document = yaml.safe_load(block)
    settings = yaml.safe_load((tmp_path / "run" / "params" / "train.yaml").read_text())
    assert settings["task"] == document["task"]
    assert settings["variations"] == document["variations"] != {}


def test_lines_of_other_trainers_are_understood_as_they_are_shown(tmp_path, monkeypatch, capsys):
    section = DOCUMENT.partition("## Coming from")[2].partition("\n## ")[0]
    lines = [shlex.split(line)[2:] for line in commands_of(section)]
    assert len(lines) == 4
    monkeypatch.chdir(tmp_path)
    for words in lines:
        # The ranks that would train are not started; everything before has read the line.
        on_ranks = [] if "--gpu-ids" in words else ["--nproc_per_node", "2"]
        code = main([*words, *on_ranks], launch=lambda *_, **__: 0)
        told = capsys.readouterr().err
        if "--resume" in words:
            assert code == 2
            [experiment] = set(words) & set(TASKS.names())
            assert f"logs/rsl_rl/{experiment} has no run whose name matches" in told
        else:
            assert code == 0, told


def test_every_task_is_listed():
    shown = {line.split("`")[1] for line in DOCUMENT.splitlines() if line.startswith("| [`")}
    assert set(TASKS.names()) <= shown
