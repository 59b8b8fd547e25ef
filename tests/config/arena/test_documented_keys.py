import yaml

from isaaclab_arena.config.arena import ARENA_JOB_KEYS, BUILDER_KEYS
from tests.documentation.arena_page import table


def test_the_page_has_every_key_that_is_known_as_arenas():
    written = [yaml.safe_load(row.written) for row in table("Keys")]
    assert {key for block in written for key in block} >= ARENA_JOB_KEYS
    assert {key for block in written for key in block.get("environment_builder", {})} == BUILDER_KEYS
