"""What docs/how_to/cameras.md shows can be typed."""

import re

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.environments.arena.cameras import CameraOptions
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.results.columns import JOB_TIMING_COLUMNS
from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT

OBSERVATION_GROUPS = ("camera_obs",)
TEXT = (ROOT / "docs" / "how_to" / "cameras.md").read_text()


def test_the_job_file_can_be_run(tmp_path):
    [body] = blocks(TEXT, "yaml")
    (tmp_path / "jobs.yaml").write_text(body)
    [job] = resolve_jobs(load_jobs_file(tmp_path / "jobs.yaml").jobs)
    assert job.environment_config.enable_cameras
    assert job.environment_config.resolution == (64, 64)


def test_every_option_and_column_that_is_named_exists():
    words = set(re.findall(r"`-*((?:camera|viewport|record|video|enable)_\w+)[ `:]", TEXT)) - set(OBSERVATION_GROUPS)
    fields = {*RunOptions.__dataclass_fields__, *CameraOptions.__dataclass_fields__, *JOB_TIMING_COLUMNS}
    assert {"record_camera_video", "camera_size", "viewport_width"} <= words
    assert words <= fields
