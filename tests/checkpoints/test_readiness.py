"""A checkpoint is loaded whole or not at all, whatever its writer is doing meanwhile."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import Readiness
from tests.checkpoints.written import FAMILIES, PATHS, Files, lerobot, write

QUIET_S = 5.0


class Clock:
    """A clock that only the test moves on."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def states_of_a_torn_write(directory: Path, files: Files, chance: random.Random) -> Iterator[None]:
    """Yield while a checkpoint is written in pieces, and is then left cut off, incomplete, or deleted."""
    names = list(files)
    torn = chance.randrange(len(names))
    for name in names[:torn]:
        write(directory, {name: files[name]})
        yield
    path, content = directory / names[torn], files[names[torn]]
    path.parent.mkdir(parents=True, exist_ok=True)
    # At most all but one byte, of weights or of a document.
    end = chance.randrange(len(content))
    for begin in range(0, end, 1 + end // 3):
        path.write_bytes(content[:begin])
        yield
    path.write_bytes(content[:end])
    yield
    if chance.random() < 0.3:
        path.unlink()
        yield


def loaded(path: Path) -> Files:
    """Files that a policy would read: all that the training wrote for it."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return {each.relative_to(path.parent).as_posix(): each.read_bytes() for each in files}


@pytest.mark.parametrize("family", FAMILIES)
def test_of_sixty_torn_writes_none_is_ready(tmp_path, family):
    """Time passes between two looks, but never as long as a checkpoint without an end has to rest."""
    chance, clock = random.Random(family), Clock()
    for number in range(20):
        directory = tmp_path / str(number % 7)
        shutil.rmtree(directory, ignore_errors=True)
        readiness = Readiness(QUIET_S, now=clock)
        files = FAMILIES[family](number)
        path = directory / PATHS[FAMILIES[family]]
        whole = {name: content for name, content in files.items() if "training_state" not in name}
        for _ in states_of_a_torn_write(directory, files, chance):
            clock.seconds += chance.uniform(0.0, 0.9 * QUIET_S)
            if readiness.why_not(path) is None:
                # What the training writes after all that a policy loads may be torn: LeRobot's state of the training.
                assert [*loaded(path).values()] == [whole[name] for name in sorted(whole)], (family, number)


def test_a_checkpoint_that_is_replaced_between_two_looks_has_another_fingerprint(tmp_path):
    clock = Clock()
    readiness = Readiness(QUIET_S, now=clock)
    write(tmp_path, lerobot(0))
    path = tmp_path / PATHS[lerobot]
    assert readiness.why_not(path) is None
    before = readiness.fingerprint(path)
    write(tmp_path, lerobot(1))
    assert readiness.why_not(path) is None
    assert readiness.fingerprint(path) != before


def test_a_checkpoint_whose_writer_leaves_no_sign_has_to_rest(tmp_path):
    clock = Clock()
    readiness = Readiness(QUIET_S, now=clock)
    path = tmp_path / "policy_100.onnx"
    path.write_bytes(b"graph")
    assert readiness.why_not(path) == "it has not changed for 0 s of 5 s"
    clock.seconds += 4.0
    path.write_bytes(b"graph and more")
    assert readiness.why_not(path) == "it has not changed for 0 s of 5 s"
    clock.seconds += QUIET_S
    assert readiness.why_not(path) is None
