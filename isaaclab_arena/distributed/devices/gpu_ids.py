"""Parse ``--gpu_ids``, and select its GPUs among the visible ones. Pure functions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from isaaclab_arena.errors import ConfigError, Problem

OPTION = "--gpu_ids"
_ALL = "all"
_SEPARATORS = re.compile(r"[\s,]+")
_MORE_INDICES = re.compile(r"[\d\s,\[\]]+", re.ASCII)
_NEGATIVE = re.compile(r"-\d+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class GpuSelection:
    """The GPUs of the ranks, one each.

    Attributes:
        ids: Indices or UUIDs as in CUDA_VISIBLE_DEVICES, in the order of the ranks; empty for the CPU.
        note: A note for the user if the choice differs from the request, otherwise None.
    """

    ids: tuple[str, ...]
    note: str | None = None

    @property
    def visible_devices(self) -> str:
        """The value of CUDA_VISIBLE_DEVICES that shows these GPUs and no others."""
        return ",".join(self.ids)

    @property
    def num_processes(self) -> int:
        """The number of ranks: one per GPU, or one on the CPU."""
        return max(1, len(self.ids))


def joined_gpu_ids(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which ``--gpu-ids 0 1`` is one argument, ``--gpu_ids=0 1``; others are unchanged.

    The option takes the next word, and after it only words that must be indices. So a following name of an environment
    or a task is not taken.

    Args:
        arguments: What was typed after the program's name.

    Raises:
        ConfigError: If nothing follows the option.
    """
    joined: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        name, equals, value = argument.partition("=")
        if name.replace("-", "_") != "__gpu_ids":
            joined.append(argument)
            continue
        words = [value]
        if not equals:
            if not waiting or (waiting[0].startswith("-") and not _NEGATIVE.fullmatch(waiting[0])):
                raise ConfigError(Problem("give indices such as 0 1, all or none", key=OPTION))
            words = [waiting.pop(0)]
        while waiting and _MORE_INDICES.fullmatch(words[0]) and _MORE_INDICES.fullmatch(waiting[0]):
            words.append(waiting.pop(0))
        # The value is in lower case, because a command line parser may take the word None for a missing option.
        joined.append(f"{OPTION}={' '.join(words).lower()}")
    return joined


def select_gpus(text: str, *, mask: str | None, visible_gpus: int) -> GpuSelection:
    """Return the GPUs that a value of the option selects among the visible ones.

    Args:
        text: ``0 1``, ``0,1`` or ``[0, 1]``: indices among the visible GPUs; ``all`` of them; ``none`` or nothing for
            the CPU.
        mask: The value of CUDA_VISIBLE_DEVICES, None if it is not set. One that hides every GPU means the CPU, whatever
            is asked for.
        visible_gpus: How many GPUs this process sees with that mask.

    Raises:
        ConfigError: If the value is malformed, names a GPU twice, or one that does not exist.
    """
    indices = _parsed(text)
    if indices == ():
        return GpuSelection(ids=())
    visible = _visible_ids(mask, visible_gpus)
    if not visible and mask is not None and _hides_everything(mask):
        return GpuSelection(ids=(), note=f"CUDA_VISIBLE_DEVICES is '{mask}', so there is one process, on the CPU")
    if indices is None:
        note = None if visible else "no GPU is visible, so there is one process, on the CPU"
        return GpuSelection(ids=visible, note=note)
    beyond = [index for index in indices if index >= len(visible)]
    if beyond:
        raise ConfigError(Problem(f"{_named(beyond)}; {_visible_gpus_in_words(visible, mask)}", key=OPTION))
    return GpuSelection(ids=tuple(visible[index] for index in indices))


def _parsed(text: str) -> tuple[int, ...] | None:
    """Return the indices, an empty tuple for the CPU, None for all GPUs."""
    plain = text.strip().lower()
    if plain in {"", "none"}:
        return ()
    if plain == _ALL:
        return None
    words = [word for word in _SEPARATORS.split(plain.removeprefix("[").removesuffix("]")) if word]
    for word in words:
        if re.fullmatch(r"\d{1,4}", word, re.ASCII) is None:
            raise ConfigError(Problem(f"'{word}' is no GPU index; give some such as 0 1, all or none", key=OPTION))
    indices = tuple(map(int, words))
    twice = sorted({index for index in indices if indices.count(index) > 1})
    if twice:
        raise ConfigError(Problem(f"GPU {twice[0]} is named twice; each rank has one of its own", key=OPTION))
    return indices


def _visible_ids(mask: str | None, visible_gpus: int) -> tuple[str, ...]:
    if mask is None:
        return tuple(map(str, range(visible_gpus)))
    return tuple(entry.strip() for entry in mask.split(",") if entry.strip())[:visible_gpus]


def _hides_everything(mask: str) -> bool:
    entries = [entry.strip() for entry in mask.split(",") if entry.strip()]
    return not entries or entries[0] == "-1"


def _named(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"GPU {indices[0]} does not exist"
    return f"GPUs {', '.join(map(str, indices))} do not exist"


def _visible_gpus_in_words(visible: Sequence[str], mask: str | None) -> str:
    if not visible:
        exists = "no GPU is visible here, leave the option out or give none"
    else:
        exists = "there is 0" if len(visible) == 1 else f"there are 0 to {len(visible) - 1}"
    return exists if mask is None else f"{exists} (CUDA_VISIBLE_DEVICES is '{mask}')"
