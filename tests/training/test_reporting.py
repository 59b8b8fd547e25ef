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


def measures(num_episodes: int, **more: float) -> dict[str, float]:
    known = {"Loss/learning_rate": 1e-3, "Policy/mean_std": 0.6, "Perf/total_fps": 2000.0}
    known |= {"Train/num_episodes": num_episodes}
    if num_episodes:
        known |= {"Train/mean_reward": 12.5, "Train/mean_episode_length": 80.0}
    return {**known, **{f"Train/{name}": value for name, value in more.items()}}


def test_an_iteration_is_told_in_a_line_and_what_is_not_known_is_not():
    told = line_of_iteration(measures(4, success_rate=0.75), iterations=3, total=10, left_s=3723.4)
    assert told == (
        "iteration 3/10: reward 12.50, length 80, success 75%, std 0.60, lr 1.0e-03, 2,000 steps/s, 1:02:03 left"
    )
    assert line_of_iteration(measures(0), iterations=1, total=10, left_s=61.0) == (
        "iteration 1/10: std 0.60, lr 1.0e-03, 2,000 steps/s, 0:01:01 left"
    )
    assert "success" not in line_of_iteration(measures(4), iterations=1, total=10, left_s=0.0)


def test_an_evaluation_says_where_success_is_not_measured():
    jobs = {
        "push": EvaluatedJob(episodes=20, success_rate=0.95, mean_return=3.0, mean_length=10.0),
        "swing": EvaluatedJob(episodes=20, success_rate=None, mean_return=-5.0, mean_length=10.0),
        "none": EvaluatedJob(episodes=0, success_rate=None, mean_return=None, mean_length=None),
    }
    measured, told = told_of_evaluation(jobs, iterations=100, evaluation_s=2.0)
    assert told == (
        "iteration 100, evaluated: push: success 95.0% of 20 episodes; swing: success not measured; none: success not "
        "measured"
    )
    assert measured == {
        "Perf/evaluation_time": 2.0,
        "Eval/push/success_rate": 0.95,
        "Eval/push/mean_return": 3.0,
        "Eval/swing/mean_return": -5.0,
    }


class Wandb:
    """What rsl_rl's writer asks of W&B's package, written down."""

    def __init__(self) -> None:
        self.begun: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {}
        self.logged: list[tuple[dict[str, float], int]] = []
        self.finished = 0
        self.config = self

    def init(self, **options: Any) -> None:
        self.begun.append(options)

    def update(self, settings: dict[str, Any]) -> None:
        self.settings |= settings

    def log(self, values: dict[str, float], *, step: int) -> None:
        self.logged.append((values, step))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    """W&B's package, as if it were installed."""
    fake = Wandb()
    monkeypatch.setattr(wandb_log_writer, "wandb", fake)
    return fake


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
    config = small_config(word)
    writer = log_writer(config)(tmp_path, after_step=0)
    with closing(Progress(tmp_path, is_writer=True, writer=writer)) as progress:
        progress.write(1, {"Loss/value": 0.5})
    (begun,) = wandb.begun
    assert (begun["project"], begun["name"]) == (project, tmp_path.name)
    assert wandb.settings["train_cfg"]["agent"]["seed"] == 42
    assert wandb.settings["env_cfg"]["environment"] == "cartpole"
    assert wandb.logged == [({"Loss/value": 0.5}, 1)]
    assert wandb.finished == 1
    assert list(tmp_path.glob("events.out.tfevents.*"))


@pytest.mark.parametrize(("name", "module"), [("wandb", wandb_log_writer), ("neptune", neptune_log_writer)])
def test_a_log_writer_whose_package_is_not_there_is_refused_before_anything_is_built(name, module, monkeypatch):
    monkeypatch.setattr(module, name, None)
    with pytest.raises(ConfigError, match=f"agent.logger: .*package {name}"):
        log_writer(small_config(f"agent.logger={name}"))


def test_options_that_a_log_writer_does_not_have_are_refused_before_anything_is_built(wandb: Wandb):
    with pytest.raises(ConfigError, match=r"agent\.logger: .* 'projekt'"):
        log_writer(small_config("agent.logger={class_name: wandb, projekt: legs}"))
    assert not wandb.begun


class Own:
    """A writer of a user's own, with no more than rsl_rl asks for."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir, self.scalars = log_dir, []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.append((tag, scalar_value, global_step))


def test_a_writer_of_a_users_own_gets_the_measures(tmp_path):
    config = small_config("agent.logger=tests.training.test_reporting:Own")
    writer: Any = log_writer(config)(tmp_path, after_step=0)
    with closing(Progress(tmp_path, is_writer=True, writer=writer)) as progress:
        progress.write(3, {"Loss/value": 0.5})
    assert writer.scalars == [("Loss/value", 0.5, 3)]
