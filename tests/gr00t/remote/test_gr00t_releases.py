"""GR00T's released servers are asked, and its released clients are answered, in the form that each of them knows."""

from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import numpy as np
import pytest
import torch
from gr00t.policy.gr00t_policy import Gr00tSimPolicyWrapper
from gr00t.policy.server_client import PolicyClient

from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs
from tests.fakes_environment import episodes
from tests.gr00t.fakes import MODALITIES, LimbEnvironment, LimbPolicy, network_answer, write_policy_yaml
from tests.gr00t.policy.model_servers import gr00t_at
from tests.gr00t.servers import NetworkPolicy, plain, serving
from tests.outsiders.gr00t_peers import (
    N1_7,
    RELEASES,
    Modality,
    ReleasedClient,
    ReleasedServer,
    released_server,
)

WORDS = "annotation.human.task_description"
each_release = pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)


# Their servers, asked by the policy of this project.


def server_of(act: Callable[..., dict[str, np.ndarray]] | None = None, **options: Any) -> ReleasedServer:
    modalities = {
        name: Modality(delta_indices=list(each.delta_indices), modality_keys=list(each.modality_keys))
        for name, each in MODALITIES.items()
    }

    def answer(observation: dict[str, Any], options: Any) -> dict[str, np.ndarray]:
        return network_answer(observation, options["noise_seeds"])

    return ReleasedServer(modalities=modalities, act=act or answer, **options)


def played(policy: PolicyBase) -> torch.Tensor:
    """Actions of four episodes."""
    environment = LimbEnvironment(2)
    with closing(policy):
        policy.reset()
        policy.check_environment(environment)
        rollout(environment, policy, episodes(4), [])
    return torch.stack(environment.actions)


@each_release
@pytest.mark.parametrize("wrapped", [False, True], ids=["nested", "wrapped for simulation"])
def test_a_released_server_is_asked_in_the_form_that_it_reads(tmp_path, release, wrapped):
    server = server_of(wrapped_for_simulation=wrapped)
    with released_server(release, server) as port:
        here = LimbPolicy(ClosedloopPolicyArgs(policy_config_yaml_path=write_policy_yaml(tmp_path), rows_per_query=2))
        assert torch.equal(played(gr00t_at(port, tmp_path, rows_per_query=2, timeout_s=20.0)), played(here))
        if not wrapped:
            # The model package's own client speaks as the server does, too.
            with closing(PolicyClient("127.0.0.1", port, timeout_ms=20_000)) as client:
                assert client.get_modality_config()["video"].modality_keys == ["ego", "aside"]
                action, _ = client.get_action(observed(1), {"noise_seeds": [3]})
            assert plain(action) == plain(network_answer(observed(1), [3]))


def test_an_error_of_a_released_server_is_told_and_not_that_of_another_form(tmp_path):
    def refuse(observation: dict[str, Any], options: Any) -> dict[str, np.ndarray]:
        raise KeyError("no gripper here")

    with (
        released_server(N1_7, server_of(refuse)) as port,
        closing(gr00t_at(port, tmp_path, timeout_s=20.0)) as policy,
        pytest.raises(PolicyError, match="no gripper here"),
    ):
        rollout(LimbEnvironment(2), policy, episodes(4), [])


# Their clients, answered by the server of this project.


class Arms(NetworkPolicy):
    """Answers each batch entry with the first number of its state."""

    strict = False

    def get_action(self, observation: dict[str, Any], options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        assert set(observation) == {"video", "state", "language"}
        assert observation["video"]["ego"].dtype == np.uint8
        assert observation["language"][WORDS] == [["lift"]] * len(observation["state"]["arm"])
        return {"arm": observation["state"]["arm"][:, :, :1].repeat(6, axis=1)}, {}


def observed(number: float, batch_size: int = 1) -> dict[str, Any]:
    return {
        "video": {key: np.zeros((batch_size, 1, 4, 4, 3), np.uint8) for key in ("ego", "aside")},
        "state": {key: np.full((batch_size, 1, 2), number, np.float32) for key in ("arm", "leg", "hand")},
        "language": {WORDS: [["lift"]] * batch_size},
    }


@each_release
def test_a_released_client_reads_what_the_server_answers(release):
    with serving(Arms()) as server, ReleasedClient(release, server.port) as client:
        assert client.call("ping") == {"status": "ok", "message": "Server is running"}
        modality = client.call("get_modality_config")["action"]
        assert isinstance(modality, Modality)
        assert (modality.delta_indices, modality.modality_keys) == (list(range(6)), ["leg", "arm", "hand"])
        action, info = client.get_action(observed(2.5))
        assert isinstance(action["arm"], np.ndarray)
        assert (action["arm"].dtype, action["arm"].tolist()) == (np.float32, [[[2.5]] * 6])
        assert info == {}
        assert client.call("reset", {"options": None}) == {}
        assert "error" in client.get_action({"state": {"arm": np.array([1j])}})


@each_release
def test_a_released_client_for_simulation_is_answered_with_flat_keys(release):
    with serving(Gr00tSimPolicyWrapper(cast(Any, Arms()))) as server, ReleasedClient(release, server.port) as client:
        seen = observed(2.5, batch_size=2)
        flat = {
            f"{modality}.{key}": values for modality in ("video", "state") for key, values in seen[modality].items()
        }
        # Environments show more than a model looks at.
        flat |= {WORDS: ("lift", "lift"), "video.rear": flat["video.ego"], "annotation.human.validity": ("valid",) * 2}
        action, _ = client.get_action(flat)
        assert {key: values.shape for key, values in action.items()} == {"action.arm": (2, 6, 1)}
        nested, _ = client.get_action(seen)
        assert nested["arm"].tolist() == action["action.arm"].tolist()
        del flat["state.leg"]
        assert "lacks 'state.leg'" in client.get_action(flat)["error"]
