"""A finished run that somebody else sent: whatever lies in its directory, commands end, and no other file leaks."""

import base64
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from tests.tracking.runs import finished_run

SECRET = b"-----BEGIN PRIVATE KEY----- not for you"
COMMANDS = ("report RUN", "compare RUN --baseline early")
MORE_COMMANDS = (
    "leaderboard RUN",
    "robustness RUN",
    "plan --from RUN --job early --difference 0.2",
    "export RUN --arena",
    "export RUN --lerobot",
    "export RUN --tensorboard",
    "merge RUN",
    "merge RUN --by policy_type",
    "merge RUN --json",
    "verify RUN --sample 0",
    "recover RUN",
)
NEVER_READ = {".csv", ".md", ".tex", ".html"}
ENDINGS = range(5)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


def elsewhere(path: Path) -> None:
    """Put a link to the secret, which lies beside the run, in a file's place."""
    run = next(parent for parent in path.parents if parent.name == "run")
    path.symlink_to(run.parent / "secret")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "elsewhere": elsewhere,
    "deep": lambda path: path.write_text("[" * 100_000 + "]" * 100_000),
    "deep object": lambda path: path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000),
    "loop": lambda path: path.symlink_to(path.name),
    "directory": Path.mkdir,
    "huge": huge,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with tables, a comparison, a page, and a film with its poster."""
    directory = tmp_path_factory.mktemp("sent") / "run"
    finished_run(directory)
    film = next(directory.rglob("*.mp4"))
    film.with_suffix(".webp").write_bytes(b"RIFF poster")
    for command in ("merge RUN", *COMMANDS):
        assert main(typed(command, directory)) in ENDINGS
    return directory


def typed(command: str, run: Path) -> list[str]:
    return [str(run) if word == "RUN" else word for word in command.split()]


def names(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())


def check(run: Path, place: Path, damage: Callable[[Path], object], files: Sequence[str], commands: Sequence) -> None:
    (place / "secret").write_bytes(SECRET)
    for name in files:
        copy = place / "run"
        shutil.copytree(run, copy)
        (copy / name).unlink()
        damage(copy / name)
        for command in commands:
            assert main(typed(command, copy)) in ENDINGS, (name, command)
        for file in place.rglob("*"):
            if file.is_file() and not file.is_symlink() and file.name != "secret" and file.stat().st_size < 10**8:
                content = file.read_bytes()
                assert SECRET not in content, (name, file)
                assert base64.b64encode(SECRET) not in content, (name, file)
        for each in place.iterdir():
            if each.is_dir():
                shutil.rmtree(each)


@pytest.mark.parametrize("damage", ["pipe", "deep", "elsewhere"])
def test_commands_end_without_a_traceback_and_leak_no_other_file(run, tmp_path, damage, capsys):
    files = [name for name in names(run) if Path(name).suffix not in NEVER_READ]
    check(run, tmp_path, DAMAGES[damage], files, COMMANDS)
    assert SECRET.decode() not in str(capsys.readouterr())


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_command_ends_without_a_traceback_and_leaks_no_other_file(run, tmp_path, damage, capsys):
    # Exports copy films, of whatever size.
    commands = [each for each in (*COMMANDS, *MORE_COMMANDS) if damage != "huge" or not each.startswith("export")]
    check(run, tmp_path, DAMAGES[damage], names(run), commands)
    assert SECRET.decode() not in str(capsys.readouterr())


def test_a_directory_of_films_that_lies_elsewhere_is_not_shown(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    elsewhere_videos = tmp_path / "videos"
    (copy / "early" / "videos").rename(elsewhere_videos)
    (copy / "early" / "videos").symlink_to(elsewhere_videos)
    assert main(["report", str(copy)]) == 0
    assert b"film-0" not in (copy / "report.html").read_bytes()
