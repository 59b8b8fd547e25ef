import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gr00t import ActionError, CheckpointError, EmbodimentError, ObservationError
from gr00t.data.types import ModalityConfig
from gr00t.model.processing import Embodiment
from gr00t.policy.gr00t_policy import Gr00tPolicy, Gr00tSimPolicyWrapper, check_observation

Observe = Callable[..., dict[str, Any]]
Change = Callable[[dict[str, Any]], Any]


def test_a_batch_of_observations_gives_a_batch_of_chunks(policy: Gr00tPolicy, observe: Observe) -> None:
    action, info = policy.get_action(observe(3))
    assert {key: (values.shape, values.dtype.name) for key, values in action.items()} == {
        "arm": ((3, 6, 3), "float32"),
        "gripper": ((3, 6, 1), "float32"),
    }
    assert info == {}
    assert policy.reset() == {}


def test_the_policy_says_what_it_takes_and_gives(policy: Gr00tPolicy) -> None:
    assert policy.get_modality_config()["video"] == ModalityConfig([0], ["head", "wrist"])
    assert list(policy.get_modality_config()) == ["video", "state", "action", "language"]
    assert policy.get_dimensions() == {"state": {"arm": 3, "gripper": 1}, "action": {"arm": 3, "gripper": 1}}


def test_a_noise_seed_fixes_its_batch_entry_wherever_it_stands(policy: Gr00tPolicy, observe: Observe) -> None:
    observation = observe(1)
    pair = {
        "video": {key: np.concatenate([frames, frames]) for key, frames in observation["video"].items()},
        "state": {key: np.concatenate([values, values]) for key, values in observation["state"].items()},
        "language": {key: texts * 2 for key, texts in observation["language"].items()},
    }
    both, _ = policy.get_action(pair, {"noise_seeds": [5, 6]})
    swapped, _ = policy.get_action(pair, {"noise_seeds": [6, 5]})
    assert np.array_equal(both["arm"][0], swapped["arm"][1])
    assert not np.array_equal(both["arm"][0], both["arm"][1])


def test_a_wrong_number_of_noise_seeds_is_refused(policy: Gr00tPolicy, observe: Observe) -> None:
    with pytest.raises(ObservationError, match="1 seeds for a batch of 2"):
        policy.get_action(observe(2), {"noise_seeds": [1]})


def continued(actions: dict[str, np.ndarray], weight: float, committed: int = 3) -> dict[str, Any]:
    weights = np.zeros((len(actions["arm"]), 6), np.float32)
    weights[:, :committed] = weight
    return {"noise_seeds": [7, 8], "continued": {"actions": actions, "weights": weights}}


def test_an_answer_goes_on_from_planned_actions(policy: Gr00tPolicy, observe: Observe) -> None:
    observation = observe(2)
    planned, _ = policy.get_action(observation, {"noise_seeds": [1, 2]})
    free, _ = policy.get_action(observation, {"noise_seeds": [7, 8]})
    bound, _ = policy.get_action(observation, continued(planned, 1.0))
    for key in planned:
        gap = np.abs(free[key] - planned[key])[:, :3].mean()
        assert np.abs(bound[key] - planned[key])[:, :3].mean() < 0.7 * gap
    without, _ = policy.get_action(observation, continued(planned, 0.0))
    assert all(np.array_equal(without[key], free[key]) for key in free)


@pytest.mark.parametrize(
    "wrong",
    [
        {"actions": {"arm": np.zeros((2, 6, 3), np.float32)}, "weights": np.zeros((2, 6))},
        {"actions": {"arm": np.zeros((2, 6, 3)), "gripper": np.zeros((2, 6, 1))}, "weights": np.zeros((2, 7))},
        {"actions": {"arm": np.zeros((2, 6, 2)), "gripper": np.zeros((2, 6, 1))}, "weights": np.zeros((2, 6))},
        {"weights": np.zeros((2, 6))},
        "planned",
    ],
)
def test_actions_that_nothing_can_go_on_from_are_refused(policy: Gr00tPolicy, observe: Observe, wrong: Any) -> None:
    with pytest.raises(ObservationError, match="continued"):
        policy.get_action(observe(2), {"noise_seeds": [1, 2], "continued": wrong})


def test_larger_images_are_made_to_fit(policy: Gr00tPolicy, observe: Observe) -> None:
    observation = observe(1)
    observation["video"]["head"] = np.zeros((1, 1, 96, 128, 3), dtype=np.uint8)
    assert np.isfinite(policy.get_action(observation)[0]["arm"]).all()


def test_observations_with_flat_keys_are_answered_with_flat_keys(policy: Gr00tPolicy, observe: Observe) -> None:
    seen, options = observe(2), {"noise_seeds": [5, 6]}
    flat = {f"{modality}.{key}": values for modality in ("video", "state") for key, values in seen[modality].items()}
    flat |= {key: tuple(text for (text,) in texts) for key, texts in seen["language"].items()}
    wrapped = Gr00tSimPolicyWrapper(policy)
    expected, _ = policy.get_action(seen, options)
    for observation, prefix in ((flat, "action."), (seen, "")):
        wrapped.check_observation(observation)
        action, info = wrapped.get_action(observation, options)
        wrapped.check_action(action)
        assert info == {}
        assert list(action) == [f"{prefix}{key}" for key in expected]
        assert all(np.array_equal(action[f"{prefix}{key}"], values) for key, values in expected.items())
    assert wrapped.get_modality_config() == policy.get_modality_config()
    assert wrapped.reset() == {}
    # The rest of what an environment shows is left aside.
    assert list(wrapped.get_action({**flat, "video.rear": flat["video.head"], "q": [1]})[0]) == list(
        wrapped.get_action(flat)[0]
    )


