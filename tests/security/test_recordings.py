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


def linked(place: str) -> Callable[[h5py.File, Path], None]:
    """Return a function that puts a link to the secret file at a place of a recording."""

    def link(file: h5py.File, secret: Path) -> None:
        demo(file)["obs/position"] = SECRET
        file.pop(place, None)
        file[place] = h5py.ExternalLink(str(secret), f"/{place}")

    return link


def soft_actions(file: h5py.File, secret: Path) -> None:
    file["elsewhere"] = SECRET
    demo(file)["actions"] = h5py.SoftLink("/elsewhere")


def virtual_actions(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((3, 3), np.float32)
    layout[:] = h5py.VirtualSource(str(secret), "data/demo_0/actions", (3, 3))
    demo(file).create_virtual_dataset("actions", layout)


def external_bytes(file: h5py.File, secret: Path) -> None:
    raw = secret.with_name("raw.bin")
    raw.write_bytes(SECRET.tobytes())
    demo(file).create_dataset("actions", (3, 3), np.float32, external=[(str(raw), 0, h5py.h5f.UNLIMITED)])


LEADS: dict[str, tuple[Callable[[h5py.File, Path], None], str]] = {
    "external actions": (linked("data/demo_0/actions"), "/data/demo_0/actions is a link to another place"),
    "an external episode": (linked("data/demo_0"), "/data/demo_0 is a link to another place"),
    "external data": (linked("data"), "/data is a link to another place"),
    "a linked group": (linked("data/demo_0/obs"), "/data/demo_0/obs is a link to another place"),
    "a soft link": (soft_actions, "/data/demo_0/actions is a link to another place"),
    "a virtual dataset": (virtual_actions, "/data/demo_0/actions takes its values from other files"),
    "external bytes": (external_bytes, "/data/demo_0/actions takes its values from other files"),
}


def recording(directory: Path, make: Callable[[h5py.File, Path], None]) -> Path:
    """Write a recording that leads to another file, which holds an episode with the secret as its actions."""
    secret, path = directory / "secret.h5", directory / "e000000.h5"
    with h5py.File(secret, "w") as file:
        demo(file)["actions"] = SECRET
    with h5py.File(path, "w") as file:
        make(file, secret)
    return path


def replay(path: Path, index: int) -> None:
    play(resolve_policy_class("replay").from_dict({"replay_file_path": str(path)}), 1)


@pytest.mark.parametrize("lead", LEADS)
def test_neither_a_reader_nor_the_replay_policy_follows_a_lead_to_another_file(tmp_path, lead):
    make, message = LEADS[lead]
    path = recording(tmp_path, make)
    readers = [read_episode, lambda path, index: verify_episodes(path, [index])]
    # What an episode shows is not read to play it.
    for read in readers if lead == "a linked group" else [*readers, replay]:
        with pytest.raises((StorageError, ConfigError, PolicyError)) as refused:
            read(path, 0)
        assert message in str(refused.value)
        assert str(path) in str(refused.value)


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
