"""The servers of openpi and vla-eval themselves with a model that takes no time: ``python own_servers.py WIRE``.

For an interpreter that has the package. It prints its port once it listens.
"""

import contextlib
import functools
import socket
import sys
import threading

import numpy as np

ACTIONS = np.zeros((16, 8), np.float32)


def openpi() -> None:
    """Serve with openpi's own server."""
    from openpi_client.base_policy import BasePolicy  # pyright: ignore[reportMissingImports]  # noqa: PLC0415  either
    from openpi_server import WebsocketPolicyServer  # pyright: ignore[reportMissingImports]  # noqa: PLC0415  either

    class Zeros(BasePolicy):
        def infer(self, obs: dict) -> dict:
            del obs
            return {"actions": ACTIONS}

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def tell_once_it_listens() -> None:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
        tell(port)

    threading.Thread(target=tell_once_it_listens, daemon=True).start()
    WebsocketPolicyServer(Zeros(), host="127.0.0.1", port=port, metadata={"policy": "zeros"}).serve_forever()


def vla_eval() -> None:
    """Serve with vla-eval's own server."""
    import anyio  # noqa: PLC0415  either
    from vla_eval.model_servers.predict import PredictModelServer  # pyright: ignore[reportMissingImports]  # noqa: PLC0415  either
    from vla_eval.model_servers.serve import serve_async  # pyright: ignore[reportMissingImports]  # noqa: PLC0415  either

    class Zeros(PredictModelServer):
        def predict(self, obs: dict, ctx: object) -> dict:
            del obs, ctx
            return {"actions": ACTIONS}

    async def run() -> None:
        async with anyio.create_task_group() as group:
            tell(await group.start(functools.partial(serve_async, Zeros(), "127.0.0.1", 0)))

    anyio.run(run)


def tell(port: int) -> None:
    """Print the port."""
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"openpi": openpi, "vla_eval": vla_eval}[sys.argv[1]]()
