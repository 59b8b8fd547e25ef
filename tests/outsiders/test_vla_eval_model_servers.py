"""Model servers of vla-eval itself, in an interpreter of its own, as policies here."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena import PolicyLostError
from isaaclab_arena.observers import EpisodeRecord, Observer
from isaaclab_arena.policies import PolicyError, resolve_policy_class
from tests.environments.gym.gym_running import build, run

PYTHON = os.environ.get("VLA_EVAL_PYTHON", "")
ROOT = Path(__file__).parents[2]
CLASS = "tests.environments.gym.vla_eval_points:PointBenchmark"
POINTS = f"vla_eval:{CLASS}"
VARIABLES = {"PYTHONPATH": str(ROOT)}

pytestmark = [
    pytest.mark.benchmark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON, reason="vla-eval's interpreter is missing: make test-benchmarks makes it"),
]


@contextmanager
def server(kind: str) -> Iterator[str]:
    """Run a server of vla-eval's classes, and give its address."""
    script = str(Path(__file__).with_name("vla_eval_model_servers.py"))
    with subprocess.Popen([PYTHON, script, kind], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"ws://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def played(address: str, *, made: dict[str, Any] | None = None, timeout_s: float = 10.0, **how: Any):
    """Play episodes of the points in vla-eval's interpreter with what a server answers, and return their records."""
    made = {"python": PYTHON, "environment_variables": VARIABLES, "task": "move right", **(made or {})}
    policy = resolve_policy_class("vla_eval_remote").from_dict({"address": address, "timeout_s": timeout_s})
    environment = build(POINTS, **made)
    try:
        policy.check_environment(environment)
        return run(POINTS, policy=policy, **{"num_envs": 1, "num_episodes": 4, **how}, **made)
    finally:
        policy.close()
        environment.close()


def summary(records: dict[int, EpisodeRecord]) -> dict[int, Any]:
    return {index: (each.length, each.success, each.metrics) for index, each in records.items()}


def test_a_plain_server_ends_episodes_as_in_vla_evals_own_runner_for_any_number_of_env_slots(tmp_path):
    with server("plain") as address:
        alone, together = (played(address, num_envs=number) for number in (1, 3))
        seeds = {index: each.conditions["gym.seed"] for index, each in alone.items()}
        request = {"class": CLASS, "task": 1, "seeds": [seeds[index] for index in range(4)], "address": address}
        (tmp_path / "request.json").write_text(json.dumps(request))
        script = str(Path(__file__).with_name("vla_eval_run.py"))
        command = [PYTHON, script, str(tmp_path / "request.json")]
        own = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **VARIABLES})
    assert summary(alone) == summary(together)
    ended = [(each["steps"], each["success"], each["distance"]) for each in json.loads(own.stdout)]
    here = [
        (length, success, metrics["distance"])
        for length, success, metrics in dict(sorted(summary(alone).items())).values()
    ]
    assert [each[:2] for each in here] == [each[:2] for each in ended]
    assert [each[2] for each in here] == pytest.approx([each[2] for each in ended], abs=1e-5)
    assert any(success for _, success, _ in here)


class Actions(Observer):
    """Keeps the first number of each action of all env slots."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def on_step(self, environment, transition) -> None:
        self.seen.append(transition.action[:, 0].tolist())


def test_a_batched_server_has_the_sessions_of_all_env_slots_in_one_batch():
    actions = Actions()
    with server("batched") as address:
        played(address, num_envs=3, num_episodes=3, observer=actions)
    # The first batch begins with the first question; from then on the server waits for what may still come.
    assert actions.seen[1:3] == [[3.0, 3.0, 3.0]] * 2


def test_a_server_plays_its_own_chunks_and_begins_anew_in_every_episode():
    actions, made = Actions(), {"task": "move left", "make_kwargs": {"max_steps": 4}}
    with server("chunked") as address:
        played(address, num_episodes=2, made=made, observer=actions)
    assert [first for (first,) in actions.seen] == [100.0, 101.0, 102.0, 103.0, 200.0, 201.0, 202.0, 203.0]


def test_a_server_that_errs_is_told_with_what_it_says():
    with server("errs") as address, pytest.raises(PolicyError, match="ValueError: the pictures are too dark"):
        played(address)


def test_a_server_that_hangs_is_told_with_its_limit():
    with server("hangs") as address, pytest.raises(PolicyLostError, match=r"did not answer within 0\.5 s"):
        played(address, timeout_s=0.5)
