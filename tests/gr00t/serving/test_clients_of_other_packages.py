"""The clients of vla-eval and openpi themselves, asking policies that are served here."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.evaluation.serving import HostedPolicy, SlotAnswer, checked_observation
from isaaclab_arena.serve import ServedJob, mapping_of
from tests.gr00t.serving.serving_limbs import LookPolicy, StridePolicy, WalkPolicy, limb_job, serving
from tests.outsiders.client_observations import STEPS, pictures, states, words

CLIENTS = Path(__file__).parents[2] / "outsiders"
VLA_EVAL_PYTHON = os.environ.get("VLA_EVAL_PYTHON", "")
ISAAC_GR00T_PATH = os.environ.get("ISAAC_GR00T_PATH", "")
OPENPI_PYTHON = os.environ.get("OPENPI_PYTHON", "")

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]


def asked(python: str, script: str, port: int, *words: str, path: str = "") -> dict[str, Any]:
    """Run a script of a client in its interpreter, and return what it prints."""
    command = [python, str(CLIENTS / script), f"ws://127.0.0.1:{port}", *words]
    variables = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=variables)
    return json.loads(done.stdout.splitlines()[-1])


def answers(policy_class: type[LookPolicy], session: int, steps: Sequence[int] = range(STEPS)) -> list[SlotAnswer]:
    """Answers of a policy in this process to what a client's session shows in some steps of an episode."""
    policy = HostedPolicy(limb_job(policy_class), 1)
    job = ServedJob(policy=policy, mapping=mapping_of(policy.environment.observation_spec, None, None), contents={})
    policy.start(0, job.episode(session), words(session))
    found = []
    for step in steps:
        shown = job.mapping.observation(pictures(session, step), states(session, step))
        answer = policy.act({0: checked_observation(shown, policy.environment.observation_spec)})[0]
        assert isinstance(answer, SlotAnswer)
        found.append(answer)
    return found


def answered(policy_class: type[LookPolicy], session: int) -> list:
    return [answer.action.tolist() for answer in answers(policy_class, session)]


@pytest.mark.skipif(not VLA_EVAL_PYTHON, reason="vla-eval's interpreter is missing: make test-benchmarks makes it")
def test_vla_evals_own_connections_get_what_the_policy_answers_here():
    with serving("vla_eval") as port:
        found = asked(VLA_EVAL_PYTHON, "vla_eval_client.py", port)
    assert found["actions"] == [answered(WalkPolicy, session) for session in range(len(found["actions"]))]
    assert found["server"] == "isaaclab_arena"
    assert "no state 'robot_joint_pos'" in found["refused"]


@pytest.mark.skipif(not OPENPI_PYTHON, reason="openpi's client is missing: make test-benchmarks installs it")
@pytest.mark.parametrize("policy_class", [LookPolicy, StridePolicy])
def test_openpis_own_client_gets_what_the_policy_answers_here(policy_class):
    with serving("openpi", policy_class) as port:
        found = asked(OPENPI_PYTHON, "openpi_own_client.py", port)
    assert found["actions"] == answered(policy_class, 0)
    assert found["program"].startswith("isaaclab-arena")
    assert "no state 'robot_joint_pos'" in found["refused"]


@pytest.mark.skipif(not ISAAC_GR00T_PATH, reason="ISAAC_GR00T_PATH names no checkout of NVIDIA/Isaac-GR00T")
@pytest.mark.parametrize("policy_class", [LookPolicy, StridePolicy])
def test_nvidias_own_client_gets_what_the_policy_answers_here(policy_class):
    with serving("gr00t", policy_class, token="secret") as port:
        found = asked(sys.executable, "gr00t_own_client.py", port, "secret", path=ISAAC_GR00T_PATH)
    assert Path(found["from"]).is_relative_to(ISAAC_GR00T_PATH)
    assert found["video"] == ["front", "side"]
    # Each question is the first observation of an episode, and its answer a whole chunk.
    chunks = [answers(policy_class, 0, [step])[0].planned.tolist() for step in range(STEPS)]
    assert found["actions"] == chunks
    assert found["horizon"] == len(chunks[0])
    assert "no state 'robot_joint_pos'" in found["refused"]
    assert "Unauthorized" in found["unauthorised"]
