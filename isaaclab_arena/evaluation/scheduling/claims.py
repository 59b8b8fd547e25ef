"""Claims on pieces of work: small files that exactly one rank can make, and that outlive whoever made them.

A piece is a name. Its first claim is ``<piece>.g1``; whoever takes it over from a rank that is gone makes the next
generation, ``<piece>.g2``. A rank holds a piece as long as there is no newer generation. Files are made with O_EXCL,
which is safe between machines on NFS too, and need neither a server nor rank 0.
"""

import json
import os
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.scheduling.selection import Measured

_NAME = re.compile(r"(?P<piece>[^.]+)\.(?:g(?P<generation>[1-9][0-9]*)|(?P<mark>done|failed))")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One generation of the claim on a piece.

    Attributes:
        piece: Name of the piece.
        generation: How many claims on the piece there were up to this one.
    """

    piece: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class ClaimNews:
    """What has appeared in the folder since the last look.

    Attributes:
        claims: Claims that were made.
        done: Pieces that were finished.
        failed: Names that were given up.
    """

    claims: tuple[Claim, ...]
    done: tuple[str, ...]
    failed: tuple[str, ...]


class ClaimFolder:
    """The claims of one start of the program, as one rank sees and makes them.

    Args:
        folder: Where they lie, on a disk that all ranks share; it is made if need be.
        rank: The rank that claims.
        run_id: Which start of the program.

    Raises:
        StorageError: If the folder cannot be made. Every method raises it if a file cannot be read or written.
    """

    def __init__(self, folder: Path, *, rank: int, run_id: str) -> None:
        self._folder = folder
        self._rank = rank
        self._run_id = run_id
        self._seen: set[str] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _failed("make", folder, error) from error

    def claim(self, piece: str, *, generation: int = 1) -> Claim | None:
        """Claim a piece for this rank; None if another rank was first.

        Args:
            piece: Name of the piece, without a dot.
            generation: 1 for a piece that nobody has claimed, else one more than that of the claim to take over.
        """
        content = {"rank": self._rank, "run_id": self._run_id, "claimed_at": _now()}
        made = self._create(f"{piece}.g{generation}", content)
        return Claim(piece=piece, generation=generation) if made else None

    def holds(self, claim: Claim) -> bool:
        """Whether nobody has taken the piece over since."""
        return not (self._folder / f"{claim.piece}.g{claim.generation + 1}").exists()

    def owner(self, claim: Claim) -> int | None:
        """Return the rank that made a claim; None if it died, or is still busy, between making and writing the file."""
        content = self._read(f"{claim.piece}.g{claim.generation}")
        rank = content.get("rank")
        return rank if isinstance(rank, int) and content.get("run_id") == self._run_id else None

    def mark_done(self, claim: Claim, measured: Measured) -> None:
        """Say that all of a piece is finished; nothing happens if that was said already."""
        content = {"rank": self._rank, "generation": claim.generation, "done_at": _now(), **asdict(measured)}
        self._create(f"{claim.piece}.done", content)

    def measured(self, piece: str) -> Measured | None:
        """Return what the owner of a finished piece measured, None if that cannot be read."""
        content = self._read(f"{piece}.done")
        try:
            return Measured(
                episodes=int(content["episodes"]),
                env_steps=int(content["env_steps"]),
                seconds=float(content["seconds"]),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def mark_failed(self, name: str) -> None:
        """Say that something is given up, so that nobody else tries it; nothing happens if that was said already."""
        self._create(f"{name}.failed", {"rank": self._rank, "failed_at": _now()})

    def news(self) -> ClaimNews:
        """Return what has appeared since the last call. It lists the whole folder: not for every episode."""
        try:
            names = set(os.listdir(self._folder))  # noqa: PTH208  half the time for 20,000 names
        except OSError as error:
            raise _failed("list", self._folder, error) from error
        fresh = sorted(names - self._seen)
        self._seen |= names
        matches = [match for name in fresh if (match := _NAME.fullmatch(name)) is not None]
        return ClaimNews(
            claims=tuple(
                Claim(piece=match["piece"], generation=int(match["generation"]))
                for match in matches
                if match["generation"] is not None
            ),
            done=tuple(match["piece"] for match in matches if match["mark"] == "done"),
            failed=tuple(match["piece"] for match in matches if match["mark"] == "failed"),
        )

    def _create(self, name: str, content: dict[str, Any]) -> bool:
        path = self._folder / name
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        except OSError as error:
            raise _failed("make", path, error) from error
        try:
            os.write(descriptor, f"{json.dumps(content)}\n".encode())
        except OSError as error:
            raise _failed("write", path, error) from error
        finally:
            os.close(descriptor)
        return True

    def _read(self, name: str) -> dict[str, Any]:
        """Return the content of a file, empty if there is none that makes sense: its maker may have died over it."""
        try:
            content = json.loads((self._folder / name).read_bytes())
        except ValueError:
            return {}
        except OSError as error:
            raise _failed("read", self._folder / name, error) from error
        return content if isinstance(content, dict) else {}


def _failed(doing: str, path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot {doing} {path}: {error.strerror or error}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
