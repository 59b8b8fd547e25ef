"""The process-wide random generators, of which each environment of a process has a state of its own."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import typing

import numpy as np

_PYTHON: typing.Any = random.seed.__self__
"""The object behind the functions of `random`."""

_PUT_BEHIND_NUMPY = getattr(np.random, "set_bit_generator", None)
_BEHIND_NUMPY = getattr(np.random, "get_bit_generator", lambda: None)
"""Puts another generator behind the functions of `numpy.random`, and returns it; NumPy 1.24 has both."""


def _behind_torch() -> typing.Any:
    """Return torch's global generator of the CPU, None where torch is not imported."""
    return getattr(sys.modules.get("torch"), "default_generator", None)


class OwnGenerators:
    """What Python's, NumPy's and torch's global generators are while one environment acts, in a ``with`` block.

    So what an environment draws from them follows from the seed of its episode, whatever else draws in this process;
    `others_kept` around the block brings back everybody else's. NumPy older than 1.24 has one state for a whole
    process, which is enough for one environment in each.
    """

    def __init__(self) -> None:
        self._numpy: typing.Any = np.random.MT19937(0)
        self._python = random.Random(0).getstate()
        self._next = 0
        self._torch: typing.Any = None

    def __enter__(self) -> OwnGenerators:
        random.setstate(self._python)
        if _PUT_BEHIND_NUMPY is not None:
            _PUT_BEHIND_NUMPY(self._numpy)
        torch = _behind_torch()
        if torch is not None:
            torch.manual_seed(0) if self._torch is None else torch.set_state(self._torch)
        return self

    def __exit__(self, *raised: object) -> None:
        self._numpy = _BEHIND_NUMPY()
        # To copy Python's state takes longer than a step of a small environment, and hardly any draws from it: what
        # comes next tells, and is not given to anybody.
        if random.getrandbits(64) != self._next or _PYTHON.gauss_next != self._python[2]:
            self._python = random.getstate()
            self._next = random.getrandbits(64)
        torch = _behind_torch()
        if torch is not None:
            self._torch = torch.get_state()

    def seed(self, seed: int) -> None:
        """Begin an episode; to be called inside the ``with`` block."""
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: TID251  for environments that draw from nothing else
        torch = _behind_torch()
        if torch is not None:
            torch.manual_seed(seed)


_OTHERS = [OwnGenerators()]
_TURN = threading.RLock()


@contextlib.contextmanager
def others_kept() -> typing.Iterator[None]:
    """Keep what the generators are outside of environments, which take their turns in a ``with`` block.

    One thread's environments at a time are inside, because there is one set of generators.
    """
    with _TURN:
        # An environment may be made of others.
        others = _OTHERS.pop() if _OTHERS else OwnGenerators()
        others.__exit__()
        try:
            yield
        finally:
            others.__enter__()
            _OTHERS.append(others)
