"""Read a JSON or YAML file strictly: ambiguous content, and content that would change silently, is refused."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

import yaml

from isaaclab_arena.errors import ConfigError, first_line, shortened
from isaaclab_arena.paths import not_a_plain_file

MAX_FILE_BYTES = 64 * 2**20
MAX_DEPTH = 64
MAX_VALUES = 2_000_000

# A larger integer would become infinite as a float.
_LARGEST = 10**308
_MERGE = "tag:yaml.org,2002:merge"


def read_document(path: str | Path, *, python_tags: bool = False) -> Any:
    """Read a JSON or YAML file into plain values with string keys; ConfigError if it is not well formed."""
    # The suffix decides between JSON (``.json``) and YAML (``.yaml``, ``.yml``); for others JSON is tried first. YAML
    # scalars follow the core schema of YAML 1.2: ``no`` is a string, ``010`` is ten. A key that appears twice, NaN,
    # infinity and deep nesting are errors.
    # ``python_tags`` allows Python's own tags such as ``!!python/tuple``. Nothing is imported or built: the tag is
    # dropped, and ``!!python/name:package.Class ''`` becomes the text ``package.Class``.
    file = str(path)
    # Opening a pipe waits for ever, and a device may never end.
    if (wrong := not_a_plain_file(Path(path))) is not None:
        raise ConfigError(wrong, file=file)
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", file=file) from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"is larger than {MAX_FILE_BYTES // 2**20} MiB", file=file)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4]:
        raise ConfigError("is UTF-16 or UTF-32; save it as UTF-8", file=file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 (byte {error.start}); save it as UTF-8", file=file) from error
    if not text.strip():
        raise ConfigError("the file is empty", file=file)

    suffix = Path(path).suffix.lower()
    try:
        if suffix in {".yaml", ".yml"}:
            document = _parse_yaml(text, python_tags=python_tags)
        else:
            try:
                document = _parse_json(text)
            except _RefusedError:
                if suffix == ".json" or text.lstrip().startswith(("{", "[")):
                    raise
                document = _parse_yaml(text)
        _check_values(document)
    except _RefusedError as error:
        raise ConfigError(str(error), file=file) from error
    return document


def read_value(text: str) -> Any:
    """Read a command line word as YAML, else as text; ConfigError if not finite or nested too deep."""
    try:
        value = _parse_yaml(text)
    except _RefusedError:
        return text
    try:
        _check_values(value)
    except _RefusedError as error:
        raise ConfigError(str(error)) from error
    return value


class _RefusedError(ValueError):
    """The text is not a valid document; the message gives the reason."""


def _parse_json(text: str) -> Any:
    def refuse_constant(constant: str) -> NoReturn:
        raise _RefusedError(f"holds {constant}, which is no number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) != len(pairs):
            twice = shortened(_first_repeated(key for key, _ in pairs))
            raise _RefusedError(f"key '{twice}' appears twice in one mapping")
        return mapping

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        before, after = text[: error.pos].rstrip(), text[error.pos :].lstrip()
        hint = error.msg[:1].lower() + error.msg[1:]
        if (before.endswith(",") and after[:1] in {"}", "]"}) or after[:1] == ",":
            hint = "a comma that nothing follows"
        elif after.startswith(("//", "/*", "#")):
            hint = "JSON has no comments; write the file as YAML to have them"
        raise _RefusedError(f"not valid JSON at line {error.lineno}, column {error.colno}: {hint}") from error
    except RecursionError as error:
        raise _RefusedError(f"nested deeper than {MAX_DEPTH} levels") from error
    except _RefusedError:
        raise
    except ValueError as error:  # an integer with more digits than Python converts
        raise _RefusedError("holds a number with too many digits") from error


def _first_repeated(keys: Iterable[str]) -> str:
    """Return the first key that repeats an earlier one, empty if there is none."""
    seen: set[str] = set()
    # Adding to a set returns None.
    return next((key for key in keys if key in seen or seen.add(key)), "")


class _CoreLoader(yaml.CSafeLoader):
    """YAML with the scalars of the 1.2 core schema and without duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, Any]]] = {}  # noqa: RUF012 - PyYAML's own class attribute
    num_merged = 0  # keys that ``<<`` has merged so far


