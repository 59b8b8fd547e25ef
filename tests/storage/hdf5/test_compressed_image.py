import importlib.util

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.storage import episode_file as compressed_image
from isaaclab_arena.storage.episode_file import Compression


def test_zstd_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"isaaclab-arena-mujoco\[zstd\]"):
        compressed_image.check_compression(Compression.ZSTD)
    compressed_image.check_compression(Compression.GZIP)
