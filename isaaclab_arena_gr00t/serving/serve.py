"""Serve a policy to other programs, in a protocol that they speak: ``isaaclab-arena serve``."""

import hashlib
import ipaddress
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from pydantic import Field

from arena_wire.messages import WireLimits
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.options import Count, NotNegative, wrong_numbers
from isaaclab_arena.config.schema import JobDefaults
from isaaclab_arena.distributed.context import take_rank_of_scheduler
from isaaclab_arena.distributed.devices import set_up_torch
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, did_you_mean, refuse
from isaaclab_arena.evaluation.job import ContentReader, Job
from isaaclab_arena.evaluation.policy_runner import PolicyOptions, job_block, job_request
from isaaclab_arena.evaluation.process import program, watch_for_interruption
from isaaclab_arena.evaluation.serving import HostedPolicy, PolicyHost
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.paths import typed_words
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena_gr00t.remote.protocols import token_in
from isaaclab_arena_gr00t.serving.served_job import (
    ListenOptions,
    OpenpiTalks,
    ServedJob,
    Talk,
    VlaEvalTalks,
    WebsocketServer,
    mapping_of,
)

if TYPE_CHECKING:
    from isaaclab_arena_gr00t.serving.gr00t import Gr00tServer

# The options of ``isaaclab-arena serve``, and the job that they name.

