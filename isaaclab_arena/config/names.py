"""Which job names are safe: a job's name becomes a folder, a file name and a cell of a table."""

import unicodedata
from collections.abc import Iterable

MAX_NAME_CHARACTERS = 80
MAX_NAME_BYTES = 200
RESERVED_NAMES = frozenset(
    {"logs", "attempts", "claims", "launcher", "run.json", "report.html", "results.json"}
    | {
        f"{table}.{kind}"
        for table in ("results", "episodes", "timing", "episode_timing")
        for kind in ("csv", "parquet")
    }
)
"""What an output directory holds beside the folders of its jobs."""

_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def name_problem(name: str) -> str | None:
    """Return why a name is not one safe path component, None where it is.

    Args:
        name: A job's name.
    """
    shown = ascii(name if len(name) <= 40 else name[:37] + "...")
    checks = (
        (not name, "is empty"),
        (name in {".", ".."}, f"{shown} stands for a directory"),
        ("/" in name or "\\" in name, f"{shown} holds a slash; a name is one path component"),
        (any(unicodedata.category(character) == "Cc" for character in name), f"{shown} holds a control character"),
        (any(unicodedata.category(character) in {"Zl", "Zp"} for character in name), f"{shown} holds a line break"),
        (any(character in _BIDIRECTIONAL for character in name), f"{shown} holds a character that turns text around"),
        (any("\ud800" <= character <= "\udfff" for character in name), f"{shown} holds half a character (a surrogate)"),
        (name[:1] in {"-", "."}, f"{shown} begins with '{name[:1]}'"),
        (name != name.strip(), f"{shown} begins or ends with a space"),
        (len(name) > MAX_NAME_CHARACTERS, f"has {len(name)} characters; at most {MAX_NAME_CHARACTERS} are allowed"),
        (_num_bytes(name) > MAX_NAME_BYTES, f"has {_num_bytes(name)} bytes; at most {MAX_NAME_BYTES} are allowed"),
        (folded(name) in RESERVED_NAMES, f"{shown} is the name of a file that every run writes"),
    )
    return next((message for wrong, message in checks if wrong), None)


def folded(name: str) -> str:
    """Return what two names share that a file system may take for one: case and Unicode composition are dropped."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def clashes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each name that an earlier one occupies, with that earlier name, in order."""
    taken: dict[str, str] = {}
    exact: set[str] = set()
    found = []
    for name in names:
        earlier = taken.setdefault(folded(name), name)
        if name in exact:
            found.append((name, name))
        elif earlier != name:
            found.append((name, earlier))
        exact.add(name)
    return found


def _num_bytes(name: str) -> int:
    return len(name.encode("utf-8", errors="surrogatepass"))
