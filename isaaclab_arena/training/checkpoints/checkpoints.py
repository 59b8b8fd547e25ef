"""Reads and writes the checkpoints of a training run: rsl_rl's files, each beside the state that ranks resume from."""

import io
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError, first_line
from isaaclab_arena.models.rsl_rl_checkpoint import read_checkpoint
from isaaclab_arena.models.run_directory import model_path, numbered_checkpoints
from isaaclab_arena.storage.atomic import storage_errors, write_bytes

_LOG = logging.getLogger(__name__)
_KEYS = ("actor_state_dict", "iter")


def state_path(directory: Path, iterations: int) -> Path:
    """Return the file beside a checkpoint that holds generators and environments of all ranks."""
    return directory / f"state_{iterations}.pt"


def write_checkpoint(
    directory: Path,
    learned: Mapping[str, Any],
    rank_states: list[bytes],
    *,
    iterations: int,
    kept: int,
    stays: Callable[[int], bool] = lambda _: False,
) -> Path:
    """Write a checkpoint, complete or not at all, and remove older ones.

    Args:
        directory: Directory of the training run.
        learned: What rsl_rl saves, with ``iter`` and ``infos``.
        rank_states: What each rank goes on from, from `packed`, by rank.
        iterations: Iterations done.
        kept: How many checkpoints stay, the newest ones.
        stays: Whether an older one stays all the same, by its iterations: as a policy, without what ranks go on from.

    Raises:
        StorageError: If it cannot be written.
    """
    path = model_path(directory, iterations)
    states = {
        str(rank): torch.frombuffer(bytearray(state), dtype=torch.uint8) for rank, state in enumerate(rank_states)
    }
    # The model comes last: where there is one, there is what belongs to it.
    write_bytes(state_path(directory, iterations), packed(states), overwrite=True)
    write_bytes(path, packed(learned), overwrite=True)
    found = numbered_checkpoints(directory)
    with storage_errors("remove", directory):
        for older in list(found)[:-kept]:
            if not stays(older):
                found[older].unlink(missing_ok=True)
            state_path(directory, older).unlink(missing_ok=True)
    return path


def read_learned(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds, loaded without running any code of it.

    Raises:
        ConfigError: If it is none from which training can go on, or is damaged.
    """
    content = read_checkpoint(path)
    missing = [key for key in _KEYS if key not in content]
    if missing:
        raise ConfigError(Problem(f"is no checkpoint of rsl_rl: it has no {' and no '.join(missing)}", file=str(path)))
    return dict(content)


def newest_readable(directory: Path) -> tuple[int, dict[str, Any]]:
    """Return the newest checkpoint of a run that is whole, and the iterations it has done.

    Raises:
        StorageError: If none can be read.
    """
    found = numbered_checkpoints(directory)
    for iterations, path in reversed(found.items()):
        try:
            return iterations, read_learned(path)
        except ConfigError as error:
            _LOG.warning("%s; an older one is taken, if there is one", error)
    raise StorageError(f"none of the {len(found)} checkpoints in {directory} can be read")


def read_rank_state(directory: Path, *, iterations: int, rank: int, world_size: int) -> dict[str, Any] | None:
    """Return what a rank goes on from, None where that was not kept, is damaged, or is of another number of ranks."""
    path = state_path(directory, iterations)
    if not path.is_file():
        return None
    try:
        states = read_checkpoint(path)
        if len(states) != world_size:
            return None
        return unpacked(states[str(rank)].numpy().tobytes())
    except (ArenaError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        _LOG.warning("%s is damaged (%s)", path, first_line(error))
        return None


def packed(state: Mapping[str, Any]) -> bytes:
    """Return tensors and plain values as bytes."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def unpacked(content: bytes) -> dict[str, Any]:
    """Return what `packed` was given."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
