"""Servers that are lost at the worst moments: an episode goes on exactly, or is an error, and never something else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
import torch

from isaaclab_arena import PolicyLostError
from isaaclab_arena.environments import Episode
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.observers import Observer
from isaaclab_arena.policies import PolicyBase
from tests.gr00t.fakes import LimbEnvironment, write_policy_yaml
from tests.gr00t.policy import model_servers, test_openpi_remote_policy, test_vla_eval_remote_policy
from tests.gr00t.policy.test_gr00t_remote_closedloop_policy import remote_policy
from tests.gr00t.servers import NetworkPolicy, serving
from tests.outsiders.cables import Cable, cable

QUESTION = 4
"""The question at which a server is lost; both episodes have begun by then."""

Hook = Callable[[], None]


class Gr00tServer(NetworkPolicy):
    """Answers by what it is shown and the seeds of the noise."""

    def __init__(self, asked: Hook) -> None:
        super().__init__()
        self.asked = asked

    def get_action(self, observation: Any, options: Any = None) -> Any:
        self.asked()
        return super().get_action(observation, options)


class OpenpiServer(test_openpi_remote_policy.PiWithoutMemory):
    """Answers by what it is shown."""

    def __init__(self, asked: Hook) -> None:
        super().__init__()
        self.asked = asked

    def infer(self, request: dict[str, Any]) -> Any:
        self.asked()
        return super().infer(request)


class VlaEvalServer(model_servers.Model):
    """Answers by what it is shown, and by how often the session was asked in the episode: it remembers."""

    def __init__(self, asked: Hook) -> None:
        super().__init__()
        self.asked = asked
        self.answers = self.remembering

    def remembering(self, message: dict[str, Any], asked: int) -> list[bytes]:
        self.asked()
        heard = next(heard for heard in self.heard if heard[-1] is message)
        # One that was told of no episode answers something else.
        since_start = 100
        for each in heard:
            since_start = 0 if each["type"] == "episode_start" else since_start + (each["type"] == "observation")
        action = self.action(message["payload"]) + since_start
        return [model_servers.packed("action", {"actions": model_servers.array(action)}, message["seq"])]


@contextmanager
def served(wire: str, asked: Hook, directory: Path) -> Iterator[tuple[Cable, PolicyBase]]:
    """Serve a policy of a protocol behind a cable; ``asked`` is called for each question, before it is answered."""
    if wire == "gr00t":
        with serving(Gr00tServer(asked)) as server, cable(server.port) as line:
            yield line, remote_policy(write_policy_yaml(directory), line.port)
    elif wire == "openpi":
        talk = test_openpi_remote_policy.conversation(OpenpiServer(asked))
        with test_openpi_remote_policy.talking(talk) as port, cable(port) as line:
            yield line, test_openpi_remote_policy.policy_at(line.port)
    else:
        with model_servers.serving(VlaEvalServer(asked).talk) as port, cable(port) as line:
            yield line, test_vla_eval_remote_policy.policy_at(line.port)


class Played(Observer):
    """Writes down the actions of each episode, and how it ended."""

    def __init__(self, at_step: Callable[[int], None] = lambda step: None, at_end: Hook = lambda: None) -> None:
        self.episodes: dict[int, tuple[str, list[list[float]]]] = {}
        self._at_step, self._at_end = at_step, at_end
        self._actions: dict[int, list[list[float]]] = {}
        self._num_steps = 0

    def on_episode_start(self, environment, starts, observation) -> None:
        self._actions.update({start.env_id: [] for start in starts})

    def on_step(self, environment, transition) -> None:
        for env_id in torch.nonzero(transition.running).flatten().tolist():
            self._actions[env_id].append(transition.action[env_id].tolist())
        self._num_steps += 1
        self._at_step(self._num_steps)

    def on_episode_end(self, environment, record) -> None:
        self.episodes[record.episode.episode_index] = (record.termination, self._actions[record.env_id])
        self._at_end()


def episodes(indices: Any) -> list[Episode]:
    return [Episode(job="limb", episode_index=index, seed=7) for index in indices]


@pytest.mark.parametrize("wire", ["gr00t", "openpi", "vla_eval"])
@pytest.mark.parametrize("moment", ["first question", "question", "answer", "between episodes"])
def test_what_is_played_is_exact_whenever_a_server_is_lost(tmp_path, wire, moment):
    lines: list[Cable] = []
    num_asked = num_cut = 0

    def cut() -> None:
        nonlocal num_cut
        num_cut += 1
        if num_cut == 1:
            lines[0].cut()

    # A server has a thread for each connection: none may answer while another one's question cuts the cable.
    one_at_a_time = Lock()

    def asked() -> None:
        nonlocal num_asked
        with one_at_a_time:
            num_asked += 1
            if (num_asked, moment) in ((1, "first question"), (QUESTION, "question")):
                cut()

    # The other env slot would be in the middle of an episode.
    num_envs = 1 if moment == "between episodes" else 2
    with served(wire, lambda: None, tmp_path) as (_, policy):
        undisturbed = Played()
        rollout(LimbEnvironment(num_envs), policy, episodes(range(3)), [undisturbed])
        policy.close()
    played = Played(
        at_step=lambda step: cut() if (step, moment) == (2, "answer") else None,
        at_end=lambda: cut() if moment == "between episodes" else None,
    )
    goes_on = wire != "vla_eval" or moment in ("first question", "between episodes")
    with served(wire, asked, tmp_path) as (line, policy):
        lines.append(line)
        lost_for_good = pytest.raises(PolicyLostError, match="it remembers what it was shown")
        with nullcontext() if goes_on else lost_for_good:
            rollout(LimbEnvironment(num_envs), policy, episodes(range(3)), [played])
        lost = {index for index, (termination, _) in played.episodes.items() if termination == "policy_lost"}
        assert bool(lost) != goes_on
        left = sorted({*range(3)} - (played.episodes.keys() - lost))
        rollout(LimbEnvironment(num_envs), policy, episodes(left), [played])
        policy.close()
    assert num_cut >= 1
    assert line.num_dialled > (1 if wire == "gr00t" else num_envs)
    assert played.episodes == undisturbed.episodes
