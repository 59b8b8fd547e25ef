"""Checks that all ranks hold the same networks, optimiser state and learning rate."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from isaaclab_arena.distributed.collectives import gather_from_ranks
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.nested import leaves


class OutOfSyncError(ArenaError):
    """Ranks that have to hold the same weights do not; what they learn is worth nothing from here on."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One tensor that is not the same everywhere.

    Attributes:
        tensor: Its name.
        ranks: Ranks that hold something else than most.
    """

    tensor: str
    ranks: tuple[int, ...]


def check_synchrony(state: Mapping[str, Any]) -> None:
    """Compare a state with those of the other ranks; every rank calls it and comes to the same verdict.

    Args:
        state: Nested mappings and lists of tensors and numbers; the same names on every rank.

    Raises:
        OutOfSyncError: If any tensor differs; the message names tensors and ranks.
    """
    digests = named_digests(state)
    # Names first: tensors of another number have no place beside each other.
    names = torch.stack(gather_from_ranks(torch.tensor([_digest(" ".join(digests))], dtype=torch.int64)))
    others = [rank for each in differences(["names"], names) for rank in each.ranks]
    if others:
        raise OutOfSyncError(
            f"the ranks do not learn with the same tensors: rank {', '.join(map(str, others))} has other ones than "
            "most, as if it had begun in another way; start all ranks with the same command"
        )
    held = torch.stack(gather_from_ranks(torch.tensor(list(digests.values()), dtype=torch.int64)))
    found = differences(list(digests), held)
    if found:
        told = "; ".join(f"{each.tensor} of rank {', '.join(map(str, each.ranks))}" for each in found[:5])
        more = f"; and {len(found) - 5} more tensors" if len(found) > 5 else ""
        raise OutOfSyncError(
            f"the ranks have drifted apart: {told}{more} differ from the others; go on from the last checkpoint with "
            "--resume, and look for code that changes weights on some ranks only"
        )


def named_digests(state: Mapping[str, Any]) -> dict[str, int]:
    """Return a 63-bit digest of each tensor and number of a state, by its dotted name."""
    return {
        ".".join(map(str, path)): _digest(value)
        for path, value in leaves(state, into_lists=True)
        if isinstance(value, torch.Tensor | int | float)
    }


def differences(names: list[str], held: torch.Tensor) -> list[Difference]:
    """Return the tensors that are not the same on all ranks, and who differs from most (the lower rank, in a tie).

    Args:
        names: Names of the tensors.
        held: Their digests. Shape: (world_size, number of tensors), int64.
    """
    found = []
    for column, name in enumerate(names):
        digests = held[:, column].tolist()
        common = max(dict.fromkeys(digests), key=digests.count)
        ranks = tuple(rank for rank, digest in enumerate(digests) if digest != common)
        if ranks:
            found.append(Difference(tensor=name, ranks=ranks))
    return found


def _digest(value: torch.Tensor | float | str) -> int:
    content = (
        value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        if isinstance(value, torch.Tensor)
        else repr(value).encode()
    )
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1
