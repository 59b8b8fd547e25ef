"""A policy server whose model is another one when a run goes on, or when it comes back in the middle of one."""

import json
from pathlib import Path
from typing import ClassVar

import pytest
from gr00t.eval.run_gr00t_server import describe_model

from isaaclab_arena.policies import PolicyLostError
from isaaclab_arena.results import merge_results, read_episode
from tests.fakes import ShrugPolicy
from tests.outsiders.test_another_policy_under_the_same_name import coin_job, run

FIRST, OTHER = '{"model": "first"}', '{"model": "other"}'


class Served(ShrugPolicy):
    """Asks a server that breaks down and states what the test says."""

    states: ClassVar[str] = FIRST
    breaks_after: ClassVar[int | None] = None

    @property
    def is_remote(self) -> bool:
        return True

    def stated_model(self) -> str:
        return self.states

    def get_action(self, env, observation):
        if self.num_calls == self.breaks_after:
            raise PolicyLostError("no server answers")
        return super().get_action(env, observation)


JOB = coin_job(f"{__name__}.Served", num_episodes=10)


@pytest.fixture
def interrupted(tmp_path, monkeypatch) -> Path:
    with monkeypatch.context() as patched:
        patched.setattr(Served, "breaks_after", 30)
        assert run(tmp_path / "out", JOB) == 1
    return tmp_path / "out"


def test_a_job_does_not_go_on_with_another_model_and_says_why(interrupted, monkeypatch):
    before = len(merge_results(interrupted).episodes)
    monkeypatch.setattr(Served, "states", OTHER)
    assert run(interrupted, JOB, resume=True) == 1
    [told] = json.loads((interrupted / "results.json").read_text())["jobs"]
    assert (told["status"], told["episodes"]) == ("failed", before)
    for words in (FIRST, OTHER, "--resume --rerun coins"):
        assert words in told["error"]
    assert run(interrupted, JOB, resume=True, rerun=("coins",)) == 0
    [told] = json.loads((interrupted / "results.json").read_text())["jobs"]
    assert (told["status"], told["episodes"], told["rerun"]) == ("completed", 10, 1)
    assert merge_results(interrupted).episodes["attempt"].unique().tolist() == [3]


def test_the_same_model_goes_on_and_its_recordings_name_it(interrupted):
    assert run(interrupted, JOB, resume=True) == 0
    recorded = read_episode(interrupted / "coins" / "dataset_coins.hdf5", 0)
    assert recorded.provenance["served_model"] == FIRST


def test_a_checkpoint_is_described_by_what_is_loaded_from_it(tmp_path):
    directory = tmp_path / "checkpoint-300"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"weights")
    before = describe_model(str(directory))
    assert before["model"] == "checkpoint-300"
    (directory / "training_state.pt").write_bytes(b"what training goes on from")
    assert describe_model(str(directory)) == before
    (directory / "model.safetensors").write_bytes(b"other weights")
    assert describe_model(str(directory))["model_sha256"] != before["model_sha256"]
    assert "model_sha256" not in describe_model("nvidia/GR00T-N1.5-3B")
