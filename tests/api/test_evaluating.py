import importlib
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import isaaclab_arena as arena
from isaaclab_arena.evaluation import eval_runner, policy_runner
from tests.api.policies import ArenaShaped, Gain, Network, push

FEW: dict[str, Any] = {"num_episodes": 3, "num_envs": 2, "seed": 5}
TABLES = ("results.csv", "episodes.csv")


@pytest.fixture
def job_file(tmp_path) -> Path:
    jobs = [
        {"name": "pole", "arena_env_args": {"environment": "cartpole"}, "policy_type": "zero_action"},
        {"name": "tip", "arena_env_args": {"environment": "reach"}, "policy_type": "scripted"},
    ]
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": jobs}))
    return path


def tables(directory: Path) -> list[bytes]:
    return [(directory / name).read_bytes() for name in TABLES]


def test_a_job_file_gives_the_tables_of_the_command_line(job_file, tmp_path):
    line = ["--eval_jobs_config", str(job_file), "--num_episodes", "3", "--num_envs", "2", "--seed", "5"]
    assert eval_runner.main([*line, "--output_dir", str(tmp_path / "typed")]) == 0
    results = arena.evaluate(job_file, output_dir=tmp_path / "called", **FEW)
    assert results.complete
    assert results.output_dir == tmp_path / "called"
    assert tables(tmp_path / "called") == tables(tmp_path / "typed")


def test_a_policy_by_name_gives_the_tables_of_the_command_line(tmp_path):
    line = ["--policy_type", "scripted", "--num_episodes", "3", "--num_envs", "2", "--seed", "5", "lift_object"]
    assert policy_runner.main([*line, "--object", "can", "--output_dir", str(tmp_path / "typed")]) == 0
    results = arena.evaluate(
        environment="lift_object", policy="scripted", object="can", output_dir=tmp_path / "called", **FEW
    )
    assert tables(results.output_dir) == tables(tmp_path / "typed")


def test_the_tables_say_how_often_actions_lie_at_their_bounds(tmp_path):
    """Zeros ask one joint of the arm for more than its highest angle, and shut the gripper: two of eight numbers."""
    results = arena.evaluate(environment="lift_object", policy="zero_action", output_dir=tmp_path / "run", **FEW)
    assert pd.read_csv(tmp_path / "run" / "episodes.csv")["saturated_action_share"].tolist() == [0.25] * 3
    assert results.jobs["saturated_action_share"].tolist() == [0.25]
    said = "actions at or beyond their bounds, often a sign of wrong units: 25 % in job 'lift_object'"
    assert said in repr(results)
    assert said in (tmp_path / "run" / "report.html").read_text().replace("&#39;", "'")


@pytest.mark.usefixtures("quick_python")
def test_two_ranks_give_the_tables_of_one(job_file, tmp_path, capfd):
    one = arena.evaluate(job_file, output_dir=tmp_path / "one", **FEW)
    two = arena.evaluate(job_file, output_dir=tmp_path / "two", num_ranks=2, **FEW)
    assert tables(one.output_dir) == tables(two.output_dir)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_two_ranks_share_the_episodes_of_one_policy():
    alone = arena.evaluate(environment="reach", policy="scripted", **FEW)
    shared = arena.evaluate(environment="reach", policy="scripted", num_ranks=2, **FEW)
    assert tables(alone.output_dir) == tables(shared.output_dir)


@pytest.mark.parametrize("policy", [push, lambda seen: push(seen).numpy().astype(np.float64), Gain(), ArenaShaped()])
def test_functions_and_objects_act_alike(policy):
    expected = arena.evaluate(environment="cartpole", policy=push, name="same", **FEW).episodes
    found = arena.evaluate(environment="cartpole", policy=policy, name="same", **FEW).episodes
    pd.testing.assert_frame_equal(expected.drop(columns="policy"), found.drop(columns="policy"))


def test_an_object_is_the_one_that_was_given_and_is_not_closed():
    policy = ArenaShaped()
    arena.evaluate(environment="cartpole", policy=policy, **FEW)
    assert policy.resets
    gain = Gain()
    arena.evaluate(environment="cartpole", policy=gain, **FEW)
    assert gain.num_closed == 0


def test_a_module_acts_in_evaluation_mode_and_trains_on_as_before():
    network = Network()
    network.drop.eval()
    results = arena.evaluate(environment="cartpole", policy=network, **FEW)
    assert results.complete
    assert not any(network.modes)
    assert network.training
    assert not network.drop.training


def test_gradients_flow_after_an_evaluation_as_before():
    network = Network()
    arena.evaluate(environment="cartpole", policy=network, **FEW)
    network({"policy": {"pole": torch.ones(2, network.layer.in_features)}}).sum().backward()
    assert network.layer.weight.grad is not None


def test_a_class_is_built_with_its_options(tmp_path):
    results = arena.evaluate(environment="cartpole", policy=Gain, output_dir=tmp_path / "out", **FEW)
    assert results.episodes["policy"].unique().tolist() == ["tests.api.policies.Gain"]


