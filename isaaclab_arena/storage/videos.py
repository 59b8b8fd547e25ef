"""Find the videos of a run."""

import os
from pathlib import Path

from isaaclab_arena.storage.atomic import leads_out_of_its_run
from isaaclab_arena.storage.layout import VIDEOS_DIRECTORY, VideoName, job_directory, parse_video_file_name


def videos_of_job(output_directory: Path, job: str) -> list[tuple[VideoName, Path]]:
    """Return the videos of a job, sorted by file name."""
    directory = job_directory(output_directory, job) / VIDEOS_DIRECTORY
    # Links are skipped: a run may come from an untrusted source, and a link's target would enter pages and exports.
    try:
        with os.scandir(directory) as entries:
            files = sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    except OSError:
        # Most jobs are not filmed.
        return []
    if leads_out_of_its_run(directory):
        return []
    return [(said, directory / name) for name in files if (said := parse_video_file_name(name)) is not None]
