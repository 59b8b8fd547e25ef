"""Check whether a file that ``torch.save`` wrote is complete, without loading it."""

import zipfile
from pathlib import Path

from isaaclab_arena.plain_files import not_a_plain_file

_ZIP = b"PK\x03\x04"


def is_torch_archive(file: Path) -> bool:
    """Whether a file begins as those of ``torch.save`` since torch 1.6 do: as a ZIP archive."""
    with file.open("rb") as stream:
        return stream.read(len(_ZIP)) == _ZIP


def wrong_with_torch_archive(file: Path) -> str | None:
    """Return why an archive of ``torch.save`` is not complete, None if it is.

    An archive ends with the list of what it holds, so one that is cut off, or still grows, has no such list.
    """
    wrong = not_a_plain_file(file)
    if wrong is not None:
        return wrong
    try:
        with zipfile.ZipFile(file) as archive:
            ends = [each.header_offset + each.compress_size for each in archive.infolist()]
            if any(end > archive.start_dir for end in ends):
                return "is damaged: it holds less than it lists"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return "is not complete: its list of contents is missing"
    return None if ends else "is damaged: it holds nothing"
