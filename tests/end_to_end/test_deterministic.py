"""With --deterministic a network's episodes are the same bits for any number of environments and ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.launching import job, launched, run, run_of

NETWORK = "tests.fakes_network.NetworkPolicy"
NUM_EPISODES = 6

Known = dict[tuple[str, int], tuple[int, dict[str, Any]]]
"""Job and episode to the checksum of what was recorded of it, and what happened in it."""


def known(directory: Path, num_envs: int, *options: object, ranks: int = 1) -> Known:
    """Run two jobs and return what is known of each episode."""
    jobs = [job(task, NETWORK, NUM_EPISODES, num_envs=num_envs, name=task) for task in ("lift_object", "reach")]
    fixed = ("--deterministic", "--policy_batch", 16, *options)
    output = launched(directory / "out", *jobs, options=fixed, ranks=ranks)
    files = output.glob("*/episode_results_rank*.jsonl")
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {(line["job_name"], line["episode_index"]): (line["checksum"], line["events"]) for line in lines}


@pytest.fixture(scope="module")
def one_slot(tmp_path_factory) -> Known:
    found = known(tmp_path_factory.mktemp("deterministic"), 1)
    assert len({checksum for checksum, _ in found.values()}) == 2 * NUM_EPISODES
    assert {events["decisive"] for _, events in found.values()} - {None}
    return found


@pytest.mark.parametrize(("num_envs", "ranks", "groups"), [(5, 2, 1), (5, 1, 2)])
def test_a_networks_episodes_and_their_events_are_the_same_bits_however_env_slots_are_shared_out(
    one_slot, tmp_path, num_envs, ranks, groups
):
    assert known(tmp_path, num_envs, "--pipeline", groups, ranks=ranks) == one_slot


def test_more_env_slots_than_the_batch_holds_are_a_mistake_that_names_both(tmp_path):
    finished = run(run_of(tmp_path / "out", job(policy=NETWORK, num_envs=65), options=("--deterministic",)))
    assert finished.returncode == 2
    assert "65 env slots exceed --policy_batch 64" in finished.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]
