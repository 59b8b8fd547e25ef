from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gr00t import EmbodimentError
from gr00t.data.types import ModalityConfig, compute_statistics
from gr00t.model import Gr00tSmall, Gr00tSmallProcessor
from gr00t.model.building import add_embodiment, build_small_model
from transformers import AutoModel, AutoProcessor

Observe = Callable[..., dict[str, Any]]
Built = tuple[Gr00tSmall, Gr00tSmallProcessor]

_LARGEST_CHECKPOINT_BYTES = 8_000_000


def _demonstration(batch_size: int, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        key: rng.uniform(-2, 3, (batch_size, 6, size)).astype(np.float32) for key, size in (("arm", 3), ("gripper", 1))
    }


def test_a_checkpoint_gives_the_same_actions_as_the_model_that_was_saved(
    built: Built, checkpoint: Path, observe: Observe
) -> None:
    model, processor = built
    noise = torch.randn(3, 6, 4)
    loaded = AutoModel.from_pretrained(checkpoint, use_safetensors=True).eval()
    inputs = AutoProcessor.from_pretrained(checkpoint)(observe(3), "new_embodiment")
    expected = model.get_action(processor(observe(3), "new_embodiment"), noise=noise)
    assert torch.equal(loaded.get_action(inputs, noise=noise), expected)


def test_a_processor_comes_back_with_everything_it_knew(built: Built, checkpoint: Path) -> None:
    loaded = AutoProcessor.from_pretrained(checkpoint)
    assert loaded.embodiments == built[1].embodiments
    assert loaded.get_modality_configs() == built[1].get_modality_configs()
    assert loaded.capacity == built[1].capacity


def test_the_default_model_fits_into_eight_megabytes(tmp_path: Path, built: Built) -> None:
    robots = {
        tag: (configs, built[1].embodiments[tag]["statistics"])
        for tag, configs in built[1].get_modality_configs().items()
    }
    model, processor = build_small_model(robots)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.rglob("*")) < _LARGEST_CHECKPOINT_BYTES


