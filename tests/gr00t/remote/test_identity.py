"""What a server says of its model, as a line."""

from isaaclab_arena.storage.contents import UNKNOWN
from isaaclab_arena_gr00t.remote.protocols import identity_line


def test_what_a_server_states_is_kept_short_harmless_and_in_order():
    assert identity_line({"b": 1, "a": "x"}) == '{"a": "x", "b": 1}'
    assert identity_line({}) == identity_line("no map") == identity_line(None) == UNKNOWN
    assert "\x1b" not in identity_line({"name": "\x1b[2J", "\x1b": 1})
    long = identity_line({"name": "x" * 100_000})
    assert len(long) < 600
    assert long != identity_line({"name": "x" * 99_999 + "y"})
