"""The program of a policy server: it reads its orders from stdin, and ends when stdin does."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from isaaclab_arena.distributed.context import limit_threads
from isaaclab_arena.distributed.devices import calculate_deterministically
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.policy_server.serving import LoadedNetworks, Serving
from isaaclab_arena.evaluation.policy_server.wire import NetworkOrder, ServerOrders
from isaaclab_arena.evaluation.process import Settings, put_back
from isaaclab_arena.interfaces.policy_traits import Entries, Network
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.storage.json_values import adapter, json_line

_SET_BY_NETWORKS = Settings()


def main() -> None:
    """Serve until the rank that started this process closes its stdin, or dies."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    orders = adapter(ServerOrders).validate_json(sys.stdin.buffer.readline())
    limit_threads(orders.torch_threads)
    if orders.deterministic:
        calculate_deterministically()
    loaders: dict[str, Callable[[], Network]] = {key: partial(load, each) for key, each in orders.networks.items()}
    networks = LoadedNetworks(loaders, max_batch=orders.max_batch, max_wait_s=orders.max_wait_ms / 1000.0)
    Serving(socket.socket(fileno=orders.listening), networks, token=orders.token)
    sys.stdin.buffer.read()
    # A network may be in the middle of a call, for which no client waits.
    os._exit(0)


def load(order: NetworkOrder) -> Network:
    """Load the network of a policy; `ConfigError` if the policy is unknown, its options are wrong, or it has none."""
    by, key = f"policy '{order.policy_type}'", json_line(order)
    with put_back(), _SET_BY_NETWORKS.of(by, key):
        policy: Any = resolve_policy_class(order.policy_type).from_dict(order.options)
        if "network" not in policy.offers:
            raise ConfigError(f"policy '{order.policy_type}' has no network that ranks can share")
        return AskedNetwork(policy.network(), by, key)


class AskedNetwork:
    """A network that is asked in any thread without recording gradients; see `Network`."""

    def __init__(self, network: Network, by: str, key: str) -> None:
        # `by` and `key` as in `Settings.of`: process-wide settings made while loading are applied again in each call.
        self._network, self._by, self._key = network, by, key
        self.about = network.about

    @torch.no_grad()
    def answer(self, entries: Entries) -> Mapping[str, np.ndarray]:
        """Return the answers; see `Network.answer`."""
        if not _SET_BY_NETWORKS.has_any(self._key):
            return self._network.answer(entries)
        with put_back(), _SET_BY_NETWORKS.of(self._by, self._key):
            return self._network.answer(entries)


if __name__ == "__main__":
    main()
