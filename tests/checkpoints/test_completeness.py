import pytest

from isaaclab_arena.checkpoints import find_checkpoints, look_at
from tests.checkpoints.written import FAMILIES, PATHS, lerobot, rsl_rl, trainer, write


@pytest.mark.parametrize("files", FAMILIES.values(), ids=FAMILIES)
def test_a_checkpoint_that_is_whole_shows_that_its_writer_is_done(tmp_path, files):
    write(tmp_path, files(0))
    (checkpoint,) = find_checkpoints(tmp_path)
    look = look_at(checkpoint.path)
    assert (look.missing, look.is_finished) == (None, True)


@pytest.mark.parametrize(
    ("files", "without", "missing"),
    [
        (trainer, "model-00002-of-00002.safetensors", "names model-00002-of-00002.safetensors, which is not there"),
        (trainer, "trainer_state.json", None),
        (lerobot, "training_step.json", None),
        (lerobot, "model.safetensors", "it holds no weights"),
        (rsl_rl, "model_100.pt", "there is no such file"),
    ],
)
def test_a_checkpoint_without_one_of_its_files_is_not_finished(tmp_path, files, without, missing):
    write(tmp_path, {name: content for name, content in files(0).items() if not name.endswith(without)})
    look = look_at(tmp_path / PATHS[files])
    assert not look.is_finished
    assert (look.missing is None) == (missing is None)
    assert missing is None or missing in str(look.missing)


def test_files_of_a_format_without_an_end_are_never_called_finished(tmp_path):
    path = tmp_path / "policy_100.onnx"
    path.write_bytes(b"graph")
    assert (look_at(path).missing, look_at(path).is_finished) == (None, False)
    path.write_bytes(b"")
    assert look_at(path).missing == "it is empty"


def test_every_change_of_a_file_changes_the_fingerprint(tmp_path):
    write(tmp_path, trainer(0))
    path = tmp_path / "checkpoint-100"
    before = look_at(path).fingerprint
    assert look_at(path).fingerprint == before
    write(tmp_path, trainer(1))
    assert look_at(path).fingerprint != before
