from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.evaluation.policy_server.serving import Socket


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Socket]:
    made = Socket(tmp_path)
    yield made
    made.close()
