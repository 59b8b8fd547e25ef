"""Parts of small files as messages, in which a rank sends rank 0 what it has written."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from isaaclab_arena.storage.layout import commit_file_name, job_report_file_name, traceback_file_name

MAX_PART_BYTES = 250_000
"""Larger parts would not fit into a message, in which some characters take more room than in the file."""


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """A part of a file in a job's directory.

    Attributes:
        job: Name of the job.
        file: Name of the file.
        offset: Where the part begins [bytes].
        content: The part.
    """

    job: str
    file: str
    offset: int
    content: bytes

    def as_message(self) -> str:
        """Return the part as text; one character stands for each byte, so that a part may begin anywhere."""
        return json.dumps([self.job, self.file, self.offset, self.content.decode("latin-1")], ensure_ascii=False)

    @classmethod
    def of_message(cls, message: str) -> Self:
        """Return the part that a message holds.

        Raises:
            ValueError: If it holds none.
        """
        match json.loads(message):
            case [str(job), str(file), int(offset), str(text)] if offset >= 0:
                return cls(job=job, file=file, offset=offset, content=text.encode("latin-1"))
        raise ValueError("it is no part of a file")


def files_to_send(rank: int) -> Sequence[str]:
    """Return the names of what a rank writes about a job and rank 0 needs, the last one last.

    A run that is resumed needs all files in one directory, so there is only ever the first attempt, in which a rank
    takes each job up once.
    """
    return (commit_file_name(rank), traceback_file_name(rank, attempt=1), job_report_file_name(rank))
