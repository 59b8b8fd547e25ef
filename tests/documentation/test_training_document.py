"""docs/how_to/training.md shows commands that work one after the other, and a file with every part of them."""

import shlex

import yaml

from isaaclab_arena.training import TASKS
from isaaclab_arena.training.checkpoints.task_evaluation import environment_job
from isaaclab_arena.training.learner.agent import check_agent
from isaaclab_arena.training.settings.documents import default_document, merged, read_training, task_document
from isaaclab_arena.training.settings.options import read_train_options
from isaaclab_arena.training.settings.request import training_config
from tests.documentation.reading import as_arguments, blocks, commands_of
from tests.end_to_end.launching import ROOT, jobs_table, patience_s, run

DOCUMENT = (ROOT / "docs" / "how_to" / "training.md").read_text()


def test_a_policy_is_trained_taken_up_again_and_evaluated(tmp_path):
    own, _, others = DOCUMENT.partition("## Coming from")
    lines = [*commands_of(own), *commands_of(others.partition("\n## ")[2])]
    # Training on two ranks has tests of its own, and takes three times as long.
    lines = [line for line in lines if "torch.distributed.run" not in line]
    assert len(lines) == 3
    for line in lines:
        finished = run(as_arguments(line), timeout_s=patience_s(120), directory=tmp_path)
        assert finished.returncode == 0, finished.stderr
    (evaluated,) = (tmp_path / "outputs").glob("20*")
    assert jobs_table(evaluated)["episodes"].tolist() == [20]
    assert (tmp_path / "outputs" / "cartpole" / "model_25.pt").is_file()


def test_the_file_that_is_shown_is_right():
    (block,) = blocks(DOCUMENT, "yaml")
    document = yaml.safe_load(block)
    base = merged(default_document(), task_document(document["task"]), document)
    config = read_training(base, task=document["task"], source="docs/how_to/training.md")
    check_agent(config)
    assert environment_job(config).variations


def test_lines_of_other_trainers_are_understood_as_they_are_shown():
    section = DOCUMENT.partition("## Coming from")[2].partition("\n## ")[0]
    lines = commands_of(section)
    assert len(lines) == 4
    for line in lines:
        options, task, words = read_train_options(shlex.split(line)[3:], program="train")
        options.check()
        assert task in TASKS.names()
        if options.resume is None:
            training_config(options, task, words, world_size=1)


def test_every_task_is_listed():
    shown = {line.split("`")[1] for line in DOCUMENT.splitlines() if line.startswith("| [`")}
    assert set(TASKS.names()) <= shown
