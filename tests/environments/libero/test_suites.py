"""LIBERO's suites in a job file are those of the checkout."""

from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ConfigError
from tests.environments.libero import checkouts


def jobs_of(suite: str, libero_path: Any) -> list[tuple[str, str]]:
    options = {} if libero_path is None else {"libero_path": libero_path}
    job = {"name": "mine", "suite": suite, "policy_type": "zero_action", "arena_env_args": options}
    found = read_jobs({"jobs": [job]}, source="jobs.yaml", suites=SUITES).jobs
    return [(job.name, job.environment) for job in found]


@pytest.mark.parametrize("name", ["libero_spatial", "libero:libero_spatial"])
def test_a_suite_is_one_job_per_task_called_by_its_index(checkout: Path, name: str):
    numbers = range(len(checkouts.SUITES["libero_spatial"]))
    assert jobs_of(name, str(checkout)) == [(f"mine-{each}", f"libero:libero_spatial/{each}") for each in numbers]


@pytest.mark.parametrize(
    ("suite", "path", "told"),
    [
        ("libero:libero_spatail", "checkout", r"suite: this checkout has no suite 'libero_spatail'; did you mean"),
        ("libero_spatial", "nowhere", r"arena_env_args.libero_path: 'nowhere' is no checkout of LIBERO"),
        ("libero_spatial", 3, r"arena_env_args.libero_path: is not the path of a checkout"),
    ],
)
def test_what_a_checkout_does_not_have_is_told_with_its_key(checkout: Path, suite, path, told):
    with pytest.raises(ConfigError, match=told):
        jobs_of(suite, str(checkout) if path == "checkout" else path)
