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

_TURN = threading.RLock()


class OwnGenerators:
    """What Python's, NumPy's and torch's global generators are while one environment acts.

    So what an environment draws from them follows from the seed of its episode, whatever else draws in this process.
    Inside a ``with`` block the generators are the environment's; `others_kept` around it brings back everybody else's.
    NumPy older than 1.24 has one state for a whole process, which is enough for one environment in each.
    """

    def __init__(self) -> None:
        self._numpy: typing.Any = np.random.MT19937(0)
        self._torch: typing.Any = None
        self._python = random.Random(0).getstate()
        self._next = 0

    def __enter__(self) -> OwnGenerators:
        random.setstate(self._python)
        if _PUT_BEHIND_NUMPY is not None:
            _PUT_BEHIND_NUMPY(self._numpy)
        torch = _torch()
        if torch is not None and self._torch is not None:
            torch.default_generator.set_state(self._torch)
        elif torch is not None:
            torch.default_generator.manual_seed(0)
        return self

    def __exit__(self, *raised: object) -> None:
        # Python takes 12 µs to copy its state, and most environments draw nothing from it: one draw tells.
        if random.getrandbits(64) != self._next or _PYTHON.gauss_next != self._python[2]:
            self._keep_python()
        torch = _torch()
        if torch is not None:
            self._torch = torch.default_generator.get_state()

    def seed(self, seed: int) -> None:
        """Begin an episode; to be called inside the ``with`` block."""
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: TID251  for environments that draw from nothing else
        torch = _torch()
        if torch is not None:
            torch.default_generator.manual_seed(seed)

    def _keep_python(self) -> None:
        self._python = random.getstate()
        self._next = random.getrandbits(64)


@contextlib.contextmanager
def others_kept() -> typing.Iterator[None]:
    """Leave the generators as they were to whoever else draws from them, while environments take their turns inside.

    One thread's environments at a time are inside, because there is one set of generators.
    """
    with _TURN:
        python, torch = random.getstate(), _torch()
        numpy = _BEHIND_NUMPY()
        drawn = torch.default_generator.get_state() if torch is not None else None
        try:
            yield
        finally:
            random.setstate(python)
            if _PUT_BEHIND_NUMPY is not None:
                _PUT_BEHIND_NUMPY(numpy)
            if torch is not None:
                torch.default_generator.set_state(drawn)


def _torch() -> typing.Any:
    """Return torch where it is loaded: nothing has drawn from its generator where it is not."""
    return sys.modules.get("torch")
