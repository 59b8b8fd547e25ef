"""An episode is the same whatever it shares a batch with, and says how far it came and why."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main
from tests.end_to_end.launching import episodes_table, evaluated, job, jobs_table, results_of

# Random motion is long; once is enough to show that a policy's own noise follows the episode.
PLAYED = [(task, "scripted") for task in ("reach", "lift_object", "pick_and_place", "open_drawer")]
PLAYED += [("reach", "random_action")]


def evaluate(directory: Path, num_envs: int) -> Path:
    jobs = [job(*how, 6, num_envs=num_envs, name="-".join(how), seed=11) for how in PLAYED]
    return evaluated(directory / f"envs{num_envs}", *jobs)


@pytest.fixture(scope="module")
def one_slot(tmp_path_factory) -> Path:
    return evaluate(tmp_path_factory.mktemp("slots"), 1)


@pytest.mark.parametrize("num_envs", [4, 16])
def test_episodes_are_the_same_bits_for_any_number_of_environments(one_slot, tmp_path, num_envs):
    """Conditions, outcomes, returns and the checksums of every recorded array."""
    together, alone = evaluate(tmp_path, num_envs), one_slot
    pd.testing.assert_frame_equal(episodes_table(together), episodes_table(alone))
    pd.testing.assert_frame_equal(jobs_table(together), jobs_table(alone))


def test_two_policies_see_the_same_conditions(one_slot):
    episodes = episodes_table(one_slot)
    reach = episodes[episodes["environment"] == "reach"]
    by_policy = {policy: list(group["conditions"]) for policy, group in reach.groupby("policy")}
    assert len(by_policy) == 2
    assert by_policy["scripted"] == by_policy["random_action"]


def test_a_robot_on_a_floor_says_how_far_its_failures_came_and_why_as_one_on_a_table_does(tmp_path, capsys):
    output = evaluated(tmp_path / "out", job("cartpole", "zero_action"))
    episodes = episodes_table(output)
    assert set(episodes["decisive_event"]) == {"fell_over"}
    assert episodes["progress"].between(0.01, 0.2).all()
    assert [json.loads(each)["fell_over"] for each in episodes["events"]] == [[each, 1] for each in episodes["length"]]
    (told,) = results_of(output)["jobs"]
    assert told["failure_progress"] == pytest.approx(episodes["progress"].mean())
    assert told["score"] == pytest.approx(told["failure_progress"])
    shown = re.findall(r'class="share"[^>]*><b>(\d+)</b> ([^<]*)<', (output / "report.html").read_text())
    assert shown == [("3", "fell over")]
    capsys.readouterr()
    assert main(["compare", str(output), str(output), "--json", "--output_dir", str(tmp_path / "compared")]) == 4
    [compared] = json.loads(capsys.readouterr().out)["tasks"]
    assert "fell_over" in {each["event"] for each in compared["events"]}
