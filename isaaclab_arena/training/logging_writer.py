"""Where measures go besides files of our own: TensorBoard, or one of rsl_rl's log writers such as W&B's."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rsl_rl.utils import LogWriter, resolve_callable

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.training.config import TrainingConfig
from isaaclab_arena.training.documents import document_of
from isaaclab_arena.training.progress import ScalarWriter, tensorboard

_KEY = "agent.logger"
_CLASSES = {"wandb": "WandbLogWriter", "neptune": "NeptuneLogWriter"}


def check_logger(config: TrainingConfig) -> None:
    """Refuse a writer that does not exist, before anything is built or written.

    Raises:
        ConfigError: If there is no such writer.
    """
    name = _name_of(config.agent.logger)
    if name not in {"none", "tensorboard"}:
        with _told(name):
            resolve_callable(_CLASSES.get(name, name))


def scalar_writer(config: TrainingConfig, run_directory: Path, *, after_step: int) -> ScalarWriter | None:
    """Return the writer that ``agent.logger`` names; rank 0 alone calls it.

    Args:
        config: What is asked for.
        run_directory: Folder of the training run.
        after_step: Iterations done before.

    Raises:
        ConfigError: If there is no such writer, or it refuses its options.
    """
    logger = config.agent.logger
    name = _name_of(logger)
    options = {} if isinstance(logger, str) else {key: value for key, value in logger.items() if key != "class_name"}
    if name == "none":
        return None
    if name == "tensorboard":
        return tensorboard(run_directory, after_step=after_step)
    with _told(name):
        writer = resolve_callable(_CLASSES.get(name, name))(log_dir=str(run_directory), **options)
    if isinstance(writer, LogWriter):
        writer.store_config({"environment": config.environment, **config.env}, document_of(config))
    return writer


def _name_of(logger: str | dict[str, Any]) -> str:
    return logger if isinstance(logger, str) else str(logger.get("class_name"))


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        message = f"'{name}' cannot be used: {error}; use tensorboard, none, or a log writer with its options"
        raise ConfigError(Problem(message, key=_KEY)) from error
