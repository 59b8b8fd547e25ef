"""What a person is told to type after a run that is not complete."""

import shlex
import sys
from pathlib import Path

import pytest

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.evaluation.eval_runner import EvalOptions, main
from isaaclab_arena.evaluation.options import RunOptions, read_command_line
from isaaclab_arena.evaluation.planning import RunRequest
from isaaclab_arena.evaluation.policy_runner import PolicyOptions
from isaaclab_arena.evaluation.run import how_to_go_on, resuming_command, typed_command
from tests.end_to_end.launching import write_jobs

ARGUMENTS = ["--eval_jobs_config", "my jobs.json"]
MODULE = ["-m", "isaaclab_arena.evaluation.eval_runner"]
TORCHRUN = ["python", "-m", "torch.distributed.run", "--nproc_per_node=2"]


@pytest.mark.parametrize(
    ("own", "parent", "typed"),
    [
        (["python", *MODULE, *ARGUMENTS], None, ["python", *MODULE, *ARGUMENTS]),
        (
            ["python", "/venv/bin/isaaclab-arena", "run", *ARGUMENTS],
            None,
            ["isaaclab-arena", "run", *ARGUMENTS],
        ),
        (["python", *MODULE, *ARGUMENTS], [*TORCHRUN, *MODULE, *ARGUMENTS], [*TORCHRUN, *MODULE, *ARGUMENTS]),
        (
            ["python", *MODULE, *ARGUMENTS],
            ["python", *MODULE, "--gpu_ids", "0", "1", *ARGUMENTS],
            ["python", *MODULE, "--gpu_ids", "0", "1", *ARGUMENTS],
        ),
        (["python", *MODULE, *ARGUMENTS], ["slurmstepd: [42.0]"], None),
        (["pytest", "tests"], None, None),
    ],
    ids=["one process", "console script", "torchrun", "launcher of its own", "scheduler", "called from Python"],
)
def test_the_command_is_the_one_that_was_typed_launcher_and_all(own, parent, typed):
    assert typed_command(ARGUMENTS, own=own, parent=parent) == typed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["resume", "out"], ["isaaclab-arena", "resume", "out"]),
        (["resume", "old/out", "--retry_errors"], ["isaaclab-arena", "resume", "out", "--retry_errors"]),
        (["quickstart", "here", "--limit", "1"], ["isaaclab-arena", "resume", "out"]),
    ],
)
def test_a_command_that_takes_no_line_of_the_runners_is_gone_on_with_by_the_runs_directory(words, told, monkeypatch):
    typed = ["python", "/venv/bin/isaaclab-arena", *words]
    assert typed_command(ARGUMENTS, own=typed, parent=None) is None
    monkeypatch.setattr(sys, "orig_argv", typed)
    assert line_for_the_user() == f"go on with: {shlex.join(told)}"


def test_another_program_is_gone_on_with_by_the_runners_module(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["pytest", "tests"])
    command = ["python", *MODULE, *ARGUMENTS, "--resume", "./out"]
    assert line_for_the_user() == f"go on with: {shlex.join(command)}"


def line_for_the_user() -> str:
    request = RunRequest(
        jobs=(), config_hash="", source_file=None, command_line=(MODULE[1], *ARGUMENTS), options=RunOptions()
    )
    context = DistributedContext.from_environment({}, device="cpu")
    return how_to_go_on(request, context, Path.cwd() / "out")


@pytest.mark.parametrize("before", [[], ["--resume"], ["--resume", "some/run"], ["--resume=some/run"]])
def test_it_names_the_directory_of_the_run_once(before):
    command = resuming_command(["python", *MODULE, *before, "--seed", "3", *ARGUMENTS], "outputs/2026-01-01_00-00-00")
    assert command == ["python", *MODULE, "--seed", "3", *ARGUMENTS, "--resume", "outputs/2026-01-01_00-00-00"]
    options, unknown = read_command_line(EvalOptions, command[3:], program="test")
    assert (options.resume, unknown) == ("outputs/2026-01-01_00-00-00", [])


def test_a_single_policys_command_can_be_gone_on_with_too():
    typed = ["--policy_type", "scripted", "lift_object", "--object", "cube"]
    command = resuming_command(["python", "-m", "policy_runner", *typed], "out")
    options, rest = read_command_line(PolicyOptions, command[3:], program="test")
    assert (options.resume, rest) == ("./out", ["lift_object", "--object", "cube"])


def test_what_stands_below_the_table_of_an_incomplete_run_can_be_typed(tmp_path, monkeypatch, capsys):
    environment = {"arena_env_args": {"environment": "reach"}, "num_episodes": 1}
    shy = {"policy_type": "tests.fakes.ShrugPolicy", "policy_config_dict": {"raise_at": 3}}
    write_jobs(tmp_path / "my jobs.json", [{"name": "shy", **environment, **shy}])
    monkeypatch.chdir(tmp_path)
    assert main([*ARGUMENTS, "--output_dir", "out"]) == 1
    last_line = capsys.readouterr().out.splitlines()[-1]
    told, _, line = last_line.partition(": ")
    assert told == "go on with"
    words = shlex.split(line)
    assert words[:3] == ["python", *MODULE]
    assert main(words[3:]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == last_line
    assert sorted(path.name for path in (tmp_path / "out" / "attempts").glob("attempt_*.json")) == [
        "attempt_1.json",
        "attempt_2.json",
    ]
