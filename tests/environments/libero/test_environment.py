"""The conditions of an episode follow from its index as the protocol says."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from isaaclab_arena.environments.gym.environment import GymTraits, SuccessRule
from isaaclab_arena.environments.libero import PROTOCOLS, LiberoEnvironment
from isaaclab_arena.interfaces.episode import Episode

TRAITS = GymTraits(
    name="libero:libero_spatial/0",
    task_name="bowl",
    task_description="take the bowl",
    max_episode_length=220,
    control_dt=0.05,
    seed_bits=32,
    reproducible=True,
    success=SuccessRule(key="success"),
    metric_keys=(),
)


DESCRIPTION = {
    "observation": {"robot0_eef_pos": {"shape": [3], "image": False}},
    "action_low": [-1.0] * 7,
    "action_high": [1.0] * 7,
    "action_names": None,
    "info_keys": ["success"],
    "renders": False,
    "hold_action": None,
    "draws_on_demand": True,
    "versions": {"robosuite": "1.4.0"},
}


def environment(protocol: str) -> LiberoEnvironment:
    facts = {"protocol": protocol}
    slots: Any = SimpleNamespace(description=DESCRIPTION, steps_while_starting=0, makes_steps_ahead=False)
    return LiberoEnvironment(slots, 1, TRAITS, torch.device("cpu"), protocol=PROTOCOLS[protocol], facts=facts)


def conditions(protocol: str, index: int, seed: int = 3) -> dict[str, Any]:
    played, episode = environment(protocol), Episode(job="bowl", episode_index=index, seed=seed)
    found = played.vary_conditions(played.draw_conditions(episode.conditions_generator()), episode)
    return {key.removeprefix("libero."): value for key, value in found.items()}


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("openpi", {"fixture_seed": 7, "reset_index": 4, "init_state": 4}),
        ("openvla", {"fixture_seed": 0, "reset_index": 4, "init_state": 4}),
        ("lerobot", {"fixture_seed": 1004, "reset_index": 5, "init_state": 4}),
        ("gr00t", {"fixture_seed": 0, "reset_index": 4, "init_state": 4}),
        ("vla_eval", {"fixture_seed": 7, "reset_index": 4, "init_state": 4}),
    ],
)
def test_a_harness_has_the_same_conditions_for_every_seed_of_a_job(protocol, expected):
    assert conditions(protocol, 4) == conditions(protocol, 4, seed=9) == expected


def test_strict_fixtures_belong_to_the_episode_and_follow_the_seed_of_the_job():
    first, other, again = conditions("strict", 4), conditions("strict", 5), conditions("strict", 4)
    assert first == again
    assert (first["reset_index"], other["reset_index"]) == (0, 0)
    assert first["fixture_seed"] not in (other["fixture_seed"], conditions("strict", 4, seed=9)["fixture_seed"])


def test_the_protocol_stands_beside_the_versions():
    assert environment("gr00t").provenance() == {
        "environment": "libero:libero_spatial/0",
        "robosuite": "1.4.0",
        "protocol": "gr00t",
    }
