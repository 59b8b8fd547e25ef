"""Write the measures of a training run to the log, a CSV file, and a log writer such as TensorBoard."""

import csv
import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from isaaclab_arena.storage.atomic import write_text

_LOG = logging.getLogger(__name__)
FILE = "progress.csv"
_COLUMNS = ("step", "measure", "value")


class ScalarWriter(Protocol):
    """Where measures go besides the CSV file; TensorBoard's writer is one, and so are rsl_rl's."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write one measure."""


class Progress:
    """Writes measures of a training run, on the rank that writes.

    Args:
        output_directory: Directory of the training run.
        is_writer: Whether this rank writes; the others' calls do nothing.
        after_step: Steps made before; what an interrupted run wrote of later ones is taken out.
        writer: Where else measures go.
    """

    def __init__(
        self, output_directory: Path, *, is_writer: bool, after_step: int = 0, writer: ScalarWriter | None = None
    ) -> None:
        self._path = output_directory / FILE
        self.is_writer = is_writer
        self._writer = writer
        if is_writer:
            _take_out_later(self._path, after_step)

    def write(self, num_steps: int, measures: Mapping[str, float], *, told: str | None = None) -> None:
        """Write some measures.

        Args:
            num_steps: Steps made.
            measures: Name to value.
            told: What the log says of them; all of them by default.
        """
        if not (self.is_writer and measures):
            return
        if told is None:
            told = f"step {num_steps}: " + ", ".join(f"{name} {value:.4g}" for name, value in measures.items())
        _LOG.info("%s", told)
        is_new = not self._path.exists()
        with self._path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if is_new:
                writer.writerow(_COLUMNS)
            writer.writerows([num_steps, name, f"{value:.8g}"] for name, value in measures.items())
        if self._writer is not None:
            for name, value in measures.items():
                self._writer.add_scalar(name, value, num_steps)

    def has(self, num_steps: int, measure: str) -> bool:
        """Whether a measure whose name begins so has been written after so many steps."""
        if not self._path.is_file():
            return False
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return any(line.startswith(f"{num_steps},{measure}") for line in lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # TensorBoard's writer is closed, those of rsl_rl are stopped, and some of them are both.
        for name in ("close", "stop"):
            end = getattr(self._writer, name, None)
            if end is not None:
                end()


def _take_out_later(path: Path, after_step: int) -> None:
    if not path.is_file():
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[1:]
    # The last line may be torn, and others may be damaged.
    whole = [(line, line.partition(",")[0]) for line in lines if line.endswith("\n")]
    kept = [line for line, step in whole if step.isdecimal() and int(step) <= after_step]
    if len(kept) < len(lines) or not lines:
        write_text(path, "".join([",".join(_COLUMNS) + "\n", *kept]), overwrite=True)


def tensorboard(directory: Path, *, after_step: int = 0) -> ScalarWriter | None:
    """Return a writer of TensorBoard's files, None where that is not installed.

    Args:
        directory: Where the files go.
        after_step: Steps made before; later ones in files that are there are not shown.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  optional package, slow to load
    except ImportError:
        return None
    return SummaryWriter(str(directory), purge_step=after_step + 1)
