"""A user's ten lines have the right types: pyright reads them in `make check`, and here they run."""

import dataclasses
from pathlib import Path
from typing import assert_type, get_type_hints

import pandas as pd
import pytest
import torch

import isaaclab_arena as arena
from isaaclab_arena.api.arguments import JobFileKeywords, JobKeywords
from isaaclab_arena.config.arena.flags import FlagsWithoutEffect
from isaaclab_arena.config.options import option_names
from isaaclab_arena.distributed.launching.launch_options import LaunchOptions
from isaaclab_arena.environments import ENVIRONMENTS
from isaaclab_arena.evaluation.options import RunOptions


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


def test_an_option_that_is_not_there_is_a_type_error_and_a_mistake_that_is_told():
    """That the types refuse them is checked by pyright, which complains of a comment that ignores nothing."""
    with pytest.raises(arena.ConfigError, match="deterministc"):
        arena.evaluate("jobs.json", deterministc=True)  # pyright: ignore[reportCallIssue]
    with pytest.raises(arena.ConfigError, match="compression"):
        arena.evaluate("jobs.json", compression="lzma")  # pyright: ignore[reportArgumentType]
    with pytest.raises(arena.ConfigError, match="objct"):
        arena.evaluate(environment="lift_object", policy="scripted", objct="can")  # pyright: ignore[reportCallIssue]


def own_options(options_class: type) -> set[str]:
    return {field.name for field in dataclasses.fields(options_class)}


def test_keywords_are_the_options_of_the_command_line_and_of_the_included_environments():
    said_otherwise = {"output_dir", "list_variations"} | own_options(LaunchOptions) | own_options(FlagsWithoutEffect)
    of_run = own_options(RunOptions) - said_otherwise
    assert set(get_type_hints(JobFileKeywords)) == of_run
    own = {
        name
        for environment in ENVIRONMENTS.names()
        if not environment.endswith("...")
        for name in option_names(ENVIRONMENTS.get(environment).config_class) or ()
    }
    explicit = {"num_episodes", "num_envs", "seed", "enable_cameras"}
    assert set(get_type_hints(JobKeywords)) == (of_run | own | {"conditions"}) - explicit
