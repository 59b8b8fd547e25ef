"""Read the address and the time limits of a policy server from the options of a job."""

from dataclasses import dataclass, field
from pathlib import Path

from isaaclab_arena.errors import ConfigError, Problem

KEY_FILE_OPTION = "remote_api_token_file"


@dataclass(frozen=True)
class ServerOptions:
    """The options of a job for its policy server; every policy that asks one has them.

    Attributes:
        remote_host: Machine of the server.
        remote_port: Its port.
        remote_api_token: Refused: a run writes its options into its output, where a token should not be.
        remote_api_token_file: File whose only line is what the server asks for.
        timeout_s: How long an answer may take [s].
        wait_for_server_s: How long to wait for a server that is not there, at the start or later [s].
    """

    remote_host: str = "localhost"
    remote_port: int = 5555
    remote_api_token: str | None = None
    remote_api_token_file: str | None = None
    timeout_s: float = 30.0
    wait_for_server_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """A policy server, with its time limits.

    Attributes:
        host: Its machine.
        port: Its port.
        api_token: Its token, None if it needs none.
        timeout_s: How long an answer may take [s].
        wait_for_server_s: How long to wait for a server that is not there, at the start or later [s].
    """

    host: str = "localhost"
    port: int = 5555
    api_token: str | None = field(default=None, repr=False)
    timeout_s: float = 30.0
    wait_for_server_s: float = 60.0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def server_address(options: ServerOptions) -> ServerAddress:
    """Return the address of the server.

    Raises:
        ConfigError: With every wrong option.
    """
    problems = address_problems(options)
    if problems:
        raise ConfigError(problems)
    file = options.remote_api_token_file
    return ServerAddress(
        host=options.remote_host,
        port=options.remote_port,
        api_token=None if file is None else _token_in(file),
        timeout_s=options.timeout_s,
        wait_for_server_s=options.wait_for_server_s,
    )


def address_problems(options: ServerOptions) -> list[Problem]:
    """Return the problems of the options for the server.

    A token among the options is refused, because a run writes the options of its jobs into its output.
    """
    host, port = options.remote_host, options.remote_port
    problems = []
    if not host or not host.isprintable() or any(map(str.isspace, host)):
        problems.append(Problem(f"must be the name of a machine, got {host!r}", key="remote_host"))
    if not 0 < port < 65536:
        problems.append(Problem(f"must be between 1 and 65535, got {port}", key="remote_port"))
    problems += [
        Problem(f"must be more than 0 s, got {seconds:g}", key=key)
        for key, seconds in (("timeout_s", options.timeout_s), ("wait_for_server_s", options.wait_for_server_s))
        if not 0 < seconds < float("inf")
    ]
    if options.remote_api_token is not None:
        message = (
            "is refused, since a run writes the options of its jobs into its output, where others may read them; put "
            f"it into a file of one line, and name that in {KEY_FILE_OPTION}"
        )
        problems.append(Problem(message, key="remote_api_token"))
    if options.remote_api_token_file is not None:
        try:
            _token_in(options.remote_api_token_file)
        except ConfigError as error:
            problems += error.problems
    return problems


def _token_in(file: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(Problem(f"cannot read '{file}': {error.strerror}", key=KEY_FILE_OPTION)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(Problem(f"'{file}' is no text: {error.reason}", key=KEY_FILE_OPTION)) from error
    if not text or not text.isprintable():
        found = "several lines, or signs that cannot be printed" if text else "nothing"
        message = f"'{file}' must hold the server's token on one line, it holds {found}"
        raise ConfigError(Problem(message, key=KEY_FILE_OPTION))
    return text
