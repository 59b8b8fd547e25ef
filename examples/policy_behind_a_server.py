"""Evaluate a policy that runs in another process, and is asked over HTTP: on another machine, or in another Python.

python examples/policy_behind_a_server.py
"""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch

import isaaclab_arena as arena
from isaaclab_arena.policies import PolicyBase, PolicyCfg, PolicyLostError


class Answers(BaseHTTPRequestHandler):
    """The server's side: float32 numbers in, gripper and marker of every env slot; float32 numbers out, its steps."""

    def do_POST(self) -> None:
        """Answer a request."""
        state = np.frombuffer(self.rfile.read(int(self.headers["Content-Length"])), np.float32).reshape(-1, 6)
        step = np.clip(state[:, 3:] - state[:, :3], -0.04, 0.04)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(step.tobytes())

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Say nothing of single requests."""


@contextmanager
def served() -> Iterator[int]:
    """Run the server for a while. Yields its port."""
    with ThreadingHTTPServer(("localhost", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@dataclass(frozen=True)
class AskingCfg(PolicyCfg):
    """Where the server is."""

    port: int
    timeout_s: float = 10.0


class AskingPolicy(PolicyBase[AskingCfg]):
    """Asks the server about all env slots at once, in every control step."""

    config_class = AskingCfg

    def get_action(self, env, observation):
        """Return the actions. Shape: (num_envs, 7)."""
        state = torch.cat([observation["policy"][name] for name in ("eef_pos", "target_pos")], dim=1)
        action = torch.zeros(env.action_space.shape, device=env.device)
        action[:, :3] = torch.from_numpy(self._ask(state.cpu().numpy())).to(env.device)
        return action

    def _ask(self, state: np.ndarray) -> np.ndarray:
        connection = http.client.HTTPConnection("localhost", self.config.port, timeout=self.config.timeout_s)
        try:
            connection.request("POST", "/", state.astype(np.float32).tobytes())
            return np.frombuffer(connection.getresponse().read(), np.float32).reshape(-1, 3).copy()
        except OSError as error:
            # Episodes that were running end in errors, which are not in the success rate, and can be run again.
            raise PolicyLostError(f"no answer from port {self.config.port}: {error}") from error
        finally:
            connection.close()


def main() -> float:
    """Start the server, evaluate, show the table, and return the success rate."""
    with served() as port:
        policy = AskingPolicy(AskingCfg(port=port))
        results = arena.evaluate(
            environment="reach", policy=policy, num_episodes=20, num_envs=4, action_mode="ee_delta"
        )
    print(results)
    return results.job().success_rate or 0.0


if __name__ == "__main__":
    main()
