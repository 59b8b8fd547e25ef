"""Words below a film."""

import pytest

from isaaclab_arena.recording.video import caption_bar


@pytest.mark.parametrize("name", ["<script>alert(1)<", "=HYPERLINK()", "\u5b57" * 60, "\U0001f916", "x" * 80])
def test_any_name_that_is_accepted_fits_into_a_caption(name):
    assert caption_bar(320, [f"{name}, episode 1", "episode 1"]).shape[1] == 320
