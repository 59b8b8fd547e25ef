"""Find the files that an MJCF file makes MuJoCo open, which must all lie below one directory."""

import errno
import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import mujoco

from isaaclab_arena.paths import not_a_plain_file

ContentKey: TypeAlias = tuple[tuple[Path, tuple[int, ...]], ...]
"""Files with their stamps, see `stamps`."""

_known_keys: dict[Path, ContentKey] = {}
"""What MJCF files were made of when they were read last, links among them beside what they lead to."""

# Looked for anywhere in the text and not in parsed elements: MuJoCo's parser takes XML that others refuse, and what
# this finds beyond what MuJoCo reads does no harm.
_NAME = re.compile(r"file\w*|meshdir|texturedir|assetdir")
_VALUE = re.compile(r"""\s*=\s*(["'])(.*?)\1""", re.DOTALL)
_MAX_BYTES = 1 << 29
"""Of all files of a robot together."""
_MAX_PLACES = 200_000
"""Names times the directories that each may start from."""


def file_outside(mjcf: Path, root: Path) -> Path | None:
    """Return a file that MuJoCo might open for an MJCF file though it does not lie below a directory, None if all do.

    Included files, attached models, meshes, textures and height fields are followed, links are resolved, and both
    kinds of slash separate directories, as they do for MuJoCo.

    Args:
        mjcf: The MJCF file.
        root: The directory below which everything has to lie.

    Raises:
        OSError: If a file cannot be read or is no plain file, or there are too many.
    """
    root, mjcf = root.resolve(), mjcf.resolve()
    seen: dict[Path, None] = {mjcf: None}
    known = 0
    # A directory that is named in the last file holds for the names in the first one too, so all are read again.
    while known != len(seen):
        known = len(seen)
        for found in [path.resolve() for path in _named_files(list(seen))]:
            seen[found] = None
            if not found.is_relative_to(root):
                return found
    return None if mjcf.is_relative_to(root) else mjcf


def files_of(mjcf: Path) -> list[Path]:
    """Return an MJCF file and every regular file that MuJoCo might open for it, sorted.

    Raises:
        OSError: If a file cannot be read.
    """
    return sorted(set(_ways_to_files(mjcf).values()))


def _ways_to_files(mjcf: Path) -> dict[Path, Path]:
    """Return the same by each of the paths under which MuJoCo finds them, which may be links."""
    found = {mjcf.absolute(): mjcf.resolve()}
    known = 0
    while known != len(found):
        known = len(found)
        ways = _named_files(list(dict.fromkeys(found.values())))
        found.update({path: path.resolve() for path in ways if path.is_file()})
    return found


def content_key(mjcf: Path) -> ContentKey:
    """Return what changes whenever one of the files of an MJCF file does; unchanged files are not read again.

    MuJoCo then reads them again too: it knows a mesh by its path and the second in which it was changed.

    Raises:
        OSError: If a file cannot be read.
    """
    key = _known_keys.get(mjcf)
    if key is None or key != stamps(path for path, _ in key):
        key = _known_keys[mjcf] = stamps(sorted(_ways_to_files(mjcf)))
        mujoco.mj_clearCache(mujoco.mj_getCache())
    return key


def stamps(files: Iterable[Path]) -> ContentKey:
    """Return each file with what every write to it changes: inode, size and times; no numbers where it is gone."""
    found = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            found.append((path, ()))
        else:
            found.append((path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)))
    return tuple(found)


def _named_files(files: list[Path]) -> Iterator[Path]:
    """Yield the paths of files under the names in files, from every directory that a name might start from."""
    names: set[str] = set()
    directories = {""}
    room = _MAX_BYTES
    for file in files:
        text, num_bytes = _text(file, room)
        room -= num_bytes
        for word in _NAME.finditer(text):
            value = _VALUE.match(text, word.end())
            if value is not None:
                (names if word[0].startswith("file") else directories).update(_spellings(value[2]))
    starts = {base / directory for base in {file.parent for file in files} for directory in directories}
    if len(starts) * len(names) > _MAX_PLACES:
        raise OSError(
            errno.E2BIG, f"names {len(names)} files in {len(starts)} directories, which is too many", str(files[0])
        )
    for start in starts:
        for name in names:
            path = start / name
            try:
                if path.exists() and not path.is_dir():
                    path.resolve()
                    yield path
            except (OSError, ValueError, RuntimeError):
                # Too long, with a NUL in it, or links in a circle: nobody can open it.
                continue


def _text(file: Path, room: int) -> tuple[str, int]:
    """Return a file as text, empty where it can name nothing, and how many bytes it has."""
    wrong = not_a_plain_file(file)
    if wrong is not None:
        raise OSError(errno.EINVAL, wrong, str(file))
    with file.open("rb") as stream:
        data = stream.read(room + 1)
    if len(data) > room:
        raise OSError(errno.EFBIG, f"with all files before it has more than {_MAX_BYTES >> 20} MiB", str(file))
    # Most files are meshes and textures, which name nothing; searching bytes is a hundred times as fast.
    return data.decode("utf-8", "surrogateescape") if b"file" in data or b"dir" in data else "", len(data)


def _spellings(name: str) -> Iterator[str]:
    for text in (name, html.unescape(name)):
        slashed = text.replace("\\", "/")
        # MuJoCo drops the directories of a name where the compiler's strippath says so.
        yield from (text, slashed, slashed.rpartition("/")[2])
