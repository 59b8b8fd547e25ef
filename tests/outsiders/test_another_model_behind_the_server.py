"""A policy server whose model is another one when a run goes on, or when it comes back in the middle of one."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gr00t.policy.served_model import describe_model

from isaaclab_arena import ConfigError, PolicyLostError
from isaaclab_arena.evaluation.job.served_model import settle_served_model
from isaaclab_arena.results import merge_results, read_episode
from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena_gr00t.remote.address import ServerAddress
from isaaclab_arena_gr00t.remote.connection import PolicyServerConnection
from isaaclab_arena_gr00t.remote.gr00t import Gr00tWire
from isaaclab_arena_gr00t.remote.identity import identity_line
from tests.evaluation.jobs import coin_job
from tests.fakes import ShrugPolicy
from tests.gr00t.servers import NetworkPolicy, serving
from tests.outsiders.test_another_policy_under_the_same_name import run

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


class Silent(ShrugPolicy):
    """Asks a server, and knows no way to ask what it serves."""

    @property
    def is_remote(self) -> bool:
        return True


@pytest.fixture
def interrupted(tmp_path, monkeypatch) -> Path:
    with monkeypatch.context() as patched:
        patched.setattr(Served, "breaks_after", 30)
        assert run(tmp_path, coin_job(policy_class=Served, num_envs=2), no_dataset=False) == 1
    return tmp_path


def the_job(directory: Path) -> dict[str, Any]:
    (job,) = json.loads((directory / "results.json").read_text())["jobs"]
    return job


def test_a_job_does_not_go_on_with_another_model_and_says_why(interrupted, monkeypatch):
    before = len(merge_results(interrupted).episodes)
    monkeypatch.setattr(Served, "states", OTHER)
    job = coin_job(policy_class=Served, num_envs=2)
    assert run(interrupted, job, resume="", no_dataset=False) == 1
    told = the_job(interrupted)
    assert told["status"] == "failed"
    assert FIRST in told["error"]
    assert OTHER in told["error"]
    assert "--resume --rerun coins" in told["error"]
    assert told["episodes"] == before
    assert run(interrupted, job, resume="", rerun=("coins",), no_dataset=False) == 0
    told = the_job(interrupted)
    assert (told["status"], told["episodes"], told["rerun"]) == ("completed", 10, 1)
    assert merge_results(interrupted).episodes["attempt"].unique().tolist() == [3]


def test_the_same_model_goes_on_and_its_recordings_name_it(interrupted):
    assert run(interrupted, coin_job(policy_class=Served, num_envs=2), resume="", no_dataset=False) == 0
    recorded = read_episode(interrupted / "coins" / "dataset_coins.hdf5", 0)
    assert recorded.provenance["served_model"] == FIRST


def test_a_server_that_states_nothing_is_unknown_and_that_is_said_once_it_matters(tmp_path, caplog):
    silent = Silent()
    assert settle_served_model(tmp_path, "coins", [silent]) == UNKNOWN
    assert settle_served_model(tmp_path, "coins", [silent]) == UNKNOWN
    assert caplog.text == ""
    assert settle_served_model(tmp_path, "coins", [Served()]) == FIRST
    assert "cannot be checked" in caplog.text


def test_two_servers_of_one_job_must_serve_the_same(tmp_path):
    other = Served()
    other.states = OTHER  # pyright: ignore[reportAttributeAccessIssue]  of this one only
    with pytest.raises(ConfigError, match="different models"):
        settle_served_model(tmp_path, "coins", [Served(), other])


def test_a_policy_in_this_process_leaves_no_word_of_a_server(tmp_path):
    assert settle_served_model(tmp_path, "coins", [ShrugPolicy()]) is None
    assert list(tmp_path.iterdir()) == []


def test_the_server_that_comes_along_states_its_model_and_nvidias_nothing():
    stated = {"model": "checkpoint-300", "model_sha256": "1" * 64, "package": "gr00t-small 0.1.0"}
    for serves, expected in ((stated, json.dumps(stated)), (None, UNKNOWN)):
        with serving(NetworkPolicy(), serves=serves) as server:
            connection = PolicyServerConnection(
                ServerAddress(host="127.0.0.1", port=server.port, timeout_s=60.0), Gr00tWire()
            )
            connection.wait_until_ready()
            assert connection.stated == expected
            connection.close()


def test_a_server_that_comes_back_with_another_model_is_not_asked_on():
    first = {"model": "first"}
    connection = None
    try:
        with serving(NetworkPolicy(), serves=first) as server:
            port = server.port
            connection = PolicyServerConnection(ServerAddress(host="127.0.0.1", port=port, timeout_s=60.0), Gr00tWire())
            connection.wait_until_ready()
        with (
            serving(NetworkPolicy(), serves={"model": "other"}, port=port),
            pytest.raises(PolicyLostError, match=r"came back as another one: it stated .*first.* and states .*other"),
        ):
            connection.ask("get_modality_config")
    finally:
        if connection is not None:
            connection.close()


def test_what_a_server_states_is_kept_short_harmless_and_in_order():
    assert identity_line({"b": 1, "a": "x"}) == '{"a": "x", "b": 1}'
    assert identity_line({}) == identity_line("no map") == identity_line(None) == UNKNOWN
    assert "\x1b" not in identity_line({"name": "\x1b[2J", "\x1b": 1})
    long = identity_line({"name": "x" * 100_000})
    assert len(long) < 600
    assert long != identity_line({"name": "x" * 99_999 + "y"})


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
