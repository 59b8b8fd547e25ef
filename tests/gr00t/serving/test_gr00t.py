"""A policy served in GR00T's protocol, asked by this package's own client."""

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gr00t.policy.server_client import PolicyClient

from isaaclab_arena.serve import ListenOptions
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tRemoteClosedloopPolicy
from isaaclab_arena_gr00t.serving.gr00t import INSTRUCTION, Gr00tServer
from tests.gr00t.fakes import write_yaml
from tests.gr00t.serving.serving_limbs import LookPolicy, StridePolicy, WalkPolicy, actions, running, served


@contextmanager
def serving(policy_class: type[LookPolicy] = LookPolicy, num_slots: int = 2, token: str | None = None) -> Iterator[int]:
    with served(num_slots, policy_class=policy_class) as (job, host):
        host.close()
        server = Gr00tServer(job, ListenOptions(port=0, api_token=token), max_batch=8, max_wait_ms=2.0)
        with running(server) as port:
            yield port


def asking(port: int, directory: Path, horizon: int) -> Gr00tRemoteClosedloopPolicy:
    document = {
        "action_horizon": horizon,
        "action_chunk_length": horizon,
        "pov_cam_name_sim": {"front": "front", "side": "side"},
        "target_image_size": [6, 8, 3],
    }
    options = {
        "policy_config_yaml_path": write_yaml(directory / "policy.yaml", document),
        "remote_host": "127.0.0.1",
        "remote_port": port,
        "timeout_s": 20.0,
    }
    return Gr00tRemoteClosedloopPolicy.from_dict(options)


@pytest.mark.parametrize(("policy_class", "length"), [(LookPolicy, 1), (StridePolicy, 3)])
def test_the_own_client_plays_the_same_bits_as_the_policy_in_its_own_process(tmp_path, policy_class, length):
    expected = actions(policy_class(), 5)
    with serving(policy_class) as port:
        policy = asking(port, tmp_path, length)
        assert '"environment": "limbs"' in policy.stated_model()
        assert actions(policy, 5) == expected


def observation(num_entries: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a request's observation; changes are of its state."""
    state = {
        "robot_joint_pos": np.zeros((num_entries, 1, 4), np.float32),
        "fingers": np.zeros((num_entries, 1, 2), np.float32),
        "nameless": np.zeros((num_entries, 1, 3), np.float32),
        **changes,
    }
    return {
        "video": {name: np.zeros((num_entries, 1, 6, 8, 3), np.uint8) for name in ("front", "side")},
        "state": {key: values for key, values in state.items() if values is not None},
        "language": {INSTRUCTION: [["move"]] * num_entries},
    }


@pytest.fixture(scope="module")
def client() -> Iterator[PolicyClient]:
    with serving(WalkPolicy) as port:
        yield PolicyClient(host="127.0.0.1", port=port)


def test_an_entry_follows_from_its_own_seed_and_nothing_is_left_of_it(client):
    def asked(*seeds: int) -> list:
        return client.get_action(observation(len(seeds)), {"noise_seeds": list(seeds)})[0]["action"].tolist()

    assert asked(4, 5, 6, 7, 8)[3] == asked(7)[0]
    assert asked(7)[0] != asked(8)[0]


def test_the_last_of_several_steps_is_the_present(client):
    def asked(joints: list[list[float]]) -> list:
        state = np.array([joints], np.float32)
        return client.get_action(observation(robot_joint_pos=state), {"noise_seeds": [4]})[0]["action"].tolist()

    assert asked([[9.0] * 4, [1.0] * 4]) == asked([[1.0] * 4]) != asked([[9.0] * 4])


WRONG_WORDS = {**observation(), "language": {INSTRUCTION: ["move"]}}


@pytest.mark.parametrize(
    ("shown", "options", "words"),
    [
        (observation(fingers=None), None, "the observation has no state 'fingers'"),
        (observation(fingers=np.zeros((1, 1, 3))), None, r"'fingers' has 3 numbers, 2 are due: fingers \(2\)"),
        (observation(fingers=np.zeros((2, 1, 2))), None, r"the request's arrays have \[1, 2\] entries"),
        (observation(fingers=np.zeros((1, 2))), None, r"'state.fingers' must have entries, steps and values"),
        (observation(nameless=np.full((1, 1, 3), np.nan)), None, "'policy.nameless' holds NaN or infinity"),
        (observation(), {"noise_seeds": [1, 2]}, "1 pictures or states, 1 instructions and 2 seeds"),
        ({**observation(), "language": {}}, None, "'annotation.human.task_description' is missing; the policy reads"),
        ({**observation(), "language": {INSTRUCTION: [[""]]}}, None, "must be a text that says something"),
        (WRONG_WORDS, None, "must hold a list of one text for each entry"),
        ([1], None, "."),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_the_next_request_is_answered(client, shown, options, words):
    with pytest.raises(RuntimeError, match=words):
        client.get_action(shown, options)
    assert client.get_action(observation())[0]["action"].shape == (1, 1, 5)


def health_of(port: int) -> tuple[int, dict]:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    client.request("GET", "/health")
    answer = client.getresponse()
    return answer.status, json.loads(answer.read())


def test_its_health_is_told_over_http_and_no_more_clients_are_taken_than_it_may_have():
    with served(2, policy_class=LookPolicy) as (job, host):
        host.close()
        server = Gr00tServer(job, ListenOptions(port=0), max_batch=8, max_wait_ms=2.0, max_sessions=1, health_port=0)
        assert server.health is not None
        server.start()
        client = PolicyClient(host="127.0.0.1", port=server.port)
        client.get_action(observation(3))
        status, said = health_of(server.health.server_address[1])
        assert (status, said["status"], said["environment"]) == (200, "ok", "limbs")
        assert (said["sessions"], said["queries"], said["calls"]) == (1, 1, 1)
        assert not PolicyClient(host="127.0.0.1", port=server.port, timeout_ms=500).ping()
        assert client.ping()
        server.close()
    with pytest.raises(ConnectionError):
        health_of(server.health.server_address[1])


def test_gr00ts_own_client_reads_what_it_may_show_and_gets_its_actions():
    with serving(StridePolicy) as port:
        client = PolicyClient(host="127.0.0.1", port=port)
        modalities = client.get_modality_config()
        assert modalities["video"].modality_keys == ["front", "side"]
        assert modalities["state"].modality_keys == ["robot_joint_pos", "fingers", "nameless"]
        assert modalities["action"].delta_indices == [0, 1, 2]
        assert client.get_action(observation(3))[0]["action"].shape == (3, 3, 5)
        nested = observation(3)
        flat = {f"{name}.{key}": values for name in ("video", "state") for key, values in nested[name].items()}
        flat |= {key: [text for (text,) in texts] for key, texts in nested["language"].items()}
        assert client.get_action(flat)[0]["action.action"].shape == (3, 3, 5)
