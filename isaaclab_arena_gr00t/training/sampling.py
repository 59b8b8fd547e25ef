"""Choose the samples and random numbers of each rank at each step. Pure functions.

Everything follows from the seed, the rank and the number of the step. So a resumed run draws the same as an
uninterrupted one, and no state of a generator must be saved.
"""

from functools import lru_cache

import numpy as np
import torch

_ORDER, _NOISE, _AUGMENTATION = range(3)


def batch_numbers(step: int, *, rank: int, world_size: int, batch_size: int, num_samples: int, seed: int) -> np.ndarray:
    """Return the samples of one rank's batch. Shape: (batch_size,), int64.

    The samples are shuffled anew for every pass. Ranks take neighbouring pieces of one stream. So two ranks with
    batches of n see together the same as one process with batches of 2 n.

    Args:
        step: Optimiser steps before this one.
        rank: This rank.
        world_size: Number of ranks.
        batch_size: Samples of each rank.
        num_samples: Samples in all.
        seed: Seed of the order.
    """
    first = (step * world_size + rank) * batch_size
    positions = np.arange(first, first + batch_size)
    passes, places = np.divmod(positions, num_samples)
    return np.array([_order(int(turn), num_samples, seed)[place] for turn, place in zip(passes, places, strict=True)])


def noise_generator(step: int, *, rank: int, seed: int) -> torch.Generator:
    """Return the generator of a rank's noise and flow times at one step, on the CPU."""
    return _generator(seed, _NOISE, rank, step)


def augmentation_generator(step: int, *, rank: int, seed: int) -> torch.Generator:
    """Return the generator of a rank's image augmentation at one step, on the CPU."""
    return _generator(seed, _AUGMENTATION, rank, step)


@lru_cache(maxsize=2)
def _order(turn: int, num_samples: int, seed: int) -> np.ndarray:
    stream = np.random.SeedSequence(seed, spawn_key=(_ORDER, turn))
    return np.random.default_rng(stream).permutation(num_samples)


def _generator(*key: int) -> torch.Generator:
    seed, *rest = key
    stream = np.random.SeedSequence(seed, spawn_key=tuple(rest))
    return torch.Generator().manual_seed(int(stream.generate_state(1, np.uint64)[0] >> np.uint64(1)))
