"""Check job names, because a name becomes a directory, a file name and a cell of a table."""

import unicodedata
from collections.abc import Iterable

MAX_NAME_CHARACTERS = 80
MAX_NAME_BYTES = 200
RESERVED_NAMES = frozenset(
    {"logs", "attempts", "claims", "launcher", "run.json", "report.html", "results.json", "verification.json"}
    | {
        f"{table}.{kind}"
        for table in ("results", "suites", "episodes", "timing", "episode_timing")
        for kind in ("csv", "parquet")
    }
)
"""What an output directory holds beside the directories of its jobs."""

# Scripts and emoji need them, though nothing of them is seen: two joiners, and what chooses between two pictures.
_NEEDED = frozenset("\u200c\u200d") | frozenset(map(chr, range(0xFE00, 0xFE10)))
# What is drawn as nothing, or as a blank, though it counts as a letter, a mark or a symbol.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_PAIRS = (
    "\u0410A \u0412B \u0415E \u041aK \u041cM \u041dH \u041eO \u0420P \u0421C \u0422T \u0425X \u0423Y \u0406I \u0405S"
    " \u0408J "
    "\u0430a \u0435e \u043eo \u0440p \u0441c \u0445x \u0443y \u0456i \u0455s \u0458j \u04bbh \u0501d \u043ak "
    "\u0391A \u0392B \u0395E \u0396Z \u0397H \u0399I \u039aK \u039cM \u039dN \u039fO \u03a1P \u03a4T \u03a5Y \u03a7X "
    "\u03b1a \u03b9i \u03bak \u03bdv \u03bfo \u03c1p \u03c5u \u03c7x "
)
_LOOKS_LATIN = {ord(pair[0]): pair[1] for pair in _PAIRS.split()}
"""Letters of Cyrillic and Greek that look like Latin ones."""

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
        (any(map(_is_invisible, name)), f"{shown} holds a character that nobody sees"),
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


def appearance(name: str) -> str:
    """Return what two names share that a reader may take for one: what is not seen is dropped, look-alikes are one."""
    seen = "".join(character for character in name if character not in _NEEDED and not _is_invisible(character))
    return folded(unicodedata.normalize("NFKC", seen).translate(_LOOKS_LATIN))


def clashes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return each name that an earlier one occupies, on a disk or to the eye, with that earlier name, in order."""
    taken: dict[str, str] = {}
    exact: set[str] = set()
    found = []
    for name in names:
        earlier = taken.setdefault(appearance(name), name)
        if name in exact:
            found.append((name, name))
        elif earlier != name:
            found.append((name, earlier))
        exact.add(name)
    return found


def _is_invisible(character: str) -> bool:
    return character in _BLANK or (unicodedata.category(character) == "Cf" and character not in _NEEDED)


def _num_bytes(name: str) -> int:
    return len(name.encode("utf-8", errors="surrogatepass"))
