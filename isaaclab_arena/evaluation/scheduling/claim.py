"""One claim on a piece of a job, and the names of the files in which claims are written down."""

from dataclasses import dataclass, replace
from pathlib import Path

from isaaclab_arena.evaluation.scheduling.divided_jobs import DividedJob


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A piece of a job that this rank has claimed.

    Attributes:
        divided: The job.
        piece: Which piece of it.
        generation: How many claims on the piece there were up to this one.
        taken_from: The rank that it was taken over from; None for a piece that nobody had, or where that is unknown.
        committed: Episodes of the job that were committed in this attempt; None where the commit files say.
        suspects: Episodes to run one at a time, and no others of the piece, because ranks died over them; else empty.
    """

    divided: DividedJob
    piece: int
    generation: int = 1
    taken_from: int | None = None
    committed: frozenset[int] | None = None
    suspects: frozenset[int] = frozenset()


def is_taken_over(directory: Path, claim: Claim) -> bool:
    """Whether another rank has claimed the piece after this claim.

    Args:
        directory: Where the claims of the attempt lie.
        claim: The claim.
    """
    return (directory / claim_name(replace(claim, generation=claim.generation + 1))).exists()


def claim_name(claim: Claim) -> str:
    """Return the name of a claim's file."""
    return f"{piece_name(claim)}.g{claim.generation}"


def piece_name(claim: Claim) -> str:
    """Return what the names of all files about a claim's piece begin with."""
    return f"{job_name(claim.divided.index)}_p{claim.piece:05d}"


def job_name(job_index: int) -> str:
    """Return what the names of all files about a job begin with."""
    return f"j{job_index:06d}"
