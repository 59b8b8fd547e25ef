"""One directory, several commands; and disks that are full or read-only."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.file_operations import Effect, Fault
from tests.faults.fork_server import Ended
from tests.faults.invariants import check_whole
from tests.faults.world import World

CRASH = {0: Fault(effect=Effect.DIES, at=3, only="write a/episode_results")}


@pytest.fixture(scope="module")
def world(server, tmp_path_factory) -> World:
    return World(tmp_path_factory.mktemp("world"), server, num_jobs=2, num_episodes=6, step_s=0.02)


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A small disk of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", path], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def at_once(world: World, *arguments: object) -> Ended:
    """Start the same command twice at the same time."""
    return world.run(*arguments, commands=2)


def snapshot(directory: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in [directory, *directory.rglob("*")]}


def test_of_two_commands_that_begin_in_one_directory_at_once_one_is_refused(world, tmp_path):
    directory = tmp_path / "out"
    directory.mkdir()
    ended = at_once(world, "--output_dir", directory)
    assert sorted(ended.exit_codes) == [0, 2], ended.output
    refusals = (
        "another run is at work in this directory",
        "is not empty; resume it with isaaclab-arena resume",
    )
    assert sum(ended.output.count(refusal) for refusal in refusals) == 1
    assert ended.output.count("error: ") == 1
    assert max(world.started.values()) == 1
    check_whole(directory, world.undisturbed)


@pytest.mark.parametrize("at", [20, 60, 110])
def test_of_two_commands_that_resume_a_crashed_run_at_once_one_is_refused(world, at):
    world.begin(faults={0: Fault(effect=Effect.DIES, at=at)})
    ended = at_once(world, "--output_dir", world.output, "--resume")
    assert sorted(ended.exit_codes) == [0, 2], ended.output
    assert ended.output.count("another run is at work in this directory") == 1
    assert max(world.started.values(), default=1) == 1
    check_whole(world.output, world.undisturbed)


def test_a_crashed_run_is_not_begun_anew_in_its_directory(world):
    world.begin(faults=CRASH)
    before = snapshot(world.output)
    ended = world.run("--output_dir", world.output)
    assert ended.exit_code == 2
    assert "resume it with isaaclab-arena resume" in ended.output
    assert snapshot(world.output) == before
    world.resume_to_the_end()


def test_a_run_that_was_finished_by_a_resume_is_not_touched_by_another_one(world):
    world.begin(faults=CRASH)
    world.resume_to_the_end()
    before = snapshot(world.output)
    ended = world.resume()
    assert ended.exit_code == 0
    assert not world.started
    assert snapshot(world.output) == before


@pytest.mark.parametrize("size_kb", [8, 48, 80, 128])
def test_a_disk_that_fills_up_stops_the_run_and_once_there_is_room_it_goes_on(server, tmp_path, disk, size_kb):
    world = World(tmp_path, server, output=disk / "out", num_jobs=2, num_episodes=6)
    remount(disk, f"size={size_kb}k")
    ended = world.begin()
    assert ended.exit_code in (1, 2)
    assert "No space left on device" in ended.output or "the disk is full" in ended.output
    assert ended.output.count("error: ") == 1
    assert "job 'a' failed" not in ended.output
    remount(disk, "size=4m")
    world.resume_to_the_end()


def test_a_resume_on_a_disk_that_is_read_only_says_so_and_changes_nothing(server, tmp_path, disk):
    remount(disk, "size=4m")
    world = World(tmp_path, server, output=disk / "out", num_jobs=2, num_episodes=3)
    world.begin(faults=CRASH)
    before = snapshot(world.output)
    remount(disk, "ro")
    ended = world.resume()
    assert ended.exit_code == 1
    assert ended.output.count("error: ") == 1
    assert f"{world.output}" in ended.output
    assert "Read-only file system" in ended.output
    remount(disk, "rw")
    assert snapshot(world.output) == before
    world.resume_to_the_end()


def test_a_run_that_cannot_write_its_tables_keeps_its_episodes(world):
    ended = world.begin(faults={0: Fault(effect=Effect.IO_ERROR, at=1, only="replace .results.csv")})
    assert ended.exit_code == 1
    assert f"cannot write {world.output / 'results.csv'}: Input/output error" in ended.output
    world.resume_to_the_end()
    assert not world.started
