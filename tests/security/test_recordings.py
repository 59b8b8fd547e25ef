"""A recording from elsewhere shows what it holds itself, and leads to no other file."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from isaaclab_arena import ConfigError, StorageError
from isaaclab_arena.policies import PolicyError, resolve_policy_class
from isaaclab_arena.results import list_episodes, read_attributes, read_episode, verify_episodes
from tests.policy.playing import play

SECRET = np.full((3, 3), 42, np.float32)


def demo(file: h5py.File) -> h5py.Group:
    group = file.create_group("data/demo_0")
    group.attrs["num_samples"] = 3
    return group


def external_actions(file: h5py.File, secret: Path) -> None:
    demo(file)["actions"] = h5py.ExternalLink(str(secret), "/data/demo_0/actions")


def external_episode(file: h5py.File, secret: Path) -> None:
    file.create_group("data")["demo_0"] = h5py.ExternalLink(str(secret), "/data/demo_0")


def external_data(file: h5py.File, secret: Path) -> None:
    file["data"] = h5py.ExternalLink(str(secret), "/data")


def soft_actions(file: h5py.File, secret: Path) -> None:
    file["elsewhere"] = SECRET
    demo(file)["actions"] = h5py.SoftLink("/elsewhere")


def linked_group(file: h5py.File, secret: Path) -> None:
    demo(file)["actions"] = SECRET
    file["data/demo_0/obs"] = h5py.ExternalLink(str(secret), "/data")


def virtual_actions(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((3, 3), np.float32)
    layout[:] = h5py.VirtualSource(str(secret), "data/demo_0/actions", (3, 3))
    demo(file).create_virtual_dataset("actions", layout)


def external_bytes(file: h5py.File, secret: Path) -> None:
    raw = secret.with_name("raw.bin")
    raw.write_bytes(SECRET.tobytes())
    demo(file).create_dataset("actions", (3, 3), np.float32, external=[(str(raw), 0, h5py.h5f.UNLIMITED)])


LEADS: dict[str, tuple[Callable[[h5py.File, Path], None], str]] = {
    "external actions": (external_actions, "/data/demo_0/actions is a link to another place"),
    "an external episode": (external_episode, "/data/demo_0 is a link to another place"),
    "external data": (external_data, "/data is a link to another place"),
    "a soft link": (soft_actions, "/data/demo_0/actions is a link to another place"),
    "a linked group": (linked_group, "/data/demo_0/obs is a link to another place"),
    "a virtual dataset": (virtual_actions, "/data/demo_0/actions takes its values from other files"),
    "external bytes": (external_bytes, "/data/demo_0/actions takes its values from other files"),
}  # fmt: skip


def recording(directory: Path, make: Callable[[h5py.File, Path], None]) -> Path:
    """Write a recording that leads to another file, which holds an episode with the secret as its actions."""
    secret, path = directory / "secret.h5", directory / "e000000.h5"
    with h5py.File(secret, "w") as file:
        file.create_group("data/demo_0")["actions"] = SECRET
    with h5py.File(path, "w") as file:
        make(file, secret)
    return path


@pytest.mark.parametrize("lead", LEADS)
def test_no_reader_follows_a_lead_to_another_file(tmp_path, lead):
    make, message = LEADS[lead]
    path = recording(tmp_path, make)
    for read in (read_episode, lambda path, index: verify_episodes(path, [index])):
        with pytest.raises(StorageError) as refused:
            read(path, 0)
        assert message in str(refused.value)
        assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize("lead", [lead for lead in LEADS if lead != "a linked group"])
def test_the_replay_policy_plays_nothing_that_lies_in_another_file(tmp_path, lead):
    make, message = LEADS[lead]
    path = recording(tmp_path, make)
    with pytest.raises((ConfigError, PolicyError)) as refused:
        play(resolve_policy_class("replay").from_dict({"replay_file_path": str(path)}), 1)
    assert message in str(refused.value)


def test_a_group_that_holds_itself_is_no_endless_recording(tmp_path):
    def endless(file: h5py.File, secret: Path) -> None:
        group = demo(file)
        group["obs"], group["states"] = group, group

    with pytest.raises(StorageError, match="lies deeper than 16 levels"):
        read_episode(recording(tmp_path, endless), 0)


def test_a_sound_recording_is_read_as_before(tmp_path):
    def sound(file: h5py.File, secret: Path) -> None:
        demo(file)["obs/position"] = SECRET
        file["data/demo_0/actions"] = SECRET

    path = recording(tmp_path, sound)
    assert list_episodes(path) == [0]
    assert sorted(read_episode(path, 0).arrays) == ["actions", "obs/position"]
    assert read_attributes(path, 0) == {"num_samples": 3}
