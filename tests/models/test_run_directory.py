import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.models.rsl_rl_checkpoint import checkpoint_file


@pytest.fixture
def directory(tmp_path):
    for name in ("model_9.pt", "model_100.pt", "model_20.pt", "model_best.pt", "model_x.pt", "events.out"):
        (tmp_path / name).touch()
    return tmp_path


def refusal(path, choice=None) -> str:
    with pytest.raises(ConfigError) as caught:
        checkpoint_file(str(path), choice)
    return str(caught.value)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(None, "model_best.pt"), ("best", "model_best.pt"), ("latest", "model_100.pt"), (20, "model_20.pt"),
     ("9", "model_9.pt")],
)  # fmt: skip
def test_a_directory_has_a_best_a_latest_and_numbers(directory, choice, expected):
    assert checkpoint_file(str(directory), choice) == directory / expected


def test_without_a_best_the_latest_by_number_is_taken(directory):
    (directory / "model_best.pt").unlink()
    assert checkpoint_file(str(directory), None) == directory / "model_100.pt"
    assert refusal(directory, "best") == (
        f"checkpoint: there is no model_best.pt in '{directory}'; its checkpoints are 9, 20, 100"
    )


def test_a_file_is_taken_as_it_is(directory):
    assert checkpoint_file(str(directory / "model_9.pt"), None) == directory / "model_9.pt"
    assert refusal(directory / "model_9.pt", "latest").startswith("checkpoint: ")


@pytest.mark.parametrize(
    ("choice", "message"),
    [(3, "checkpoint: there is no model_3.pt in"), ("newest", "checkpoint: must be best, latest or the number"),
     (-1, "must be best, latest"), (True, "must be best, latest")],
)  # fmt: skip
def test_a_choice_that_is_none_of_these_is_refused(directory, choice, message):
    assert message in refusal(directory, choice)


def test_a_directory_without_checkpoints_says_what_it_holds(tmp_path):
    assert refusal(tmp_path) == f"checkpoint_path: '{tmp_path}' holds no model_<iteration>.pt"
    assert "does not exist" in refusal(tmp_path / "nowhere")
    (tmp_path / "policy.onnx").touch()
    assert refusal(tmp_path).endswith("name a file of it: policy.onnx")
    for run in ("2026-01-01_10-00-00", "2026-01-02_10-00-00"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "model_0.pt").touch()
    assert refusal(tmp_path).endswith("2 trainings; name one of them, such as 2026-01-02_10-00-00")
