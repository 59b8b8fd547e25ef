"""Asks a policy server through NVIDIA's own client; runs with a checkout of Isaac-GR00T first in its path.

Usage: python gr00t_own_client.py ADDRESS TOKEN. Prints the actions, and what the server refused.
"""

import json
import sys
from urllib.parse import urlsplit

import numpy as np
from client_observations import STEPS, pictures, states, words
from gr00t.policy.server_client import PolicyClient


def observation(step: int) -> dict:
    """Return the observation of a step as GR00T's clients show it: each array with an entry and a step."""
    return {
        "video": {name: array[None, None] for name, array in pictures(0, step).items()},
        "state": {name: array[None, None] for name, array in states(0, step).items()},
        "language": {"annotation.human.task_description": [[words(0)]]},
    }


def refused(client: PolicyClient, shown: dict) -> str:
    """Return the server's answer to an observation that it does not take."""
    try:
        client.get_action(shown)
    except RuntimeError as error:
        return str(error)
    return ""


def main(address: str, token: str) -> None:
    where = urlsplit(address)
    client = PolicyClient(host=where.hostname or "", port=where.port or 0, api_token=token)
    assert client.ping()
    modalities = client.get_modality_config()
    client.reset()
    actions = [np.asarray(client.get_action(observation(step))[0]["action"])[0].tolist() for step in range(STEPS)]
    stranger = PolicyClient(host=where.hostname or "", port=where.port or 0, api_token="another")
    told = {
        "actions": actions,
        "video": list(modalities["video"].modality_keys),
        "horizon": len(modalities["action"].delta_indices),
        "refused": refused(client, {**observation(0), "state": {}}),
        "unauthorised": refused(stranger, observation(0)),
        "from": sys.modules[PolicyClient.__module__].__file__,
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
