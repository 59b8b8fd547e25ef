"""Show a run in TensorBoard: curves of each job with their intervals, the table of jobs, and videos of failures."""

import io
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
from PIL import Image
from torch.utils.tensorboard.writer import SummaryWriter

from isaaclab_arena.registry import imported
from isaaclab_arena.tracking.trackers import (
    CHECKPOINTS,
    CheckpointMeasures,
    FailureFilm,
    JobMeasures,
    TrackedRun,
    Tracker,
    filled_columns,
)

_INTERVAL = ("success_rate", "success_low", "success_high")
_EVENTS = "events.out.tfevents"
_EARLIER_FILES = 3
_FRAMES_OF_A_FILM = 60
_LONGER_SIDE_PIXELS = 240


class TensorboardTracker(Tracker):
    """Event files. TensorBoard shows GIFs but no videos, so films become GIFs of at most 60 frames."""

    def __init__(self, run: TrackedRun) -> None:
        self._directory = run.directory / "tensorboard"
        self._writing = run.directory / ".tensorboard" if run.series else self._directory
        if run.series:
            # A killed process leaves its files.
            shutil.rmtree(self._writing, ignore_errors=True)
        # A reader that knows earlier files drops their points from the purge step on.
        self._writer = SummaryWriter(str(self._writing), purge_step=0 if run.series else None)
        self._num_tables = 0
        tags = [*run.jobs, *(f"{CHECKPOINTS}/{series}" for series in run.series)]
        rates = {tag: ["Margin", [f"{tag}/{name}" for name in _INTERVAL]] for tag in tags}
        self._writer.add_custom_scalars({"success rates with 95 % intervals": rates})
        for job, settings in run.jobs.items():
            self._writer.add_text(f"{job}/settings", _markdown([dict(settings)]))
        self._writer.add_text("settings", _markdown([dict(run.settings)]))

    def log_job(self, measures: JobMeasures) -> None:
        """Add a point to the curves ``<job>/success_rate`` and so on, over finished episodes."""
        self._add(measures.job, measures.values, measures.episodes)

    def log_checkpoint(self, measures: CheckpointMeasures) -> None:
        """Add a point to the curves ``checkpoints/<series>/success_rate`` and so on, over training steps."""
        self._add(f"{CHECKPOINTS}/{measures.series}", measures.values, measures.step)

    def log_film(self, film: FailureFilm) -> None:
        """Add a GIF to ``<job>/films``."""
        moving, size = moving_picture(film.path)
        summary = imported("tensorboard.compat.proto.summary_pb2:Summary")
        picture = summary.Image(encoded_image_string=moving, width=size[0], height=size[1], colorspace=3)
        tag = f"{film.job}/films/episode {film.episode_index} {film.outcome}/{film.path.stem}"
        writer: Any = self._writer.file_writer
        writer.add_summary(summary(value=[summary.Value(tag=tag, image=picture)]), film.episode_index)

    def log_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show the jobs as the text ``jobs``."""
        self._num_tables += 1
        self._writer.add_text("jobs", _markdown(rows), self._num_tables)
        self._writer.flush()

    def close(self) -> str:
        """Finish, and return the command that shows the files."""
        self._writer.close()
        if self._writing != self._directory:
            # The file of a series is named after those of earlier processes, in the order in which readers read.
            earlier = sorted(self._directory.glob(f"{_EVENTS}.*"))
            number = 1 + (int(earlier[-1].suffix[1:]) if earlier else 0)
            self._directory.mkdir(parents=True, exist_ok=True)
            [written] = self._writing.iterdir()
            written.replace(self._directory / f"{_EVENTS}.{number:06d}")
            shutil.rmtree(self._writing)
            # A file that is removed while a reader reads it would keep the reader from continuing to the next.
            for file in earlier[:-_EARLIER_FILES]:
                file.unlink(missing_ok=True)
        return f"tensorboard --logdir {self._directory}"

    def _add(self, prefix: str, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"{prefix}/{name}", value, global_step=step)


def moving_picture(path: Path) -> tuple[bytes, tuple[int, int]]:
    """Return a video as a GIF, and its width and height."""
    with av.open(str(path)) as container:
        frames = [frame.to_image() for frame in container.decode(video=0)]
        stream = container.streams.video[0]
        rate = float(stream.average_rate or 10)
    every = -(-len(frames) // _FRAMES_OF_A_FILM)
    kept: list[Image.Image] = frames[::every]
    for frame in kept:
        frame.thumbnail((_LONGER_SIDE_PIXELS, _LONGER_SIDE_PIXELS))
    buffer = io.BytesIO()
    kept[0].save(buffer, "GIF", save_all=True, append_images=kept[1:], duration=1000 * every / rate, loop=0)
    return buffer.getvalue(), kept[0].size


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table in Markdown; one row alone as a column, because it has many cells."""
    if len(rows) == 1:
        lines = [["key", "value"], *([name, value] for name, value in rows[0].items() if value is not None)]
    else:
        columns = filled_columns(rows)
        lines = [columns, *([row.get(name) for name in columns] for row in rows)]
    cells = [["" if cell is None else _cell(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [cells[0], ["---"] * len(cells[0]), *cells[1:]])


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
