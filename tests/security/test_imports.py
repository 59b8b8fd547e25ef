"""A job may name code; what it names is checked before it is called, and --no_import refuses to load it at all."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.cli.main import main as command
from isaaclab_arena.environments import ENVIRONMENTS
from isaaclab_arena.evaluation import eval_runner, policy_runner
from isaaclab_arena.policies import POLICIES, resolve_policy_class
from isaaclab_arena.results import RecordedEpisode, write_episode

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
def refusals(tmp_path, capsys) -> Callable[..., list[tuple[str, str]]]:
    """Returns key and message of what is wrong with a job."""
    path = tmp_path / "jobs.json"

    def refuse(*, may_import: bool = False, **changes) -> list[tuple[str, str]]:
        path.write_text(json.dumps({"jobs": [job(**changes)]}))
        assert command(["validate", str(path), "--json", *([] if may_import else ["--no_import"])]) == 2
        problems = json.loads(capsys.readouterr().out)["problems"]
        assert {(problem["file"], problem["job"]) for problem in problems} == {(str(path), "a")}
        return [(problem["key"], problem["message"]) for problem in problems]

    return refuse


@pytest.mark.parametrize("policy_type", ["trap_module.Trap", "trap_module:Trap", "trap_module.called", "no.such.Thing"])
def test_without_imports_a_class_path_is_refused_and_its_module_not_imported(trap, refusals, policy_type):
    [(key, message)] = refusals(policy_type=policy_type)
    assert key == "policy_type"
    assert "--no_import allows registered names only: " in message
    assert "scripted" in message
    assert not trap[0].exists()


def test_without_imports_the_module_of_an_environment_is_refused_and_not_imported(trap, refusals):
    [(key, message)] = refusals(environment="gym:trap_module:Trap/Env-v0")
    assert key == "arena_env_args.environment"
    assert "imports the module 'trap_module'; only registered names are allowed here (--no_import" in message
    assert not trap[0].exists()


def test_without_imports_an_interpreter_is_refused_and_not_run(tmp_path, refusals):
    program, mark = tmp_path / "python", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    arguments = {"python": str(program), "environment_variables": {"A": "b"}}
    [(key, message)] = refusals(environment="gym:CartPole-v1", **arguments)
    assert key == "arena_env_args.python"
    assert "is a program that would be run; only registered names are allowed here (--no_import" in message
    assert not mark.exists()


def test_without_imports_everything_that_is_refused_is_told_at_once(trap, refusals):
    found = refusals(environment="gym:trap_module:Trap/Env-v0", python="x", policy_type="trap_module.Trap")
    assert [key for key, _ in found] == ["arena_env_args.environment", "arena_env_args.python", "policy_type"]


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
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    with POLICIES.restored_afterwards(), ENVIRONMENTS.restored_afterwards():
        assert command(["validate", str(tmp_path / "jobs.json"), "--json", "--no_import"]) == 0
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
        ("subprocess.Popen", "'subprocess.Popen' is not a policy"),
        ("builtins.exec", "'builtins.exec' is not a policy"),
    ],
)
def test_what_is_no_policy_class_is_refused_before_it_is_called(trap, refusals, policy_type, message):
    [(key, found)] = refusals(may_import=True, policy_type=policy_type)
    assert key == "policy_type"
    assert message in found
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
    [(key, message)] = refusals(may_import=True, policy_type="broken_module.Policy")
    assert (key, message.startswith(f"cannot import 'broken_module' of policy 'broken_module.Policy': {reason}")) == (
        "policy_type",
        True,
    )
    [(key, message)] = refusals(may_import=True, environment="gym:broken_module:Any-v0")
    assert key == "arena_env_args.environment"
    assert "broken_module:Any-v0' cannot be imported: " in message


def test_a_job_file_is_validated_without_running_what_it_names(trap, tmp_path, capsys):
    path = Path(tmp_path / "jobs.json")
    block = {"name": "a", "arena_env_args": {"environment": "reach"}, "policy_type": "trap_module.Trap", "num_steps": 1}
    path.write_text(json.dumps({"jobs": [block]}))
    assert command(["validate", str(path), "--no-import"]) == 2
    assert "job 'a': policy_type: 'trap_module.Trap' is a dotted path" in capsys.readouterr().err
    assert not trap[0].exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy_type": "trap_module.Trap"},
        {"arena_env_args": {"environment": "gym:trap_module:Trap/Env-v0"}},
        {"arena_env_args": {"environment": "gym:CartPole-v1", "python": "/bin/true"}},
    ],
)
def test_the_runner_imports_nothing_where_it_is_told_so(trap, tmp_path, capfd, wrong):
    block = {"name": "a", "arena_env_args": {"environment": "reach"}, "policy_type": "zero_action", "num_steps": 1}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [block | wrong]}))
    output = tmp_path / "out"
    arguments = ["--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(output), "--no_import"]
    assert eval_runner.main(arguments) == 2
    assert "--no_import" in capfd.readouterr().err
    assert not trap[0].exists()
    assert not output.exists()


def test_the_policy_runner_imports_nothing_where_it_is_told_so(trap, tmp_path, capfd):
    options = ["--output_dir", str(tmp_path / "out"), "--no_import", "--num_steps", "1"]
    assert policy_runner.main([*options, "--policy_type", "trap_module.Trap", "reach"]) == 2
    assert "--policy_type: 'trap_module.Trap' is a dotted path" in capfd.readouterr().err
    assert not trap[0].exists()


def test_a_recording_from_elsewhere_brings_no_code_along(trap, tmp_path, capsys):
    args = {"env_name": "gym:trap_module:Trap/Env-v0", "env_kwargs": {"python": "/bin/true"}}
    episode = RecordedEpisode(
        episode_index=0, arrays={"actions": np.zeros((1, 1), np.float32)}, attributes={}, env_args=args
    )
    write_episode(tmp_path / "e000000.h5", episode)
    assert command(["replay", str(tmp_path / "e000000.h5")]) == 2
    shown = capsys.readouterr().err
    assert "e000000.h5: " in shown
    assert "imports the module 'trap_module'" in shown
    assert "'/bin/true' is a program that would be run" in shown
    assert "--allow_import" in shown
    assert not trap[0].exists()
