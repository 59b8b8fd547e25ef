import os
import time

import pytest

from benchmarks.gr00t.queries import latency_table, remote_table, timed_query
from tests.benchmarks.gr00t.tables import cells


def test_a_query_costs_what_it_takes_here_and_in_the_server():
    asleep = timed_query(lambda: time.sleep(0.05), server_pid=os.getpid())
    assert asleep.wall_s >= 0.05
    assert asleep.cpu_s < 0.04
    # The server stands for this process here, so both clocks show the same.
    busy = timed_query(lambda: sum(range(2_000_000)), server_pid=os.getpid())
    assert busy.server_cpu_s == pytest.approx(busy.cpu_s, rel=0.2, abs=0.002)


def test_every_size_and_precision_is_asked_and_compared_with_float32(yaml):
    table = latency_table(yaml, devices=["cpu"], batch_sizes=[1, 3], repetitions=1)
    lines = [cells(line) for line in table[2:]]
    assert [line[1:3] for line in lines] == [["float32", "1"], ["float32", "3"], ["bfloat16", "1"], ["bfloat16", "3"]]
    assert [line[-1] for line in lines[:2]] == ["1.00", "1.00"]
    assert all(float(line[3]) > 0 for line in lines)


@pytest.mark.slow
def test_the_server_computes_what_would_be_computed_here(yaml, tmp_path):
    [line] = remote_table(yaml, tmp_path, devices=["cpu"], batch_sizes=[4], repetitions=3)[2:]
    _, slots, request_kb, _, _, _, _, cpu_here, client, server = cells(line)
    # Two pictures of 64 x 64 a slot.
    assert (slots, int(request_kb)) == ("4", pytest.approx(4 * 2 * 64 * 64 * 3 / 1000, rel=0.05))
    assert float(client) < float(cpu_here)
    assert float(server) > 0.3 * float(cpu_here)