def _flatten(loader: Any, node: Any) -> yaml.MappingNode:
    """Merge the mappings of ``<<`` below a mapping's own keys, and refuse a key that appears twice."""
    line = node.start_mark.line + 1
    if not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
        raise _RefusedError(f"has a key that is no text in the mapping that begins at line {line}")
    merged = [value for key, value in node.value if key.tag == _MERGE]
    own = [(key, value) for key, value in node.value if key.tag != _MERGE]
    if len({key.value for key, _ in own}) != len(own) or len(merged) > 1:
        twice = shortened(_first_repeated(key.value for key, _ in own) or "<<")
        raise _RefusedError(f"key '{twice}' appears twice in the mapping that begins at line {line}")
    # Set the own keys before recursion: a merged mapping may refer to this one.
    node.value = own
    if merged:
        below = merged[0].value if isinstance(merged[0], yaml.SequenceNode) else merged

        # PyYAML keeps hidden pairs, so a few lines that each merge two others double at every level. Here each key
        # stays once, and the mapping's own keys take precedence.
        found: dict[str, Any] = {}
        for mapping in reversed(below):
            if not isinstance(mapping, yaml.MappingNode):
                raise _RefusedError(f"what << names in the mapping that begins at line {line} is no mapping")
            _flatten(loader, mapping)
            loader.num_merged += len(mapping.value)
            if loader.num_merged > MAX_VALUES:
                raise _RefusedError(f"merges more than {MAX_VALUES} keys into mappings (<<)")
            found |= {key.value: (key, value) for key, value in mapping.value}
        found |= {key.value: (key, value) for key, value in own}
        node.value = list(found.values())
    return node


def _construct(loader: _CoreLoader, node: yaml.ScalarNode) -> int | float | bool | str:
    """Return the value of a scalar; ValueError if its tag does not fit, where PyYAML ends in a traceback."""
    text, kind = str(loader.construct_scalar(node)), node.tag.rpartition(":")[2]
    if kind == "int":
        base = {"0x": 16, "0o": 8}.get(text[:2], 10)
        return int(text[2:] if base != 10 else text, base)
    if kind == "float":
        # YAML spells infinity and NaN with a point, Python without.
        text = text.lower()
        return float(text.replace(".", "") if text.endswith(("inf", "nan")) else text)
    if kind == "bool" and text.lower() not in {"true", "false"}:
        raise ValueError(f"'{shortened(text)}' is neither true nor false")
    return text.lower() == "true" if kind == "bool" else text


# The type of an unquoted value follows the core schema of YAML 1.2.
_NUMBER = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
for _kind, _expression, _first_characters in (
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    ("float", _NUMBER, [*"-+0123456789."]),
    ("merge", r"<<", ["<"]),
):
    _pattern = re.compile(f"^(?:{_expression})$")
    _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _pattern, _first_characters)


for _kind in ("int", "float", "bool", "timestamp"):
    _CoreLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _construct)
_CoreLoader.add_constructor(
    "tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(_flatten(loader, node), deep=True)
)


def _parse_yaml(text: str, *, python_tags: bool = False) -> Any:
    """Return the value of YAML; `python_tags` drops Python's own tags first."""
    depth, events = 0, []
    try:
        for event in yaml.parse(text, Loader=yaml.CSafeLoader):
            # The C composer recurses without a limit and would end the process.
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise _RefusedError(f"nested deeper than {MAX_DEPTH} levels")  # noqa: TRY301
            tag = (python_tags and getattr(event, "tag", None)) or ""
            if tag.startswith("tag:yaml.org,2002:python/"):
                if isinstance(event, yaml.ScalarEvent):
                    # The name is the value or, without one, the end of the tag.
                    name = event.value or tag.partition(":python/")[2].partition(":")[2]
                    event = yaml.ScalarEvent(event.anchor, None, (False, True), name, style='"')  # noqa: PLW2901
                else:
                    event.tag, event.implicit = None, True
            events += [event] if python_tags else []
        text = yaml.emit(events, Dumper=yaml.CSafeDumper) if python_tags else text
        return yaml.load(text, Loader=_CoreLoader)  # noqa: S506 - derived from the safe loader
    except yaml.YAMLError as error:
        hint = first_line(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            mark, problem = error.problem_mark, str(error.problem)
            line = [*text.splitlines(), ""][min(mark.line, text.count("\n"))]
            if "\t" in line[: mark.column + 1]:
                problem = "a tab, and YAML is indented with spaces alone"
            elif problem == "but found another document":
                problem = "a second document begins, and a file holds one"
            hint = f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
        raise _RefusedError(f"not valid YAML: {hint}") from error
    except _RefusedError:
        raise
    except RecursionError as error:
        raise _RefusedError(f"nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:
        raise _RefusedError(f"not valid YAML: {error}") from error


def _check_values(document: Any) -> None:
    """Refuse values that the file's format allows and a job cannot have."""
    pending: list[tuple[Any, int]] = [(document, 0)]
    count = 0
    while pending:
        value, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise _RefusedError(f"nested deeper than {MAX_DEPTH} levels")
        if count > MAX_VALUES:
            raise _RefusedError(f"holds more than {MAX_VALUES} values")
        if isinstance(value, float) and not math.isfinite(value):
            raise _RefusedError(f"holds {value}, which is no finite number")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise _RefusedError("holds a number with too many digits")
        if not isinstance(value, dict | list | str | int | float | None):
            raise _RefusedError(f"holds {value}, which is neither text, number, boolean, list nor mapping")
        if isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise _RefusedError(f"has the key {shortened(repr(key))}, which is no text; put it in quotes")
                pending += [(key, depth + 1), (item, depth + 1)]
        elif isinstance(value, list):
            pending.extend((item, depth + 1) for item in value)
        count += 1