def test_a_policy_that_fails_is_in_the_table():
    def fail(observation: object) -> torch.Tensor:
        raise RuntimeError("no idea")

    results = arena.evaluate(environment="cartpole", policy=fail, **FEW)
    assert not results.complete
    job = results.job()
    assert (job.status, job.error) == ("failed", "RuntimeError: no idea")


def test_nothing_is_printed_unless_progress_is_asked_for(capfd):
    arena.evaluate(environment="cartpole", policy=push, **FEW)
    assert capfd.readouterr() == ("", "")
    arena.evaluate(environment="cartpole", policy=push, show_progress=True, **FEW)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "3 of 3 episodes" in shown.err or "episodes" in shown.err


def test_ctrl_c_comes_out_after_the_tables_are_written(tmp_path):
    def interrupt(observation: object) -> torch.Tensor:
        signal.raise_signal(signal.SIGINT)
        return push(observation)

    with pytest.raises(KeyboardInterrupt):
        arena.evaluate(environment="cartpole", policy=interrupt, output_dir=tmp_path / "out", **FEW)
    assert not arena.load_results(tmp_path / "out").complete
    assert arena.load_results(tmp_path / "out").job().status == "interrupted"


def test_a_run_goes_on_with_the_same_policy_and_with_no_other(tmp_path):
    policy = Gain(gain=1.0)
    asked: dict[str, Any] = {"environment": "cartpole", "output_dir": tmp_path / "out", **FEW}
    arena.evaluate(policy=policy, **asked)
    assert arena.evaluate(policy=policy, resume=True, **asked).complete
    policy.gain = 2.0
    with pytest.raises(arena.ConfigError, match="has changed since these episodes ran"):
        arena.evaluate(policy=policy, resume=True, **asked)


def test_a_policy_of_which_nobody_knows_what_it_holds_cannot_go_on(tmp_path):
    generator = torch.Generator()
    asked: dict[str, Any] = {"environment": "cartpole", "output_dir": tmp_path / "out", **FEW}

    def guess(observation: object) -> torch.Tensor:
        return push(observation) + torch.rand(1, generator=generator)

    arena.evaluate(policy=guess, **asked)
    with pytest.raises(arena.ConfigError, match="--resume: cannot resume with a policy object"):
        arena.evaluate(policy=guess, resume=True, **asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"environment": "reach", "policy": "scripted", "objct": 1}, "--objct: environment 'reach' has no such option"),
        ({"environment": "rech", "policy": "scripted"}, "no environment called 'rech'; did you mean 'reach'?"),
        ({"environment": "reach", "policy": "scriptd"}, "--policy_type: no policy called 'scriptd'"),
        ({"environment": "reach"}, "policy: is missing"),
        ({}, "environment: is missing"),
        ({"environment": "reach", "policy": 3}, "policy: an object of type int is not a policy"),
        ({"environment": "reach", "policy": dict}, "'builtins.dict' is not a policy"),
        ({"jobs": "none.json", "num_episode": 1}, "--num_episode: unknown option; did you mean '--num_episodes'?"),
        ({"jobs": "none.json"}, "none.json"),
        ({"jobs": "none.json", "policy": "scripted"}, "jobs: give either this or an environment and a policy"),
        ({"jobs": "none.json", "num_envs": "four"}, '--num_envs: "four"'),
        ({"jobs": "none.json", "num_ranks": 0}, "num_ranks: must be at least 1, got 0"),
        ({"jobs": "none.json", "resume": True}, "--resume: names no run"),
        ({"environment": "cartpole", "policy": push, "num_ranks": 2}, "num_ranks: 'tests.api.policies.push' lives in"),
        ({"environment": "cartpole", "policy": push, "pipeline": 2}, "--pipeline: needs a policy of its own"),
    ],
)
def test_a_mistake_is_told_as_the_command_line_tells_it(asked, message):
    length: dict[str, Any] = {} if "num_ranks" in asked and "jobs" in asked else {"num_episodes": 1}
    with pytest.raises(arena.ConfigError) as told:
        arena.evaluate(**{**length, **asked})
    assert message in str(told.value)


def test_the_text_of_a_mistake_is_the_one_on_the_screen(capfd):
    line = ["--policy_type", "scripted", "--num_episodes", "1", "lift_object", "--object", "cub"]
    assert policy_runner.main(line) == 2
    with pytest.raises(arena.ConfigError) as told:
        arena.evaluate(environment="lift_object", policy="scripted", num_episodes=1, object="cub")
    assert capfd.readouterr().err.strip() == f"error: {told.value}"


def test_public_names_are_there_and_no_others():
    module = importlib.import_module("isaaclab_arena")
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
        assert name in dir(module)
    with pytest.raises(AttributeError, match="has no attribute 'evalute'"):
        _ = module.evalute
