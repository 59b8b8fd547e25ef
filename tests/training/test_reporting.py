"""What a training reports."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rsl_rl.utils import neptune_log_writer, wandb_log_writer

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.training_loop import EvaluatedJob, Progress
from isaaclab_arena.training.training_run import line_of_iteration, log_writer, told_of_evaluation
from tests.training.learning import small_config


def test_an_iteration_is_told_in_a_line_and_what_is_not_known_is_not():
    known = {"Loss/learning_rate": 1e-3, "Policy/mean_std": 0.6, "Perf/total_fps": 2000.0, "Train/num_episodes": 0}
    rest = "std 0.60, lr 1.0e-03, 2,000 steps/s"
    told = line_of_iteration(known, iterations=1, total=10, left_s=61.0)
    assert told == f"iteration 1/10: {rest}, 0:01:01 left"
    known |= {"Train/num_episodes": 4, "Train/mean_reward": 12.5, "Train/mean_episode_length": 80.0}
    assert "success" not in line_of_iteration(known, iterations=1, total=10, left_s=0.0)
    told = line_of_iteration({**known, "Train/success_rate": 0.75}, iterations=3, total=10, left_s=3723.4)
    assert told == f"iteration 3/10: reward 12.50, length 80, success 75%, {rest}, 1:02:03 left"


def test_an_evaluation_says_where_success_is_not_measured():
    jobs = {
        "push": EvaluatedJob(episodes=20, success_rate=0.95, mean_return=3.0, mean_length=10.0),
        "swing": EvaluatedJob(episodes=20, success_rate=None, mean_return=-5.0, mean_length=10.0),
        "none": EvaluatedJob(episodes=0, success_rate=None, mean_return=None, mean_length=None),
    }
    measured, told = told_of_evaluation(jobs, iterations=100, evaluation_s=2.0)
    words = ("iteration 100", "push: success 95.0% of 20", "swing: success not measured", "none: success not measured")
    assert all(each in told for each in words)
    assert measured == {
        "Perf/evaluation_time": 2.0,
        "Eval/push/success_rate": 0.95,
        "Eval/push/mean_return": 3.0,
        "Eval/swing/mean_return": -5.0,
    }


class Wandb(list[tuple[str, tuple[Any, ...], dict[str, Any]]]):
    """What rsl_rl's writer asks of W&B's package, written down."""

    def __getattr__(self, name: str) -> Any:
        return self if name == "config" else lambda *given, **named: self.append((name, given, named))


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    """W&B's package, as if it were installed."""
    fake = Wandb()
    monkeypatch.setattr(wandb_log_writer, "wandb", fake)
    return fake


def written(directory: Path, word: str) -> Any:
    """Write a measure as settings say, and return the writer that they chose."""
    writer: Any = log_writer(small_config(word))(directory, after_step=0)
    with closing(Progress(directory, is_writer=True, writer=writer)) as progress:
        progress.write(3, {"Loss/value": 0.5})
    return writer


@pytest.mark.parametrize(
    ("word", "project"),
    [
        ("agent.logger=wandb", "cartpole"),
        ("agent.logger={class_name: wandb, project_name: legs}", "legs"),
        ("agent.logger={class_name: WandbLogWriter, project_name: legs}", "legs"),
    ],
)
def test_measures_and_settings_go_to_wandb_and_its_run_is_finished(
    wandb: Wandb, word: str, project: str, tmp_path: Path
):
    written(tmp_path, word)
    (_, _, begun), *updates = [each for each in wandb if each[0] in {"init", "update"}]
    assert (begun["project"], begun["name"]) == (project, tmp_path.name)
    settings = {name: value for _, (given,), _ in updates for name, value in given.items()}
    assert settings["train_cfg"]["agent"]["seed"] == 42
    assert settings["env_cfg"]["environment"] == "cartpole"
    assert wandb[-2:] == [("log", ({"Loss/value": 0.5},), {"step": 3}), ("finish", (), {})]
    assert list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("wandb", "agent.logger: .*package wandb"),
        ("neptune", "agent.logger: .*package neptune"),
        ("{class_name: tests.training.test_reporting:Own, projekt: legs}", "agent.logger: .* 'projekt'"),
    ],
)
def test_a_log_writer_that_cannot_be_made_is_refused_before_anything_is_built(word, told, monkeypatch):
    for name, module in (("wandb", wandb_log_writer), ("neptune", neptune_log_writer)):
        monkeypatch.setattr(module, name, None)
    with pytest.raises(ConfigError, match=told):
        log_writer(small_config(f"agent.logger={word}"))


class Own:
    """A writer of a user's own, with no more than rsl_rl asks for."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir, self.scalars = log_dir, []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.append((tag, scalar_value, global_step))


def test_a_writer_of_a_users_own_gets_the_measures(tmp_path):
    assert written(tmp_path, "agent.logger=tests.training.test_reporting:Own").scalars == [("Loss/value", 0.5, 3)]
