"""The checkpoints of a training run: rsl_rl's files, and beside each what training goes on from exactly."""

import io
import json
import logging
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError
from isaaclab_arena.storage.atomic import storage_errors, write_text, written_in_place

_LOG = logging.getLogger(__name__)
BEST = "model_best.pt"
_BEST_SCORE = "model_best.json"
_MODEL = re.compile(r"model_(\d{1,12})\.pt")
_KEYS = ("actor_state_dict", "iter")


@dataclass(frozen=True, kw_only=True)
class Score:
    """How good a checkpoint is: the larger, the better, compared in this order.

    Attributes:
        success_rate: Share of evaluation episodes that succeeded; -1 where success is not measured.
        merit: What tells equals apart. Where success is measured, the mean reward of a control step, because success
            may end an episode, and then the sooner, the smaller the sum; elsewhere the mean sum of rewards.
        iterations: Iterations done.
    """

    success_rate: float
    merit: float
    iterations: int

    def is_better_than(self, other: "Score | None") -> bool:
        """Whether this is better than another one, or than none."""
        if other is None:
            return True
        return (self.success_rate, self.merit) > (other.success_rate, other.merit)


def model_path(folder: Path, iterations: int) -> Path:
    """Return the checkpoint after so many iterations. With that number rsl_rl's own ``load`` goes on right after it."""
    return folder / f"model_{iterations}.pt"


def state_path(folder: Path, iterations: int) -> Path:
    """Return the file beside a checkpoint that holds generators and environments of all ranks."""
    return folder / f"state_{iterations}.pt"


def checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a training run by the iterations done, the newest last."""
    found = {int(match[1]): path for path in folder.glob("model_*.pt") if (match := _MODEL.fullmatch(path.name))}
    return {number: found[number] for number in sorted(found)}


def write_checkpoint(
    folder: Path, learned: Mapping[str, Any], rank_states: list[bytes], *, iterations: int, kept: int
) -> Path:
    """Write a checkpoint, complete or not at all, and remove older ones.

    Args:
        folder: Folder of the training run.
        learned: What rsl_rl saves, with ``iter`` and ``infos``.
        rank_states: What each rank goes on from, from `packed`, by rank.
        iterations: Iterations done.
        kept: How many checkpoints stay, the newest ones.

    Raises:
        StorageError: If it cannot be written.
    """
    path = model_path(folder, iterations)
    states = {
        str(rank): torch.frombuffer(bytearray(state), dtype=torch.uint8) for rank, state in enumerate(rank_states)
    }
    # The model comes last: where there is one, there is what belongs to it.
    _save(states, state_path(folder, iterations))
    _save(dict(learned), path)
    found = checkpoints(folder)
    with storage_errors("remove", folder):
        for older in list(found)[:-kept]:
            found[older].unlink(missing_ok=True)
            state_path(folder, older).unlink(missing_ok=True)
    return path


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds, loaded without running any code of it.

    Raises:
        ConfigError: If it is no checkpoint of rsl_rl.
        StorageError: If it cannot be read.
    """
    content = _load(path)
    missing = [key for key in _KEYS if not isinstance(content, Mapping) or key not in content]
    if missing:
        raise ConfigError(Problem(f"is no checkpoint of rsl_rl: it has no {' and no '.join(missing)}", file=str(path)))
    return dict(content)


def newest_readable(folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the newest checkpoint of a run that is whole, and the iterations it has done.

    Raises:
        StorageError: If none can be read.
    """
    found = checkpoints(folder)
    for iterations, path in reversed(found.items()):
        try:
            return iterations, read_checkpoint(path)
        except StorageError as error:
            _LOG.warning("%s; an older one is taken, if there is one", error)
    raise StorageError(f"none of the {len(found)} checkpoints in {folder} can be read")


def read_rank_state(folder: Path, *, iterations: int, rank: int, world_size: int) -> dict[str, Any] | None:
    """Return what a rank goes on from, None where that was not kept, is damaged, or is of another number of ranks."""
    path = state_path(folder, iterations)
    if not path.is_file():
        return None
    try:
        states = _load(path)
        if len(states) != world_size:
            return None
        return unpacked(states[str(rank)].numpy().tobytes())
    except (ArenaError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        _LOG.warning("%s is damaged (%s)", path, str(error).partition("\n")[0])
        return None


def packed(state: Mapping[str, Any]) -> bytes:
    """Return tensors and plain values as bytes."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def unpacked(content: bytes) -> dict[str, Any]:
    """Return what `packed` was given."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def keep_best(folder: Path, iterations: int, score: Score) -> bool:
    """Keep a checkpoint as the best one if it is better than the best so far; return whether it is.

    Raises:
        StorageError: If it cannot be written.
    """
    if not score.is_better_than(best_score(folder)):
        return False
    with written_in_place(folder / BEST, overwrite=True) as temporary:
        shutil.copyfile(model_path(folder, iterations), temporary)
    write_text(folder / _BEST_SCORE, json.dumps(vars(score), indent=2) + "\n", overwrite=True)
    return True


def best_score(folder: Path) -> Score | None:
    """Return how good the best checkpoint so far is, None where there is none."""
    path = folder / _BEST_SCORE
    if not path.is_file():
        return None
    with storage_errors("read", path):
        return Score(**json.loads(path.read_text(encoding="utf-8")))


def _save(content: Mapping[str, Any], path: Path) -> None:
    with written_in_place(path, overwrite=True) as temporary:
        try:
            torch.save(dict(content), temporary)
        except RuntimeError as error:  # torch's writer has no other word for a full disk
            raise StorageError(f"cannot write {path}: {str(error).partition(chr(10))[0]}") from error


def _load(path: Path) -> Any:
    with storage_errors("read", path):
        # torch's files are zip archives, and what is torn is none: their table of contents comes last.
        if not zipfile.is_zipfile(path):
            raise StorageError(f"cannot read {path}: it is torn, or no checkpoint")
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except UnpicklingError as error:
            raise ConfigError(Problem("holds code, and is not loaded", file=str(path))) from error
        except (RuntimeError, ValueError, KeyError, EOFError) as error:
            raise StorageError(f"cannot read {path}: {str(error).partition(chr(10))[0]}") from error
