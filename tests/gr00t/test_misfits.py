"""A checkpoint that cannot be wired to an environment is told from its files, before anything is simulated."""

import json
from pathlib import Path
from typing import Any

import mujoco_warp
import pytest

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena_gr00t.config import stated_embodiments
from tests.end_to_end.launching import ROOT
from tests.gr00t.panda_checkpoint import HORIZON, POLICY, write_panda_yaml
from tests.policy.playing import job_of

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


def job(yaml: str) -> JobConfig:
    options = {"policy_config_yaml_path": yaml, "policy_device": "cpu"}
    return job_of(POLICY, options, environment_args={"camera_size": 64}, enable_cameras=True)


@pytest.fixture(autouse=True)
def _nothing_is_rendered(monkeypatch):
    def rendered(*_: object) -> None:
        raise AssertionError("cameras take seconds to make ready, and nothing here needs a picture")

    monkeypatch.setattr(mujoco_warp, "create_render_context", rendered)


def test_a_checkpoint_that_fits_is_let_in(tmp_path):
    checkpoint(tmp_path / "checkpoint", as_nvidia_writes_it(modalities()))
    assert resolve_jobs([job(write_panda_yaml(tmp_path / "p.yaml"))])


@pytest.mark.parametrize(
    ("says", "yaml", "words"),
    [
        ({"video": ["front"]}, {}, "pov_cam_name_sim."),
        ({}, {"embodiment_tag": "OXE_DROID"}, "embodiment_tag"),
        ({}, {"action_horizon": 16}, "action_horizon"),
    ],
)
def test_what_cannot_be_wired_is_told_with_the_key_of_the_yaml_file(tmp_path, says, yaml, words):
    checkpoint(tmp_path / "checkpoint", as_nvidia_writes_it(modalities(**says)))
    path = write_panda_yaml(tmp_path / "p.yaml", **yaml)
    with pytest.raises(ConfigError) as caught:
        resolve_jobs([job(path)], file="jobs.json")
    for problem in caught.value.problems:
        assert (problem.file, problem.job) == ("jobs.json", "a")
        assert problem.key == "policy_config_dict.policy_config_yaml_path"
        assert problem.message.startswith(f"{path}: {words}")


@pytest.mark.parametrize(
    "processor",
    ["", "[]", "{", "{}", '{"embodiments": 3}', '{"embodiments": {"new_embodiment": {}}}', '{"processor_kwargs": []}'],
)
def test_what_is_written_in_no_known_way_is_left_to_the_model_package(tmp_path, processor):
    checkpoint(tmp_path / "checkpoint", processor)
    assert stated_embodiments(str(tmp_path / "checkpoint")) == {}
    assert resolve_jobs([job(write_panda_yaml(tmp_path / "p.yaml"))])


@pytest.mark.parametrize("model", ["panda_tabletop", "panda_pick_by_colour"])
def test_the_shipped_models_say_what_they_are(model):
    panda, sizes = stated_embodiments(str(ROOT / "models" / model))["new_embodiment"]
    keys = {name: list(each.modality_keys) for name, each in panda.items()}
    assert keys == {name: each["modality_keys"] for name, each in modalities().items()}
    assert sizes == SIZES
