"""A job may name code; what it names is checked before it is called, and --no_import refuses to load it at all."""

import json
import sys
from collections.abc import Callable

import numpy as np
import pytest

from isaaclab_arena.cli.main import main as command
from isaaclab_arena.environments import ENVIRONMENTS
from isaaclab_arena.evaluation import eval_runner, policy_runner
from isaaclab_arena.policies import POLICIES, resolve_policy_class
from isaaclab_arena.results import RecordedEpisode, write_episode
from tests.end_to_end.launching import write_jobs

TRAP = """
from pathlib import Path
Path({mark!r}).write_text("I ran")
import gymnasium
from isaaclab_arena.policies import PolicyBase

class Trap(PolicyBase):
    def get_action(self, env, observation): ...

def called(*arguments, **options):
    Path({called!r}).write_text("I was called")

class NoPolicy:
    def __new__(cls, *arguments, **options):
        called()

if "Trap/Env-v0" not in gymnasium.registry:
    gymnasium.register("Trap/Env-v0", entry_point=lambda: None, max_episode_steps=3)
"""


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module whose import leaves a mark, and another mark if anything in it is called."""
    marks = tmp_path / "imported", tmp_path / "called"
    (tmp_path / "trap_module.py").write_text(TRAP.format(mark=str(marks[0]), called=str(marks[1])))
    monkeypatch.syspath_prepend(tmp_path)
    yield marks
    sys.modules.pop("trap_module", None)


def job(name: str = "a", policy_type: str = "zero_action", **environment) -> dict:
    """Return a job, in an environment with these options."""
    args = {"environment": "reach", **environment}
    return {"name": name, "arena_env_args": args, "policy_type": policy_type, "num_episodes": 1}


@pytest.fixture
def refusals(tmp_path, capsys) -> Callable[..., dict[str, str]]:
    """Return the problems of a job, by key."""

    def refuse(*options: str, **changes) -> dict[str, str]:
        path = write_jobs(tmp_path / "jobs.json", [job(**changes)])
        assert command(["validate", str(path), "--json", *options]) == 2
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert {(problem["file"], problem["job"]) for problem in problems} == {(str(path), "a")}
        return {problem["key"]: problem["message"] for problem in problems}

    return refuse


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        *(
            ({"policy_type": path}, {"policy_type": "--no_import allows registered names only: "})
            for path in ("trap_module.Trap", "trap_module:Trap", "trap_module.called", "no.such.Thing")
        ),
        (
            {"environment": "gym:trap_module:Trap/Env-v0", "python": "x", "policy_type": "trap_module.Trap"},
            {
                "arena_env_args.environment": "imports the module 'trap_module'; only registered names are allowed",
                "arena_env_args.python": "is a program that would be run; only registered names are allowed",
                "policy_type": "scripted",
            },
        ),
    ],
)
def test_without_imports_all_that_names_code_is_refused_at_once_and_not_imported(trap, refusals, changes, messages):
    found = refusals("--no_import", **changes)
    assert found.keys() == messages.keys()
    assert all(messages[key] in found[key] for key in messages)
    assert not trap[0].exists()


def test_without_imports_an_interpreter_is_refused_and_not_run(tmp_path, refusals):
    program, mark = tmp_path / "python", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    arguments = {"python": str(program), "environment_variables": {"A": "b"}}
    assert refusals("--no_import", environment="gym:CartPole-v1", **arguments).keys() == {"arena_env_args.python"}
    assert not mark.exists()


def test_without_imports_names_that_are_registered_or_installed_are_found(tmp_path, monkeypatch, capsys):
    info = tmp_path / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[isaaclab_arena.policies]\nshrug_of_shop = tests.fakes:ShrugPolicy\n"
        "[isaaclab_arena.environments]\ncoin_of_shop = shop_module:COIN\n"
    )
    (tmp_path / "shop_module.py").write_text("from tests.fakes import CoinBuilder\nCOIN = CoinBuilder()\n")
    monkeypatch.syspath_prepend(tmp_path)
    jobs = [job("a"), job("b", "shrug_of_shop", environment="coin_of_shop"), job("c", environment="gym:CartPole-v1")]
    path = write_jobs(tmp_path / "jobs.json", jobs)
    with POLICIES.restored_afterwards(), ENVIRONMENTS.restored_afterwards():
        assert command(["validate", str(path), "--json", "--no_import"]) == 0
    [told] = json.loads(capsys.readouterr().out)["files"]
    assert told["jobs"] == ["a", "b", "c"]


def test_a_registered_name_with_a_dot_is_a_name_and_no_path():
    with POLICIES.restored_afterwards():
        POLICIES.register("my.policy", resolve_policy_class("zero_action"))
        assert resolve_policy_class("my.policy", may_import=False) is resolve_policy_class("zero_action")


@pytest.mark.parametrize(
    ("policy_type", "message"),
    [
        ("trap_module.called", "'trap_module.called' is not a policy"),
        ("trap_module.NoPolicy", "'trap_module.NoPolicy' is not a policy"),
        ("trap_module.Path", "'trap_module.Path' is not a policy"),
        ("logging.os.system", "cannot import 'logging.os'"),
        ("os:system", "'os:system' is not a policy"),
        ("builtins.exec", "'builtins.exec' is not a policy"),
    ],
)
def test_what_is_no_policy_class_is_refused_before_it_is_called(trap, refusals, policy_type, message):
    assert message in refusals(policy_type=policy_type)["policy_type"]
    assert not trap[1].exists()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("def (", "SyntaxError: invalid syntax"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_message_and_not_the_end(tmp_path, monkeypatch, refusals, body, reason):
    (tmp_path / "broken_module.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    found = refusals(policy_type="broken_module.Policy", environment="gym:broken_module:Any-v0")
    assert f"'broken_module' of policy 'broken_module.Policy': {reason}" in found["policy_type"]
    assert "broken_module:Any-v0' cannot be imported: " in found["arena_env_args.environment"]


RUNNERS = {
    "eval_runner": (eval_runner, ["--eval_jobs_config", "jobs.json"]),
    "policy_runner": (policy_runner, ["--policy_type", "trap_module.Trap", "--num_steps", "1", "reach"]),
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_runner_imports_nothing_where_it_is_told_so(trap, tmp_path, monkeypatch, capfd, runner):
    monkeypatch.chdir(tmp_path)
    write_jobs(tmp_path / "jobs.json", [job(policy_type="trap_module.Trap", environment="gym:trap_module:Trap/Env-v0")])
    program, arguments = RUNNERS[runner]
    assert program.main(["--output_dir", "out", "--no_import", *arguments]) == 2
    assert "policy_type: 'trap_module.Trap' is a dotted path" in capfd.readouterr().err
    assert not trap[0].exists()
    assert not (tmp_path / "out").exists()


def test_a_recording_from_elsewhere_brings_no_code_along(trap, tmp_path, capsys):
    args = {"env_name": "gym:trap_module:Trap/Env-v0", "env_kwargs": {"python": "/bin/true"}}
    arrays = {"actions": np.zeros((1, 1), np.float32)}
    write_episode(
        tmp_path / "e000000.h5", RecordedEpisode(episode_index=0, arrays=arrays, attributes={}, env_args=args)
    )
    assert command(["replay", str(tmp_path / "e000000.h5")]) == 2
    shown = capsys.readouterr().err
    for words in ("e000000.h5: ", "the module 'trap_module'", "'/bin/true' is a program", "--allow_import"):
        assert words in shown
    assert not trap[0].exists()
