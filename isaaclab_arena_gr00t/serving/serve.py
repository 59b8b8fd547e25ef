"""Serve a policy to other programs, in a protocol that they speak: ``isaaclab-arena serve``."""

import hashlib
import logging
import sys
import time
from collections.abc import Sequence

import tyro

from isaaclab_arena.distributed.process import limit_threads
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.console import exit_code_of
from isaaclab_arena.evaluation.process.interruption import Interruption, watch_for_interruption
from isaaclab_arena.evaluation.serving.hosted_policy import HostedPolicy
from isaaclab_arena.evaluation.serving.policy_host import PolicyHost
from isaaclab_arena.evaluation.startup.contents import ContentReader
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena_gr00t.remote.wire.messages import WireLimits
from isaaclab_arena_gr00t.serving.observation_mapping import mapping_of
from isaaclab_arena_gr00t.serving.options import ServeOptions, served_job
from isaaclab_arena_gr00t.serving.served_job import ServedJob
from isaaclab_arena_gr00t.serving.vla_eval import VlaEvalTalks
from isaaclab_arena_gr00t.serving.websocket_server import ListenOptions, WebsocketServer

_LOG = logging.getLogger("isaaclab_arena.gr00t")

_LOOK_INTERVAL_S = 0.1
_MB = 1024 * 1024


def main(argv: Sequence[str] | None = None, *, typed_as: str = "isaaclab-arena serve") -> int:
    """Serve a policy until the process is told to stop.

    Args:
        argv: Arguments after the program's name; those of this process where None.
        typed_as: The name by which the help calls the program.

    Returns:
        130 after Ctrl-C, 143 after SIGTERM, 2 for a mistake of the user's, 1 if it cannot listen.
    """
    options, rest = tyro.cli(
        ServeOptions,
        prog=typed_as,
        args=list(sys.argv[1:] if argv is None else argv),
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
        use_underscores=True,
    )
    return exit_code_of(lambda: _run(options, rest))


def _run(options: ServeOptions, rest: Sequence[str]) -> int:
    options.check()
    token = options.token()
    limit_threads(options.torch_threads)
    served = prepared(options, rest)
    host = PolicyHost(served.policy, max_batch=options.max_batch, max_wait_s=options.max_wait_ms / 1000)
    try:
        with watch_for_interruption() as interruption:
            _serve(options, served, host, token, interruption)
    finally:
        host.close()
    _LOG.info("stopped")
    return interruption.exit_code


def prepared(options: ServeOptions, rest: Sequence[str]) -> ServedJob:
    """Return the job whose policy is to be served, with its policy built and tried out.

    Args:
        options: The options.
        rest: What names the job; see `served_job`.

    Raises:
        ConfigError: If there is no such job, it is wrong, or its policy cannot be served.
    """
    job = served_job(options, rest)
    contents = hashlib.sha256(json_line(ContentReader().read(job).policy).encode()).hexdigest()
    images, states = options.image_keys(), options.state_keys()
    policy = HostedPolicy(job, options.max_sessions, shown=lambda spec: mapping_of(spec, images, states).shown())
    mapping = mapping_of(policy.observation_spec, images, states)
    return ServedJob(policy=policy, mapping=mapping, contents={"policy_sha256": contents})


def _serve(
    options: ServeOptions, served: ServedJob, host: PolicyHost, token: str | None, interruption: Interruption
) -> None:
    listen = ListenOptions(
        host=options.host,
        port=options.listen_port,
        api_token=token,
        max_message_bytes=options.max_message_mb * _MB,
    )
    limits = WireLimits(max_message_bytes=listen.max_message_bytes)
    try:
        server = WebsocketServer(host, VlaEvalTalks(served, limits), listen, served.stated)
    except OSError as error:
        raise ArenaError(f"cannot listen on {options.host}, port {listen.port}: {error.strerror}") from error
    if token is None and not options.is_local():
        _LOG.warning("everyone who can reach %s may use this server; --api_token_file keeps others out", server.address)
    server.start()
    try:
        _LOG.info("serving %s on %s", served.stated["job"], server.address)
        while not interruption.stop_requested() and not host.is_closed:
            time.sleep(_LOOK_INTERVAL_S)
    finally:
        host.close()
        server.close()
    if host.failure is not None:
        raise ArenaError(f"the policy can be served no longer: {host.failure}")


if __name__ == "__main__":
    sys.exit(main())
