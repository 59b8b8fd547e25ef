import re
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def robot_files(tmp_path_factory):
    """The files that docs/how_to/robots.md shows."""
    text = (Path(__file__).parents[3] / "docs" / "how_to" / "robots.md").read_text()
    directory = tmp_path_factory.mktemp("robot")
    for kind in ("xml", "yaml"):
        (directory / f"six_axis.{kind}").write_text(re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)[0])
    return directory


@pytest.fixture
def directory(robot_files, tmp_path):
    """The same files, to be changed."""
    shutil.copytree(robot_files, tmp_path, dirs_exist_ok=True)
    return tmp_path
