"""What a user gets wrong about a GR00T job is told with file, job, key and value, and nothing is simulated."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import mujoco_warp
import pytest

from arena_wire.messages import WireLimits
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena_gr00t.config import stated_embodiments
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tRemoteClosedloopPolicy
from tests.end_to_end.launching import ROOT, jobs_table, write_jobs
from tests.gr00t.panda_checkpoint import HORIZON, POLICY, save_panda_checkpoint, write_panda_yaml
from tests.gr00t.servers import PONG, NetworkPolicy, answering, serving
from tests.policy.playing import job_of, refused

REMOTE = "isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy.Gr00tRemoteClosedloopPolicy"
SEEN = {"environment": "reach", "enable_cameras": True, "camera_size": 64}


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


def files_in(directory: Path, *names: str) -> None:
    directory.mkdir()
    for name in names:
        # Weights without a tensor: the size of the header, and the header.
        (directory / name).write_bytes(b"\x02" + bytes(7) + b"{}" if name.endswith(".safetensors") else b"{}")


CAMERAS = {"head": "robot_head_cam_rgb", "wrist": "wrist_cam_rgb"}
# What the YAML file says instead, what the job says instead, and what the user is told.
MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "other-camera": ({"pov_cam_name_sim": {**CAMERAS, "head": "top_rgb"}}, {}, "no camera 'top_rgb'"),
    "blind": ({}, {"seen": {"enable_cameras": False}}, "shows no pictures"),
    "no-model": ({"model_path": "empty/lift"}, {}, "yaml: model_path: 'empty/lift'"),
    "no-model-of-the-job": ({}, {"model_path": "empty/lift"}, "model_path: 'empty/lift'"),
    "no-checkpoint": ({"model_path": "empty"}, {}, "'empty' is not a checkpoint"),
    "no-weights": ({"model_path": "unfinished"}, {}, "'unfinished' has no weights"),
    "pickled-weights": ({"model_path": "pickled"}, {}, "pytorch_model.bin"),
    "no-such-embodiment": ({"embodiment_tag": "GR2"}, {}, "yaml: embodiment_tag: there is no embodiment 'GR2'"),
    "unknown-embodiment": ({"embodiment_tag": "GR1"}, {}, "'checkpoint' knows no embodiment 'gr1'"),
    "chunk-beyond-the-horizon": ({"action_horizon": 3}, {}, "yaml: action_chunk_length"),
    "unknown-device": ({"policy_device": "gpu"}, {}, "yaml: policy_device: 'gpu'"),
    "no-such-device": ({"policy_device": "cuda:77"}, {}, "yaml: policy_device: 'cuda:77'"),
    "no-such-device-in-the-job": ({}, {"policy_device": "cuda:77"}, "policy_device: 'cuda:77'"),
    "no-YAML-file": ({}, {"policy_config_yaml_path": "no.yaml"}, "no.yaml: there is no such file"),
    "no-slot-per-query": ({}, {"rows_per_query": 0}, "rows_per_query: must be at least 1"),
    "no-decay": ({}, {"temporal_ensemble_coeff": -1.0}, "temporal_ensemble_coeff"),
}


def write_files(directory: Path, changes: dict[str, dict[str, Any]]) -> None:
    """Write a checkpoint and a YAML file for each name."""
    save_panda_checkpoint(directory / "checkpoint")
    for name, each in {**changes, "p": {}}.items():
        write_panda_yaml(directory / f"{name}.yaml", **each)


def test_what_is_wrong_is_told_for_all_jobs_before_anything_starts(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {name: changes for name, (changes, _, _) in MISTAKES.items()})
    files_in(tmp_path / "empty", "notes.txt")
    files_in(tmp_path / "unfinished", "config.json")
    files_in(tmp_path / "pickled", "config.json", "pytorch_model.bin")
    jobs = [job(name, **{"policy_config_yaml_path": f"{name}.yaml", **said}) for name, (_, said, _) in MISTAKES.items()]
    assert evaluate(tmp_path, [*jobs, job("good")]) == 2
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in capfd.readouterr().err
    with pytest.raises(ConfigError) as refused:
        # The command shows the first 20 problems only.
        resolve_jobs(load_jobs_file(tmp_path / "jobs.json").jobs, file="jobs.json")
    assert {(problem.file, problem.job) for problem in refused.value.problems} == {
        ("jobs.json", name) for name in MISTAKES
    }
    for name, (_, _, message) in MISTAKES.items():
        told = [str(problem) for problem in refused.value.problems if problem.job == name]
        assert all(line.startswith(f"jobs.json: job '{name}': policy_config_dict.") for line in told)
        assert any(message in line for line in told), told


class Unasked(Gr00tClosedloopPolicy):
    """Compares nothing beforehand, as for an environment that takes long to build."""

    @classmethod
    def check_fit(cls, config: Any, env: Environment) -> None: ...


def test_what_nobody_could_compare_beforehand_fails_the_job_before_its_first_step(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    on_the_hub = ({"model_path": "models/lift"}, {}, "at models/lift")
    mistakes = {"blind": MISTAKES["blind"], "maybe-on-the-hub": on_the_hub}
    write_files(tmp_path, {name: changes for name, (changes, _, _) in mistakes.items()})
    policy = f"{__name__}.{Unasked.__qualname__}"
    jobs = [
        job(name, policy, policy_config_yaml_path=f"{name}.yaml", **said) for name, (_, said, _) in mistakes.items()
    ]
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
    "no-server": "ServerUnreachableError: no GR00T policy server answers at 127.0.0.1:1",
    "no-token": "ConfigError: remote_api_token_file: must name a file",
    "wrong-token": "Unauthorized",
    "garbage": "the message is no msgpack",
    "no-modalities": "does not describe its model's inputs",
    "huge-answer": f"the {LIMIT} that are allowed",
    "other-modalities": "p.yaml: pov_cam_name_sim.head: the model has no video key 'head'",
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


# What a checkpoint's files say of it is read without the model package, and without a picture.


SIZES = {"state": {"arm": 7, "gripper": 2}, "action": {"arm": 7, "gripper": 1}}


def modalities(**keys: list[str]) -> dict[str, Any]:
    """Inputs and outputs of a checkpoint for the Panda, with other keys of some modalities."""
    known = {"video": ["head", "wrist"], "state": ["arm", "gripper"], "action": ["arm", "gripper"], **keys}
    steps = {"action": list(range(HORIZON))}
    return {
        name: {"delta_indices": steps.get(name, [0]), "modality_keys": found}
        for name, found in {**known, "language": ["annotation.human.task_description"]}.items()
    }


def as_nvidia_writes_it(says: dict[str, Any]) -> dict[str, Any]:
    extended = {name: {**each, "sin_cos_embedding_keys": None} for name, each in says.items()}
    kwargs = {"modality_configs": {"gr1": modalities(), "new_embodiment": extended}, "max_state_dim": 29}
    return {"processor_class": "Gr00tN1d6Processor", "processor_kwargs": kwargs}


def checkpoint(directory: Path, processor: Any) -> None:
    """Write the files of a checkpoint that say what it is, and weights without a tensor."""
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    (directory / "processor_config.json").write_text(processor if isinstance(processor, str) else json.dumps(processor))


def resolved(yaml: str, **where: Any) -> Any:
    options = {"policy_config_yaml_path": yaml, "policy_device": "cpu"}
    job = job_of(POLICY, options, environment_args={"camera_size": 64}, enable_cameras=True)
    return resolve_jobs([job], **where)


@pytest.fixture
def unrendered(monkeypatch):
    def rendered(*_: object) -> None:
        raise AssertionError("cameras take seconds to make ready, and nothing here needs a picture")

    monkeypatch.setattr(mujoco_warp, "create_render_context", rendered)


def test_a_checkpoint_of_nvidias_is_let_in_if_it_fits_and_else_told_with_the_key_of_the_yaml_file(tmp_path, unrendered):
    checkpoint(tmp_path / "checkpoint", as_nvidia_writes_it(modalities()))
    assert resolved(write_panda_yaml(tmp_path / "p.yaml"))
    for changes, words in (
        ({"embodiment_tag": "OXE_DROID"}, "embodiment_tag"),
        ({"action_horizon": 16}, "action_horizon"),
    ):
        path = write_panda_yaml(tmp_path / "p.yaml", **changes)
        with refused("policy_config_dict.policy_config_yaml_path") as problems:
            resolved(path, file="jobs.json")
        assert (problems[0].file, problems[0].job) == ("jobs.json", "a")
        assert problems[0].message.startswith(f"{path}: {words}")


@pytest.mark.parametrize(
    "processor",
    ["", "[]", "{", "{}", '{"embodiments": 3}', '{"embodiments": {"new_embodiment": {}}}', '{"processor_kwargs": []}'],
)
def test_what_is_written_in_no_known_way_is_left_to_the_model_package(tmp_path, unrendered, processor):
    checkpoint(tmp_path / "checkpoint", processor)
    assert stated_embodiments(str(tmp_path / "checkpoint")) == {}
    assert resolved(write_panda_yaml(tmp_path / "p.yaml"))


@pytest.mark.parametrize("model", ["panda_tabletop", "panda_pick_by_colour"])
def test_the_shipped_models_say_what_they_are(model):
    panda, sizes = stated_embodiments(str(ROOT / "models" / model))["new_embodiment"]
    keys = {name: list(each.modality_keys) for name, each in panda.items()}
    assert keys == {name: each["modality_keys"] for name, each in modalities().items()}
    assert sizes == SIZES
