"""The options with which a run asks for a cluster, and what contradicts them."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import Field

from isaaclab_arena.config.options import Count
from isaaclab_arena.distributed.context import is_a_rank
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.options import Assignment, RunOptions
from isaaclab_arena.registry import check_optional_library


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(RunOptions):
    """Options of a run whose ranks may be on the nodes of a cluster."""

    cluster: Literal["ray"] | None = None
    """Run the ranks as actors of a Ray cluster, whose nodes need no shared disk; needs the extra ray."""
    ray_address: str = "auto"
    """With --cluster ray, the cluster: auto for the one of this node, local for a new one, or HOST:PORT."""
    num_ranks: Count = 1
    """With --cluster, how many ranks there may be at once."""
    gpus_per_rank: Annotated[float, Field(ge=0)] = 0.0
    """With --cluster, GPUs that each rank is given: a whole number, or a part of one GPU such as 0.5."""
    cpus_per_rank: Annotated[float, Field(gt=0)] = 1.0
    """With --cluster, cores that each rank is given; its physics has as many threads."""
    start_timeout_s: Annotated[float, Field(gt=0)] = 1800.0
    """With --cluster, how long to wait for resources for the first rank."""
    node_dir: str | None = None
    """With --cluster, directory on each node in which ranks write what is then sent to the run's directory. By default
    the run's directory where a node sees it, else a temporary one."""


def check_cluster(options: ClusterOptions) -> None:
    """Refuse cluster options that contradict each other or this process.

    Raises:
        ConfigError: With every problem.
    """
    problems = [Problem(message, key=f"--{name}") for name, wrong, message in _mistakes(options) if wrong]
    if problems:
        raise ConfigError(problems)
    if options.cluster is not None:
        check_optional_library(options.cluster, key="--cluster")


def _mistakes(options: ClusterOptions) -> Iterator[tuple[str, bool, str]]:
    """Yield, for every check, the option, whether it is wrong, and what is."""
    asks = options.cluster is not None
    for own in fields(ClusterOptions):
        is_own = own.name in ClusterOptions.__annotations__ and own.name != "cluster"
        given = getattr(options, own.name) != own.default
        yield own.name, is_own and given and not asks, "says how to use a cluster; add --cluster ray"
    yield (
        "cluster",
        asks and is_a_rank(),
        "starts the ranks itself; start this program once, without torchrun, srun or mpirun",
    )
    for name in ("gpu_ids", "nproc_per_node"):
        yield (
            name,
            asks and getattr(options, name) is not None,
            "starts ranks on this node; leave it out with --cluster",
        )
    is_split = asks and options.mode is Assignment.SPLIT
    yield "assignment", is_split, "ranks of a cluster claim work as they go: leave it out, or say dynamic"
    gpus = options.gpus_per_rank
    yield "gpus_per_rank", gpus > 1, "a rank simulates on one GPU; give 1, or a part of one"
    asks_for_gpu = (options.device or "cpu").startswith("cuda")
    yield "device", asks and asks_for_gpu and gpus == 0, f"'{options.device}' needs --gpus_per_rank 1"
