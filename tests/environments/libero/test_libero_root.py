"""The environment may name a checkout of LIBERO."""

from isaaclab_arena.environments.libero import libero_root


def test_the_environment_may_name_the_checkout():
    assert libero_root({"LIBERO_PATH": "/somewhere"}) == "/somewhere"
    assert libero_root({}) is None
