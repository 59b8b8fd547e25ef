"""The server of GR00T's protocol for ``isaaclab-arena serve``; this path runs the command too."""

import logging
import sys
from typing import TYPE_CHECKING

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.serve import ListenOptions, ServedJob, ServeOptions, main

if TYPE_CHECKING:
    from isaaclab_arena_gr00t.serving.gr00t import Gr00tServer

__all__ = ["gr00t_server", "main"]

# Below the program's own logger, so that it is shown.
_LOG = logging.getLogger("isaaclab_arena.gr00t")


def gr00t_server(options: ServeOptions, served: ServedJob, listen: ListenOptions) -> "Gr00tServer":
    """Return the server of GR00T's protocol, which listens but does not answer yet; OSError if it cannot listen."""
    try:
        from isaaclab_arena_gr00t.serving import gr00t  # noqa: PLC0415  the documented path of `main` needs no gr00t
    except ImportError as error:
        message = (
            f"needs the package gr00t; in a checkout of this project: pip install -e submodules/Isaac-GR00T ({error})"
        )
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


if __name__ == "__main__":
    sys.exit(main())
