"""Nested mappings such as observations, states and documents: walk their leaves, change them, merge two of them."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

_ALWAYS_LEAVES = frozenset({str, int, float, bool, type(None)})
"""Most values of documents have these types, and to compare them is faster than to ask for a mapping."""


def leaves(tree: Any, path: tuple[Any, ...] = (), *, into_lists: bool = False) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield each leaf of nested mappings with its path of keys, in order; lists are leaves unless `into_lists`."""
    if isinstance(tree, Mapping):
        items: Iterable[tuple[Any, Any]] = tree.items()
    elif into_lists and isinstance(tree, list | tuple):
        items = enumerate(tree)
    else:
        yield path, tree
        return
    for key, value in items:
        if value.__class__ in _ALWAYS_LEAVES:
            yield (*path, key), value
        else:
            yield from leaves(value, (*path, key), into_lists=into_lists)


def value_at(tree: Any, path: Iterable[Any], *, otherwise: Any = None) -> Any:
    """Return the value at a path in mappings, ``otherwise`` if the path does not exist."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return otherwise
        tree = tree[key]
    return tree


def set_at(tree: Any, path: Sequence[Any], value: Any) -> None:
    """Set the value at a path in dicts and lists; missing dicts on the way are created."""
    for part in path[:-1]:
        if isinstance(tree, dict) and tree.get(part) is None:
            tree[part] = {}
        tree = tree[part]
    tree[path[-1]] = value


def not_finite(tree: Any) -> list[float]:
    """Return the numbers that are infinite or NaN, in mappings and lists too."""
    values = (value for _, value in leaves(tree, into_lists=True))
    return [value for value in values if isinstance(value, float) and not math.isfinite(value)]


def with_leaves(tree: Any, change: Callable[[Any], Any], *, into_lists: bool = False) -> Any:
    """Return a copy of a tree with every leaf changed; lists are leaves unless `into_lists`."""
    if tree.__class__ in _ALWAYS_LEAVES:
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: with_leaves(value, change, into_lists=into_lists) for key, value in tree.items()}
    if into_lists and isinstance(tree, list):
        return [with_leaves(value, change, into_lists=into_lists) for value in tree]
    return change(tree)


def without_none(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree in new dicts, without the leaves that are None."""
    return {
        key: without_none(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if value is not None
    }


def overlaid(
    below: Mapping[str, Any],
    above: Mapping[str, Any],
    *,
    none_removes: bool = False,
    replaces: Callable[[Mapping[str, Any], Mapping[str, Any]], bool] | None = None,
) -> dict[str, Any]:
    """Merge a mapping over another key by key; other values are replaced, and never shared."""
    # ``none_removes``: None above removes a key below. ``replaces`` decides whether the upper of two mappings replaces
    # the lower instead of a merge.
    result = dict(below)
    for key, value in above.items():
        under = result.get(key)
        if isinstance(value, Mapping) and isinstance(under, Mapping) and not (replaces and replaces(under, value)):
            result[key] = overlaid(under, value, none_removes=none_removes, replaces=replaces)
        elif value is None and none_removes and key in result:
            del result[key]
        else:
            result[key] = with_leaves(value, lambda leaf: leaf)
    return result
