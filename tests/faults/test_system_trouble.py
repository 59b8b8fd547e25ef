"""What the system refuses says nothing about what a file holds: nothing is withdrawn, set aside or called damaged."""

import errno
import os
from pathlib import Path

import pytest

from tests.faults.file_operations import Effect, Fault
from tests.faults.system_trouble import SystemTrouble
from tests.faults.world import World

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""How file systems without locks refuse them, NFS without a lock daemon for one."""

REFUSALS = [
    SystemTrouble(call="open", number=errno.ENOTCONN, ending=".hdf5"),
    SystemTrouble(call="read", number=errno.EREMOTEIO, ending=".hdf5"),
    SystemTrouble(call="open", number=errno.EHOSTDOWN, ending=".jsonl"),
    SystemTrouble(call="read", number=errno.EKEYEXPIRED, ending=".jsonl"),
    SystemTrouble(call="read", number=errno.EIO, ending="_rank0.json"),
    SystemTrouble(call="open", number=errno.ENOLINK, ending="attempt_1.json"),
]


@pytest.fixture(scope="module")
def world(server, tmp_path_factory) -> World:
    if not server.has_trouble:
        pytest.skip("the library that refuses calls of the system needs a C compiler, and there is no cc")
    return World(tmp_path_factory.mktemp("world"), server, num_jobs=2, num_episodes=3)


def contents(directory: Path) -> dict[str, bytes]:
    """Return the contents of a run's files, without logs."""
    files = [path for path in directory.rglob("*") if path.is_file() and "logs" not in path.parts]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.mark.parametrize("number", NO_LOCKS, ids=errno.errorcode.get)
def test_a_run_without_locks_has_its_datasets_and_a_resume_finds_it_whole(world, number):
    trouble = SystemTrouble(call="lock", number=number)
    for ended in (world.begin(trouble=trouble), world.resume(trouble=trouble)):
        assert ended.exit_code == 0, ended.output
        assert f"cannot be locked on this file system ({os.strerror(number)})" in ended.output
    assert not world.started
    assert "there is nothing to do" in ended.output


def test_a_crashed_run_goes_on_without_locks_where_it_was(world):
    world.begin(faults={0: Fault(effect=Effect.DIES, at=1, only="unlink a/episodes/")})
    ended = world.resume(trouble=SystemTrouble(call="lock", number=errno.ENOLCK))
    assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(each, id=str(each), marks=[pytest.mark.slow] if number % 3 else [])
        for number, each in enumerate(REFUSALS)
    ],
)
def test_a_resume_that_the_system_refuses_a_file_names_it_and_changes_nothing(world, trouble):
    world.begin()
    before = contents(world.output)
    ended = world.resume(trouble=trouble)
    assert ended.exit_code == 1, ended.output
    assert ended.output.count("error: ") == 1
    assert f"{trouble.ending}: {os.strerror(trouble.number)}" in ended.output
    assert not world.started
    assert contents(world.output) == before
    assert not list(world.output.rglob("set_aside"))
    assert "there is nothing to do" in world.resume().output


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_job_whose_recordings_the_system_refuses_to_read_fails_and_nothing_is_lost(world, call):
    """They are to become one dataset, and stay where they are."""
    ended = world.begin(trouble=SystemTrouble(call=call, number=errno.ENOTCONN, ending="e000001.h5"))
    assert ended.exit_code == 1
    assert "e000001.h5: Transport endpoint is not connected" in ended.output
    assert not list(world.output.rglob("*.hdf5"))
    world.resume_to_the_end()
    assert not world.started
