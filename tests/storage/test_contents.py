from isaaclab_arena.storage.contents import UNKNOWN, Contents, changes, differences_of_contents, one_hash

ONE, OTHER = "1" * 64, "2" * 64


def test_one_hash_stands_for_all_that_decides_what_a_policy_does_whatever_its_files_are_called():
    first = one_hash({"checkpoint_path model_300.pt": ONE, "agent_cfg_path agent.yaml": OTHER})
    assert first == one_hash({"checkpoint_path model_best.pt": ONE, "agent_cfg_path agent.yaml": OTHER})
    assert first != one_hash({"checkpoint_path model_300.pt": ONE, "agent_cfg_path agent.yaml": ONE})
    assert len(str(first)) == 64


def test_a_policy_of_this_package_alone_has_no_hash_and_one_behind_a_server_is_unknown():
    assert one_hash({}) is None
    behind = Contents(policy={"server localhost:5555": UNKNOWN, "policy_config_yaml_path a.yaml": ONE})
    assert one_hash(behind.policy) == UNKNOWN
    assert not behind.is_known
    assert Contents(policy={"checkpoint_path a": ONE}).is_known
    assert not Contents(environment={"robot arm.xml": UNKNOWN}).is_known


def test_each_change_is_told_with_what_it_was_and_what_it_is():
    before = Contents(policy={"a": ONE, "gone": ONE}, environment={"package x": "x 1.0"})
    now = Contents(policy={"a": OTHER, "new": OTHER}, environment={"package x": "x 1.1"})
    assert list(differences_of_contents(before, now)) == [
        ("a", "was 111111111111, is now 222222222222"),
        ("gone", "was 111111111111, is now not there"),
        ("new", "was not there, is now 222222222222"),
        ("package x", "was x 1.0, is now x 1.1"),
    ]


def test_what_is_not_known_differs_from_nothing():
    assert list(changes({"server": UNKNOWN}, {"server": ONE})) == []
    assert list(changes({"server": ONE}, {"server": UNKNOWN})) == []
