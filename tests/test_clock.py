from datetime import UTC, datetime

import pytest

from isaaclab_arena.paths import now


@pytest.mark.parametrize("local", [False, True])
def test_now_is_a_time_with_its_zone(local):
    before = datetime.now(UTC)
    told = datetime.fromisoformat(now(local=local))
    assert told.tzinfo is not None
    assert (told - before).total_seconds() < 60
    assert now().endswith("+00:00")
