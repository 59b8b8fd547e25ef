import pytest

from isaaclab_arena.tracking.watched_run import checkpoint_step


@pytest.mark.parametrize(
    ("key", "value", "step"),
    [
        ("policy_config_dict.checkpoint_path", "runs/2026-01-01/model_2000.pt", 2000),
        ("policy_config_dict.checkpoint_path", "outputs/train/checkpoints/002000/pretrained_model", 2000),
        ("policy_config_dict.model_path", "finetuned/checkpoint-500", 500),
        ("policy_config_dict.checkpoint_step", 30, 30),
        ("checkpoint_step", 30, 30),
        ("policy_config_dict.agent.Checkpoint", "step-7/model.pt", 7),
    ],
)
def test_a_swept_checkpoint_says_after_how_many_steps_it_was_saved(key, value, step):
    assert checkpoint_step({"seed": 3, key: value}) == (key, step)


@pytest.mark.parametrize(
    "swept",
    [
        {},
        {"seed": 3},
        {"policy_config_dict.checkpoint_path": "models/best"},
        {"policy_config_dict.checkpoint_path": True},
        {"policy_config_dict.speed": 2},
        {"arena_env_args.checkpoint": 4},
    ],
)
def test_what_is_no_checkpoint_has_no_step(swept):
    assert checkpoint_step(swept) is None
