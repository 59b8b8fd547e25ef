"""Reads LIBERO's initial states from the files that torch wrote, without torch and without unpickling them."""

from __future__ import annotations

import pathlib
import pickletools
import typing
import zipfile

import numpy as np

MAX_BYTES = 1 << 28
"""Larger files are refused; LIBERO's own have 45 kB."""

_PICKLED = "data.pkl"
_VALUES = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "GLOBAL"}
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO", "FRAME", "STOP"})


class InitStatesError(ValueError):
    """A file does not hold one array of initial states."""


def read_init_states(path: str) -> np.ndarray:
    """Return the initial states of a task. Shape: (num_states, state_dim), float64.

    The file is an archive of torch, or a bare pickle, that holds one array of numbers. It is read as a list of
    instructions, of which only those that describe such an array are followed; no other is carried out.

    Args:
        path: The file.

    Raises:
        InitStatesError: If it holds anything but an array of finite numbers in one or two dimensions.
        OSError: If it cannot be read.
    """
    data = _pickled(path)
    try:
        found = _Description().read(data)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        what = str(error) if isinstance(error, (ValueError, TypeError)) else "it is no pickle, or a torn one"
        message = f"'{path}' holds no array of initial states: {what}; fetch the file again"
        raise InitStatesError(message) from error
    states = np.atleast_2d(found).astype(np.float64)
    if states.ndim != 2 or 0 in states.shape or not np.isfinite(states).all():
        raise InitStatesError(f"'{path}' holds an array of shape {states.shape} or with NaN, and no initial states")
    return states


def _pickled(path: str) -> bytes:
    """Return the pickle in a file, which torch puts into an archive."""
    if not zipfile.is_zipfile(path):
        with pathlib.Path(path).open("rb") as stream:
            return stream.read(MAX_BYTES)
    with zipfile.ZipFile(path) as archive:
        parts = [each for each in archive.infolist() if each.filename.rpartition("/")[2] == _PICKLED]
        if len(parts) != 1 or parts[0].file_size > MAX_BYTES:
            raise InitStatesError(f"'{path}' is an archive without one {_PICKLED} of at most {MAX_BYTES} bytes")
        return archive.read(parts[0])


class _Call(typing.NamedTuple):
    """What a pickle asks to be made, which is not made: a function by its name, and its arguments."""

    name: str
    arguments: tuple


class _Description:
    """Follows the instructions of a pickle as far as they describe one array of numbers."""

    def __init__(self) -> None:
        self._stack: list[typing.Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, typing.Any] = {}
        self._states: dict[int, tuple] = {}
        self._moves: dict[str, typing.Callable[[typing.Any], None]] = {
            "BINPUT": self._keep,
            "LONG_BINPUT": self._keep,
            "MEMOIZE": lambda _: self._keep(len(self._memo)),
            "BINGET": lambda number: self._stack.append(self._memo[number]),
            "LONG_BINGET": lambda number: self._stack.append(self._memo[number]),
            "MARK": lambda _: self._marks.append(len(self._stack)),
            "TUPLE": lambda _: self._gather(len(self._stack) - self._marks.pop(), tuple),
            "STACK_GLOBAL": lambda _: self._gather(2, " ".join),
            "REDUCE": lambda _: self._gather(2, lambda parts: _Call(*parts)),
            "BUILD": self._describe,
        }

    def read(self, data: bytes) -> np.ndarray:
        for opcode, argument, _ in pickletools.genops(data):
            self._follow(opcode.name, argument)
        return self._array(self._stack.pop())

    def _follow(self, name: str, argument: typing.Any) -> None:
        if name in _VALUES:
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            self._gather(_TUPLES[name], tuple)
        elif name in self._moves:
            self._moves[name](argument)
        elif name not in _IGNORED:
            raise ValueError(f"it has a {name}, which no array of numbers needs")

    def _keep(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _gather(self, count: int, make: typing.Callable[[list], typing.Any]) -> None:
        """Put what is made of the last parts in their place."""
        start = len(self._stack) - count
        self._stack[start:] = [make(self._stack[start:])]

    def _describe(self, _: typing.Any) -> None:
        state = self._stack.pop()
        self._states[id(self._stack[-1])] = state

    def _array(self, call: typing.Any) -> np.ndarray:
        name = _called(call)
        if name not in {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}:
            raise ValueError(f"it calls for {name}")
        _, shape, number_type, in_fortran_order, values = self._states[id(call)]
        dtype = self._number_type(number_type)
        order: typing.Literal["F", "C"] = "F" if in_fortran_order else "C"
        return np.frombuffer(self._bytes(values), dtype).reshape(shape, order=order)

    def _number_type(self, call: typing.Any) -> np.dtype:
        if _called(call) != "numpy dtype":
            raise ValueError(f"its numbers are of type {_called(call)}")
        dtype = np.dtype(str(call.arguments[0]))
        if dtype.kind not in "fiu":
            raise ValueError(f"it holds {dtype}, and no numbers")
        return dtype.newbyteorder(">") if self._states[id(call)][1] == ">" else dtype

    def _bytes(self, values: typing.Any) -> bytes:
        # The second version of pickles has no bytes, and writes them as text.
        if isinstance(values, _Call) and values.name == "_codecs encode" and values.arguments[1] == "latin1":
            return values.arguments[0].encode("latin1")
        if not isinstance(values, bytes):
            raise TypeError(f"its values are {_called(values)}")
        return values


def _called(thing: typing.Any) -> str:
    return thing.name if isinstance(thing, _Call) else f"a {type(thing).__name__}"
