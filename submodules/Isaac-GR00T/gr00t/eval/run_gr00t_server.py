"""Serve a checkpoint to clients that speak GR00T's protocol, until the server is stopped: ``gr00t-server``."""

import hashlib
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Annotated

import torch
import tyro  # noqa: TID251  a program of its own, with options of its own

from arena_wire.messages import WireLimits
from gr00t import Gr00tError
from gr00t.data.embodiment_tags import EmbodimentTag
from gr00t.policy.gr00t_policy import Gr00tPolicy, Gr00tSimPolicyWrapper
from gr00t.policy.policy_server import LOCAL_HOSTS, MAX_CLIENTS, BatchingOptions, PolicyServer

_LOG = logging.getLogger("gr00t")
_LOADED = {".safetensors", ".json"}
_DISTRIBUTION = "gr00t-small"


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Options of the server."""

    model_path: str
    """Directory of the checkpoint."""
    embodiment_tag: str = "NEW_EMBODIMENT"
    """Which of the checkpoint's robots: a name such as NEW_EMBODIMENT, or its value."""
    device: str | None = None
    """Device of the model: cpu, cuda or cuda:<index>. By default a GPU if there is one."""
    host: str = "127.0.0.1"
    """Address to listen on. By default only this machine can connect; 0.0.0.0 accepts connections from any machine."""
    port: int = 5555
    """Port to listen on; 0 means a free one, which is printed."""
    strict: bool = True
    """Check observations and actions."""
    refuse_unknown: bool = False
    """Refuse entries of an observation that the model does not know; by default they are ignored, and named once."""
    use_sim_policy_wrapper: bool = False
    """Accepted for NVIDIA's command lines: observations with flat keys are understood either way."""
    api_token: str | None = None
    """Token that clients must send. Other users of this machine can see it in the list of processes."""
    api_token_file: str | None = None
    """File whose only line is the token that clients must send."""
    max_batch: int = 64
    """Largest number of batch entries in one call of the model, combined from several clients; 1 combines none."""
    batch_wait_ms: Annotated[float, tyro.conf.arg(aliases=("--max_wait_ms",))] = 2.0
    """How long to wait for other recently active clients before the model is called."""
    max_sessions: int = MAX_CLIENTS
    """Most connections at a time; more are closed at once."""
    max_message_mb: int = 256
    """Largest size of a request."""
    allow_kill: bool = True
    """Whether clients may stop the server; if other machines can reach it, only with a token."""


def main(argv: Sequence[str] | None = None) -> int:
    """Serve, and return the exit code: 0 if a client stopped it, 1 or 2 on error, 130 (Ctrl-C), 143 (SIGTERM)."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    config = tyro.cli(ServerConfig, args=argv, prog="gr00t-server", description=__doc__)
    server: PolicyServer | None = None
    exit_code = 0

    # The first signal ends a running server after its current request. Any other ends the process.
    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal exit_code
        del frame
        again = exit_code != 0
        exit_code = 128 + number
        if server is None or again:
            raise SystemExit(exit_code)
        server.stop()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server = server_of(config)
        server.run()
    # 2 is a wrong option or checkpoint, 1 a failure to listen.
    except (Gr00tError, UnicodeDecodeError, OSError) as error:
        _LOG.error("%s", error)
        return 1 if isinstance(error, OSError) else 2
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    _LOG.info("stopped")
    return exit_code


def server_of(config: ServerConfig) -> PolicyServer:
    """Load the checkpoint and return the listening server; Gr00tError or OSError if this fails."""
    if min(config.max_batch, config.max_message_mb, config.max_sessions) < 1 or config.batch_wait_ms < 0:
        raise Gr00tError("max_batch, max_message_mb and max_sessions are at least 1, and batch_wait_ms is not below 0")
    api_token = config.api_token
    if config.api_token_file is not None:
        if api_token is not None:
            raise Gr00tError("give api_token or api_token_file, not both")
        api_token = Path(config.api_token_file).read_text(encoding="utf-8").strip()
        if not api_token:
            raise Gr00tError(f"{config.api_token_file} is empty; it must hold what clients have to show")
    policy = Gr00tPolicy(
        EmbodimentTag.resolve(config.embodiment_tag),
        config.model_path,
        device=config.device or ("cuda" if torch.cuda.is_available() else "cpu"),
        strict=config.strict,
        refuse_unknown=config.refuse_unknown,
    )
    server = PolicyServer(
        Gr00tSimPolicyWrapper(policy),
        config.host,
        config.port,
        api_token,
        batching=BatchingOptions(
            max_batch=config.max_batch, wait_ms=config.batch_wait_ms, max_clients=config.max_sessions
        ),
        limits=WireLimits(max_message_bytes=config.max_message_mb * 1024 * 1024),
        allow_kill=config.allow_kill,
        serves=describe_model(config.model_path),
    )
    # The default address is local; a public one without a token deserves a warning.
    if api_token is None and config.host not in LOCAL_HOSTS:
        _LOG.warning("everyone who can reach %s may use this server; api_token_file keeps others out", config.host)
    _LOG.info("serving %s on %s", config.model_path, server.address)
    return server


def describe_model(model_path: str) -> dict[str, str]:
    """Return a checkpoint's name, one hash of its loaded files, and this package's version; OSError if unreadable."""
    directory = Path(model_path)
    # A path that is no directory, such as a name on the hub, has no hash.
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.suffix in _LOADED and path.is_file():
            with path.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{path.name} {content}\n".encode())
    try:
        version = metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        version = "unknown"
    content = {"model_sha256": digest.hexdigest()} if directory.is_dir() else {}
    return {"model": directory.resolve().name, **content, "package": f"{_DISTRIBUTION} {version}"}


if __name__ == "__main__":
    sys.exit(main())
