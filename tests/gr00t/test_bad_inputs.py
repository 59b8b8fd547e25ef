"""What a user gets wrong about a GR00T job is told with file, job, key and value, and nothing is simulated."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from arena_wire.messages import WireLimits
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tRemoteClosedloopPolicy
from tests.end_to_end.launching import jobs_table, write_jobs
from tests.gr00t.fakes import write_yaml
from tests.gr00t.panda_checkpoint import HORIZON, POLICY, save_panda_checkpoint, write_panda_yaml
from tests.gr00t.servers import PONG, NetworkPolicy, answering, serving

REMOTE = "isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy.Gr00tRemoteClosedloopPolicy"
SEEN = {"environment": "reach", "enable_cameras": True, "camera_size": 64}
PATH = "policy_config_dict.policy_config_yaml_path: p.yaml"
ARM = [f"panda_joint{number}" for number in range(1, 8)]


def job(name: str, policy_type: str = POLICY, seen: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return {
        "name": name,
        "arena_env_args": {**SEEN, **(seen or {})},
        "policy_type": policy_type,
        "policy_config_dict": {"policy_config_yaml_path": "p.yaml", **options},
        "num_steps": 6,
    }


def evaluate(directory: Path, jobs: list[dict[str, Any]]) -> int:
    path = write_jobs(directory / "jobs.json", jobs)
    return eval_runner.main(
        ["--eval_jobs_config", str(path), "--output_dir", str(directory / "out"), "--device", "cpu"]
    )


def file_with(path: Path, text: str = "{}") -> None:
    path.parent.mkdir(exist_ok=True)
    # Weights without a tensor: the size of the header, and the header.
    length = len(text).to_bytes(8, "little") if path.suffix == ".safetensors" else b""
    path.write_bytes(length + text.encode())


KNOWN_BEFOREHAND: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # What the YAML file says instead, what the job says beside it, and what the user is told.
    "no model": ({"model_path": "empty/lift"}, {}, f"{PATH}: model_path: 'empty/lift' does not exist, neither"),
    "no model of the job": ({}, {"model_path": "empty/lift"}, "dict.model_path: 'empty/lift' does not exist, and is"),
    "no model is named": ({"model_path": ""}, {}, f"{PATH}: model_path: is missing; the model's directory"),
    "a file for a model": ({"model_path": "p.yaml"}, {}, "model_path: 'p.yaml' is a file; name the directory"),
    "no checkpoint": ({"model_path": "empty"}, {}, f"{PATH}: model_path: 'empty' is no checkpoint: it has no config"),
    "no weights": ({"model_path": "unfinished"}, {}, "model_path: 'unfinished' has no weights in a *.safetensors file"),
    "pickled weights": ({"model_path": "pickled"}, {}, "but pytorch_model.bin, and loading that could run code;"),
    "no such embodiment": ({"embodiment_tag": "GR2"}, {}, f"{PATH}: embodiment_tag: there is no embodiment 'GR2'; did"),
    "chunk beyond the horizon": ({"action_horizon": 3}, {}, f"{PATH}: action_chunk_length: 5 steps of a chunk"),
    "no such joint file": ({"policy_joints_config_path": "no.yaml"}, {}, "there is no file 'no.yaml', neither beside"),
    "unknown key": ({"model_pth": "x"}, {}, f"{PATH}: model_pth: a GR00T policy has no such option; did you mean 'mo"),
    "unknown device": ({"policy_device": "gpu"}, {}, f"{PATH}: policy_device: 'gpu' is no device; use cpu, cuda or"),
    "no such device": ({"policy_device": "cuda:77"}, {}, f"{PATH}: policy_device: 'cuda:77' does not exist; "),
    "no such device in the job": ({}, {"policy_device": "cuda:77"}, "policy_config_dict.policy_device: 'cuda:77' does"),
    "no such device by its number": ({}, {"policy_device_id": 77}, "policy_config_dict.policy_device_id: 'cuda:77'"),
    "no YAML file": ({}, {"policy_config_yaml_path": "no.yaml"}, "yaml_path: no.yaml: there is no such file"),
    "no slot per query": ({}, {"rows_per_query": 0}, "policy_config_dict.rows_per_query: must be at least 1, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", KNOWN_BEFOREHAND)
def test_what_the_files_say_is_refused_before_anything_starts(tmp_path, monkeypatch, capfd, mistake):
    changes, options, message = KNOWN_BEFOREHAND[mistake]
    monkeypatch.chdir(tmp_path)
    file_with(tmp_path / "checkpoint" / "config.json")
    file_with(tmp_path / "checkpoint" / "model.safetensors")
    file_with(tmp_path / "empty" / "notes.txt")
    file_with(tmp_path / "unfinished" / "config.json")
    file_with(tmp_path / "pickled" / "config.json")
    file_with(tmp_path / "pickled" / "pytorch_model.bin")
    write_panda_yaml(tmp_path / "p.yaml", **changes)
    assert evaluate(tmp_path, [job("lift", **options)]) == 2
    shown = capfd.readouterr().err
    assert shown.count("error: ") == 1
    assert "jobs.json: job 'lift': policy_config_dict." in shown
    assert message in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "out").exists()


KNOWN_TOGETHER: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # What the YAML file says instead, what the job asks of the environment, and what is told.
    "other-video-keys": ({"pov_cam_name_sim": {"front": "wrist_cam_rgb"}}, {}, "the model has no video key 'front'; "),
    "other-camera": (
        {"pov_cam_name_sim": {"head": "top_rgb", "wrist": "wrist_cam_rgb"}},
        {},
        "pov_cam_name_sim: the environment has no camera 'top_rgb'",
    ),
    "blind": ({}, {"enable_cameras": False}, "is to be seen, and the environment shows no pictures"),
    "other-action": ({}, {"action_mode": "ee_delta"}, "action group 'arm': there is no joint 'panda_joint1'"),
    "other-robot": ({}, {"embodiment": "so101"}, "state group 'arm': there is no joint 'panda_joint1'"),
    "fewer-joints": (
        {"policy_joints_config_path": "six_joints.yaml"},
        {},
        "policy_joints_config_path: the model's state 'arm' has 7 numbers, the environment has 6 for it; give the",
    ),
    "other-group": (
        {"policy_joints_config_path": "leg.yaml"},
        {},
        "policy_joints_config_path: the environment observes no 'arm'; known are: ",
    ),
    "long-horizon": (
        {"action_horizon": HORIZON + 1},
        {},
        f"action_horizon: is {HORIZON + 1}, but the model predicts {HORIZON} steps; make it {HORIZON} or less",
    ),
}


def jobs_in(directory: Path, mistakes: dict[str, tuple[dict[str, Any], dict[str, Any], str]], policy: str) -> list[Any]:
    """Write a checkpoint and the YAML files of some mistakes, and return a job for each."""
    save_panda_checkpoint(directory / "checkpoint")
    six, leg = {"arm": ARM[:6], "gripper": ["panda_finger_joint1", "panda_finger_joint2"]}, {"leg": ARM}
    write_yaml(directory / "six_joints.yaml", {"state": six, "action": {"arm": ARM, "gripper": ["gripper_width"]}})
    write_yaml(directory / "leg.yaml", {"state": leg, "action": leg})
    jobs = []
    for name, (changes, seen, _) in mistakes.items():
        write_panda_yaml(directory / f"{name}.yaml", **changes)
        jobs.append(job(name, policy, seen=seen, policy_config_yaml_path=f"{name}.yaml"))
    write_panda_yaml(directory / "p.yaml")
    return jobs


def test_what_a_checkpoint_and_an_environment_show_together_is_refused_for_all_jobs_before_anything_starts(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    lacking = (
        {"embodiment_tag": "GR1"},
        {},
        "embodiment_tag: 'checkpoint' knows no embodiment 'gr1'; known are: new_e",
    )
    mistakes = {**KNOWN_TOGETHER, "other-embodiment": lacking}
    jobs = [*jobs_in(tmp_path, mistakes, POLICY), job("good")]
    assert evaluate(tmp_path, jobs) == 2
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in capfd.readouterr().err
    with pytest.raises(ConfigError) as refused:
        # The command shows the first 20 problems only.
        resolve_jobs(load_jobs_file(tmp_path / "jobs.json").jobs)
    for name, (_, _, message) in mistakes.items():
        told = [str(problem) for problem in refused.value.problems if problem.job == name]
        start = f"job '{name}': policy_config_dict.policy_config_yaml_path: {name}.yaml: "
        assert all(line.startswith(start) for line in told)
        assert any(message in line for line in told), message
    assert {problem.job for problem in refused.value.problems} == {*mistakes}


class Unasked(Gr00tClosedloopPolicy):
    """Compares nothing beforehand, as nobody can in an environment that takes long to build."""

    @classmethod
    def check_fit(cls, config: Any, env: Environment) -> None: ...


def test_what_nobody_could_compare_beforehand_fails_the_job_before_its_first_step(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    on_the_hub = ({"model_path": "models/lift"}, {}, "there is no model at models/lift: no such directory")
    mistakes = {**KNOWN_TOGETHER, "maybe-on-the-hub": on_the_hub}
    jobs = jobs_in(tmp_path, mistakes, f"{__name__}.{Unasked.__qualname__}")
    assert evaluate(tmp_path, [*jobs, job("good")]) == 1
    said = check_failed(tmp_path / "out", {name: message for name, (_, _, message) in mistakes.items()}, capfd)
    for name, text in said.items():
        assert text.startswith(f"ConfigError: {name}.yaml: ")


def check_failed(output: Path, messages: dict[str, str], capfd: Any) -> dict[str, str]:
    """Make sure that all jobs failed with their message and without a step, except 'good'; return what they say."""
    jobs = {str(job["name"]): job for job in jobs_table(output).to_dict("records")}
    assert {name for name, job in jobs.items() if job["status"] == "completed"} == {"good"}
    said = {name: str(job["error"]) for name, job in jobs.items() if name != "good"}
    assert {name: text for name, text in said.items() if messages[name] not in text} == {}
    for name in messages:
        assert json.loads((output / name / "job_report_rank0.json").read_text())["env_steps"] == 0
    shown = capfd.readouterr()
    assert "Traceback" not in shown.out + shown.err
    return said


@pytest.fixture
def servers(tmp_path) -> Iterator[dict[str, tuple[int, dict[str, str]]]]:
    """Servers with which something is wrong: their port, and further options of the job."""
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    with ExitStack() as stack:
        guarded = stack.enter_context(serving(NetworkPolicy(), api_token="guarded")).port
        yield {
            "no-server": (1, {}),
            "no-token": (guarded, {}),
            "wrong-token": (guarded, {"remote_api_token_file": str(token)}),
            "garbage": (stack.enter_context(answering(b"garbage")), {}),
            "no-modalities": (stack.enter_context(answering(PONG, b"\x80")), {}),
            "huge-answer": (stack.enter_context(answering(PONG, bytes(LIMIT + 1))), {}),
            "other-modalities": (stack.enter_context(serving(NetworkPolicy())).port, {}),
        }


LIMIT = 10_000


class OfSmallAnswers(Gr00tRemoteClosedloopPolicy):
    """Reads no answer that is large."""

    name = "of_small_answers"
    answer_limits = WireLimits(max_message_bytes=LIMIT)


OF_SERVERS = {
    "no-server": "ServerUnreachableError: no GR00T policy server answers at 127.0.0.1:1, after waiting 0.3 s for it",
    "no-token": "ConfigError: remote_api_token_file: must name a file with the token of the GR00T policy server at",
    "wrong-token": "which wants another token than the one given here; it says: Unauthorized",
    "garbage": "sent something else than such a server does: the message is no msgpack",
    "no-modalities": "does not say what its model takes and gives: video, state, action, language are due, it",
    "huge-answer": f"than such a server does: the answer has more bytes than the {LIMIT} that are allowed",
    "other-modalities": "p.yaml: pov_cam_name_sim.head: the model has no video key 'head'; known are: aside, ego",
}


def test_a_server_with_which_something_is_wrong_fails_its_job_before_the_first_step(
    tmp_path, monkeypatch, capfd, servers
):
    monkeypatch.chdir(tmp_path)
    write_panda_yaml(tmp_path / "p.yaml", action_horizon=5)
    where = {"remote_host": "127.0.0.1", "timeout_s": 5.0, "wait_for_server_s": 0.3}
    remote = f"{__name__}.{OfSmallAnswers.__qualname__}"
    jobs = [job(name, remote, remote_port=port, **where, **options) for name, (port, options) in servers.items()]
    good = {**job("good"), "policy_type": "zero_action", "policy_config_dict": {}}
    assert evaluate(tmp_path, [*jobs, good]) == 1
    check_failed(tmp_path / "out", OF_SERVERS, capfd)
