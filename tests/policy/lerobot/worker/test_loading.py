"""A policy is loaded with what it needs of LeRobot, and with all of it where that is too little."""

import sys
from collections.abc import Iterator

import pytest

from isaaclab_arena.policy.lerobot_worker import loaded
from tests.policy.lerobot.policies import SITE, saved


@pytest.fixture(autouse=True)
def lerobot(monkeypatch) -> Iterator[None]:
    """What stands in for LeRobot, for this test alone."""
    monkeypatch.syspath_prepend(str(SITE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lerobot"]:
        del sys.modules[name]


def imported(*names: str) -> bool:
    return all(name in sys.modules for name in names)


@pytest.mark.parametrize("kind", ["act", "diffusion"])
def test_a_type_that_was_tried_needs_neither_datasets_nor_other_types(tmp_path, kind):
    policy, before, after = loaded(str(saved(tmp_path, kind)), "cpu")
    assert policy.config.type == kind
    assert policy.config.device == "cpu"
    assert before({"observation.state": 1}) == {"observation.state": 2}
    assert after(4) == 2
    assert not imported("lerobot.datasets")
    assert not imported("lerobot.policies.groot")


def test_any_other_type_has_all_of_lerobot(tmp_path):
    policy, _, _ = loaded(str(saved(tmp_path, "pi0")), "cpu")
    assert policy.config.type == "pi0"
    assert imported("lerobot.datasets", "lerobot.policies.groot")


def test_a_policy_that_needs_more_after_all_has_all_of_lerobot(tmp_path, capsys):
    policy, _, _ = loaded(str(saved(tmp_path, "act", needs_datasets=True)), "cpu")
    assert policy.config.type == "act"
    assert imported("lerobot.datasets", "lerobot.policies.groot")
    assert "issubclass" in capsys.readouterr().err
