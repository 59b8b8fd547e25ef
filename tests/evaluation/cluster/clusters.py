"""Ray clusters on this machine: nodes that share no directory, with GPUs that are only pretended."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NODE = {"num_cpus": 1, "num_gpus": 1, "include_dashboard": False, "object_store_memory": 100_000_000}
# Ray gives ranks a nice value of 15 otherwise, with which they wait for minutes beside other tests.
RAY_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


@contextmanager
def cluster_of(num_nodes: int) -> Iterator[Any]:
    """Give a cluster of nodes with room for a rank each; further ones can be added, and any but the first removed."""
    os.environ.update(RAY_VARIABLES)
    from ray.cluster_utils import Cluster  # noqa: PLC0415  only where Ray is installed

    cluster = with_patience(lambda: Cluster(initialize_head=True, head_node_args=NODE))
    try:
        for _ in range(num_nodes - 1):
            add_node(cluster)
        yield cluster
    finally:
        cluster.shutdown()


def add_node(cluster: Any) -> Any:
    """Add a node with room for a rank, and return it."""
    return with_patience(lambda: cluster.add_node(**NODE))


def with_patience(begin: Callable[[], Any]) -> Any:
    """Start a node; Ray gives up after half a minute, which is too short for a machine that has other things to do."""
    for _ in range(4):
        with suppress(Exception):
            return begin()
    return begin()


def on_cluster(address: str, nodes: Path, *, num_ranks: int = 2) -> list[object]:
    """Return the options of a run whose ranks write below a directory that stands for each node's own disk."""
    ranks = ["--num_ranks", num_ranks, "--gpus_per_rank", 1, "--device", "cpu"]
    return ["--cluster", "ray", "--ray_address", address, "--node_dir", nodes, *ranks]
