import pytest

from tests.environments.libero.checkouts import make_checkout


@pytest.fixture
def checkout(tmp_path):
    """A checkout of LIBERO."""
    return make_checkout(tmp_path)
