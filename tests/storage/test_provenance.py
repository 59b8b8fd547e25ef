import pytest

from isaaclab_arena.storage.contents import Provenance

RECORDED = {"mujoco": "3.3.1", "cpu": "A", "config_hash": "1", "policy_type": "scripted", "gone": "2", "same": "x"}
NOW = {"mujoco": "4.0.0", "cpu": "A", "config_hash": "2", "policy_type": "replay", "same": "x", "new": "y"}


def test_what_was_other_is_named_and_what_does_not_matter_is_not():
    recorded, now = Provenance(facts=RECORDED), Provenance(facts=NOW)
    told = ["gone was 2, is now absent", "mujoco was 3.3.1, is now 4.0.0", "new was absent, is now y"]
    assert [str(change) for change in recorded.differences(now)] == told


def test_what_a_recording_does_not_say_cannot_have_been_other():
    told = Provenance(facts=RECORDED).told_differences(Provenance(facts=NOW))
    assert told == ("gone was 2, is now absent", "mujoco was 3.3.1, is now 4.0.0")


@pytest.mark.parametrize("facts", [{}, NOW])
def test_a_provenance_does_not_differ_from_itself(facts):
    assert Provenance(facts=facts).differences(Provenance(facts=facts)) == ()
