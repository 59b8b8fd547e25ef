"""Job files that are written and read."""

import json
from typing import Any

import pytest

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.schema import JobDefaults, JobsFile
from isaaclab_arena.errors import refuse


@pytest.fixture
def load(tmp_path):
    def load_document(document: Any, defaults: JobDefaults | None = None, **options: Any) -> JobsFile:
        path = tmp_path / "jobs.json"
        path.write_text(json.dumps(document))
        found = load_jobs_file(path, defaults, **options)
        refuse(found.problems)
        return found

    return load_document
