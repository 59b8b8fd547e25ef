"""A user's ten lines have the right types: pyright reads them in `make check`, and here they run."""

from pathlib import Path
from typing import assert_type

import pandas as pd
import torch

import isaaclab_arena as arena


def test_ten_lines_of_a_user(tmp_path):
    def stay(observation: dict[str, dict[str, torch.Tensor]]) -> torch.Tensor:
        return torch.zeros(len(next(iter(observation["policy"].values()))), 1)

    results = arena.evaluate(environment="cartpole", policy=stay, num_episodes=2, num_envs=2, seed=0)
    assert_type(results, arena.Results)
    assert_type(results.jobs, pd.DataFrame)
    assert_type(results.episodes, pd.DataFrame)
    assert_type(results.complete, bool)
    job = results.job("cartpole")
    assert_type(job, arena.JobResults)
    assert_type(job.success_rate, float | None)
    assert_type(job.interval, tuple[float, float] | None)
    assert_type(job.num_episodes, int)
    assert_type(results.save(tmp_path / "kept"), Path)
    assert_type(arena.load_results(tmp_path / "kept"), arena.Results)
    comparison = arena.compare(results, tmp_path / "kept")
    assert_type(comparison, arena.Comparison)
    assert_type(comparison.tasks[0].difference, float)
    assert issubclass(arena.ConfigError, arena.ArenaError)