@pytest.mark.parametrize("wrong", [bytes(1 << 23), [[bytes(1 << 23)]], {"a": [bytes(1 << 23)]}, [["x" * (1 << 23), 1]]])
def test_what_is_said_of_a_large_observation_is_not_made_from_all_of_it(
    policy: Gr00tPolicy, observe: Observe, wrong: Any
) -> None:
    seen = observe(1)
    seen["language"][_LANGUAGE] = wrong
    tracemalloc.start()
    with pytest.raises(ObservationError, match="should be a list of B lists of one str each"):
        policy.check_observation(seen)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda o: o.pop("video.wrist"), r"the observation lacks 'video.wrist'; it has annotation.human"),
        (lambda o: o.pop("annotation.human.task_description"), "lacks 'annotation.human.task_description'"),
        (
            lambda o: o.update({"annotation.human.task_description": "lift"}),
            "a list of one str per batch entry, and is a str",
        ),
        (lambda o: o.update({"state.arm": np.zeros((1, 1, 2), np.float32)}), r"state 'arm' is float32 of shape"),
    ],
)
def test_what_is_wrong_with_an_observation_with_flat_keys_is_named(
    policy: Gr00tPolicy, observe: Observe, change: Change, says: str
) -> None:
    seen = observe(1)
    flat: dict[str, Any] = {f"video.{key}": values for key, values in seen["video"].items()}
    flat |= {f"state.{key}": values for key, values in seen["state"].items()}
    flat["annotation.human.task_description"] = ["lift"]
    change(flat)
    with pytest.raises(ObservationError, match=says):
        Gr00tSimPolicyWrapper(policy).get_action(flat)


def test_of_several_names_for_the_instruction_the_first_is_heeded(policy: Gr00tPolicy, observe: Observe) -> None:
    """As with DROID's paraphrases: the others may be there, and need not."""
    known = policy.processor.embodiment("new_embodiment")
    configs = {**known.modality_configs, "language": ModalityConfig([0], [_LANGUAGE, f"{_LANGUAGE}_2"])}
    embodiment = Embodiment(embodiment_id=0, modality_configs=configs, statistics=known.statistics)
    assert embodiment.modality_configs["language"].modality_keys[0] == _LANGUAGE
    seen = observe(1)
    check_observation(seen, configs, embodiment.dimensions)
    seen["language"][f"{_LANGUAGE}_2"] = [["grasp"]]
    check_observation(seen, configs, embodiment.dimensions)
    del seen["language"][_LANGUAGE]
    with pytest.raises(ObservationError, match=f"language lacks '{_LANGUAGE}'"):
        check_observation(seen, configs, embodiment.dimensions)


_LANGUAGE = "annotation.human.task_description"
_WRONG: dict[str, tuple[Change, str]] = {
    "no dict": (lambda o: o.update(video=[]), r"observation\['video'\] should be a dict, and is list \[\]"),
    "no state": (lambda o: o.pop("state"), "lacks 'state'; it needs video, state, language"),
    "missing camera": (lambda o: o["video"].pop("wrist"), r"video lacks 'wrist'; .* and has \['head'\]"),
    "float image": (
        lambda o: o["video"].update(head=o["video"]["head"].astype(np.float32)),
        r"video 'head' is float32 of shape \(2, 1, 64, 64, 3\), and should be uint8 of shape \(B, 1, any, any, 3\)",
    ),
    "no video time": (lambda o: o["video"].update(head=o["video"]["head"][:, 0]), r"video 'head' is uint8 of shape"),
    "double state": (
        lambda o: o["state"].update(arm=o["state"]["arm"].astype(np.float64)),
        "state 'arm' is float64 of shape .* should be float32",
    ),
    "wide state": (lambda o: o["state"].update(arm=np.zeros((2, 1, 7), np.float32)), r"should be .* \(B, 1, 3\)"),
    "list state": (lambda o: o["state"].update(arm=[[0.0]]), r"state 'arm' is list \[\[0.0\]\]"),
    "nan state": (lambda o: o["state"]["arm"].fill(np.nan), "state 'arm' holds numbers that are not finite"),
    "missing state key": (lambda o: o["state"].pop("gripper"), "state lacks 'gripper'"),
    "flat language": (
        lambda o: o["language"].update({_LANGUAGE: ["lift", "lift"]}),
        "should be a list of B lists of one str each, and is list",
    ),
    "fewer words": (lambda o: o["language"].update({_LANGUAGE: [["lift"]]}), r"differ in their batch size: .* 1$"),
    "fewer states": (lambda o: o["state"].update(arm=np.zeros((1, 1, 3), np.float32)), "state 'arm' 1, "),
}


