"""A user's ten lines have the right types: pyright reads them in `make check`, and here they run."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_type, get_args, get_overloads, get_type_hints

import pandas as pd
import pytest
import torch

import isaaclab_arena as arena
from documentation.command_line import help_of, options_of
from isaaclab_arena.cli.main import main


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


def options_of_command(name: str) -> set[str]:
    """Return the options of a command, without those that have no effect."""
    return {
        word
        for option in options_of(help_of(name))
        if "Accepted and ignored" not in option.says
        for word in re.findall(r"--(\w+)", option.name)
    }


def keywords(overload: Callable[..., Any]) -> set[str]:
    """Return the names that its ``**options`` may have."""
    [options] = get_args(get_type_hints(overload)["options"])
    return set(get_type_hints(options))


def test_keywords_are_the_options_of_the_command_line_and_of_the_included_environments(capsys):
    said_otherwise = {"output_dir", "list_variations", "gpu_ids", "nproc_per_node", "launcher", "launcher_log_dir"}
    of_run = (options_of_command("run") & options_of_command("policy")) - said_otherwise - {"help"}
    of_file, of_job = map(keywords, get_overloads(arena.evaluate))
    assert of_file == of_run
    assert main(["list", "environments", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    own = {option["name"] for environment in listed for option in environment["options"]}
    explicit = {"num_episodes", "num_envs", "seed", "enable_cameras"}
    assert of_job == (of_run | own | {"conditions"}) - explicit
