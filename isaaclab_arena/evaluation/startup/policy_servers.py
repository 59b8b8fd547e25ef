"""Start the policy servers that the jobs of a run share, and tell each rank where they are."""

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from isaaclab_arena.config.schema import PolicyServerConfig, ServerScope
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.policy_server.client import ServedNetwork
from isaaclab_arena.evaluation.policy_server.orders import NetworkOrder, ServerOrders
from isaaclab_arena.evaluation.policy_server.owner import PolicyServer
from isaaclab_arena.evaluation.policy_server.sharing import DEVICE_OPTION
from isaaclab_arena.evaluation.policy_server.wire import ServerAddress
from isaaclab_arena.evaluation.startup.measured_latency import asked_policy
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.storage.layout import RUN_PLAN_FILE

_LOG = logging.getLogger(__name__)


@contextmanager
def running_policy_servers(
    jobs: Sequence[Job], to_run: Collection[str], options: RunOptions, ranks: Ranks, output_directory: Path
) -> Iterator[Mapping[PolicyServerConfig, ServerAddress]]:
    """Run the policy servers that jobs ask for, within a ``with`` block; all ranks enter it together.

    The first rank of a node, or of the run, starts a server, watches it and stops it.

    Args:
        jobs: Every job of the run.
        to_run: Names of those that are to run.
        options: The options of the run.
        ranks: All ranks.
        output_directory: The run's directory on this rank, for the servers' logs.

    Yields:
        Where each server listens, as this rank reaches it.

    Raises:
        ConfigError: If a server cannot listen.
        DistributedError: If a rank does not answer.
    """
    addresses: dict[PolicyServerConfig, ServerAddress] = {}
    with ExitStack() as running:
        for number, (config, networks) in enumerate(_wanted(jobs, to_run, options).items()):
            owner, told = _owner(config.shared, ranks.context), ""
            if owner == ranks.context.rank:
                log_file = output_directory / "logs" / f"policy_server{number}_rank{owner}.log"
                orders = _orders(config, networks, options)
                server = PolicyServer(orders, host=_host(config.shared, ranks.context), log_file=log_file)
                running.callback(server.close)
                told = json.dumps(asdict(server.address))
            said = ranks.gather(f"address of policy server {number}", told)[owner]
            addresses[config] = ServerAddress(**json.loads(said))
            _LOG.debug("policy server %d is rank %d's, at %s", number, owner, addresses[config])
        yield addresses


@contextmanager
def policy_as_served(job: Job, options: RunOptions, output_directory: Path) -> Iterator[PolicyBase]:
    """Build a job's policy as the run asks it, in a policy server of its own where it has one, for a ``with`` block.

    Args:
        job: The job.
        options: The options of the run.
        output_directory: The run's directory, which holds the server's log meanwhile.
    """
    config = job.config.policy_server
    with ExitStack() as running:
        if config is None:
            yield running.enter_context(asked_policy(job))
            return
        orders = _orders(config, {job.network_key: _order(job, config, options)}, options)
        # Under a name that the next start clears away if this one dies with it.
        log_file = output_directory / f".{RUN_PLAN_FILE}.policy_server.tmp"
        running.callback(log_file.unlink, missing_ok=True)
        server = PolicyServer(orders, host=None, log_file=log_file)
        running.callback(server.close)
        network = ServedNetwork(server.address, job.network_key)
        running.callback(network.close)
        policy = job.build_policy_asking(network)
        running.callback(policy.close)
        yield policy


def _wanted(
    jobs: Sequence[Job], to_run: Collection[str], options: RunOptions
) -> dict[PolicyServerConfig, dict[str, NetworkOrder]]:
    """Return the servers that jobs ask for, each with its networks, in the same order on every rank."""
    wanted: dict[PolicyServerConfig, dict[str, NetworkOrder]] = {}
    for job in jobs:
        config = job.config.policy_server
        if config is not None and job.config.name in to_run:
            wanted.setdefault(config, {})[job.network_key] = _order(job, config, options)
    return wanted


def _order(job: Job, config: PolicyServerConfig, options: RunOptions) -> NetworkOrder:
    asked = dict(job.policy_options)
    if "num_envs" in asked:
        # The same on every rank, whatever its env slots.
        asked["num_envs"] = config.max_batch
    device = config.device or options.policy_device
    if device is not None:
        asked[DEVICE_OPTION] = device
    return NetworkOrder(policy_type=job.config.policy_type, options=asked)


def _orders(config: PolicyServerConfig, networks: Mapping[str, NetworkOrder], options: RunOptions) -> ServerOrders:
    return ServerOrders(
        networks=networks,
        max_batch=config.max_batch,
        max_wait_ms=config.max_wait_ms,
        torch_threads=options.torch_threads,
        deterministic=options.deterministic,
    )


def _owner(scope: ServerScope, context: DistributedContext) -> int:
    """Return the rank that runs the server which this rank asks."""
    return 0 if scope is ServerScope.RUN else context.rank - context.local_rank


def _host(scope: ServerScope, context: DistributedContext) -> str | None:
    """Return by which name the ranks of other nodes know rank 0's machine, None where no other node asks."""
    is_one_node = context.world_size == context.local_world_size
    if scope is ServerScope.NODE or is_one_node or context.master_address is None:
        return None
    return context.master_address.rpartition(":")[0]
