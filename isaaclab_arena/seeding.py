"""Random streams that belong to an episode, never to a process.

A stream is a function of ``(seed, use, episode_index)`` alone. Rank, world size, number of environments and
the order in which episodes finish cannot reach it, so the conditions of an episode are the same wherever and
whenever it runs. Streams are numpy ``SeedSequence`` objects with a spawn key, which needs no counter.
"""

import zlib
from enum import IntEnum

import numpy as np

MAX_SEED = 2**63 - 1


class Stream(IntEnum):
    """What a stream is used for. Values are part of every recorded seed: never renumber them."""

    CONDITIONS = 0
    POLICY = 1
    NOISE = 2
    VARIATION = 3


def episode_seed_sequence(
    seed: int, stream: Stream, episode_index: int, part: str | None = None
) -> np.random.SeedSequence:
    """Return the seed sequence of one use of one episode.

    Args:
        seed: The job's seed, 0 to 2**63 - 1.
        stream: What the numbers are for.
        episode_index: Position of the episode in its job, from 0.
        part: Names one of several independent streams of the same use.
    """
    key = (int(stream), episode_index)
    if part is not None:
        key = (*key, zlib.crc32(part.encode("utf-8")))
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def episode_generator(seed: int, stream: Stream, episode_index: int, part: str | None = None) -> np.random.Generator:
    """Return a fresh generator at the start of one episode's stream; see `episode_seed_sequence`."""
    return np.random.default_rng(episode_seed_sequence(seed, stream, episode_index, part))


def episode_seed(seed: int, stream: Stream, episode_index: int) -> int:
    """Return one 63-bit integer that stands for the stream, for libraries that want a number.

    63 bits, because 100,000 episodes collide in 32 bits.
    """
    high, low = episode_seed_sequence(seed, stream, episode_index).generate_state(2, np.uint32)
    return (int(high) << 32 | int(low)) & MAX_SEED
