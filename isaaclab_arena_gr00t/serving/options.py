"""Read the options of ``isaaclab-arena serve``, and find the job that they name."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.config.options import Count, NotNegative, wrong_numbers
from isaaclab_arena.config.schema import JobDefaults
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.policy_runner import PolicyOptions, resolved_job
from isaaclab_arena.evaluation.validation import resolve_jobs

_JOB_FILES = (".json", ".yaml", ".yml")
_PORTS = {"vla_eval": 8000, "openpi": 8000, "gr00t": 5555}
_LARGEST_MB = {"vla_eval": 64, "openpi": 64, "gr00t": 256}
_MB = 1024 * 1024
_ONE_EPISODE = 1
"""Jobs need a length to be read, and a server has none."""


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Serve a policy to other programs: JOBS_FILE:JOB, or POLICY_TYPE ENVIRONMENT [options of both]."""

    protocol: Literal["vla_eval", "openpi", "gr00t"]
    """What clients speak: vla_eval, sessions with episodes; openpi or gr00t, single questions."""
    job: str | None = None
    """Name of the job, where only its file is named."""
    host: str = "127.0.0.1"
    """Address to listen on. By default only this machine can connect; 0.0.0.0 accepts connections from any machine."""
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port to listen on; 0 means a free one, which is printed. By default that of the protocol's own servers."""
    api_token: str | None = None
    """Token that clients must send. Other users of this machine can see it in the list of processes."""
    api_token_file: str | None = None
    """File whose only line is the token that clients must send."""
    images: tuple[str, ...] = ()
    """Where the pictures are in a client's observation, KEY=CAMERA; by default every camera under its own name."""
    states: tuple[str, ...] = ()
    """Where its arrays are, KEY=TERM,TERM for terms one behind the other; by default every term under its own name."""
    prompt_key: str = "prompt"
    """Where the instruction is in an observation of openpi."""
    max_sessions: Count = 16
    """Connections at a time, each of which has an env slot; a multiple of 4 suits most networks."""
    max_batch: Count = 64
    """Most queries in one call of the policy."""
    max_wait_ms: NotNegative = 5
    """How long the first query of a call waits for those of other sessions."""
    max_message_mb: Count | None = None
    """Largest message of a client; by default 64, and 256 for gr00t, where one message asks about many env slots."""
    health_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port for GET /health, for gr00t only; 0 means a free one, which is printed. The others answer it on their own."""
    policy_device: str | None = None
    """Device of the policy, if it has an option of that name."""
    torch_threads: Count = 1
    """Threads of torch; with another number the last digits of answers may differ from those of a run."""
    no_import: bool = False
    """Refuse jobs that would import code which is not registered."""

    def check(self) -> None:
        """Refuse options that cannot work.

        Raises:
            ConfigError: With every problem.
        """
        problems = wrong_numbers(self)
        if self.api_token is not None and self.api_token_file is not None:
            problems = [*problems, Problem("give --api_token or --api_token_file, not both", key="--api_token")]
        if self.health_port is not None and self.protocol != "gr00t":
            message = f"is for gr00t; {self.protocol} answers GET /health on its own port"
            problems = [*problems, Problem(message, key="--health_port")]
        if problems:
            raise ConfigError(problems)

    @property
    def max_message_bytes(self) -> int:
        """The largest message of a client."""
        return (self.max_message_mb or _LARGEST_MB[self.protocol]) * _MB

    @property
    def listen_port(self) -> int:
        """The port to listen on."""
        return _PORTS[self.protocol] if self.port is None else self.port

    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def token(self) -> str | None:
        """Return the token that clients must send, None for none.

        Raises:
            ConfigError: If the file cannot be read or holds no token.
        """
        if self.api_token_file is None:
            return self.api_token
        try:
            text = Path(self.api_token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                Problem(f"cannot read '{self.api_token_file}': {error}", key="--api_token_file")
            ) from error
        if not text or not text.isprintable():
            message = f"'{self.api_token_file}' must hold the token on one line"
            raise ConfigError(Problem(message, key="--api_token_file"))
        return text

    def image_keys(self) -> Mapping[str, str] | None:
        """Return the camera of each key, None where none is given."""
        return dict(_pair(word, "--images") for word in self.images) or None

    def state_keys(self) -> Mapping[str, Sequence[str]] | None:
        """Return the terms of each key, None where none is given."""
        pairs = dict(_pair(word, "--states") for word in self.states)
        return {key: names.split(",") for key, names in pairs.items()} or None


def served_job(options: ServeOptions, rest: Sequence[str]) -> Job:
    """Return the job whose policy is to be served.

    Args:
        options: The options.
        rest: What else was typed: JOBS_FILE:JOB, or a policy type, an environment and options of both.

    Raises:
        ConfigError: If there is no such job, or it is wrong.
    """
    if not rest or rest[0].startswith("-"):
        raise ConfigError(Problem("name JOBS_FILE:JOB, or a policy type and its environment", key="POLICY_OR_JOB"))
    file, _, name = rest[0].rpartition(":")
    if rest[0].endswith(_JOB_FILES):
        file, name = rest[0], options.job or ""
    if file.endswith(_JOB_FILES):
        if rest[1:]:
            raise ConfigError(Problem("a job file says all of its jobs; change it there", key=rest[1]))
        return _job_of_file(options, file, name)
    asked = PolicyOptions(
        policy_type=rest[0],
        num_episodes=_ONE_EPISODE,
        policy_device=options.policy_device,
        no_import=options.no_import,
        name=options.job,
    )
    return resolved_job(asked, rest[1:])[1][0]


def _job_of_file(options: ServeOptions, file: str, name: str) -> Job:
    read = load_jobs_file(file, JobDefaults(num_episodes=_ONE_EPISODE), suites=SUITES)
    names = [config.name for config in read.jobs]
    if not name and len(names) == 1:
        name = names[0]
    if name not in names:
        message = f"there is no job '{name}'{did_you_mean(name, names)}" if name else f"name one of {', '.join(names)}"
        raise ConfigError(Problem(message, file=file, key="--job"))
    [job] = resolve_jobs(
        [config for config in read.jobs if config.name == name],
        file=file,
        overrides={"policy_device": options.policy_device},
        may_import=not options.no_import,
    )
    return job


def _pair(word: str, option: str) -> tuple[str, str]:
    key, equals, name = word.partition("=")
    if not key or not equals or not name:
        raise ConfigError(Problem(f"must be like KEY=NAME, got '{word}'", key=option))
    return key, name
