"""Which model the servers of a job serve."""

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.builds import settle_served_model
from isaaclab_arena.storage.contents import UNKNOWN
from tests.fakes import ShrugPolicy
from tests.outsiders.test_another_model_behind_the_server import FIRST, OTHER, Served


class Silent(ShrugPolicy):
    """Asks a server, and knows no way to ask what it serves."""

    @property
    def is_remote(self) -> bool:
        return True


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
