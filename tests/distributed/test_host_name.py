"""A machine whose name nobody knows is told in time."""

import pytest

from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import DistributedError, initialise


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 300])
def test_a_host_name_that_nobody_knows_is_told_within_the_timeout(monkeypatch, host):
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("MASTER_PORT", "29511")
    context = DistributedContext(rank=1, world_size=2, master_address=f"{host}:29511")
    with (
        pytest.raises(DistributedError, match=r"rank 1 of 2 cannot find the host .*; correct MASTER_ADDR"),
        initialise(context, timeout_s=0.5),
    ):
        pass
