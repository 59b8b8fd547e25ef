"""One rule of a conformance suite, as a test of something of which a test knows how it breaks the rule."""

from collections.abc import Callable
from typing import Any


def rules(suite: type) -> set[str]:
    """Return the names of a suite's rules, without ``test_``."""
    return {name.removeprefix("test_") for name in vars(suite) if name.startswith("test_")}


def rule(suite: type, name: str, **attributes: Any) -> Callable[[], None]:
    """Return a rule as a test of what the attributes of a user's test class name or make."""
    return getattr(type("Conformance", (suite,), attributes)(), f"test_{name}")
