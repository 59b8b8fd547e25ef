"""Random streams that belong to an episode, never to a process.

A stream is a function of ``(seed, use, episode_index)`` alone. Rank, world size, number of environments and
the order in which episodes finish cannot reach it, so the conditions of an episode are the same wherever and
whenever it runs. Streams are numpy ``SeedSequence`` objects with a spawn key, which needs no counter.
"""

import zlib
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence

MAX_SEED = 2**63 - 1

_BLOCK_SIZE = 256
"""Episodes whose streams are seeded together: numpy's own seed sequence takes ten times as long, one by one."""

_POOL_SIZE = 4
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
"""Of numpy's seed sequence, which numpy promises never to change."""


class Stream(IntEnum):
    """The use of a stream. Values are part of every recorded seed: never renumber them."""

    CONDITIONS = 0
    POLICY = 1
    NOISE = 2
    VARIATION = 3
    LATENCY = 4


def episode_seed_sequence(
    seed: int, stream: Stream, episode_index: int, part: str | None = None
) -> np.random.SeedSequence:
    """Return the seed sequence of one use of one episode; `part` names one of several independent streams of it."""
    # The seed is 0 to 2**63 - 1, and the episode's index counts from 0 in its job.
    key = (int(stream), episode_index)
    if part is not None:
        key = (*key, zlib.crc32(part.encode("utf-8")))
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def episode_generator(seed: int, stream: Stream, episode_index: int, part: str | None = None) -> np.random.Generator:
    """Return a fresh generator at the start of one episode's stream; see `episode_seed_sequence`."""
    if not 0 <= episode_index <= MAX_SEED:
        raise ValueError(f"an episode's index must be 0 to 2**63 - 1, got {episode_index}")
    block, position = divmod(episode_index, _BLOCK_SIZE)
    words = _words_of_block(seed, stream, block, part)[position]
    sequence: Any = _WithKnownWords(words, (seed, stream, episode_index, part))
    return np.random.Generator(np.random.PCG64(sequence))


class _WithKnownWords(ISpawnableSeedSequence):
    """The seed sequence of an episode, with the PCG64's seed words known: shape (4,), uint64."""

    def __init__(self, words: np.ndarray, arguments: tuple[int, Stream, int, str | None]) -> None:
        self._words = words
        self._arguments = arguments

    @cached_property
    def _sequence(self) -> np.random.SeedSequence:
        return episode_seed_sequence(*self._arguments)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """Return words as numpy's seed sequence does. Shape: (n_words,)."""
        if n_words == len(self._words) and dtype == self._words.dtype:
            return self._words
        return self._sequence.generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Any]:
        """Return new seed sequences as numpy's does."""
        return self._sequence.spawn(n_children)


@lru_cache(maxsize=64)
def _words_of_block(seed: int, stream: Stream, block: int, part: str | None) -> np.ndarray:
    """Return a block's PCG64 seed words, equal to `episode_seed_sequence`'s. Shape: (_BLOCK_SIZE, 4), uint64."""
    first = block * _BLOCK_SIZE
    # numpy mixes the common part of all episodes: four words or more of the seed, and one of the stream.
    pool = np.tile(np.random.SeedSequence(entropy=seed, spawn_key=(int(stream),)).pool, (_BLOCK_SIZE, 1))
    num_mixed = max(_POOL_SIZE, -(-seed.bit_length() // 32)) + 1
    key = [np.arange(_BLOCK_SIZE) + first % 2**32, *([first >> 32] if first >> 32 else [])]
    for word in key if part is None else [*key, zlib.crc32(part.encode("utf-8"))]:
        # Each word is hashed once for each place of the pool, with another factor every time.
        factors = _powers(_INIT_A, _MULT_A, _POOL_SIZE * num_mixed, _POOL_SIZE + 1)
        words = np.broadcast_to(np.asarray(word, np.uint32), _BLOCK_SIZE)[:, None]
        pool = _folded(_MIX_LEFT * pool - _MIX_RIGHT * _folded((words ^ factors[:-1]) * factors[1:]))
        num_mixed += 1
    factors = _powers(_INIT_B, _MULT_B, 0, 2 * _POOL_SIZE + 1)
    halves = _folded((np.tile(pool, 2) ^ factors[:-1]) * factors[1:]).astype(np.uint64)
    known = halves[:, ::2] | halves[:, 1::2] << np.uint64(32)
    known.flags.writeable = False
    return known


def _powers(start: int, factor: int, first: int, count: int) -> np.ndarray:
    """Return ``start`` times consecutive powers of ``factor``, modulo 2**32. Shape: (count,), uint32."""
    return np.array([start * pow(factor, first + each, 2**32) % 2**32 for each in range(count)], np.uint32)


def _folded(words: np.ndarray) -> np.ndarray:
    return words ^ words >> np.uint32(16)


def episode_seed(seed: int, stream: Stream, episode_index: int) -> int:
    """Return one 63-bit integer for the stream, for libraries that want a number; 32 bits would collide."""
    # Among 100,000 episodes, 32 bits would collide.
    high, low = episode_seed_sequence(seed, stream, episode_index).generate_state(2, np.uint32)
    return (int(high) << 32 | int(low)) & MAX_SEED