def test_building_a_model_twice_gives_the_same_weights_and_leaves_the_global_generator_alone(built: Built) -> None:
    configs, statistics = built[1].get_modality_configs()["gr1"], built[1].embodiments["gr1"]["statistics"]
    before = torch.get_rng_state()
    first, second = (build_small_model({"gr1": (configs, statistics)}, seed=7)[0].state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_bfloat16_gives_nearly_the_same_actions(checkpoint: Path, built: Built, observe: Observe) -> None:
    model, processor = built
    inputs, noise = processor(observe(2), "new_embodiment"), torch.randn(2, 6, 4)
    half = AutoModel.from_pretrained(checkpoint).eval().to("cpu", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    actions = half.get_action(inputs, noise=noise)
    assert actions.dtype == torch.float32
    torch.testing.assert_close(actions, model.get_action(inputs, noise=noise), rtol=0.05, atol=0.1)


def test_a_batch_entrys_actions_do_not_depend_on_the_other_entries(built: Built, observe: Observe) -> None:
    model, processor = built
    noise = torch.randn(4, 6, 4)
    one, other = observe(4, seed=0), observe(4, seed=1, instruction="a much longer instruction about two green boxes")
    for modality in ("video", "state"):
        for key in one[modality]:
            other[modality][key][2] = one[modality][key][2]
    for key in one["language"]:
        other["language"][key] = [*other["language"][key][:2], one["language"][key][2], ["x" * 500]]
    first = model.get_action(processor(one, "new_embodiment"), noise=noise)
    changed = torch.cat([torch.randn(2, 6, 4), noise[2:3], torch.randn(1, 6, 4)])
    second = model.get_action(processor(other, "new_embodiment"), noise=changed)
    assert torch.equal(first[2], second[2])
    assert not torch.equal(first[1], second[1])


def test_a_batch_entrys_actions_do_not_depend_on_whether_every_instruction_fills_its_tokens(
    built: Built, observe: Observe
) -> None:
    model, processor = built
    noise = torch.randn(2, 6, 4)
    all_full = observe(2, instruction="x" * 500)
    one_short = observe(2, instruction="x" * 500)
    for texts in one_short["language"].values():
        texts[1] = ["lift"]
    first, second = (model.get_action(processor(each, "new_embodiment"), noise=noise) for each in (all_full, one_short))
    assert torch.equal(first[0], second[0])


def test_actions_are_close_whatever_the_size_of_the_batch(built: Built, observe: Observe) -> None:
    model, processor = built
    inputs, noise = processor(observe(5), "new_embodiment"), torch.randn(5, 6, 4)
    together = model.get_action(inputs, noise=noise)
    for entry in range(5):
        alone = {name: tensor[entry : entry + 1] for name, tensor in inputs.items()}
        torch.testing.assert_close(model.get_action(alone, noise=noise[entry : entry + 1])[0], together[entry])


def test_every_part_of_an_observation_has_an_influence(built: Built, observe: Observe) -> None:
    model, processor = built
    noise = torch.randn(1, 6, 4)

    def act(change: Callable[[dict[str, Any]], None]) -> torch.Tensor:
        observation = observe(1)
        change(observation)
        return model.get_action(processor(observation, "new_embodiment"), noise=noise)

    plain = act(lambda _: None)
    assert torch.equal(plain, act(lambda _: None))
    assert not torch.equal(plain, act(lambda o: o["video"].update(head=255 - o["video"]["head"])))
    assert not torch.equal(plain, act(lambda o: o["video"].update(wrist=255 - o["video"]["wrist"])))
    assert not torch.equal(plain, act(lambda o: o["state"].update(gripper=o["state"]["gripper"] + 1)))
    assert not torch.equal(plain, act(lambda o: o["language"].update({key: [["lift"]] for key in o["language"]})))


def test_embodiments_have_projectors_of_their_own(built: Built, observe: Observe) -> None:
    model, processor = built
    inputs, noise = processor(observe(1), "new_embodiment"), torch.randn(1, 6, 4)
    other = {**inputs, "embodiment_id": 1 - inputs["embodiment_id"]}
    assert not torch.equal(model.get_action(inputs, noise=noise), model.get_action(other, noise=noise))


def test_robots_share_a_batch_and_get_what_they_get_alone(built: Built, observe: Observe) -> None:
    model, processor = built
    small = observe(1)
    small = {**small, "video": {"head": small["video"]["head"]}, "state": {"arm": small["state"]["arm"][..., :2]}}
    parts = [processor(observe(1), "new_embodiment"), processor(small, "gr1")]
    noise = torch.randn(2, 6, 4)
    mixed = model.get_action({name: torch.cat([part[name] for part in parts]) for name in parts[0]}, noise=noise)
    for entry, part in enumerate(parts):
        torch.testing.assert_close(mixed[entry], model.get_action(part, noise=noise[entry : entry + 1])[0])


def test_every_weight_learns_from_every_batch(built: Built, observe: Observe) -> None:
    model, processor = built
    inputs = processor(observe(2), "new_embodiment", action=_demonstration(2))
    model.zero_grad()
    model(inputs).loss.backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    model.zero_grad(set_to_none=True)


def test_steps_after_an_episodes_end_and_padded_dimensions_are_not_learned(built: Built, observe: Observe) -> None:
    _, processor = built
    is_padding = np.array([[False] * 4 + [True] * 2])
    inputs = processor(observe(1), "new_embodiment", action=_demonstration(1), action_is_padding=is_padding)
    assert inputs["action_mask"][0].all(dim=-1).tolist() == [True] * 4 + [False] * 2
    small = observe(1)
    small = {**small, "video": {"head": small["video"]["head"]}, "state": {"arm": small["state"]["arm"][..., :2]}}
    inputs = processor(small, "gr1", action={"arm": _demonstration(1)["arm"][..., :2]})
    assert inputs["action_mask"][0].any(dim=0).tolist() == [True, True, False, False]
    assert inputs["view_mask"].tolist() == [[True, False]]


def test_the_loss_of_a_batch_is_a_function_of_its_generator(built: Built, observe: Observe) -> None:
    model, processor = built
    inputs = processor(observe(2), "new_embodiment", action=_demonstration(2))
    first, again, other = (
        model(inputs, noise_draws=2, generator=torch.Generator().manual_seed(seed)).loss.item() for seed in (1, 1, 2)
    )
    assert first == again != other


def test_training_runs_in_mixed_precision(built: Built, observe: Observe) -> None:
    model, processor = built
    inputs = processor(observe(2), "new_embodiment", action=_demonstration(2))
    losses = []
    for mixed in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            losses.append(model(inputs, generator=torch.Generator().manual_seed(0)).loss)
    losses[1].backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=0.02)
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
    model.zero_grad(set_to_none=True)


def test_images_are_augmented_for_training_only(built: Built, observe: Observe) -> None:
    _, processor = built
    plain = processor(observe(4), "new_embodiment")["pixel_values"]
    try:
        shifted = processor.train()(observe(4), "new_embodiment")["pixel_values"]
    finally:
        processor.eval()
    assert not torch.equal(plain, shifted)
    assert torch.equal(plain, processor(observe(4), "new_embodiment")["pixel_values"])


@pytest.mark.parametrize("instruction", ["", "Übergreife das 🟥 Klötzchen", "x" * 5000])
def test_any_instruction_can_be_given(built: Built, observe: Observe, instruction: str) -> None:
    model, processor = built
    inputs = processor(observe(1, instruction=instruction), "new_embodiment")
    assert inputs["attention_mask"].any()
    assert torch.isfinite(model.get_action(inputs)).all()


def test_the_case_of_an_instruction_does_not_matter_and_its_words_do(built: Built, observe: Observe) -> None:
    _, processor = built
    lower, upper, other = (
        processor(observe(1, instruction=text), "new_embodiment")["input_ids"]
        for text in ("lift the red cube", "Lift the RED cube", "lift the blue cube")
    )
    assert torch.equal(lower, upper)
    assert not torch.equal(lower, other)


# A training of seconds; `tests/gr00t/training/test_trainer.py` has a shorter one.
@pytest.mark.slow
def test_the_model_learns_where_the_named_thing_is() -> None:
    """Two dots of different colours; the instruction names one, and the action is its place."""
    rng = np.random.default_rng(0)
    count, colours = 256, {"red": (230, 30, 30), "blue": (30, 60, 230)}
    images = np.full((count, 1, 32, 32, 3), 100, dtype=np.uint8)
    places = {colour: rng.integers(2, 30, (count, 2)) for colour in colours}
    for colour, value in colours.items():
        for entry, (x, y) in enumerate(places[colour]):
            images[entry, 0, y - 1 : y + 2, x - 1 : x + 2] = value
    named = rng.choice(list(colours), count)
    targets = np.stack([places[colour][entry] for entry, colour in enumerate(named)]).astype(np.float32) / 16.0 - 1.0
    configs = {
        "video": ModalityConfig([0], ["head"]),
        "state": ModalityConfig([0], ["still"]),
        "action": ModalityConfig([0, 1], ["place"]),
        "language": ModalityConfig([0], ["task"]),
    }
    statistics = {
        "state": {"still": compute_statistics(np.zeros((2, 1)))},
        "action": {"place": compute_statistics(targets)},
    }
    sizes = {"num_layers": 2, "hidden_size": 64, "num_keypoints": 8, "num_patches": 2}
    model, processor = build_small_model({"new_embodiment": (configs, statistics)}, image_size=32, sizes=sizes)
    observation = {
        "video": {"head": images},
        "state": {"still": np.zeros((count, 1, 1), dtype=np.float32)},
        "language": {"task": [[f"pick up the {colour} cube"] for colour in named]},
    }
    inputs = processor(observation, "new_embodiment", action={"place": np.repeat(targets[:, None], 2, axis=1)})
    losses = _train(model, inputs, num_steps=100)
    assert np.mean(losses[-10:]) < 0.3 * losses[0]
    actions = processor.decode_action(model.eval().get_action(inputs, noise=torch.randn(count, 2, 2)), "new_embodiment")
    # Two random places are 14 px apart on average, and the other dot is as far.
    assert np.median(np.linalg.norm(actions["place"][:, -1] - targets, axis=-1)) * 16 < 5.0


def _train(model: Gr00tSmall, inputs: Any, *, num_steps: int) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(num_steps):
        drawn = torch.randint(len(inputs["state"]), (32,), generator=generator)
        loss = model({name: tensor[drawn] for name, tensor in inputs.items()}, generator=generator).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _droid(num_steps: int = 6) -> tuple[dict[str, ModalityConfig], dict[str, dict[str, Any]]]:
    """A robot with one camera, and more numbers in its states and actions than the others have."""
    rng = np.random.default_rng(3)
    configs = {
        "video": ModalityConfig(delta_indices=[0], modality_keys=["wrist"]),
        "state": ModalityConfig(delta_indices=[0], modality_keys=["arm"]),
        "action": ModalityConfig(delta_indices=list(range(num_steps)), modality_keys=["arm"]),
        "language": ModalityConfig(delta_indices=[0], modality_keys=["annotation.human.task_description"]),
    }
    statistics = {modality: {"arm": compute_statistics(rng.normal(size=(20, 9)))} for modality in ("state", "action")}
    return configs, statistics


def test_a_robot_that_is_added_changes_nothing_for_the_others(built: Built, observe: Observe) -> None:
    model, processor = built
    larger, wider = add_embodiment(model, processor, "oxe_droid", *_droid())
    assert set(wider.embodiments) == {*processor.embodiments, "oxe_droid"}
    noise = torch.randn(3, 6, larger.config.max_action_dim)
    before = model.get_action(processor(observe(3), "new_embodiment"), noise=noise[..., : model.config.max_action_dim])
    after = larger.eval().get_action(wider(observe(3), "new_embodiment"), noise=noise)
    torch.testing.assert_close(after[..., : before.shape[-1]], before)


@pytest.mark.parametrize("num_steps", [6, 4])
def test_a_robot_that_is_added_acts_and_learns(built: Built, num_steps: int) -> None:
    larger, wider = add_embodiment(*built, "oxe_droid", *_droid(num_steps))
    seen = {
        "video": {"wrist": np.zeros((2, 1, 8, 8, 3), np.uint8)},
        "state": {"arm": np.zeros((2, 1, 9), np.float32)},
        "language": {"annotation.human.task_description": [["lift"], ["lower"]]},
    }
    action = {"arm": np.zeros((2, num_steps, 9), np.float32)}
    loss = larger(wider(seen, "oxe_droid", action=action)).loss
    loss.backward()
    assert all(torch.isfinite(each.grad).all() for each in larger.parameters() if each.grad is not None)
    assert wider.decode_action(larger.get_action(wider(seen, "oxe_droid")), "oxe_droid")["arm"].shape == (
        2,
        num_steps,
        9,
    )


def test_a_robot_that_is_known_keeps_its_projectors_and_statistics(built: Built) -> None:
    model, processor = built
    known = processor.embodiment("gr1")
    assert add_embodiment(model, processor, "GR1", known.modality_configs, known.statistics) == built


def test_another_robot_under_a_known_tag_is_refused(built: Built) -> None:
    with pytest.raises(EmbodimentError, match=r"the model knows 'gr1' with .* choose another tag"):
        add_embodiment(*built, "gr1", *_droid())
    with pytest.raises(EmbodimentError, match="predicts at most 6 action steps, and 8 are wanted"):
        add_embodiment(*built, "oxe_droid", *_droid(num_steps=8))