_JOB_FILES = (".json", ".yaml", ".yml")
_ONE_EPISODE = 1
"""Jobs need a length to be read, and a server has none."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Serve a policy to other programs: JOBS_FILE:JOB, or POLICY_TYPE ENVIRONMENT [options of both]."""

    protocol: Literal["vla_eval", "openpi", "gr00t"]
    """Protocol of the clients: vla_eval, sessions with episodes; openpi or gr00t, single queries."""
    job: str | None = None
    """Name of the job, if only its file is given."""
    host: str = "127.0.0.1"
    """Address to listen on. By default only this machine can connect; 0.0.0.0 accepts connections from any machine."""
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port to listen on; 0 for a free one, which is printed. By default that of the protocol's own servers."""
    api_token: str | None = None
    """Token that clients must send. Other users of this machine can see it in the list of processes."""
    api_token_file: str | None = None
    """File whose only line is the token that clients must send."""
    images: tuple[str, ...] = ()
    """Keys of the pictures in a client's observation, KEY=CAMERA; by default every camera under its own name."""
    states: tuple[str, ...] = ()
    """Keys of the arrays, KEY=TERM,TERM for concatenated terms; by default every term under its own name."""
    prompt_key: str = "prompt"
    """Key of the instruction in an observation of openpi."""
    max_sessions: Count = 16
    """Connections at a time, each with an env slot; a multiple of 4 suits most networks."""
    max_batch: Count = 64
    """Most queries in one call of the policy."""
    max_wait_ms: NotNegative = 5
    """Longest wait of a call's first query for queries of other sessions [ms]."""
    max_message_mb: Count | None = None
    """Largest message of a client; by default 64, and 256 for gr00t, whose messages hold many env slots."""
    health_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port for GET /health, for gr00t only; 0 for a free one, which is printed. Other protocols answer it on their
    own port."""
    policy_device: str | None = None
    """Device of the policy, if it has an option of that name."""
    torch_threads: Count = 1
    """Torch threads; another number than in a run may change the last digits of answers."""
    no_import: bool = False
    """Refuse jobs that would import unregistered code."""

    def check(self) -> None:
        """Refuse options that cannot work: ConfigError with every problem."""
        problems = wrong_numbers(self)
        if self.api_token is not None and self.api_token_file is not None:
            problems = [*problems, Problem("give --api_token or --api_token_file, not both", key="--api_token")]
        if self.health_port is not None and self.protocol != "gr00t":
            message = f"is for gr00t; {self.protocol} answers GET /health on its own port"
            problems = [*problems, Problem(message, key="--health_port")]
        refuse(problems)

    def listen(self) -> ListenOptions:
        """Return the address of the server, and limits on its clients; ConfigError if the token's file is unusable."""
        own_port, own_mb = (5555, 256) if self.protocol == "gr00t" else (8000, 64)
        file = self.api_token_file
        return ListenOptions(
            host=self.host,
            port=own_port if self.port is None else self.port,
            api_token=self.api_token if file is None else token_in(file, key="--api_token_file"),
            max_message_bytes=(self.max_message_mb or own_mb) * 1024 * 1024,
        )

    def is_local(self) -> bool:
        """Return True if only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def client_keys(self) -> tuple[Mapping[str, str] | None, Mapping[str, Sequence[str]] | None]:
        """Return the camera of each key of `images`, and the terms of each of `states`; None if none is given."""
        found: dict[str, dict[str, str]] = {}
        for option, words in (("--images", self.images), ("--states", self.states)):
            found[option] = {}
            for word in words:
                key, equals, name = word.partition("=")
                if not key or not equals or not name:
                    raise ConfigError(f"must be like KEY=NAME, got '{word}'", key=option)
                found[option][key] = name
        return found["--images"] or None, {key: names.split(",") for key, names in found["--states"].items()} or None


def served_job(options: ServeOptions, rest: Sequence[str]) -> Job:
    """Return the job to serve; `rest` is JOBS_FILE:JOB, or policy type, environment and options."""
    if not rest or rest[0].startswith("-"):
        raise ConfigError("name JOBS_FILE:JOB, or a policy type and its environment", key="POLICY_OR_JOB")
    file, _, name = rest[0].rpartition(":")
    # A file without ``:JOB`` takes the job's name from --job.
    if rest[0].endswith(_JOB_FILES):
        file, name = rest[0], options.job or ""
    if file.endswith(_JOB_FILES):
        if rest[1:]:
            raise ConfigError("a job file says all of its jobs; change it there", key=rest[1])
        read = load_jobs_file(file, JobDefaults(num_episodes=_ONE_EPISODE), suites=SUITES)
        names = [config.name for config in read.jobs]
        if not name and len(names) == 1:
            name = names[0]
        if name not in names:
            choice = (
                f"there is no job '{name}'{did_you_mean(name, names)}" if name else f"name one of {', '.join(names)}"
            )
            raise ConfigError(choice, file=file, key="--job")
        [job] = resolve_jobs(
            [config for config in read.jobs if config.name == name],
            file=file,
            overrides={"policy_device": options.policy_device},
            may_import=not options.no_import,
        )
        return job

    # Read the job from the command line, as ``policy_runner`` does.
    asked = PolicyOptions(
        policy_type=rest[0],
        num_episodes=_ONE_EPISODE,
        policy_device=options.policy_device,
        no_import=options.no_import,
        name=options.job,
    )
    return job_request(asked, job_block(asked, rest[1:])).jobs[0]


# Serve a policy to other programs, in a protocol that they speak: ``isaaclab-arena serve``.

_LOG = logging.getLogger("isaaclab_arena.gr00t")

_LOOK_INTERVAL_S = 0.1


def main(argv: Sequence[str] | None = None, *, typed_as: str = "isaaclab-arena serve") -> int:
    """Serve, and return the exit code: 0 if a client stopped it, 1 or 2 on error, 130 (Ctrl-C), 143 (SIGTERM)."""
    options, rest = tyro.cli(
        ServeOptions,
        prog=typed_as,
        args=typed_words(argv),
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
        use_underscores=True,
    )
    with program() as ended:
        take_rank_of_scheduler()
        options.check()
        listen = options.listen()
        set_up_torch(options.torch_threads)

        # Build the policy before the server listens, so that no client connects to a server without a policy.
        served = prepared(options, rest)
        try:
            server = server_of(options, served, listen)
        except OSError as error:
            served.policy.close()
            raise ArenaError(f"cannot listen on {options.host}, port {listen.port}: {error.strerror}") from error
        if listen.api_token is None and not options.is_local():
            _LOG.warning(
                "everyone who can reach %s may use this server; --api_token_file keeps others out", server.address
            )
        if not served.policy.reads_instruction:
            _LOG.info("the policy reads no instruction, so that of a client changes nothing")

        # Serve until a client, a failure or a signal stops it.
        with watch_for_interruption() as interruption:
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
        return interruption.exit_code
    return ended.code


def prepared(options: ServeOptions, rest: Sequence[str]) -> ServedJob:
    """Return the served job with its policy built and tried out; ConfigError if the policy cannot be served."""
    job = served_job(options, rest)
    contents = hashlib.sha256(json_line(ContentReader().read(job).policy).encode()).hexdigest()
    images, states = options.client_keys()
    policy = HostedPolicy(job, options.max_sessions, shown=lambda spec: mapping_of(spec, images, states).shown())
    mapping = mapping_of(policy.environment.observation_spec, images, states)
    return ServedJob(policy=policy, mapping=mapping, contents={"policy_sha256": contents})


def server_of(options: ServeOptions, served: ServedJob, listen: ListenOptions) -> "WebsocketServer | Gr00tServer":
    """Return the protocol's server, which listens but does not answer yet; OSError if it cannot listen."""
    if options.protocol == "gr00t":
        try:
            from isaaclab_arena_gr00t.serving import gr00t  # noqa: PLC0415  other protocols need no package gr00t
        except ImportError as error:
            message = f"needs the package gr00t that comes along: pip install -e submodules/Isaac-GR00T ({error})"
            raise ConfigError(message, key="--protocol") from error
        given = [option for option, words in (("--images", options.images), ("--states", options.states)) if words]
        if given and isinstance(served.policy.policy, gr00t.Gr00tClosedloopPolicy):
            message = "has no effect on a GR00T model, whose clients use the model's own names; leave it out"
            raise ConfigError([Problem(message, key=option) for option in given])
        server = gr00t.Gr00tServer(
            served,
            listen,
            max_batch=options.max_batch,
            max_wait_ms=options.max_wait_ms,
            max_sessions=options.max_sessions,
            health_port=options.health_port,
        )
        if server.health is not None:
            _LOG.info("GET /health is answered on port %d", server.health.server_address[1])
        return server

    # The other protocols differ in their messages over a websocket.
    limits = WireLimits(max_message_bytes=listen.max_message_bytes)
    if options.protocol == "openpi":
        talk: Talk = OpenpiTalks(served, limits, prompt_key=options.prompt_key)
    else:
        talk = VlaEvalTalks(served, limits)
    # The host runs a thread, so it must be closed if the port is taken.
    host = PolicyHost(served.policy, max_batch=options.max_batch, max_wait_s=options.max_wait_ms / 1000)
    try:
        return WebsocketServer(host, talk, listen, served.stated)
    except OSError:
        host.close()
        raise


if __name__ == "__main__":
    sys.exit(main())
