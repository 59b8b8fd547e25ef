"""Serve a policy to other programs, in a protocol that they speak: ``isaaclab-arena serve``."""

import hashlib
import logging
import sys
import time
from collections.abc import Sequence

import tyro

from isaaclab_arena.distributed.process import limit_threads
from isaaclab_arena.errors import ArenaError, ConfigError, Problem
from isaaclab_arena.evaluation.console import exit_code_of
from isaaclab_arena.evaluation.contents import ContentReader
from isaaclab_arena.evaluation.process import Interruption, watch_for_interruption
from isaaclab_arena.evaluation.serving import HostedPolicy, PolicyHost
from isaaclab_arena.paths import typed_words
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena_gr00t.remote.wire.messages import WireLimits
from isaaclab_arena_gr00t.serving.listening import ListenOptions, Server
from isaaclab_arena_gr00t.serving.observation_mapping import mapping_of
from isaaclab_arena_gr00t.serving.openpi import OpenpiTalks
from isaaclab_arena_gr00t.serving.options import ServeOptions, served_job
from isaaclab_arena_gr00t.serving.served_job import ServedJob
from isaaclab_arena_gr00t.serving.vla_eval import VlaEvalTalks
from isaaclab_arena_gr00t.serving.websocket_server import Talk, WebsocketServer

_LOG = logging.getLogger("isaaclab_arena.gr00t")

_LOOK_INTERVAL_S = 0.1


def main(argv: Sequence[str] | None = None, *, typed_as: str = "isaaclab-arena serve") -> int:
    """Serve a policy until the process is told to stop.

    Args:
        argv: Arguments after the program's name; those of this process where None.
        typed_as: The name by which the help calls the program.

    Returns:
        0 if a client stopped it, 130 after Ctrl-C, 143 after SIGTERM, 2 for a mistake of the user's, 1 if it cannot
        listen.
    """
    options, rest = tyro.cli(
        ServeOptions,
        prog=typed_as,
        args=typed_words(argv),
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
        use_underscores=True,
    )
    return exit_code_of(lambda: _run(options, rest))


def _run(options: ServeOptions, rest: Sequence[str]) -> int:
    options.check()
    listen = ListenOptions(
        host=options.host,
        port=options.listen_port,
        api_token=options.token(),
        max_message_bytes=options.max_message_bytes,
    )
    limit_threads(options.torch_threads)
    served = prepared(options, rest)
    try:
        server = server_of(options, served, listen)
    except OSError as error:
        served.policy.close()
        raise ArenaError(f"cannot listen on {options.host}, port {listen.port}: {error.strerror}") from error
    if listen.api_token is None and not options.is_local():
        _LOG.warning("everyone who can reach %s may use this server; --api_token_file keeps others out", server.address)
    if not served.policy.reads_instruction:
        _LOG.info("the policy reads no instruction, so that of a client changes nothing")
    with watch_for_interruption() as interruption:
        _serve(server, served, interruption)
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


def server_of(options: ServeOptions, served: ServedJob, listen: ListenOptions) -> Server:
    """Return the server of a protocol, which listens and does not answer yet.

    Args:
        options: The options.
        served: The job whose policy is served.
        listen: Where to listen.

    Raises:
        ConfigError: If the protocol cannot be served.
        OSError: If it cannot listen there.
    """
    if options.protocol == "gr00t":
        return _gr00t_server(options, served, listen)
    limits = WireLimits(max_message_bytes=listen.max_message_bytes)
    if options.protocol == "openpi":
        talk: Talk = OpenpiTalks(served, limits, prompt_key=options.prompt_key)
    else:
        talk = VlaEvalTalks(served, limits)
    host = PolicyHost(served.policy, max_batch=options.max_batch, max_wait_s=options.max_wait_ms / 1000)
    try:
        return WebsocketServer(host, talk, listen, served.stated)
    except OSError:
        host.close()
        raise


def _gr00t_server(options: ServeOptions, served: ServedJob, listen: ListenOptions) -> Server:
    try:
        from isaaclab_arena_gr00t.serving import gr00t  # noqa: PLC0415  other protocols need no package gr00t
    except ImportError as error:
        message = f"needs the package gr00t that comes along: pip install -e submodules/Isaac-GR00T ({error})"
        raise ConfigError(Problem(message, key="--protocol")) from error
    given = {"--images": options.images, "--states": options.states}
    gr00t.refuse_names(served, [option for option, words in given.items() if words])
    server = gr00t.Gr00tServer(
        served,
        listen,
        max_batch=options.max_batch,
        max_wait_ms=options.max_wait_ms,
        max_sessions=options.max_sessions,
        health_port=options.health_port,
    )
    if server.health is not None:
        _LOG.info("GET /health is answered on port %d", server.health.port)
    return server


def _serve(server: Server, served: ServedJob, interruption: Interruption) -> None:
    server.start()
    try:
        _LOG.info("serving %s on %s", served.stated["job"], server.address)
        while server.is_running and not interruption.stop_requested():
            time.sleep(_LOOK_INTERVAL_S)
    finally:
        server.close()
    if server.failure is not None:
        raise ArenaError(f"the policy can be served no longer: {server.failure}")
    _LOG.info("stopped")


if __name__ == "__main__":
    sys.exit(main())
