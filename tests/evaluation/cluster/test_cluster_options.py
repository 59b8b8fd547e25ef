import importlib.util

import pytest

from isaaclab_arena.evaluation.eval_runner import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num_ranks", "2"], "--num_ranks: says how to use a cluster; add --cluster ray"),
        (["--cluster", "ray", "--nproc_per_node", "2"], "--nproc_per_node: starts ranks on this node"),
        (["--cluster", "ray", "--assignment", "split"], "--assignment: ranks of a cluster claim work as they go"),
        (["--cluster", "ray", "--gpus_per_rank", "2"], "--gpus_per_rank: a rank simulates on one GPU"),
        (["--cluster", "ray", "--device", "cuda"], "--device: 'cuda' needs --gpus_per_rank 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(capsys, words, said):
    assert main(["--eval_jobs_config", "jobs.json", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("cluster", [[], ["--cluster", "ray"]])
def test_an_unknown_assignment_is_refused_with_and_without_a_cluster(capsys, cluster):
    assert main(["--eval_jobs_config", "jobs.json", "--assignment", "dinamic", *cluster]) == 2
    assert "--assignment: there is no 'dinamic'; did you mean 'dynamic'?" in capsys.readouterr().err


def test_a_rank_of_torchrun_starts_no_cluster(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert main(["--eval_jobs_config", "jobs.json", "--cluster", "ray"]) == 2
    assert "--cluster: starts the ranks itself" in capsys.readouterr().err


def test_without_ray_the_message_names_the_extra(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["--eval_jobs_config", "jobs.json", "--cluster", "ray"]) == 2
    assert "pip install 'isaaclab-arena-mujoco[ray]'" in capsys.readouterr().err
