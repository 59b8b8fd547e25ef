import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rsl_rl.utils import neptune_log_writer, wandb_log_writer

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.training.training_loop import Progress
from isaaclab_arena.training.training_run import log_writer
from tests.training.learning import small_config


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
    with pytest.raises(
        ConfigError, match=f"agent.logger: '{name}' cannot be used: the package {name} is not installed"
    ):
        log_writer(small_config(f"agent.logger={name}"))


def test_options_that_a_log_writer_does_not_have_are_refused_before_anything_is_built(wandb: Wandb):
    with pytest.raises(ConfigError, match=r"agent\.logger: .* unexpected keyword argument 'projekt'"):
        log_writer(small_config("agent.logger={class_name: wandb, projekt: legs}"))
    assert not wandb.begun


class Own:
    """A writer of a user's own, with no more than rsl_rl asks for."""

    def __init__(self, log_dir: str) -> None:
        logging.getLogger(__name__).debug(log_dir)
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.scalars.append((tag, scalar_value, global_step))


def test_a_writer_of_a_users_own_gets_the_measures(tmp_path):
    config = small_config("agent.logger=tests.training.test_logging_writer:Own")
    writer: Any = log_writer(config)(tmp_path, after_step=0)
    with closing(Progress(tmp_path, is_writer=True, writer=writer)) as progress:
        progress.write(3, {"Loss/value": 0.5})
    assert writer.scalars == [("Loss/value", 0.5, 3)]
