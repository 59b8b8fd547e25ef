from isaaclab_arena.environments.robots.embodiment import menagerie_root


def test_a_checkout_of_menagerie_is_named_by_a_variable_that_may_be_empty():
    assert menagerie_root({}) is None
    assert menagerie_root({"MENAGERIE_ROOT": ""}) is None
    assert menagerie_root({"MENAGERIE_ROOT": "/models"}) == "/models"
