"""Make the writer for measures besides our own files: TensorBoard, or a log writer of rsl_rl such as W&B's."""

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rsl_rl.utils import LogWriter, resolve_callable

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.training.progress import ScalarWriter, tensorboard
from isaaclab_arena.training.settings.config import TrainingConfig
from isaaclab_arena.training.settings.documents import document_of

_KEY = "agent.logger"
_CLASSES = {"wandb": "WandbLogWriter", "neptune": "NeptuneLogWriter"}
_PACKAGES = {"WandbLogWriter": "wandb", "NeptuneLogWriter": "neptune"}


class EnvironmentSettings(dict[str, Any]):
    """An environment's settings as a log writer gets them: a mapping that also says it as Isaac Lab's objects do."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return dict(self)


def check_logger(config: TrainingConfig) -> None:
    """Refuse a writer that cannot be made, before anything is built or written.

    Raises:
        ConfigError: If there is no such writer, its package is not installed, or it does not have the options.
    """
    name = _name_of(config.agent.logger)
    if name not in {"none", "tensorboard"}:
        with _told(name):
            writer = _class_of(name)
            if _package_is_missing(writer):
                package = _PACKAGES[writer.__name__]
                raise ImportError(f"the package {package} is not installed: pip install {package}")
            inspect.signature(writer).bind(log_dir="", **_options(config))


def scalar_writer(config: TrainingConfig, run_directory: Path, *, after_step: int) -> ScalarWriter | None:
    """Return the writer that ``agent.logger`` names; rank 0 alone calls it.

    Args:
        config: What is asked for.
        run_directory: Directory of the training run.
        after_step: Iterations done before.

    Raises:
        ConfigError: If there is no such writer, or it refuses its options.
    """
    name = _name_of(config.agent.logger)
    if name == "none":
        return None
    if name == "tensorboard":
        return tensorboard(run_directory, after_step=after_step)
    with _told(name):
        writer = _class_of(name)(log_dir=str(run_directory), **_options(config))
    if isinstance(writer, LogWriter):
        environment = {"environment": config.environment, "num_envs": config.num_envs, **config.env}
        writer.store_config(EnvironmentSettings(environment), document_of(config))
    return writer


def _class_of(name: str) -> Any:
    return resolve_callable(_CLASSES.get(name, name))


def _package_is_missing(writer: Any) -> bool:
    """Whether rsl_rl's writer has looked for the package that it writes to, and has not found it."""
    package = _PACKAGES.get(getattr(writer, "__name__", ""))
    return package is not None and getattr(sys.modules[writer.__module__], package, writer) is None


def _options(config: TrainingConfig) -> dict[str, Any]:
    """Return a writer's options beside its directory; W&B and Neptune want a project, which is the experiment."""
    logger = config.agent.logger
    options = {} if isinstance(logger, str) else {key: value for key, value in logger.items() if key != "class_name"}
    if getattr(_class_of(_name_of(logger)), "__name__", "") in _PACKAGES:
        options.setdefault("project_name", config.experiment_name)
    return options


def _name_of(logger: str | dict[str, Any]) -> str:
    return logger if isinstance(logger, str) else str(logger.get("class_name"))


@contextmanager
def _told(name: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        message = f"'{name}' cannot be used: {error}; use tensorboard, none, or a log writer with its options"
        raise ConfigError(Problem(message, key=_KEY)) from error
