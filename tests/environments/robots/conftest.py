import shutil

import pytest

from tests.environments.six_axis import DESCRIPTION, MJCF


@pytest.fixture(scope="module")
def robot_files(tmp_path_factory):
    """The files that `isaaclab-arena new robot six_axis` writes."""
    directory = tmp_path_factory.mktemp("robot")
    (directory / "six_axis.xml").write_text(MJCF)
    (directory / "six_axis.yaml").write_text(DESCRIPTION)
    return directory


@pytest.fixture
def directory(robot_files, tmp_path):
    """The same files, to be changed."""
    shutil.copytree(robot_files, tmp_path, dirs_exist_ok=True)
    return tmp_path
