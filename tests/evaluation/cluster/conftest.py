"""A cluster, jobs that go on when they are told to, and what comes of these undisturbed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.launching import command, run
from tests.evaluation.cluster.driving import GO, QUICK, SLOW, cluster_of, write_mortal_jobs
from tests.evaluation.cluster.policies import STEP_S


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Give a cluster of two nodes, whose policies take their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STEP_S, SLOW[STEP_S])
        with cluster_of(2) as nodes:
            yield nodes


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("jobs")
    (directory / GO).touch()
    return write_mortal_jobs(directory)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    alone = run(command("--eval_jobs_config", jobs, "--output_dir", output), extra=QUICK)
    assert alone.returncode == 0, alone.stderr
    return output
