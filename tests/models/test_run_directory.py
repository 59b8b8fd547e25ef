import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.models.run_directory import checkpoint_file


@pytest.fixture
def folder(tmp_path):
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
def test_a_folder_has_a_best_a_latest_and_numbers(folder, choice, expected):
    assert checkpoint_file(str(folder), choice) == folder / expected


def test_without_a_best_the_latest_by_number_is_taken(folder):
    (folder / "model_best.pt").unlink()
    assert checkpoint_file(str(folder), None) == folder / "model_100.pt"
    assert refusal(folder, "best") == (
        f"checkpoint: there is no model_best.pt in '{folder}'; its checkpoints are 9, 20, 100"
    )


def test_a_file_is_taken_as_it_is(folder):
    assert checkpoint_file(str(folder / "model_9.pt"), None) == folder / "model_9.pt"
    assert refusal(folder / "model_9.pt", "latest").startswith("checkpoint: ")


@pytest.mark.parametrize(
    ("choice", "message"),
    [(3, "checkpoint: there is no model_3.pt in"), ("newest", "checkpoint: must be best, latest or the number"),
     (-1, "must be best, latest"), (True, "must be best, latest")],
)  # fmt: skip
def test_a_choice_that_is_none_of_these_is_refused(folder, choice, message):
    assert message in refusal(folder, choice)


def test_a_folder_without_checkpoints_says_what_it_holds(tmp_path):
    assert refusal(tmp_path) == f"checkpoint_path: '{tmp_path}' holds no model_<iteration>.pt"
    assert "does not exist" in refusal(tmp_path / "nowhere")
    (tmp_path / "policy.onnx").touch()
    assert refusal(tmp_path).endswith("name a file of it: policy.onnx")
    for run in ("2026-01-01_10-00-00", "2026-01-02_10-00-00"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "model_0.pt").touch()
    assert refusal(tmp_path).endswith("2 trainings; name one of them, such as 2026-01-02_10-00-00")
