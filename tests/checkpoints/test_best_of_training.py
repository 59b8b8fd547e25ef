import json
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import best_of_training
from tests.checkpoints.written import rsl_rl, trainer, write

ARCHIVE, OTHER = (rsl_rl(seed)["model_100.pt"] for seed in (0, 1))


def step_of_best(directory: Path, score: str | None, **numbered: bytes) -> int | None:
    write(directory, {"model_best.pt": ARCHIVE, **{f"{name}.pt": content for name, content in numbered.items()}})
    if score is not None:
        (directory / "model_best.json").write_text(score)
    best = best_of_training(directory)
    assert best is not None
    assert best[0] == directory / "model_best.pt"
    return best[1]


@pytest.mark.parametrize("numbered", [{}, {"model_50": ARCHIVE}], ids=["removed since", "still there"])
def test_the_step_stands_beside_the_copy_of_the_best(tmp_path, numbered):
    assert step_of_best(tmp_path, '{"iterations": 50, "success_rate": 0.9}', **numbered) == 50


@pytest.mark.parametrize("score", [None, "", "[50]", '{"iterations": "50"}', '{"iterations": true}', "{}"])
def test_a_step_that_nobody_says_is_not_made_up(tmp_path, score):
    assert step_of_best(tmp_path, score, model_50=ARCHIVE) is None


def test_a_score_of_another_checkpoint_says_no_step(tmp_path):
    assert step_of_best(tmp_path, '{"iterations": 50}', model_50=OTHER) is None


@pytest.mark.parametrize("named", ["/elsewhere/out/checkpoint-100", "out\\checkpoint-100", "checkpoint-100/"])
def test_transformers_names_the_best_in_the_state_of_its_newest(tmp_path, named):
    write(tmp_path, trainer(0))
    (tmp_path / "checkpoint-200").mkdir()
    (tmp_path / "checkpoint-200" / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": named}))
    assert best_of_training(tmp_path) == (tmp_path / "checkpoint-100", 100)


@pytest.mark.parametrize(
    "state", ["{}", '{"best_model_checkpoint": null}', '{"best_model_checkpoint": "../model"}', "{"]
)
def test_a_training_that_names_none_has_none(tmp_path, state):
    write(tmp_path, trainer(0))
    (tmp_path / "checkpoint-100" / "trainer_state.json").write_text(state)
    assert best_of_training(tmp_path) is None
    assert best_of_training(tmp_path / "nowhere") is None