@pytest.mark.parametrize(("change", "message"), _WRONG.values(), ids=_WRONG.keys())
def test_a_wrong_observation_is_refused_with_what_is_wrong(
    policy: Gr00tPolicy, observe: Observe, change: Change, message: str
) -> None:
    observation = observe(2)
    change(observation)
    with pytest.raises(ObservationError, match=message):
        policy.get_action(observation)


def test_an_entry_that_the_model_does_not_know_is_ignored_and_named_once_or_refused_where_asked(
    checkpoint: Path, observe: Observe, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"noise_seeds": [1, 2]}
    expected, _ = Gr00tPolicy("new_embodiment", checkpoint, device="cpu").get_action(observe(2), options)
    seen = observe(2)
    seen["state"]["base"] = np.zeros((2, 1, 7), np.float32)
    seen["video"]["side"] = seen["video"]["head"]
    policy = Gr00tPolicy("new_embodiment", checkpoint, device="cpu")
    for _ in range(2):
        action, _ = policy.get_action(seen, options)
        assert all(np.array_equal(action[key], values) for key, values in expected.items())
    assert [record.message for record in caplog.records if "does not know" in record.message] == [
        "the model does not know video.side, state.base of an observation, and ignores it"
    ]
    policy.refuse_unknown = True
    with pytest.raises(ObservationError, match=r"does not know video.side, state.base; it knows video.head, "):
        policy.get_action(seen, options)


def test_an_empty_batch_is_refused(policy: Gr00tPolicy, observe: Observe) -> None:
    with pytest.raises(ObservationError, match="batch is empty"):
        policy.get_action(observe(0))


def test_without_strict_a_double_state_is_taken(checkpoint: Path, observe: Observe) -> None:
    lenient = Gr00tPolicy("new_embodiment", checkpoint, device="cpu", strict=False)
    observation = observe(1)
    observation["state"] = {key: values.astype(np.float64) for key, values in observation["state"].items()}
    assert lenient.get_action(observation)[0]["arm"].dtype == np.float32


def test_actions_that_are_not_finite_are_refused(policy: Gr00tPolicy) -> None:
    action = {"arm": np.full((1, 6, 3), np.nan, np.float32), "gripper": np.zeros((1, 6, 1), np.float32)}
    with pytest.raises(ActionError, match="'arm' holds numbers that are not finite"):
        policy.check_action(action)


def test_weights_are_float32_on_the_cpu_unless_asked_otherwise(policy: Gr00tPolicy, checkpoint: Path) -> None:
    assert policy.model.dtype == torch.float32
    assert Gr00tPolicy("gr1", checkpoint, device="cpu", dtype=torch.bfloat16).model.dtype == torch.bfloat16


def test_a_tag_of_another_robot_is_refused(checkpoint: Path) -> None:
    with pytest.raises(EmbodimentError, match=r"knows no embodiment 'oxe_droid'; it knows: gr1, new_embodiment"):
        Gr00tPolicy("OXE_DROID", checkpoint, device="cpu")


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no model at .*nowhere"):
        Gr00tPolicy("gr1", tmp_path / "nowhere", device="cpu")


def test_a_directory_without_weights_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it has no \.safetensors file"):
        Gr00tPolicy("gr1", tmp_path, device="cpu")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_weights_are_refused(checkpoint: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(checkpoint, tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").rename(tmp_path / "pickled" / name)
    with pytest.raises(CheckpointError, match=rf"holds pickled weights \({name}\); convert them to safetensors"):
        Gr00tPolicy("gr1", tmp_path / "pickled", device="cpu")


def test_weights_of_another_model_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "other")
    config = tmp_path / "other" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "Gr00tN1d6"}))
    with pytest.raises(CheckpointError, match=r"holds a model of type 'Gr00tN1d6'.*NVIDIA's Isaac-GR00T"):
        Gr00tPolicy("gr1", tmp_path / "other", device="cpu")


def test_weights_that_do_not_fit_the_configuration_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "deeper")
    config = tmp_path / "deeper" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_layers": 3}))
    with pytest.raises(CheckpointError, match=r"do not fit its config\.json: missing_keys action_head\.blocks\.2"):
        Gr00tPolicy("gr1", tmp_path / "deeper", device="cpu")


def test_damaged_weights_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "torn")
    weights = tmp_path / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"the model in .* cannot be loaded"):
        Gr00tPolicy("gr1", tmp_path / "torn", device="cpu")


@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_compiling_changes_only_the_last_digits(checkpoint: Path, observe: Observe, device: str) -> None:
    plain, compiled = (Gr00tPolicy("NEW_EMBODIMENT", checkpoint, device=device, dtype=torch.float32) for _ in range(2))
    compiled.compile()
    options = {"noise_seeds": [1, 2, 3]}
    for seed in range(3):
        observation = observe(3, seed=seed)
        expected, answer = (policy.get_action(observation, options)[0] for policy in (plain, compiled))
        for key, values in expected.items():
            np.testing.assert_allclose(answer[key], values, atol=1e-4)
