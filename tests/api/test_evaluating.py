import importlib
import json
import random
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import isaaclab_arena as arena
from isaaclab_arena.evaluation import eval_runner, policy_runner
from tests.api.policies import ArenaShaped, Gain, Network, push
from tests.end_to_end.launching import ROOT, environment, patience_s
from tests.evaluation.process.test_left_alone import GENERATORS, SHARED
from tests.preloaded.interpreter import preloaded_python

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


@pytest.mark.parametrize(
    "policy", [push, lambda seen: push(seen).numpy().astype(np.float64), Gain(), ArenaShaped(), Gain]
)
def test_functions_objects_and_classes_act_alike_and_an_object_is_not_closed(policy):
    expected = arena.evaluate(environment="cartpole", policy=push, name="same", **FEW).episodes
    found = arena.evaluate(environment="cartpole", policy=policy, name="same", **FEW).episodes
    pd.testing.assert_frame_equal(expected.drop(columns="policy"), found.drop(columns="policy"))
    assert found["policy"].unique().tolist() == ["tests.api.policies.Gain"] or policy is not Gain
    assert not isinstance(policy, Gain) or policy.num_closed == 0
    assert not isinstance(policy, ArenaShaped) or policy.resets


def test_a_module_acts_in_evaluation_mode_and_trains_on_as_before():
    network = Network()
    network.drop.eval()
    assert arena.evaluate(environment="cartpole", policy=network, **FEW).complete
    assert not any(network.modes)
    assert (network.training, network.drop.training) == (True, False)
    network({"policy": {"pole": torch.ones(2, network.layer.in_features)}}).sum().backward()
    assert network.layer.weight.grad is not None


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
    assert (shown.out, "episodes" in shown.err) == ("", True)


def test_ctrl_c_comes_out_after_the_tables_are_written(tmp_path):
    def interrupt(observation: object) -> torch.Tensor:
        signal.raise_signal(signal.SIGINT)
        return push(observation)

    with pytest.raises(KeyboardInterrupt):
        arena.evaluate(environment="cartpole", policy=interrupt, output_dir=tmp_path / "out", **FEW)
    assert not arena.load_results(tmp_path / "out").complete
    assert arena.load_results(tmp_path / "out").job().status == "interrupted"


def test_a_run_goes_on_with_the_same_policy_and_with_no_other_nor_one_that_cannot_be_looked_into(tmp_path):
    policy = Gain(gain=1.0)
    asked: dict[str, Any] = {"environment": "cartpole", "output_dir": tmp_path / "out", **FEW}
    arena.evaluate(policy=policy, **asked)
    assert arena.evaluate(policy=policy, resume=True, **asked).complete
    policy.gain = 2.0
    with pytest.raises(arena.ConfigError, match="has changed"):
        arena.evaluate(policy=policy, resume=True, **asked)
    generator = torch.Generator()

    def guess(observation: object) -> torch.Tensor:
        return push(observation) + torch.rand(1, generator=generator)

    asked["output_dir"] = tmp_path / "guessed"
    arena.evaluate(policy=guess, **asked)
    with pytest.raises(arena.ConfigError, match="--resume: "):
        arena.evaluate(policy=guess, resume=True, **asked)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"environment": "reach", "policy": "scripted", "objct": 1}, "--objct: environment 'reach' has no such option"),
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
    with pytest.raises(arena.ConfigError, match=re.escape(message)):
        arena.evaluate(**{**length, **asked})


def test_public_names_are_there_and_no_others():
    module = importlib.import_module("isaaclab_arena")
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
        assert name in dir(module)
    with pytest.raises(AttributeError, match="has no attribute 'evalute'"):
        _ = module.evalute


# Beside what else a program does: what it shares stays as it was, and ranks of its own share the episodes.


LOOKS = {**SHARED, **GENERATORS, "process group": torch.distributed.is_initialized}


def test_an_evaluation_leaves_what_a_program_shares_as_it_was():
    # To import it is no evaluation yet, and rich draws a number when it is imported.
    evaluate = arena.evaluate
    random.seed(1)
    torch.set_num_threads(2)
    before = {name: look() for name, look in LOOKS.items()}
    assert evaluate(environment="cartpole", policy=push, deterministic=True, policy_batch=2, **FEW).complete
    assert {name: look() for name, look in LOOKS.items()} == before


def test_neither_what_the_program_has_set_nor_another_thread_reaches_the_results():
    expected = arena.evaluate(environment="cartpole", policy=push, **FEW).episodes
    found = []
    torch.set_default_dtype(torch.float64)
    try:
        found.append(arena.evaluate(environment="cartpole", policy=push, **FEW).episodes)
    finally:
        torch.set_default_dtype(torch.float32)
    asked: dict[str, Any] = {"environment": "cartpole", "policy": push, **FEW}
    thread = threading.Thread(target=lambda: found.append(arena.evaluate(**asked).episodes))
    thread.start()
    thread.join()
    assert [each.equals(expected) for each in found] == [True, True]


PROGRAM = """
import json, sys
import torch, torch.distributed as dist
import isaaclab_arena as arena
from tests.api.policies import push

rank, directory = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=2)
group = dist.group.WORLD
few = {"environment": "cartpole", "policy": push, "num_episodes": 3, "num_envs": 1, "seed": 5}
found = [arena.evaluate(**few).episodes for _ in range(2)]
alone = arena.evaluate(num_ranks=1, **few)
word = torch.ones(1)
dist.all_reduce(word)
print(json.dumps({
    "episodes": [each.to_csv() for each in found],
    "alone": alone.episodes.to_csv(),
    "group": dist.group.WORLD is group and word.item() == 2,
}))
"""


def test_the_ranks_of_a_process_group_share_the_episodes_and_get_the_same_results(tmp_path):
    (tmp_path / "rank.py").write_text(PROGRAM)
    processes = [
        subprocess.Popen(
            [preloaded_python(), str(tmp_path / "rank.py"), str(rank), str(tmp_path)],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [json.loads(process.communicate(timeout=patience_s(120))[0].splitlines()[-1]) for process in processes]
    tables = {text for each in told for text in [*each["episodes"], each["alone"]]}
    assert len(tables) == 1
    assert all(each["group"] for each in told)


def test_a_rank_starts_no_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(arena.ConfigError, match="num_ranks: this process is one of several ranks already"):
        arena.evaluate(environment="cartpole", policy="zero_action", num_episodes=1, num_ranks=2)
