"""What a training run tells while it goes on: lines of the log, a CSV file, and TensorBoard where it is installed."""

import csv
import logging
from pathlib import Path
from types import TracebackType
from typing import Self

from isaaclab_arena.storage.atomic import write_text

_LOG = logging.getLogger("isaaclab_arena.gr00t")
FILE = "progress.csv"


class Progress:
    """Writes measures of a training run, on the rank that writes.

    Args:
        output_directory: Folder of the training run.
        is_writer: Whether this rank writes; the others' calls do nothing.
        after_step: Optimiser steps made before; what an interrupted run wrote of later ones is taken out.
    """

    def __init__(self, output_directory: Path, *, is_writer: bool, after_step: int = 0) -> None:
        self._path = output_directory / FILE
        self._is_writer = is_writer
        self._board = None
        if is_writer:
            _take_out_later(self._path, after_step)
            self._board = _tensorboard(output_directory / "tensorboard", purge_step=after_step + 1)

    def write(self, num_steps: int, **measures: float) -> None:
        """Write some measures.

        Args:
            num_steps: Optimiser steps made.
            measures: Name to value.
        """
        if not (self._is_writer and measures):
            return
        told = ", ".join(f"{name} {value:.4g}" for name, value in measures.items())
        _LOG.info("step %d: %s", num_steps, told)
        is_new = not self._path.exists()
        with self._path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(["step", "measure", "value"])
            writer.writerows([num_steps, name, f"{value:.8g}"] for name, value in measures.items())
        if self._board is not None:
            for name, value in measures.items():
                self._board.add_scalar(name, value, num_steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board is not None:
            self._board.close()


def _take_out_later(path: Path, after_step: int) -> None:
    if not path.is_file():
        return
    head, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    # The last line may be torn.
    whole = [line for line in lines if line.endswith("\n")]
    kept = [line for line in whole if int(line.partition(",")[0]) <= after_step]
    if len(kept) < len(lines):
        write_text(path, "".join([head, *kept]), overwrite=True)


def _tensorboard(folder: Path, *, purge_step: int):
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  optional package, slow to load
    except ImportError:
        return None
    return SummaryWriter(str(folder), purge_step=purge_step)
