"""What the fault tests share: one server for all of them."""

from collections.abc import Iterator

import pytest

from tests.faults.fork_server import ForkServer


@pytest.fixture(scope="package")
def server(tmp_path_factory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("fork_server") / "log") as server:
        yield server
