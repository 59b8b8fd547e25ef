import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import look_at
from isaaclab_arena.evaluation.learning_curve import Evaluated, scores_of
from isaaclab_arena.evaluation.watch import content_of, promote
from isaaclab_arena.models.rsl_rl_checkpoint import checkpoint_file, find_agent_file
from tests.checkpoints.written import lerobot, write
from tests.evaluation.watching.points import point
from tests.evaluation.watching.trainings import ARCHIVE, save

AGENT = "actor: {class_name: MLPModel}\n"


@dataclass(frozen=True)
class Promotion:
    """Promotes checkpoints of a training into a directory."""

    training: Path
    directory: Path

    def record(self, step: int, path: Path | None = None) -> Evaluated:
        path = path or self.training / f"model_{step}.pt"
        return Evaluated(step=step, path=str(path), fingerprint="", content=content_of(path), is_done=True)

    def act(self, step: int, successes: int, record: Evaluated | None = None) -> Path | None:
        score = scores_of([point(step, successes)])[step]
        watch = self.training.parent / "watch"
        return promote(self.directory, score, record or self.record(step), watch, ["reach"])

    def told(self) -> dict[str, object]:
        return json.loads((self.directory / "promoted.json").read_text())

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


@pytest.fixture
def promotion(tmp_path) -> Promotion:
    """Promotions of a training that saved three checkpoints and its settings."""
    save(tmp_path / "training", 50, 100, 150)
    (tmp_path / "training" / "params").mkdir()
    (tmp_path / "training" / "params" / "agent.yaml").write_text(AGENT)
    return Promotion(training=tmp_path / "training", directory=tmp_path / "good")


def test_a_promoted_checkpoint_is_copied_with_what_it_takes_to_load_it(promotion):
    target = promotion.act(50, 95)
    assert target == promotion.directory / "step_50" / "model_50.pt"
    assert target.read_bytes() == ARCHIVE
    agent = find_agent_file(target)
    assert agent is not None
    assert (agent.parent.parent, agent.read_text()) == (target.parent, AGENT)
    assert checkpoint_file(str(target.parent), None) == target, "its directory is one of a training"
    told = promotion.told()
    assert (told["step"], told["name"], told["success_rate"]) == (50, "step_50/model_50.pt", 0.95)
    assert (told["episodes"], told["distinct_conditions"]) == (100, 100)


def test_only_a_better_one_takes_its_place(promotion, caplog):
    promotion.act(50, 95)
    assert promotion.act(100, 95) is None
    assert promotion.act(50, 99) is None
    assert promotion.act(150, 96) == promotion.directory / "step_150" / "model_150.pt"
    told = promotion.told()
    assert (told["step"], told["compared_with"], told["verdict"]) == (150, 50, None)
    assert "steps 50 and 150 cannot be compared" in caplog.text
    assert promotion.names() == ["promoted.json", "step_150", "step_50"]


def other_weights(training: Path) -> None:
    save(training, 50, content=ARCHIVE[:-1] + b"?")


def other_settings(training: Path) -> None:
    (training / "params" / "agent.yaml").write_text("actor: {class_name: RNNModel}\n")


def no_settings(training: Path) -> None:
    shutil.rmtree(training / "params")


def no_file(training: Path) -> None:
    (training / "model_50.pt").unlink()


@pytest.mark.parametrize("changed", [other_weights, other_settings, no_settings, no_file])
def test_what_is_not_what_was_evaluated_is_not_promoted(promotion, caplog, changed):
    evaluated = promotion.record(50)
    changed(promotion.training)
    assert promotion.act(50, 95, evaluated) is None
    assert "step 50 is not promoted" in caplog.text
    assert "model_50.pt is not what was evaluated any more" in caplog.text
    assert not promotion.directory.exists() or promotion.names() == []


def test_of_a_watch_of_an_earlier_version_the_look_of_the_files_decides(promotion):
    path = promotion.training / "model_50.pt"
    evaluated = Evaluated(step=50, path=str(path), fingerprint=look_at(path).fingerprint, is_done=True)
    assert promotion.act(50, 95, evaluated) is not None
    other_weights(promotion.training)
    assert promotion.act(50, 99, evaluated) is None


def test_what_an_earlier_copy_has_left_is_replaced(promotion):
    (promotion.directory / "step_50").mkdir(parents=True)
    (promotion.directory / "step_50" / "model_49.pt").touch()
    target = promotion.act(50, 95)
    assert target is not None
    assert sorted(path.name for path in target.parent.iterdir()) == ["model_50.pt", "params"]


def test_a_directory_is_promoted_whole(promotion, tmp_path):
    write(tmp_path, lerobot(0))
    source = tmp_path / "checkpoints" / "000100" / "pretrained_model"
    target = promotion.act(100, 99, promotion.record(100, source))
    assert target == promotion.directory / "step_100"
    assert sorted(path.name for path in target.iterdir()) == sorted(path.name for path in source.iterdir())
    assert promotion.told()["name"] == "step_100"


def test_the_tensors_beside_an_exported_network_come_along(promotion):
    (promotion.training / "policy_50.onnx").write_bytes(b"graph")
    (promotion.training / "policy_50.onnx.data").write_bytes(b"tensors")
    target = promotion.act(50, 95, promotion.record(50, promotion.training / "policy_50.onnx"))
    assert target is not None
    assert target.with_name("policy_50.onnx.data").read_bytes() == b"tensors"
