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


def pipe(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def directory(path: Path) -> None:
    path.mkdir()


def deep(path: Path) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000)


def deep_object(path: Path) -> None:
    path.write_text('{"a":' * 100_000 + "1" + "}" * 100_000)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def elsewhere(path: Path) -> None:
    path.symlink_to(secret_beside(path))


def secret_beside(path: Path) -> Path:
    run = next(parent for parent in path.parents if parent.name == "run")
    return run.parent / "secret"


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


def check(run: Path, place: Path, damage: Callable[[Path], None], files: Sequence[str], commands: Sequence) -> None:
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


@pytest.mark.parametrize("damage", [pipe, deep, elsewhere])
def test_commands_end_without_a_traceback_and_leak_no_other_file(run, tmp_path, damage, capsys):
    files = [name for name in names(run) if Path(name).suffix not in NEVER_READ]
    check(run, tmp_path, damage, files, COMMANDS)
    assert SECRET.decode() not in str(capsys.readouterr())


@pytest.mark.slow
@pytest.mark.parametrize("damage", [pipe, loop, directory, deep, deep_object, huge, elsewhere])
def test_every_command_ends_without_a_traceback_and_leaks_no_other_file(run, tmp_path, damage, capsys):
    # Exports copy films, of whatever size.
    commands = [each for each in (*COMMANDS, *MORE_COMMANDS) if damage is not huge or not each.startswith("export")]
    check(run, tmp_path, damage, names(run), commands)
    assert SECRET.decode() not in str(capsys.readouterr())


def test_a_directory_of_films_that_lies_elsewhere_is_not_shown(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    elsewhere_videos = tmp_path / "videos"
    (copy / "early" / "videos").rename(elsewhere_videos)
    (copy / "early" / "videos").symlink_to(elsewhere_videos)
    assert main(["report", str(copy)]) == 0
    assert b"film-0" not in (copy / "report.html").read_bytes()
