from pathlib import Path

import pytest

from benchmarks.gr00t.checkpoint import save_random_checkpoint, write_policy_yaml


@pytest.fixture(scope="session")
def model_path(tmp_path_factory) -> Path:
    """Directory of a checkpoint of random weights."""
    path = tmp_path_factory.mktemp("gr00t_benchmarks") / "checkpoint"
    assert save_random_checkpoint(path) > 1_000_000
    return path


@pytest.fixture
def yaml(model_path, tmp_path) -> str:
    """A YAML file that names it."""
    return write_policy_yaml(tmp_path / "panda.yaml", model_path)
